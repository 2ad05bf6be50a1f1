"""Granite 4: Mamba-2 in most layers, attention in some; experts beside a shared MLP, or that MLP alone."""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import FeedForward, Layer, Mixer
from ._feed_forward import Experts, Mlp
from ._fields import attention, decoder
from ._mamba2_fields import mamba2
from ._moe import at_most, costless, for_each_layer
from ._parts import activation

_KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}


@architecture("granitemoehybrid")
def build(config: Section, fmt: Format) -> Graph:
    kinds = _kinds(config)
    mixers: dict[str, Mixer] = {"attention": _attention(config)}
    if "mamba" in kinds:
        mixers["mamba"] = mamba2(config)
    else:
        config.costless(*(key for key in config if key.startswith("mamba_")))
    network = _network(config)
    layers = [Layer(mixer=mixers[kind], feed_forward=network, name=kind) for kind in kinds]
    costless(config, "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
    config.costless("intermediate_size", "normalization_function", "num_logits_to_keep", "init_method")
    return decoder(config, layers).graph(fmt)


def _kinds(config: Section) -> list[str]:
    key = config.first("layer_types", "layers_block_type")
    listed = config.texts(key)
    if not listed:
        return ["mamba"] * config.integer("num_hidden_layers")
    for_each_layer(config, key, listed)
    unknown = [kind for kind in listed if kind not in _KINDS]
    if unknown:
        raise config.error(key, f"must be made of {', '.join(_KINDS)}; got {unknown[0]!r}")
    return [_KINDS[kind] for kind in listed]


def _attention(config: Section) -> SelfAttention:
    rotated = config.get("position_embedding_type") == "rope"  # others of the class have no positions at all
    plain = attention(config)
    return plain if rotated else replace(plain, rotary_dim=0)


def _network(config: Section) -> FeedForward:
    act = activation(config, "hidden_act", "silu")
    shared = Mlp(inner=config.integer("shared_intermediate_size", 1024), act=act, gated=True, fused=True)
    experts = config.integer("num_local_experts", 8, least=0)
    if not experts:
        config.costless("num_experts_per_tok")
        return shared
    chosen = config.integer("num_experts_per_tok", 2)
    return Experts(
        experts=experts,
        chosen=at_most(config, "num_experts_per_tok", "num_local_experts", chosen),
        inner=config.integer("intermediate_size"),
        act=act,
        shared=shared,
    )
