"""Nanochat: norms that learn nothing, of the embedding too, and of queries and keys; squared ReLU.

Queries and keys are normalized after their rotation, not before, which changes no count.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import attention, decoder
from ._parts import NormKind, activation


@architecture("nanochat")
def build(config: Section, fmt: Format) -> Graph:
    config.costless("final_logit_softcapping")
    mixer = attention(config, qk_norm=NormKind.UNIT)
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "relu2"))
    layers = [Layer(mixer=mixer, feed_forward=mlp)] * config.integer("num_hidden_layers")
    return decoder(config, layers, norm=NormKind.UNIT, embed_norm=True).graph(fmt)
