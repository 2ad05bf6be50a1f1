"""Nanochat: norms that learn nothing, of the embedding too, and of queries and keys; squared ReLU.

Queries and keys are normalized after their rotation, not before, which changes no count.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import decoder, grouped_heads
from ._parts import NormKind, activation


@architecture("nanochat")
def build(config: Section, fmt: Format) -> Graph:
    heads, bias = grouped_heads(config), config.flag("attention_bias", default=False)
    config.costless("final_logit_softcapping")
    attention = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias, o_bias=bias, qk_norm=NormKind.UNIT)
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "relu2"))
    layers = [Layer(mixer=attention, feed_forward=mlp)] * config.integer("num_hidden_layers")
    return decoder(config, layers, norm=NormKind.UNIT, embed_norm=True).graph(fmt)
