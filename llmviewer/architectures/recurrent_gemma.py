"""RecurrentGemma (Griffin): two layers of gated linear recurrence to one of sliding-window attention
(arXiv:2404.07839, arXiv:2402.19427).
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Mixer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, rotary_dim
from .blocks.parts import activation
from .blocks.state_space import GatedLinearRecurrence

_KINDS = ("recurrent", "recurrent", "attention")


@architecture("recurrent_gemma")
def build(config: Section, fmt: Format) -> Graph:
    """RecurrentGemma (Griffin): two RG-LRU layers for each layer of sliding-window attention."""
    hidden = config.integer("hidden_size")
    act = activation(config, config.first("hidden_activation", "hidden_act"), "gelu_pytorch_tanh")
    mixers: dict[str, Mixer] = {"recurrent": _recurrent(config, hidden, act), "attention": _attention(config, hidden)}
    inner = config.integer("intermediate_size")
    if inner % 2:
        raise config.error("intermediate_size", f"must be even, as gate and up share it; got {inner}")
    mlp = Mlp(inner=inner // 2, act=act, gated=True, bias=True)
    kinds = config.texts("block_types") or config.texts("_block_types") or _KINDS
    unknown = [kind for kind in kinds if kind not in mixers]
    if unknown:
        raise config.error("block_types", f"must be made of {' and '.join(mixers)}; got {unknown[0]!r}")
    config.ignore(
        "_block_types", "logits_soft_cap", "w_init_variance_scale", "final_w_init_variance_scale",
        "embeddings_scale_by_sqrt_dim", "rotary_emb_base", "hidden_act", "hidden_activation",
    )  # fmt: skip
    layers = [
        Layer(mixer=mixers[kinds[index % len(kinds)]], feed_forward=mlp, name=kinds[index % len(kinds)])
        for index in range(config.count("num_hidden_layers"))
    ]
    return decoder(config, layers, tied=True).graph(fmt)


def _recurrent(config: Section, hidden: int, act: str) -> GatedLinearRecurrence:
    inner, blocks = config.integer("lru_width", hidden), config.integer("num_attention_heads")
    if inner % blocks:
        raise config.error("lru_width", f"must be a multiple of the {blocks} heads; got {inner}")
    return GatedLinearRecurrence(inner=inner, blocks=blocks, taps=config.integer("conv1d_width", 4), act=act)


def _attention(config: Section, hidden: int) -> SelfAttention:
    count = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", count)
    if hidden % count or count % kv_heads:
        raise config.error(
            "num_attention_heads", f"must divide {hidden} and be a multiple of {kv_heads} key-value heads; got {count}"
        )
    config.ignore("head_dim")
    window = Causal(config.integer("attention_window_size", 2048))
    heads = Heads(num_heads=count, num_kv_heads=kv_heads, head_dim=hidden // count, mask=window)
    bias = config.flag("attention_bias", default=False)
    part = rotary_dim(config, heads.head_dim, default=0.5)
    return SelfAttention(heads=heads, rotary_dim=part, qkv_bias=bias, o_bias=True)
