"""Laguna and Mellum: query and key norms, layers of sliding-window and global attention, many experts.

Laguna has more heads where there is a window, rotates less of each where there is none, and scales what was attended to
by a softplus, which counts as a sigmoid; its experts have a shared one beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Prediction
from .blocks.feed_forward import Experts
from .blocks.fields import attention, decoder, require_false, rotary_dim, sliding_layers
from .blocks.moe import dense, experts, for_each_layer, ignore_router_fields, integers, listed
from .blocks.parts import NormKind, heads_of

_HEAD_DIM: Final = 128
_IGNORED: Final = """
    moe_routed_scaling_factor moe_router_logit_softcapping moe_apply_router_weight_on_input decoder_sparse_step
    mlp_only_layers gating_types
"""


@architecture("laguna")
def build_laguna(config: Section, fmt: Format) -> Graph:
    """Laguna: alternating sliding-window layers with more heads, gated by head; experts beside a shared one."""
    ignore_router_fields(config, *_IGNORED.split())
    require_false(config, "use_bidirectional_attention", "no published model of this architecture sees ahead")
    shared = config.integer("shared_expert_intermediate_size", 512)
    moe = replace(_experts(config, shared), router_bias=True)
    networks = _networks(config, ["dense"] + ["sparse"] * (config.count("num_hidden_layers") - 1))
    unsaid = 0.5 if config.get("rope_parameters") is None else 1.0
    of_head = config.get("gating") in (None, True, "per-head")

    def mixer(num_heads: int, *, slides: bool) -> SelfAttention:
        plain = _attention(config, num_heads, slides=slides, window=512, part=1.0 if slides else unsaid)
        return replace(plain, gates=num_heads if of_head else plain.heads.q_width)

    return _build(config, fmt, mixer, moe, networks)


@architecture("mellum")
def build_mellum(config: Section, fmt: Format) -> Graph:
    """Mellum: alternating sliding-window layers with QK norms, experts in every layer."""
    ignore_router_fields(config)
    networks = _networks(config, ["sparse"] * config.count("num_hidden_layers"))

    def mixer(num_heads: int, *, slides: bool) -> SelfAttention:
        return _attention(config, num_heads, slides=slides, window=1024)

    moe, heads = _experts(config), config.integer("num_attention_heads")
    kinds = config.texts("mtp_layer_types") or ("sliding_attention",)
    network = dense(config) if config.texts("mtp_mlp_layer_types") == ("dense",) else moe
    prediction_layer = Layer(mixer=mixer(heads, slides=kinds[0] == "sliding_attention"), feed_forward=network)
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer)
    return _build(config, fmt, mixer, moe, networks, prediction=prediction)


def _experts(config: Section, shared: int = 0) -> Experts:
    inner = config.integer("moe_intermediate_size")
    return experts(config, "num_experts", "num_experts_per_tok", inner=inner, shared=shared)


def _networks(config: Section, default: list[str]) -> list[str]:
    """Feed-forward network of each layer."""
    return listed(config, "mlp_layer_types", ("dense", "sparse")) or default


def _build(
    config: Section,
    fmt: Format,
    mixer: Callable[..., SelfAttention],
    moe: Experts,
    mlp_layer_types: list[str],
    *,
    prediction: Prediction | None = None,
) -> Graph:
    layers = config.count("num_hidden_layers")
    networks: dict[str, FeedForward] = {"dense": dense(config), "sparse": moe}
    windowed = [False] * layers if config.get("layer_types") is None else sliding_layers(config, pattern=1)
    all_layers = [
        Layer(
            mixer=mixer(heads, slides=slides),
            feed_forward=networks[network],
            name=("local" if slides else "global") + ("_moe" if network == "sparse" else "_dense"),
        )
        for heads, network, slides in zip(_heads(config), mlp_layer_types, windowed, strict=True)
    ]
    return decoder(config, all_layers, prediction=prediction).graph(fmt)


def _heads(config: Section) -> Sequence[int]:
    """Number of heads of each layer."""
    key, num_heads = "num_attention_heads_per_layer", config.integer("num_attention_heads")
    if config.get(key) is None:
        return [num_heads] * config.count("num_hidden_layers")
    head_counts = integers(config, key)
    for_each_layer(config, key, head_counts)
    return head_counts


def _attention(config: Section, num_heads: int, *, slides: bool, window: int, part: float = 1.0) -> SelfAttention:
    layer_config = config.with_data({**config.data, "num_attention_heads": num_heads})
    hidden, kv_heads = config.integer("hidden_size"), config.integer("num_key_value_heads")
    heads = heads_of(layer_config, hidden, "num_attention_heads", num_kv_heads=kv_heads, head_dim=_HEAD_DIM)
    if slides:
        heads = replace(heads, mask=Causal(config.integer("sliding_window", window)))
    kind = "sliding_attention" if slides else "full_attention"
    turned = rotary_dim(config, heads.head_dim, default=part, kind=kind)
    return attention(config, heads, rotary_dim=turned, qk_norm=NormKind.RMS)
