"""gpt-oss: every second layer sees 128 tokens, each head has a sink, and everything has biases (arXiv:2508.10925).

The clamped gate, x sigmoid(1.702 x), counts as SiLU.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._fields import alternating, attention, decoder, grouped_heads, sliding_layers
from ._moe import costless, experts


@architecture("gpt_oss")
def build(config: Section, fmt: Format) -> Graph:
    costless(config, "experts_per_token", "initial_context_length", "swiglu_limit", "swiglu_alpha")
    local, everywhere = _layer(config, config.integer("sliding_window", 128)), _layer(config, inf)
    return decoder(config, alternating(local, everywhere, sliding_layers(config, pattern=2))).graph(fmt)


def _layer(config: Section, window: float) -> Layer:
    mixer = attention(config, grouped_heads(config, window=window), share=1, bias=True, sinks=True)
    moe = experts(config, "num_local_experts", "num_experts_per_tok", inner=config.integer("intermediate_size"))
    return Layer(mixer=mixer, feed_forward=replace(moe, bias=True, router_bias=True), name="moe")
