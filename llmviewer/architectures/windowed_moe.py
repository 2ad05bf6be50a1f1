"""Mixtures of experts with sliding windows in some layers: gpt-oss, Trinity (AFMoE), Flint, Kolibri."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Residual
from .blocks.fields import alternating, attention, decoder, filled, grouped_heads, require_false, sliding_layers
from .blocks.moe import (
    dense,
    experts,
    experts_beside_one,
    experts_beside_shared,
    ignore_router_fields,
    windows_and_experts,
)
from .blocks.parts import NormKind
from .llama import sparse_steps


@architecture("gpt_oss")
def build_gpt_oss(config: Section, fmt: Format) -> Graph:
    """Every second layer attends to 128 tokens, each head has a sink, and everything has biases (arXiv:2508.10925). The
    clamped gate, x sigmoid(1.702 x), counts as SiLU.
    """
    ignore_router_fields(config, "experts_per_token", "initial_context_length", "swiglu_limit", "swiglu_alpha")
    local, everywhere = _gpt_oss_layer(config, config.integer("sliding_window", 128)), _gpt_oss_layer(config, inf)
    return decoder(config, alternating(local, everywhere, sliding_layers(config, pattern=2))).graph(fmt)


def _gpt_oss_layer(config: Section, window: float) -> Layer:
    mixer = attention(config, grouped_heads(config, window=window), share=1, bias=True, sinks=True)
    moe = experts(config, "num_local_experts", "num_experts_per_tok", inner=config.integer("intermediate_size"))
    return Layer(mixer=mixer, feed_forward=replace(moe, bias=True, router_bias=True), name="moe")


@architecture("afmoe")
def build_afmoe(config: Section, fmt: Format) -> Graph:
    """Gated attention with norms on both sides; layers without a window have no positions."""
    ignore_router_fields(
        config, "mup_enabled", "num_expert_groups", "num_limited_groups", "route_norm", "route_scale",
        "score_func", "load_balance_coeff", "use_grouped_mm",
    )  # fmt: skip
    require_false(config, "attention_bias", "biases of this attention are not modelled")
    far = SelfAttention(heads=grouped_heads(config, head_dim=128), qk_norm=NormKind.RMS, gated=True)
    mixers = {True: far.within(config.integer("sliding_window", 1024)), False: far}
    moe = replace(experts_beside_shared(config, "num_experts", default=2), router_bias=True)
    first = config.count("num_dense_layers", 1, least=0)
    pattern = config.integer("global_attn_every_n_layers", 4)
    each = ((slides, index >= first) for index, slides in enumerate(sliding_layers(config, pattern=pattern)))
    layers = windows_and_experts(mixers, {True: moe, False: dense(config)}, each, Residual.SANDWICH)
    return decoder(config, layers).graph(fmt)


@architecture("flint")
def build_flint(config: Section, fmt: Format) -> Graph:
    """Norms of each query and key head, sinks, positions where there is a window, a shared expert beside many."""
    ignore_router_fields(config)
    config = filled(
        config, {"mlp_only_layers": [0, 1], "layer_types": _flint_layer_types(config.count("num_hidden_layers"))}
    )
    heads = grouped_heads(config, kv_heads=4, head_dim=128)
    far = attention(config, heads, rotary_dim=0, qk_norm=NormKind.RMS, sinks=True)
    mixers = {True: far.within(config.integer("sliding_window", 513)), False: far}
    moe = experts_beside_one(config, shared=1024)
    each = zip(sliding_layers(config, pattern=1), sparse_steps(config), strict=True)
    layers = windows_and_experts(mixers, {True: moe, False: dense(config)}, each)
    return decoder(config, layers).graph(fmt)


def _flint_layer_types(layers: int) -> list[str]:
    """Kinds of layers by default: full attention in the first two, every fourth and the last."""
    full = (index < 2 or index % 4 == 1 or index == layers - 1 for index in range(layers))
    return ["full_attention" if is_full else "sliding_attention" for is_full in full]


@architecture("kolibri1")
def build_kolibri1(config: Section, fmt: Format) -> Graph:
    """EXAONE 4's attention, positions where there is a window, norms on both sides, a shared expert beside many."""
    ignore_router_fields(config)
    unrotated = SelfAttention(heads=grouped_heads(config, head_dim=128), qk_norm=NormKind.RMS)
    local = unrotated.within(config.integer("sliding_window", 513))
    moe = experts_beside_one(config, shared=512)
    near, far = (Layer(mixer=mixer, feed_forward=moe, residual=Residual.SANDWICH) for mixer in (local, unrotated))
    return decoder(config, alternating(near, far, sliding_layers(config, pattern=5))).graph(fmt)
