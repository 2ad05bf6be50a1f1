"""Jamba: Mamba in most layers, attention in some; experts in some, an MLP in the others (arXiv:2403.19887)."""

from __future__ import annotations

from math import ceil

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Mixer
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import decoder
from .blocks.moe import checked_top_k, crossed
from .blocks.parts import activation, heads_of
from .blocks.state_space import Mamba


@architecture("jamba")
def build(config: Section, fmt: Format) -> Graph:
    """Jamba: Mamba and attention layers in a fixed period, experts in some layers and an MLP in the others."""
    hidden = config.integer("hidden_size")
    mixers: dict[bool, tuple[str, Mixer]] = {
        True: ("attention", _attention(config, hidden)),
        False: ("mamba", _mamba(config, hidden)),
    }
    networks: dict[bool, tuple[str, FeedForward]] = {True: ("moe", _experts(config)), False: ("mlp", _mlp(config))}
    every = range(config.count("num_hidden_layers"))
    each = ((_is_periodic(config, "attn_layer", i, 8, 4), _is_periodic(config, "expert_layer", i, 2, 1)) for i in every)
    layers = crossed(mixers, networks, each)
    config.ignore("use_mamba_kernels", "num_logits_to_keep", "output_router_logits", "router_aux_loss_coef")
    return decoder(config, layers, hidden=hidden).graph(fmt)


def _is_periodic(config: Section, key: str, index: int, period: int, offset: int) -> bool:
    """Whether layer `index` is one of those that come every so often."""
    return index % config.integer(f"{key}_period", period) == config.integer(f"{key}_offset", offset, least=0)


def _attention(config: Section, hidden: int) -> SelfAttention:
    kv_heads = config.integer("num_key_value_heads", 8)
    return SelfAttention(heads=heads_of(config, hidden, "num_attention_heads", num_kv_heads=kv_heads))


def _mamba(config: Section, hidden: int) -> Mamba:
    auto = config.get("mamba_dt_rank") in (None, "auto")
    return Mamba(
        inner=config.integer("mamba_expand", 2) * hidden,
        state=config.integer("mamba_d_state", 16),
        taps=config.integer("mamba_d_conv", 4),
        step_rank=ceil(hidden / 16) if auto else config.integer("mamba_dt_rank"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        norms=True,
    )


def _mlp(config: Section) -> Mlp:
    return Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "silu"), gated=True)


def _experts(config: Section) -> Experts:
    mlp = _mlp(config)
    return Experts(
        experts=config.integer("num_experts", 16),
        chosen=checked_top_k(
            config, "num_experts_per_tok", "num_experts", config.integer("num_experts_per_tok", 2), 16
        ),
        inner=mlp.inner,
        act=mlp.act,
    )
