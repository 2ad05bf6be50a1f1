"""Kolibri: EXAONE 4's attention, with windows where there are positions, norms on both sides, and many experts beside a
shared one.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer, Residual
from ._fields import alternating, decoder, grouped_heads, sliding_layers
from ._moe import costless, experts
from ._parts import NormKind


@architecture("kolibri1")
def build(config: Section, fmt: Format) -> Graph:
    costless(config)
    unrotated = SelfAttention(heads=grouped_heads(config, head_dim=128), qk_norm=NormKind.RMS)
    local = unrotated.within(config.integer("sliding_window", 513))
    moe = experts(
        config,
        "num_experts",
        "num_experts_per_tok",
        inner=config.integer("moe_intermediate_size", 512),
        shared=config.integer("shared_expert_intermediate_size", 512),
    )
    near, far = (Layer(mixer=mixer, feed_forward=moe, residual=Residual.SANDWICH) for mixer in (local, unrotated))
    return decoder(config, alternating(near, far, sliding_layers(config, pattern=5))).graph(fmt)
