"""Ling 3.0: Kimi delta attention (arXiv:2510.26692) with latent attention as the last layer of every group, rotary and
gated per head; experts.

Ling 2.5 and 2.6 have the same model_type: lightning attention as Ring-linear 2.0, and latent attention without gates,
as vLLM, models/bailing_moe_linear.py, has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .bailing_moe import NormedLightningAttention, linear_layers, shared_experts
from .blocks.attention import LatentAttention
from .blocks.decoder import FeedForward, Mixer, Prediction
from .blocks.fields import decoder
from .blocks.moe import crossed, dense, first_dense, ignore_router_fields, kinds, latent_attention, sparse_layers
from .blocks.recurrent import Kda

_KDA: Final = "linear_attention"
_MLA: Final = "full_attention"
_CLASSES: Final = ("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM")
_BEFORE: Final = "BailingMoeV2_5ForCausalLM"
_IGNORED: Final = """
    rope_interleave kda_safe_gate kda_lower_bound score_function moe_router_enable_expert_bias router_dtype rotary_dim
    partial_rotary_factor group_norm_size linear_silu max_window_layers mtp_loss_scaling_factor use_qk_norm
    embedding_dropout output_dropout expert_swiglu_limit_list share_expert_swiglu_limit_list num_key_value_heads
    qk_head_dim rotary_type head_dim linear_num_heads linear_conv_kernel_dim
"""
_ABSENT: Final = (
    "use_bias", "use_qkv_bias", "use_kda_lora", "use_mla_nope", "use_nGPT", "value_norm", "up_proj_norm", "mtp_use_kda",
    "scale_router_input", "num_kv_heads_for_linear_attn",
)  # fmt: skip


@architecture("bailing_hybrid")
def build(config: Section, fmt: Format) -> Graph:
    """Ling 3.0: Kimi delta attention and gated latent attention, experts; Ling 2.5 and 2.6: lightning attention."""
    named = config.get("architectures")
    if named == [_BEFORE]:
        return _before(config, fmt)
    if isinstance(named, list) and named and named[0] not in _CLASSES:
        raise config.error(
            "architectures", f"must be {_CLASSES[0]} or {_BEFORE}: others of bailing_hybrid are not known"
        )
    if not config.flag("no_kda_lora", default=False):
        raise config.error("no_kda_lora", "must be true: decays and gates of Ling 3.0 come through one product")
    for key in _ABSENT:
        if config.get(key):
            raise config.error(key, f"is not known for this architecture; got {config.get(key)!r}")
    ignore_router_fields(config, *_IGNORED.split())
    kda = _kda(config, config.integer("num_attention_heads"))
    latent = [kind == _MLA for kind in _layer_types(config)]
    mixers: dict[bool, tuple[str, Mixer]] = {True: ("mla", _attention(config)), False: ("kda", kda)}
    return _graph(config, fmt, mixers, latent, sparse_layers(config, default=2))


def _before(config: Section, fmt: Format) -> Graph:
    """Ling and Ring 2.5 and 2.6."""
    ignore_router_fields(config, *_IGNORED.split())
    linear, attention = NormedLightningAttention.of(config), latent_attention(config, LatentAttention, q_rank=0)
    mixers: dict[bool, tuple[str, Mixer]] = {True: ("mla", attention), False: ("linear", linear)}
    return _graph(config, fmt, mixers, [not is_linear for is_linear in linear_layers(config)], first_dense(config, 0))


def _graph(
    config: Section, fmt: Format, mixers: Mapping[bool, tuple[str, Mixer]], latent: list[bool], sparse: list[bool]
) -> Graph:
    """The graph of layers with the latent mixer or the other one by `latent`, and with experts by `sparse`."""
    networks: dict[bool, tuple[str, FeedForward]] = {
        True: ("sparse", shared_experts(config, 1)),
        False: ("dense", dense(config)),
    }
    *layers, prediction_layer = crossed(mixers, networks, zip([*latent, True], [*sparse, True], strict=True))
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer)
    return decoder(config, layers, prediction=prediction).graph(fmt)


def _layer_types(config: Section) -> list[str]:
    """The kind of each layer: as listed, or latent attention for the last one of each group."""
    if config.get("layer_types") is not None:
        config.ignore("layer_group_size")
        return kinds(config, "layer_types", (_KDA, _MLA))
    layers, group = config.count("num_hidden_layers"), config.integer("layer_group_size")
    if layers % group:
        raise config.error("layer_group_size", f"must divide the {layers} layers; got {group}")
    return [_KDA if (index + 1) % group else _MLA for index in range(layers)]


def _kda(config: Section, heads: int) -> Kda:
    return Kda(
        heads=heads,
        head_dim=config.integer(config.first("linear_head_dim", "head_dim"), 128),
        taps=config.integer("short_conv_kernel_size", 4),
        whole_gate=True,
        whole_decay=True,
    )


def _attention(config: Section) -> LatentAttention:
    plain = latent_attention(config, LatentAttention, q_rank=0)
    gates = {"head_wise": plain.num_heads, "element_wise": plain.num_heads * plain.value_dim}
    return replace(plain, gates=gates[config.choice("gated_attention_proj_granularity_type", gates, "head_wise")])
