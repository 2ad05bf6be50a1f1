"""ERNIE 4.5 with experts: grouped-query attention, and experts in a range of layers."""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.decoder import Prediction
from .blocks.fields import attention, decoder
from .blocks.moe import Kinds, dense, experts, ignore_router_fields


@architecture("ernie4_5_moe")
def build_ernie4_5_moe(config: Section, fmt: Format) -> Graph:
    """Experts in a range of layers, two shared ones or none. The correction bias of the router is a parameter, so the
    router has one.
    """
    ignore_router_fields(config, "moe_norm_min", "moe_capacity", "moe_gate", "moe_gate_act", "moe_use_aux_free")
    bias = config.flag("use_bias", default=False)
    if bias:
        raise config.error("use_bias", "must be false; biases of ERNIE 4.5 are not modelled")
    inner = config.integer("moe_intermediate_size")
    shared = config.integer("moe_num_shared_experts", 2, least=0) * inner
    moe = replace(experts(config, "moe_num_experts", "moe_k", inner=inner, shared=shared), router_bias=True)
    kinds = Kinds(mixer=attention(config, share=1, bias=None), moe=moe, dense=dense(config))
    (prediction_layer,) = kinds.layers([False])  # without a norm before the head, as vLLM has it
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer, norm=False)
    return decoder(config, kinds.layers(_ernie_sparse(config)), tied=True, prediction=prediction).graph(fmt)


def _ernie_sparse(config: Section) -> list[bool]:
    """Whether each layer has experts. The last that may is moe_layer_end_index; -1 is the last of all."""
    layers = config.count("num_hidden_layers")
    step = config.integer("moe_layer_interval", 1)
    first = config.integer("moe_layer_start_index", 1, least=0)
    last = config.integer("moe_layer_end_index", -1, least=-1)
    last = layers - 1 if last == -1 else last
    return [first <= index <= last and (index + 1) % step == 0 for index in range(layers)]
