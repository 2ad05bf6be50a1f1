"""Step 3.5: three layers with a sliding window and more heads to one of global attention, gated per head; experts.

Layers of multi-token prediction share embedding and head with the model, as in transformers (MtpModel).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Prediction
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import attention, decoder, require_false, require_true
from .blocks.moe import dense, experts, ignore_router_fields, windows_and_experts
from .blocks.parts import NormKind, heads_of

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_FIRST: Final = 3  # layers without experts, where the config does not list those that have some
_IGNORED: Final = """
    max_seq_len yarn_only_types swiglu_limits swiglu_limits_shared moe_router_scaling_factor moe_router_activation
    norm_expert_weight use_moe use_moe_router_bias need_fp32_gate use_rope_layers query_pre_attn_scalar zero_centered
"""
_PRESENT: Final = ("use_head_wise_attn_gate", "use_qk_norm")


@architecture("step3p5")
def build(config: Section, fmt: Format) -> Graph:
    """Step 3.5: three sliding-window layers with more heads to one global layer, gates of heads, experts."""
    ignore_router_fields(config, *_IGNORED.split())
    config.ignore(
        "n_shared_experts",
        "num_attention_groups",
        "num_key_value_heads",
        "moe_num_experts",
        "moe_top_k",
        "share_expert_dims",
    )
    for key in _PRESENT:
        require_true(config, key, "no published model of this architecture goes without")
    require_false(config, "sink", "sinks of this attention are not known")
    config.choice("att_impl_type", ("GQA",), "GQA")
    layers, prediction_layers = config.count("num_hidden_layers"), config.count("num_nextn_predict_layers", 0, least=0)
    types, sparse = _types(config, layers, prediction_layers), _sparse(config, layers, prediction_layers)
    mixers = {kind == _SLIDING: _attention(config, kind, types) for kind in types}
    networks: dict[bool, FeedForward] = {True: _experts(config)}
    if not all(sparse):
        networks[False] = replace(dense(config), bias=config.flag("mlp_bias", default=False))
    each = zip((kind == _SLIDING for kind in types), sparse, strict=True)
    every = windows_and_experts(mixers, networks, each)
    return decoder(config, every[:layers], prediction=Prediction.each(every[layers:])).graph(fmt)


def _listed(
    config: Section, key: str, known_kinds: tuple[str, str], layers: int, prediction_layers: int
) -> tuple[str, ...]:
    """The kind of each layer and of the `prediction_layers` of multi-token prediction, which may have a list of their
    own; else they are of the last of `known_kinds`.
    """
    kinds, prediction_kinds = config.texts(key), config.texts(f"mtp_{key}")
    if len(kinds) == layers:
        kinds = (*kinds, *(prediction_kinds or known_kinds[-1:] * prediction_layers))
    if len(kinds) != layers + prediction_layers:
        raise config.error(key, f"must have an entry for each of the {layers} layers; got {len(kinds)}")
    if not set(kinds) <= set(known_kinds):
        raise config.error(key, f"must be made of {' and '.join(known_kinds)}")
    return kinds


def _types(config: Section, layers: int, prediction_layers: int) -> tuple[str, ...]:
    if config.get("layer_types") is None:
        return (_FULL,) * (layers + prediction_layers)
    return _listed(config, "layer_types", (_FULL, _SLIDING), layers, prediction_layers)


def _sparse(config: Section, layers: int, prediction_layers: int) -> list[bool]:
    """Whether each layer has experts: as listed, those that moe_layers_enum numbers, or all but the first."""
    if config.get("mlp_layer_types") is not None:
        config.ignore("moe_layers_enum")
        return [
            kind == "sparse"
            for kind in _listed(config, "mlp_layer_types", ("sparse", "dense"), layers, prediction_layers)
        ]
    numbers = config.get("moe_layers_enum")
    if numbers is None:
        first = config.integer("first_k_dense_replace", _FIRST, least=0)
        return [first <= index < layers for index in range(layers + prediction_layers)]
    items = numbers.split(",") if isinstance(numbers, str) else numbers if isinstance(numbers, list) else [""]
    if not all(str(item).strip().isdigit() for item in items):
        raise config.error("moe_layers_enum", f"must be numbers of layers; got {numbers!r}")
    chosen = {int(item) for item in items}
    return [index in chosen for index in range(layers + prediction_layers)]


def _attention(config: Section, kind: str, types: tuple[str, ...]) -> SelfAttention:
    groups = config.integer(config.first("num_attention_groups", "num_key_value_heads"))
    section, key, window = config, "num_attention_heads", inf
    if kind == _SLIDING:
        window = config.integer("sliding_window")
        if config.get("attention_other_setting") is not None:
            section = config.section("attention_other_setting")
            section.ignore("attention_type", "true_head_dim")
            groups = section.integer(section.first("num_attention_groups", "num_key_value_heads"), groups)
        elif config.get("num_sliding_attention_heads") is not None:
            key = "num_sliding_attention_heads"
    heads = heads_of(
        section,
        config.integer("hidden_size"),
        key,
        num_kv_heads=groups,
        head_dim=config.integer("head_dim", 128),
        window=window,
    )
    turned = int(heads.head_dim * _rotated(config, kind, types))
    return attention(config, heads, rotary_dim=turned, qk_norm=NormKind.RMS, gates=heads.num_heads)


def _rotated(config: Section, kind: str, types: tuple[str, ...]) -> float:
    """The share of each head that layers of a kind rotate."""
    parts = config.get("partial_rotary_factors")
    if parts is None:
        return 1.0
    first = types.index(kind)
    if not isinstance(parts, list) or len(parts) <= first or not isinstance(parts[first], int | float):
        raise config.error("partial_rotary_factors", "must be a share from 0 to 1 for each layer")
    if not 0 <= parts[first] <= 1:
        raise config.error("partial_rotary_factors", f"must be a share from 0 to 1; got {parts[first]:g}")
    return float(parts[first])


def _experts(config: Section) -> Experts:
    inner = config.integer("moe_intermediate_size")
    count = config.first("moe_num_experts", "n_routed_experts", "num_experts")
    chosen = config.first("moe_top_k", "num_experts_per_tok")
    plain = experts(config, count, chosen, inner=inner)
    shared = config.integer(config.first("share_expert_dim", "share_expert_dims"))
    bias = config.flag("mlp_bias", default=False)
    return replace(plain, shared=Mlp(inner=shared, act=plain.act, gated=True, bias=bias))
