"""GLM-4.5 to 4.7 and dots.llm1: grouped queries, dense layers first, shared and routed experts (arXiv:2508.06471).

Layers that predict further tokens (num_nextn_predict_layers) are no part of a pass and not counted.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._fields import decoder
from ._moe import Kinds, attention, costless, dense, experts, first_dense
from ._parts import NormKind


@architecture("glm4_moe")
def build_glm4_moe(config: Section, fmt: Format) -> Graph:
    norm = NormKind.RMS if config.flag("use_qk_norm", default=False) else None
    bias = config.flag("attention_bias", default=False)  # of q, k and v
    mixer = attention(config, rotary_part=0.5, qkv_bias=bias, qk_norm=norm)
    return _graph(config, fmt, mixer, first_dense(config, default=1))


@architecture("dots1")
def build_dots1(config: Section, fmt: Format) -> Graph:
    layers = config.integer("num_hidden_layers")
    windowed = config.get("sliding_window") is not None and config.integer("max_window_layers", 62) < layers
    if windowed or config.get("layer_types") not in (None, ["full_attention"] * layers):
        raise config.error("sliding_window", "must leave all layers without a window; others are not modelled")
    bias = config.flag("attention_bias", default=False)
    mixer = attention(config, qkv_bias=bias, o_bias=bias, qk_norm=NormKind.RMS)
    return _graph(config, fmt, mixer, first_dense(config, default=0))


def _graph(config: Section, fmt: Format, mixer: SelfAttention, sparse: list[bool]) -> Graph:
    costless(config)
    inner = config.integer("moe_intermediate_size")
    shared = config.integer("n_shared_experts", 0, least=0) * inner
    moe = experts(config, "n_routed_experts", "num_experts_per_tok", inner=inner, shared=shared)
    return decoder(config, Kinds(mixer=mixer, moe=moe, dense=dense(config)).layers(sparse)).graph(fmt)
