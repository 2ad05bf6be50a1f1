"""Grok-1: 8 experts of which 2 are chosen, norms before and after attention and experts, a tied head.

Scores are capped at max_attn_value by a tanh, which is not counted.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer, Residual
from ._fields import attention, decoder
from ._moe import costless, experts
from ._parts import activation


@architecture("grok-1")
def build(config: Section, fmt: Format) -> Graph:
    costless(config, "attn_output_multiplier", "embedding_multiplier_scale", "output_multiplier_scale")
    config.costless("max_attn_value")
    moe = experts(config, "num_experts", "num_experts_per_tok", inner=config.integer("intermediate_size"))
    moe = replace(moe, act=activation(config, "hidden_act", "gelu_new"))  # jax.nn.gelu has the tanh
    layer = Layer(mixer=attention(config, share=1, bias=None), feed_forward=moe, residual=Residual.SANDWICH, name="moe")
    return decoder(config, layer, tied=True).graph(fmt)
