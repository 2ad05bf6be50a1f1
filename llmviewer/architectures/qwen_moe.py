"""Qwen's mixtures: Qwen1.5-MoE and Qwen2 with a gated shared expert, Qwen3 with norms of each query and key head
(arXiv:2407.10671, arXiv:2505.09388).
"""

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
from .blocks.fields import always, attention, decoder, grouped_heads, sliding_layers, sliding_window
from .blocks.moe import Kinds, costless, dense, experts, integers
from .blocks.parts import NormKind


@architecture("qwen2_moe")
def build_qwen2_moe(config: Section, fmt: Format) -> Graph:
    """Every second layer below max_window_layers has the window, where there is one, as transformers has it."""
    costless(config)
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


@architecture("qwen3_moe", "qwen3_vl_moe_text")
def build_qwen3_moe(config: Section, fmt: Format) -> Graph:
    costless(config)
    for absent in ("shared_expert_intermediate_size", "qkv_bias"):  # some configs say what they do not have
        if config.get(absent):
            raise config.error(absent, "must be absent, 0 or false: qwen3_moe has no such thing")
    always(config, "use_qk_norm", "qwen3_moe always has the norms")
    window = sliding_window(config, 4096) if config.flag("use_sliding_window", default=False) else inf
    mixer = _windowed(config, window, qk_norm=NormKind.RMS)
    moe = experts(config, "num_experts", "num_experts_per_tok", inner=config.integer("moe_intermediate_size"))
    layers = Kinds(mixer=mixer, moe=moe, dense=dense(config)).layers(sparse_steps(config))
    return decoder(config, layers).graph(fmt)


def sparse_steps(config: Section) -> list[bool]:
    """Whether each layer has experts."""
    step, plain = config.integer("decoder_sparse_step", 1), integers(config, "mlp_only_layers")
    layers = config.count("num_hidden_layers")
    return [index not in plain and (index + 1) % step == 0 for index in range(layers)]


def _windowed(config: Section, window: float, **more: Any) -> SelfAttention:
    return attention(config, grouped_heads(config, window=window), share=1, **more)


def _windows(config: Section) -> list[float]:
    layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window", default=False):
        return [inf] * layers
    window, end = sliding_window(config, 4096), config.integer("max_window_layers", 28, least=0)
    slides = [index % 2 == 0 and index < end for index in range(layers)]
    if config.get("layer_types") is not None:
        slides = sliding_layers(config, pattern=1)
    return [window if slid else inf for slid in slides]
