"""Persimmon: queries and keys with norms of each head, half of each rotated, squared ReLU, biases everywhere."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import decoder, rotary_dim
from ._parts import NormKind, activation, heads_of


@architecture("persimmon")
def build(config: Section, fmt: Format) -> Graph:
    heads = heads_of(config)
    attention = SelfAttention(
        heads=heads,
        rotary_dim=rotary_dim(config, heads.head_dim, default=0.5),
        fused_qkv=True,
        qkv_bias=True,
        o_bias=True,
        qk_norm=NormKind.LAYER if config.flag("qk_layernorm", default=True) else None,
    )
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "relu2"), bias=True)
    layers = [Layer(mixer=attention, feed_forward=mlp)] * config.integer("num_hidden_layers")
    return decoder(config, layers, norm=NormKind.LAYER).graph(fmt)
