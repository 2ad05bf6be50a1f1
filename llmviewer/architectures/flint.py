"""Flint: queries and keys with norms of each head, sinks, positions where there is a window, many experts beside a
shared one.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._fields import attention, decoder, grouped_heads, sliding_layers
from ._moe import costless, dense, experts, windows_and_experts
from ._parts import NormKind
from ._tower import filled
from .qwen_moe import sparse_steps


@architecture("flint")
def build(config: Section, fmt: Format) -> Graph:
    costless(config)
    config = filled(
        config, {"mlp_only_layers": [0, 1], "layer_types": _layer_types(config.integer("num_hidden_layers"))}
    )
    heads = grouped_heads(config, kv_heads=4, head_dim=128)
    far = attention(config, heads, rotary_dim=0, qk_norm=NormKind.RMS, sinks=True)
    mixers = {True: far.within(config.integer("sliding_window", 513)), False: far}
    moe = experts(
        config,
        "num_experts",
        "num_experts_per_tok",
        inner=config.integer("moe_intermediate_size", 512),
        shared=config.integer("shared_expert_intermediate_size", 1024),
    )
    each = zip(sliding_layers(config, pattern=1), sparse_steps(config), strict=True)
    layers = windows_and_experts(mixers, {True: moe, False: dense(config)}, each)
    return decoder(config, layers).graph(fmt)


def _layer_types(layers: int) -> list[str]:
    """What its class has: the first two layers, every fourth and the last see all."""
    full = (index < 2 or index % 4 == 1 or index == layers - 1 for index in range(layers))
    return ["full_attention" if whole else "sliding_attention" for whole in full]
