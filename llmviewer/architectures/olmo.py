"""OLMo 1 to 3: LLaMA's layers with norms that learn nothing (1), or norms after attention and MLP (2, 3).

OLMo 2 and 3 also normalize queries and keys, all heads together; of OLMo 3 three layers in four have a window
(arXiv:2402.00838, arXiv:2501.00656, arXiv:2512.13961).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer, Residual
from ._fields import alternating, decoder, gated_mlp, grouped_heads, sliding_layers, sliding_window
from ._parts import NormKind

_WINDOW = 4096


@architecture("olmo")
def build_olmo(config: Section, fmt: Format) -> Graph:
    layer = Layer(mixer=_attention(config), feed_forward=gated_mlp(config))
    config.costless("clip_qkv")
    return decoder(config, [layer] * config.integer("num_hidden_layers"), norm=NormKind.PLAIN).graph(fmt)


@architecture("olmo2")
def build_olmo2(config: Section, fmt: Format) -> Graph:
    return decoder(config, [_inner(config)] * config.integer("num_hidden_layers")).graph(fmt)


@architecture("olmo3")
def build_olmo3(config: Section, fmt: Format) -> Graph:
    layers = alternating(
        _inner(config, sliding_window(config, _WINDOW)), _inner(config), sliding_layers(config, pattern=4)
    )
    return decoder(config, layers).graph(fmt)


def _inner(config: Section, window: float | None = None) -> Layer:
    attention = replace(_attention(config), qk_norm=NormKind.RMS, qk_norm_whole=True)
    if window is not None:
        attention = replace(attention, heads=replace(attention.heads, mask=Causal(window)))
    return Layer(mixer=attention, feed_forward=gated_mlp(config), residual=Residual.INNER)


def _attention(config: Section) -> SelfAttention:
    heads, bias = grouped_heads(config), config.flag("attention_bias", default=False)
    return SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias, o_bias=bias)
