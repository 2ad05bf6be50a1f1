"""GLM-4.5 to 4.7, Sarvam 30B, dots.llm1, Solar Open, Hy3 and ERNIE 4.5: grouped queries, dense layers first, shared and
routed experts (arXiv:2508.06471).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Prediction
from .blocks.fields import attention, decoder, without
from .blocks.moe import Kinds, costless, dense, experts, experts_beside_shared, first_dense, sparse_layers
from .blocks.parts import NormKind
from .blocks.tower import filled


@architecture("glm4_moe")
def build_glm4_moe(config: Section, fmt: Format) -> Graph:
    norm = NormKind.RMS if config.flag("use_qk_norm", default=False) else None
    mixer = attention(config, share=0.5, o_bias=False, qk_norm=norm)
    return _graph(config, fmt, mixer, first_dense(config, default=1))


@architecture("sarvam_moe")
def build_sarvam_moe(config: Section, fmt: Format) -> Graph:
    """Sarvam 30B, whose heads are rotated as a whole; use_qkv_bias is attention_bias in its own files."""
    costless(config, "rope_interleave", "moe_router_enable_expert_bias")
    without(config, "use_bias", "biases outside of attention are not modelled")
    config = filled(
        config,
        {"n_shared_experts": 1, "head_dim": 64, "attention_bias": config.get("use_qkv_bias")},
    )
    norm = NormKind.RMS if config.flag("use_qk_norm", default=True) else None
    mixer = attention(config, share=1, o_bias=False, qk_norm=norm)
    return _graph(config, fmt, mixer, first_dense(config, default=1))


@architecture("dots1")
def build_dots1(config: Section, fmt: Format) -> Graph:
    layers = config.count("num_hidden_layers")
    windowed = config.get("sliding_window") is not None and config.integer("max_window_layers", 62) < layers
    if windowed or config.get("layer_types") not in (None, ["full_attention"] * layers):
        raise config.error("sliding_window", "must leave all layers without a window; others are not modelled")
    mixer = attention(config, share=1, qk_norm=NormKind.RMS)
    return _graph(config, fmt, mixer, first_dense(config, default=0))


@architecture("solar_open")
def build_solar_open(config: Section, fmt: Format) -> Graph:
    """Experts in all layers, whatever the config says of dense ones."""
    config.costless("first_k_dense_replace", "intermediate_size", "use_qk_norm")
    layers = config.count("num_hidden_layers")
    return _graph(config, fmt, attention(config, share=1, o_bias=False), [True] * layers)


@architecture("hy_v3")
def build_hy_v3(config: Section, fmt: Format) -> Graph:
    costless(config, "router_scaling_factor", "enable_moe_fp32_combine", "enable_attention_fp32_softmax")
    without(config, "mlp_bias", "biases of these MLPs are not modelled")
    mixer = attention(config, share=1, qk_norm=NormKind.RMS)
    return _graph(config, fmt, mixer, sparse_layers(config, default=1))


def _graph(config: Section, fmt: Format, mixer: SelfAttention, sparse: list[bool]) -> Graph:
    costless(config)
    moe = experts_beside_shared(config, "n_routed_experts", usual=0)
    kinds = Kinds(mixer=mixer, moe=moe, dense=None if all(sparse) else dense(config))
    layers = kinds.layers([*sparse, sparse[-1]])  # the last one predicts further tokens
    prediction = Prediction.of(config, "num_nextn_predict_layers", layers.pop())
    return decoder(config, layers, prediction=prediction).graph(fmt)


@architecture("ernie4_5_moe")
def build_ernie4_5_moe(config: Section, fmt: Format) -> Graph:
    """Experts in a range of layers, two shared ones or none. The correction bias of the router is a parameter, so the
    router has one.
    """
    costless(config, "moe_norm_min", "moe_capacity", "moe_gate", "moe_gate_act", "moe_use_aux_free")
    bias = config.flag("use_bias", default=False)
    if bias:
        raise config.error("use_bias", "must be false; biases of ERNIE 4.5 are not modelled")
    inner = config.integer("moe_intermediate_size")
    shared = config.integer("moe_num_shared_experts", 2, least=0) * inner
    moe = replace(experts(config, "moe_num_experts", "moe_k", inner=inner, shared=shared), router_bias=True)
    kinds = Kinds(mixer=attention(config, share=1, bias=None), moe=moe, dense=dense(config))
    (further,) = kinds.layers([False])  # without a norm before the head, as vLLM has it
    prediction = Prediction.of(config, "num_nextn_predict_layers", further, norm=False)
    return decoder(config, kinds.layers(_ernie_sparse(config)), tied=True, prediction=prediction).graph(fmt)


def _ernie_sparse(config: Section) -> list[bool]:
    """Whether each layer has experts. The last that may is moe_layer_end_index; -1 is the last of all."""
    layers = config.count("num_hidden_layers")
    step = config.integer("moe_layer_interval", 1)
    first = config.integer("moe_layer_start_index", 1, least=0)
    last = config.integer("moe_layer_end_index", -1, least=-1)
    last = layers - 1 if last == -1 else last
    return [first <= index <= last and (index + 1) % step == 0 for index in range(layers)]
