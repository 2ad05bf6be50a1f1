"""Hy4: latent attention with sinks and gates, to keys selected by the indexer of this layer or an earlier one; several
residual streams that are not mixed; experts.

The layer that predicts a further token reads one stream, and is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import Index, LatentAttention
from .blocks.decoder import FeedForward, Layer
from .blocks.fields import decoder, filled, require_true
from .blocks.hyper_connections import HyperConnections
from .blocks.moe import (
    dense,
    experts_beside_shared,
    ignore_router_fields,
    kinds,
    latent_attention,
    listed,
    listed_sparse,
)

_EVERY: Final = 4  # layers, of which the first one chooses keys, after the very first
_IGNORED: Final = """
    hc_magnitude hc_eps learnable_sink_init swiglu_limit rope_interleave num_key_value_heads head_dim qk_head_dim
    enable_lm_head_fp32 moe_router_dtype
"""
_PRESENT: Final = ("enable_ihc", "learnable_sink", "gated_mla")


@architecture("hy_v4_vl_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """The language model of Hy4 with vision, whose indexers have more heads."""
    return build(filled(config, {"q_lora_rank": 2048, "index_n_heads": 32}), fmt)


@architecture("hy_v4")
def build(config: Section, fmt: Format) -> Graph:
    """Hy4: sparse latent attention with sinks and gates, several residual streams, experts."""
    ignore_router_fields(config, *_IGNORED.split())
    for key in _PRESENT:
        require_true(config, key, "no published model of this architecture goes without")
    config.choice("gating_type", ("elementwise",), "elementwise")
    listed(config, "layer_types", ("indexed_attention", "deepseek_sparse_attention", "sparse_attention"))
    hyper = HyperConnections(streams=config.integer("hc_mult", 4), iterations=0)
    mixers = {has_indexer: _attention(config, has_indexer=has_indexer) for has_indexer in (True, False)}
    moe = experts_beside_shared(config, "n_routed_experts", default=1)
    networks: dict[bool, FeedForward] = {True: moe, False: dense(config)}
    layers = [
        Layer(
            mixer=mixers[has_indexer],
            feed_forward=networks[has_experts],
            hyper=hyper,
            name=("moe" if has_experts else "dense") + ("" if has_indexer else "_shared"),
        )
        for has_indexer, has_experts in zip(_own_index(config), _sparse(config), strict=True)
    ]
    return decoder(config, layers, hyper=hyper).graph(fmt)


def _attention(config: Section, *, has_indexer: bool) -> LatentAttention:
    plain = latent_attention(config, LatentAttention, q_rank=1536, nope_dim=192, value_dim=256)
    chosen = config.integer("index_topk", 2048)
    index = Index(
        num_heads=config.integer("index_n_heads", 16), head_dim=config.integer("index_head_dim", 128), chosen=chosen
    )
    return replace(
        plain,
        index=index if has_indexer else None,
        chosen=0 if has_indexer else chosen,
        gates=plain.num_heads * plain.value_dim,
        sinks=True,
    )


def _own_index(config: Section) -> list[bool]:
    """Whether each layer has an indexer of its own: as listed, or the first, and after it every fourth."""
    if config.get("indexer_types") is None:
        return [index == 0 or index % _EVERY == 1 for index in range(config.count("num_hidden_layers"))]
    has_indexer = [kind == "full" for kind in kinds(config, "indexer_types", ("full", "shared"))]
    if not has_indexer[0]:
        raise config.error("indexer_types", "must give the first layer an indexer of its own; there is none before it")
    return has_indexer


def _sparse(config: Section) -> list[bool]:
    """Whether each layer has experts: as listed, or all but the first."""
    config.ignore("first_k_dense_replace", "moe_layer_freq")
    return listed_sparse(config) or [index > 0 for index in range(config.count("num_hidden_layers"))]
