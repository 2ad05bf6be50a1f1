"""BLOOM: ALiBi positions, LayerNorm after the embedding too, one projection for q, k and v (arXiv:2211.05100)."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import decoder
from ._parts import NormKind, heads_of


@architecture("bloom")
def build(config: Section, fmt: Format) -> Graph:
    hidden = config.integer(config.first("hidden_size", "n_embed"))
    heads = heads_of(config, hidden, config.first("n_head", "num_attention_heads"))
    attention = SelfAttention(heads=heads, alibi=True, fused_qkv=True, qkv_bias=True, o_bias=True)
    layer = Layer(mixer=attention, feed_forward=Mlp(inner=4 * hidden, act="gelu_tanh", bias=True))
    return decoder(
        config,
        [layer] * config.integer(config.first("n_layer", "num_hidden_layers")),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        embed_norm=True,
    ).graph(fmt)
