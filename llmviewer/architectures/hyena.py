"""StripedHyena: Hyena blocks, whose long convolutions are modal recurrences, and layers of attention
(arXiv:2302.10866, arXiv:2310.18780).
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import require_false
from .blocks.moe import integers
from .blocks.parts import activation
from .blocks.recurrent import Hyena


@architecture("stripedhyena")
def build(config: Section, fmt: Format) -> Graph:
    """StripedHyena: Hyena blocks (long convolutions as recurrences) among attention layers."""
    hidden, layers = config.integer("hidden_size", 4096), config.count("num_layers", 32)
    network = Mlp(inner=_inner(config, hidden), act=activation(config, "mlp_activation", "silu"), gated=True)
    hyena = Layer(mixer=_hyena(config, hidden), feed_forward=network, name="hyena")
    attention = Layer(mixer=_attention(config, hidden), feed_forward=network, name="attention")
    attends = integers(config, "attn_layer_idxs")
    missing = set(range(layers)) - {*attends, *integers(config, "hyena_layer_idxs")}
    if missing:
        raise config.error("hyena_layer_idxs", f"must have, with attn_layer_idxs, layer {min(missing)}")
    config.ignore(
        "num_filters", "split_k0", "column_split", "column_split_hyena", "eps", "inference_mode",
        "log_intermediate_values", "make_vocab_size_divisible_by", "model_parallel_size", "pipe_parallel_size",
        "prefill_style", "rotary_emb_base", "rotary_emb_scaling_factor", "use_interpolated_rotary_pos_emb",
        "use_flash_attn", "use_flash_attention_2", "use_flash_rmsnorm", "use_flash_depthwise", "use_flashfft",
        "use_laughing_hyena", "max_seqlen", "max_batch_size", "_commit_hash",
    )  # fmt: skip
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[attention if index in attends else hyena for index in range(layers)],
        tied=config.flag("tie_embeddings", default=False),
        final_norm=config.flag("final_norm", default=True),
    ).graph(fmt)


def _inner(config: Section, hidden: int) -> int:
    """The width of MLPs: 8/3 of the hidden size, rounded up, where the config does not say."""
    multiple = config.integer("inner_size_multiple_of", 64)
    return config.integer("inner_mlp_size", -(-int(8 * hidden / 3) // multiple) * multiple)


def _hyena(config: Section, hidden: int) -> Hyena:
    groups = config.integer("hyena_filter_groups", 1)
    if hidden % groups:
        raise config.error("hyena_filter_groups", f"must divide the hidden size {hidden}; got {groups}")
    return Hyena(
        taps=config.integer("short_filter_length", 3),
        states=config.integer("state_size", 2),
        groups=groups,
        short_bias=config.flag("short_filter_bias", default=True),
    )


def _attention(config: Section, hidden: int) -> SelfAttention:
    """Grouped queries: proj_groups says how many share a key."""
    heads, shared = config.integer("num_attention_heads", 32), config.integer("proj_groups", 1)
    if hidden % heads:
        raise config.error("num_attention_heads", f"must divide the hidden size {hidden}; got {heads}")
    if heads % shared:
        raise config.error("proj_groups", f"must divide the {heads} heads; got {shared}")
    require_false(config, "smeared_gqa", "it is not known for this architecture")
    return SelfAttention(
        heads=Heads(num_heads=heads, num_kv_heads=heads // shared, head_dim=hidden // heads),
        rotary_dim=hidden // heads,
        fused_qkv=True,
        qkv_bias=config.flag("qkv_proj_bias", default=True),
        o_bias=config.flag("mha_out_proj_bias", default=True),
    )
