"""MiniMax-Text-01 and MiniMax-M1: seven layers of lightning attention to one of softmax attention, experts
(arXiv:2501.08313, arXiv:2506.13585).

Each norm is the branch's input and what its result is added to, so the norms stand after the additions, but for the
first, which is the embedding's, and the last, which is the head's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Mixer, Residual
from .blocks.fields import decoder, grouped_heads, rotated, sliding_window
from .blocks.moe import experts, for_each_layer, ignore_router_fields, integers, listed
from .blocks.parts import activation
from .blocks.recurrent import LightningAttention

_KINDS = ("linear_attention", "full_attention")
_AB = ("alpha", "beta")


@architecture("minimax", "minimax_text_01", "minimax_m1")
def build(config: Section, fmt: Format) -> Graph:
    """MiniMax-Text-01 and M1: lightning attention 7:1 with softmax attention, post-norm, experts."""
    # Factors of residuals: a product for each element of an addition.
    config.ignore(*(f"layernorm_{part}_{f}" for part in ("full_attention", "linear_attention", "mlp") for f in _AB))
    config.ignore(*(f"{part}_{f}_factor" for part in ("full_attn", "linear_attn", "mlp") for f in _AB))
    ignore_router_fields(config, "shared_moe_mode")
    if config.get("shared_intermediate_size") not in (None, 0, [0]):
        raise config.error("shared_intermediate_size", "must be 0: no model of this architecture has a shared expert")
    after = config.flag("postnorm", default=config.text("model_type") == "minimax")
    residual = Residual.POST if after else Residual.PRE
    mixers: dict[str, Mixer] = {"linear_attention": _lightning(config), "full_attention": _attention(config)}
    network = experts(config, "num_local_experts", "num_experts_per_tok", inner=config.integer("intermediate_size"))
    layers = [
        Layer(mixer=mixers[kind], feed_forward=network, residual=residual, name=kind.split("_")[0])
        for kind in _layer_types(config)
    ]
    return decoder(config, layers, embed_norm=after, final_norm=not after).graph(fmt)


def _layer_types(config: Section) -> Sequence[str]:
    """The kind of each layer: in the hub's dialect 0 is lightning and 1 softmax attention."""
    if layer_types := listed(config, "layer_types", _KINDS):
        return layer_types
    if config.get("attn_type_list") is None:
        return [_KINDS[index % 2 == 0] for index in range(config.count("num_hidden_layers"))]
    numbers = integers(config, "attn_type_list")
    for_each_layer(config, "attn_type_list", numbers)
    if not set(numbers) <= {0, 1}:
        raise config.error("attn_type_list", "must be made of 0, lightning attention, and 1, softmax attention")
    return [_KINDS[number] for number in numbers]


def _lightning(config: Section) -> LightningAttention:
    heads = grouped_heads(config, kv_heads=8)
    return LightningAttention(
        heads=heads.num_heads,
        head_dim=heads.head_dim,
        act=activation(config, "hidden_act", "silu"),
        chunk=config.integer("block_size", 256),
    )


def _attention(config: Section) -> SelfAttention:
    heads = grouped_heads(config, kv_heads=8, window=sliding_window(config))
    return SelfAttention(heads=heads, rotary_dim=rotated(config, heads.head_dim))
