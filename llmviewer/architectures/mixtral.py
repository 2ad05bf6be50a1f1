"""Mixtral and models of its form: every layer has experts, which intermediate_size makes wide (arXiv:2401.04088).

Phi-3.5-MoE has LayerNorm and biases (arXiv:2404.14219), OLMoE norms all queries and keys together (arXiv:2409.02060),
MiniMax-M2 does too and rotates half of each head, Granite 3 ties its head and may have a shared expert.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Experts
from ._fields import attention, decoder, grouped_heads, rotated, sliding_window
from ._moe import Kinds, costless, experts
from ._parts import NormKind
from .llama_like import granite_swa


@architecture("mixtral")
def build_mixtral(config: Section, fmt: Format) -> Graph:
    costless(config)
    kinds = Kinds(mixer=_windowed(config, bias=None), moe=_experts(config, "num_local_experts"))
    return decoder(config, _all_sparse(config, kinds)).graph(fmt)


@architecture("phimoe")
def build_phimoe(config: Section, fmt: Format) -> Graph:
    costless(config)
    layers = _all_sparse(config, Kinds(mixer=_windowed(config), moe=_experts(config, "num_local_experts")))
    made = decoder(config, layers, norm=NormKind.LAYER)
    return replace(made, head_bias=config.flag("lm_head_bias", default=False)).graph(fmt)


@architecture("olmoe")
def build_olmoe(config: Section, fmt: Format) -> Graph:
    costless(config, "clip_qkv")
    mixer = attention(config, share=1, qk_norm=NormKind.RMS, qk_norm_whole=True)
    kinds = Kinds(mixer=mixer, moe=_experts(config, "num_experts"))
    return decoder(config, _all_sparse(config, kinds)).graph(fmt)


@architecture("minimax_m2")
def build_minimax_m2(config: Section, fmt: Format) -> Graph:
    """All layers attend to all tokens; configs that list the kinds of their attention say so with ones."""
    costless(config)
    if set(config.get("attn_type_list") or [1]) != {1}:
        raise config.error("attn_type_list", "must be ones, for softmax attention; linear attention is not modelled")
    if config.integer("shared_intermediate_size", 0, least=0):
        raise config.error("shared_intermediate_size", "must be 0: minimax_m2 has no shared expert")
    config.choice("qk_norm_type", ("per_layer",), "per_layer")
    norm = NormKind.RMS if config.flag("use_qk_norm", default=True) else None
    head_dim = grouped_heads(config).head_dim
    part = rotated(config, head_dim) / head_dim
    mixer = attention(config, share=part, bias=None, qk_norm=norm, qk_norm_whole=True)
    kinds = Kinds(mixer=mixer, moe=_experts(config, "num_local_experts"))
    return decoder(config, _all_sparse(config, kinds)).graph(fmt)


@architecture("granitemoe", "granitemoeshared")
def build_granitemoe(config: Section, fmt: Format) -> Graph:
    costless(config, "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
    mixer = attention(config, share=1)
    return decoder(config, _all_sparse(config, Kinds(mixer=mixer, moe=_granite_experts(config)))).graph(fmt)


@architecture("granitemoe_swa")
def build_granitemoe_swa(config: Section, fmt: Format) -> Graph:
    costless(config)
    return granite_swa(config, fmt, _granite_experts(config), tied=False)


def _windowed(config: Section, *, bias: bool | None = False) -> SelfAttention:
    return attention(config, grouped_heads(config, window=sliding_window(config)), share=1, bias=bias)


def _granite_experts(config: Section) -> Experts:
    return _experts(config, "num_local_experts", shared="shared_intermediate_size")


def _experts(config: Section, count: str, shared: str = "") -> Experts:
    width = config.integer(shared, 0, least=0) if shared else 0
    inner = config.integer("intermediate_size")
    return experts(config, count, "num_experts_per_tok", inner=inner, shared=width)


def _all_sparse(config: Section, kinds: Kinds) -> list[Layer]:
    return kinds.layers([True] * config.integer("num_hidden_layers"))
