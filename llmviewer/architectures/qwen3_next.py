"""Qwen3-Next and Qwen3.5: gated delta rule in three layers of four, gated attention in the fourth; experts or an MLP.

Before Qwen3.5 stands the tower of Qwen3-VL, none of whose layers goes to the language model but the last.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer, Mixer, Prediction
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import attention, grouped_heads, require_false
from .blocks.moe import checked_top_k
from .blocks.parts import NormKind, activation
from .blocks.state_space import GatedDeltaNet
from .qwen_vl import seeing

_HEAD_DIM = 256


@architecture("qwen3_next")
def build_next(config: Section, fmt: Format) -> Graph:
    """Qwen3-Next: gated DeltaNet 3:1 with gated attention, experts; fused input projections."""
    return _build(config, fmt, fused=True)


@architecture("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
def build(config: Section, fmt: Format) -> Graph:
    """Qwen3.5, dense and MoE: Qwen3-Next's layers with separate input projections, with or without vision."""
    return _build(config, fmt, fused=False)


def _build(config: Section, fmt: Format, *, fused: bool, tied: bool = False) -> Graph:
    """`tied` is whether a config that this one is a part of says so: some files say it in one of the two alone."""
    tied = tied or config.flag("tie_word_embeddings", default=False)
    if "text_config" in config:
        config.ignore(
            "image_token_id",
            "video_token_id",
            "vision_start_token_id",
            "vision_end_token_id",
            "language_model_only",
        )
        return seeing(config, _build(config.section("text_config"), fmt, fused=fused, tied=tied), fmt)
    kinds: dict[str, Mixer] = {
        "linear_attention": delta(config, fused=fused),
        "full_attention": gated_attention(config),
    }
    layers = [
        Layer(mixer=kinds[kind], feed_forward=experts(config) or _mlp(config), name=kind.split("_")[0])
        for kind in _layer_types(config)
    ]
    config.ignore(
        "norm_topk_prob", "router_aux_loss_coef", "output_router_logits", "partial_rotary_factor", "mamba_ssm_dtype",
        "mrope_section", "attn_output_gate", "output_gate_type", "mlp_only_layers",
    )  # fmt: skip
    require_false(config, "mtp_use_dedicated_embeddings", "other embeddings than the model's are not known")
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        layers=layers,
        tied=tied,
        prediction=Prediction.of(
            config,
            "mtp_num_hidden_layers",
            replace(layers[-1], mixer=kinds["full_attention"]),
            default=int(fused),  # the config of Qwen3-Next does not count the one in its checkpoint
        ),
    ).graph(fmt)


def _layer_types(config: Section) -> list[str]:
    """The kind of each layer: as listed, or full attention at every so manieth."""
    listed, layers = config.get("layer_types"), config.count("num_hidden_layers")
    interval = config.integer("full_attention_interval", 4)
    if listed is None:
        return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    known_types = {"linear_attention", "full_attention"}
    if not isinstance(listed, list) or len(listed) != layers or not set(listed) <= known_types:
        raise config.error("layer_types", f"must be a list of {layers} kinds among {', '.join(sorted(known_types))}")
    return listed


def delta(config: Section, *, fused: bool) -> GatedDeltaNet:
    """Gated DeltaNet with the sizes of the config's linear_* fields."""
    return GatedDeltaNet(
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        taps=config.integer("linear_conv_kernel_dim", 4),
        fused=fused,
    )


def gated_attention(config: Section) -> SelfAttention:
    """Grouped-query attention with an output gate, QK norms and a quarter of each head rotated by default."""
    return attention(config, grouped_heads(config, head_dim=_HEAD_DIM), share=0.25, qk_norm=NormKind.RMS, gated=True)


def _mlp(config: Section) -> Mlp:
    return Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "silu"), gated=True)


def experts(config: Section) -> Experts | None:
    """The experts of all layers; None for a dense model."""
    if config.get("num_experts") in (None, 0):
        return None
    if config.get("mlp_only_layers") or config.integer("decoder_sparse_step", 1) != 1:
        raise config.error("mlp_only_layers", "layers without experts are not known for this architecture")
    config.ignore("intermediate_size")
    act = activation(config, "hidden_act", "silu")
    shared = config.integer("shared_expert_intermediate_size", 512)
    return Experts(
        experts=config.integer("num_experts"),
        chosen=checked_top_k(config, "num_experts_per_tok", "num_experts", config.integer("num_experts_per_tok")),
        inner=config.integer("moe_intermediate_size"),
        act=act,
        shared=Mlp(inner=shared, act=act, gated=True),
        shared_gate=True,
    )
