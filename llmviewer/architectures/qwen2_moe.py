"""Qwen1.5-MoE and Qwen2-MoE: experts with a gated shared expert (arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.fields import attention, decoder, grouped_heads, sliding_layers, sliding_window
from .blocks.moe import Kinds, dense, experts, ignore_router_fields
from .llama import sparse_steps


@architecture("qwen2_moe")
def build_qwen2_moe(config: Section, fmt: Format) -> Graph:
    """Every second layer below max_window_layers has the window, where there is one, as transformers has it."""
    ignore_router_fields(config)
    shared = config.integer("shared_expert_intermediate_size")
    moe = experts(
        config, "num_experts", "num_experts_per_tok", inner=config.integer("moe_intermediate_size"), shared=shared
    )
    moe = replace(moe, shared_gate=True)
    bias = config.flag("qkv_bias", default=True)
    sparse = sparse_steps(config)
    layers: list[Layer] = []
    for index, window in enumerate(_windows(config)):
        kinds = Kinds(mixer=_windowed(config, window, bias=None, qkv_bias=bias), moe=moe, dense=dense(config))
        (layer,) = kinds.layers(sparse[index : index + 1])
        layers.append(replace(layer, name=f"local_{layer.name}") if window < inf else layer)
    return decoder(config, layers).graph(fmt)


def _windowed(config: Section, window: float, **options: Any) -> SelfAttention:
    return attention(config, grouped_heads(config, window=window), share=1, **options)


def _windows(config: Section) -> list[float]:
    layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window", default=False):
        return [inf] * layers
    window, end = sliding_window(config, 4096), config.integer("max_window_layers", 28, least=0)
    slides = [index % 2 == 0 and index < end for index in range(layers)]
    if config.get("layer_types") is not None:
        slides = sliding_layers(config, pattern=1)
    return [window if slid else inf for slid in slides]
