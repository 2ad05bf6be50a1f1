"""Kimi Linear: three layers of Kimi delta attention to one of latent attention, experts (arXiv:2510.26692). Kimi K3
adds attention residuals (arXiv:2603.15031), gated attention and experts in a latent space (arXiv:2607.24653).

Latent attention has no positions here: the part of queries and keys that others rotate is there, and is left as it is.
Configs come in two dialects, that of the checkpoint and that of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Rope
from ..operators.linear import Linear
from ..precision import Format
from . import architecture
from .blocks.attention import LatentAttention
from .blocks.attention_residuals import sourced
from .blocks.decoder import FeedForward, Layer, Mixer
from .blocks.feed_forward import Experts
from .blocks.fields import decoder, filled, require_true
from .blocks.moe import (
    dense,
    experts_beside_shared,
    first_dense,
    ignore_router_fields,
    integers,
    latent_attention,
    listed,
)
from .blocks.parts import Parts
from .blocks.recurrent import Kda

_KINDS = ("linear_attention", "full_attention")
_NETWORKS = ("dense", "sparse")


class UnrotatedLatentAttention(LatentAttention):
    """Latent attention without the rotation: what it would rotate goes straight to the scores and to the cache."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches = super().operators(parts, x)
        rope = next(op for op in launches if isinstance(op, Rope))
        straight = {rope.result.name: rope.inputs[0], rope.inputs[1].name: rope.outputs[1]}
        return tuple(op.with_tensors(lambda t: straight.get(t.name, t)) for op in launches if op is not rope)


class LatentExperts(Experts):
    """Experts in a latent space, whose ways there and back checkpoints in four bits leave as they are."""

    def operators(self, parts: Parts, x: Tensor, router_input: Tensor | None = None) -> tuple[Operator, ...]:
        launches = super().operators(parts, x, router_input)
        return tuple(
            replace(op, left_as_published=True) if isinstance(op, Linear) and "latent" in op.name else op
            for op in launches
        )


@architecture("kimi_linear")
def build(config: Section, fmt: Format) -> Graph:
    """Kimi Linear and K3's language model: Kimi delta attention 3:1 with latent attention, experts."""
    ignore_router_fields(
        config, "moe_renormalize", "moe_router_activation_func", "num_expert_group", "use_grouped_topk"
    )
    # Keys and values are expanded for every head, and heads are as wide as their parts.
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    if config.get("hidden_act") == "situ":
        config.ignore("activation_situ_beta")
        config.number("activation_situ_linear_beta")  # where it is missing, what the gate scales is not bounded
    require_true(config, "mla_use_nope", "transformers knows no rotation for this architecture")
    mixers: dict[str, Mixer] = {"linear_attention": _kda(config), "full_attention": _attention(config)}
    networks: dict[str, FeedForward] = {"dense": dense(config), "sparse": _experts(config)}
    layers = [
        Layer(mixer=mixers[kind], feed_forward=networks[network], name=f"{_name(kind)}_{network}")
        for kind, network in zip(_layer_types(config), _mlp_layer_types(config), strict=True)
    ]
    untied = filled(config, instead={"tie_word_embeddings": False})  # its class ties nothing, whatever that says
    plain, run = decoder(untied, layers), config.integer("attn_res_block_size", 0, least=0)
    return (sourced(plain, run) if run else plain).graph(fmt)


def _name(kind: str) -> str:
    return "kda" if kind == "linear_attention" else "mla"


def _kda(config: Section) -> Kda:
    if config.get("linear_attn_config") is None:
        return Kda(
            heads=config.integer("linear_num_heads", 32),
            head_dim=config.integer("linear_head_dim", 128),
            taps=config.integer("linear_conv_kernel_dim", 4),
        )
    linear = config.section("linear_attn_config")
    linear.ignore("gate_lower_bound")
    config.ignore("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")  # the section goes before them
    return Kda(
        heads=linear.integer("num_heads", config.integer("linear_num_heads", 32)),
        head_dim=linear.integer("head_dim", config.integer("linear_head_dim", 128)),
        taps=linear.integer("short_conv_kernel_size", config.integer("linear_conv_kernel_dim", 4)),
        whole_gate=linear.flag("use_full_rank_gate", default=False),
    )


def _layer_types(config: Section) -> Sequence[str]:
    """The kind of each layer: as listed, or numbered from 1 in the checkpoint's dialect, or the class's default."""
    layers = config.count("num_hidden_layers")
    if layer_types := listed(config, "layer_types", _KINDS):
        return layer_types
    if config.get("linear_attn_config") is None:
        return [_KINDS[bool(index) and index % 4 == 0] for index in range(layers)]
    linear = config.section("linear_attn_config")
    full, kda = integers(linear, "full_attn_layers"), integers(linear, "kda_layers")
    if sorted((*full, *kda)) != list(range(1, layers + 1)):
        raise linear.error("full_attn_layers", f"must be, with kda_layers, each of 1 to {layers} once")
    return [_KINDS[number in full] for number in range(1, layers + 1)]


def _mlp_layer_types(config: Section) -> Sequence[str]:
    layer_types = listed(config, "mlp_layer_types", _NETWORKS)
    return layer_types or [_NETWORKS[sparse] for sparse in first_dense(config, default=1)]


def _attention(config: Section) -> UnrotatedLatentAttention:
    plain = latent_attention(config, UnrotatedLatentAttention, q_rank=0)
    gated = config.flag("mla_use_output_gate", default=False)
    return replace(plain, gates=plain.num_heads * plain.value_dim if gated else 0)


def _experts(config: Section) -> Experts:
    plain = experts_beside_shared(config, "num_experts", default=1)
    latent = config.integer("routed_expert_hidden_size", 0, least=0)
    norm = config.flag("latent_moe_use_norm", default=False)
    if not latent:
        return plain
    return LatentExperts(**(vars(plain) | {"latent": latent, "latent_norm": norm}))
