"""Mixtures of experts near Mixtral that no row of `llama.FAMILIES` describes: MiniMax-M2, Granite with windows,
Hunyuan, DBRX.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.borrowed import BorrowedAttention
from .blocks.decoder import Layer, Prediction
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import attention, decoder, grouped_heads, rotated
from .blocks.moe import Kinds, checked_top_k, experts, for_each_layer, ignore_router_fields, integers
from .blocks.parts import NormKind, activation, heads_of
from .llama_like import granite_swa


@architecture("minimax_m2")
def build_minimax_m2(config: Section, fmt: Format) -> Graph:
    """All layers attend to all tokens; configs that list the kinds of their attention say so with ones."""
    ignore_router_fields(config)
    if set(integers(config, "attn_type_list")) - {1}:
        raise config.error("attn_type_list", "must be ones, for softmax attention; linear attention is not modelled")
    if config.integer("shared_intermediate_size", 0, least=0):
        raise config.error("shared_intermediate_size", "must be 0: minimax_m2 has no shared expert")
    config.choice("qk_norm_type", ("per_layer",), "per_layer")
    norm = NormKind.RMS if config.flag("use_qk_norm", default=True) else None
    head_dim = grouped_heads(config).head_dim
    part = rotated(config, head_dim) / head_dim
    mixer = attention(config, share=part, bias=None, qk_norm=norm, qk_norm_whole=True)
    layers = _all_sparse(config, Kinds(mixer=mixer, moe=_experts(config, "num_local_experts")))
    return decoder(config, layers, prediction=_minimax_prediction(config, layers[-1])).graph(fmt)


def _minimax_prediction(config: Section, layer: Layer) -> Prediction | None:
    """Modules of multi-token prediction, if use_mtp says that there are any; each has one layer."""
    if not config.flag("use_mtp", default=True):
        return None
    if config.count("mtp_transformer_layers", 1) != 1:
        raise config.error("mtp_transformer_layers", f"must be 1; got {config.integer('mtp_transformer_layers')}")
    return Prediction.of(config, "num_mtp_modules", layer)


@architecture("granitemoe_swa")
def build_granitemoe_swa(config: Section, fmt: Format) -> Graph:
    """Granite MoE with sliding-window layers."""
    ignore_router_fields(config)
    return granite_swa(config, fmt, _granite_experts(config), tied=False)


def _granite_experts(config: Section) -> Experts:
    return _experts(config, "num_local_experts", shared="shared_intermediate_size")


def _experts(config: Section, count: str, shared: str = "") -> Experts:
    width = config.integer(shared, 0, least=0) if shared else 0
    inner = config.integer("intermediate_size")
    return experts(config, count, "num_experts_per_tok", inner=inner, shared=width)


def _all_sparse(config: Section, kinds: Kinds) -> list[Layer]:
    return kinds.layers([True] * config.count("num_hidden_layers"))


@architecture("hunyuan_v1_moe", "hunyuan")
def build_hunyuan_v1_moe(config: Section, fmt: Format) -> Graph:
    """Hunyuan-A13B and Hunyuan-Large: a shared expert, and norms of queries and keys. Fields that may differ by layer
    are numbers, or lists with one for each. With cross-layer attention (arXiv:2411.02265, section 2.3.2), the first of
    so many layers has keys and values for all of them.
    """
    ignore_router_fields(config, "eod_token_id", "attention_head_dim", "use_mixed_mlp_moe", "cla_share_factor")
    for flag in ("use_mla", "mlp_bias"):
        if config.flag(flag, default=False):
            raise config.error(flag, "must be false; it is not modelled")
    if config.integer("moe_layer_num_skipped", 0, least=0):
        raise config.error("moe_layer_num_skipped", "must be 0: every layer has experts")
    norm = NormKind.RMS if config.flag("use_qk_norm", default=True) else None
    mixer = attention(config, share=1, qk_norm=norm)
    act, count = activation(config, "hidden_act", "silu"), config.integer("num_experts")
    chosen, inner, shared = (
        _each(config, key, default)
        for key, default in (
            ("moe_topk", 1),
            ("moe_intermediate_size", config.integer("intermediate_size")),
            ("num_shared_expert", 1),
        )
    )
    every = config.integer("cla_share_factor", 1) if config.flag("use_cla", default=False) else 1
    borrowing = BorrowedAttention(heads=mixer.heads, rotary_dim=mixer.rotary_dim, qk_norm=norm, o_bias=mixer.o_bias)
    layers = [
        Layer(
            mixer=borrowing if index % every else mixer,
            feed_forward=Experts(
                experts=count,
                chosen=checked_top_k(config, "moe_topk", "num_experts", chosen[index]),
                inner=inner[index],
                act=act,
                shared=Mlp(inner=shared[index] * config.integer("intermediate_size"), act=act, gated=True),
            ),
            name="borrowing" if index % every else "moe",
        )
        for index in range(config.count("num_hidden_layers"))
    ]
    return decoder(config, layers).graph(fmt)


def _each(config: Section, key: str, default: int) -> tuple[int, ...]:
    """The field of each layer."""
    if not isinstance(config.get(key), list):
        return (config.integer(key, default),) * config.count("num_hidden_layers")
    numbers = integers(config, key)
    for_each_layer(config, key, numbers)
    if min(numbers) < 1:
        raise config.error(key, f"must be at least 1 in every layer; got {min(numbers)}")
    return numbers


@architecture("dbrx")
def build_dbrx(config: Section, fmt: Format) -> Graph:
    """DBRX: fused q, k and v, LayerNorm without biases; attn_config and ffn_config have the sizes."""
    ignore_router_fields(config, "max_seq_len", "emb_pdrop")
    hidden, attn = config.integer("d_model"), config.section("attn_config")
    attn.ignore("clip_qkv")
    heads = heads_of(config, hidden, "n_heads", num_kv_heads=attn.integer("kv_n_heads", 1))
    mixer = SelfAttention(heads=heads, rotary_dim=heads.head_dim, fused_qkv=True)
    return decoder(
        config,
        [Layer(mixer=mixer, feed_forward=_dbrx_experts(config), name="moe")] * config.count("n_layers"),
        hidden=hidden,
        norm=NormKind.LAYER_NO_BIAS,
    ).graph(fmt)


def _dbrx_experts(config: Section) -> Experts:
    ffn = config.section("ffn_config")
    ffn.ignore("moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment")
    return Experts(
        experts=ffn.integer("moe_num_experts"),
        chosen=checked_top_k(ffn, "moe_top_k", "moe_num_experts", ffn.integer("moe_top_k")),
        inner=ffn.integer("ffn_hidden_size"),
        act="silu" if ffn.get("ffn_act_fn") is None else activation(ffn.section("ffn_act_fn"), "name", "silu"),
    )
