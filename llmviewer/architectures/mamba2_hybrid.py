"""Hybrids of attention and Mamba-2 whose configs have fields of the same names: Bamba, Falcon-H1, Granite 4."""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Mixer
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import attention, decoder, gated_mlp, grouped_heads, require_true
from .blocks.moe import checked_top_k, for_each_layer, ignore_router_fields, integers
from .blocks.parts import Parts, activation, result
from .blocks.state_space import Mamba2

# Multipliers are constants that fold into the weights next to them.
_FALCON_H1_IGNORED = """
    attention_in_multiplier attention_out_multiplier embedding_multiplier key_multiplier lm_head_multiplier
    mlp_multipliers ssm_in_multiplier ssm_multipliers ssm_out_multiplier mlp_expansion_factor num_logits_to_keep
    time_step_rank
"""
_GRANITE_KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


@architecture("bamba")
def build_bamba(config: Section, fmt: Format) -> Graph:
    """Mamba-2 in most layers, attention in those that the config lists, an MLP in all. Half of each head is rotated,
    whatever the config says: its class in transformers has it so.
    """
    heads = grouped_heads(config, kv_heads=8)
    mixer = attention(config, heads, rotary_dim=heads.head_dim // 2)
    mlp = gated_mlp(config)
    kinds = {
        True: Layer(mixer=mixer, feed_forward=mlp, name="attention"),
        False: Layer(mixer=_mamba2(config), feed_forward=mlp, name="mamba"),
    }
    attending = integers(config, "attn_layer_indices")
    layers = [kinds[index in attending] for index in range(config.count("num_hidden_layers"))]
    config.ignore("partial_rotary_factor", "attn_rotary_emb", "num_logits_to_keep", "z_loss_coefficient")
    config.ignore("mamba_dt_rank", "use_mamba_kernels")
    return decoder(config, layers).graph(fmt)


@frozen(kw_only=True)
class SideBySide:
    """Two mixers of the same x, their results added; leaves "mixers_add"."""

    mamba: Mamba2
    attention: SelfAttention

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        mamba, attention = self.mamba.operators(parts, x), self.attention.operators(parts, x)
        return (*mamba, *attention, parts.add("mixers_add", result(mamba), result(attention)))


@architecture("falcon_h1")
def build_falcon_h1(config: Section, fmt: Format) -> Graph:
    """Attention and Mamba-2 side by side in every layer, on the same norm (arXiv:2507.22448)."""
    if config.get("attn_layer_indices") is not None:
        raise config.error("attn_layer_indices", "must be null: every layer attends")
    require_true(config, "mamba_use_mlp", "every layer has an MLP")
    if config.flag("projectors_bias", default=False) != config.flag("mamba_proj_bias", default=False):
        raise config.error("projectors_bias", "must be as mamba_proj_bias: a bias of one projection is not modelled")
    inner = 0 if config.get("mamba_d_ssm") is None else config.integer("mamba_d_ssm")
    if inner:
        config.ignore("mamba_expand")
    mamba = _mamba2(config, inner=inner, norm=config.flag("mamba_rms_norm", default=False))
    mixer = SideBySide(mamba=mamba, attention=attention(config, grouped_heads(config, kv_heads=8)))
    layer = Layer(mixer=mixer, feed_forward=gated_mlp(config))
    config.ignore(*_FALCON_H1_IGNORED.split())
    return decoder(config, layer).graph(fmt)


@architecture("granitemoehybrid")
def build_granite(config: Section, fmt: Format) -> Graph:
    """Mamba-2 in most layers, attention in some; experts beside a shared MLP, or that MLP alone."""
    kinds = _granite_kinds(config)
    mixers: dict[str, Mixer] = {"attention": _granite_attention(config)}
    if "mamba" in kinds:
        mixers["mamba"] = _mamba2(config)
    else:
        config.ignore(*(key for key in config if key.startswith("mamba_")))
    network = _granite_network(config)
    layers = [Layer(mixer=mixers[kind], feed_forward=network, name=kind) for kind in kinds]
    ignore_router_fields(
        config, "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"
    )
    config.ignore("intermediate_size", "normalization_function", "num_logits_to_keep", "init_method")
    return decoder(config, layers).graph(fmt)


def _granite_kinds(config: Section) -> list[str]:
    key = config.first("layer_types", "layers_block_type")
    listed = config.texts(key)
    if not listed:
        return ["mamba"] * config.count("num_hidden_layers")
    for_each_layer(config, key, listed)
    unknown = [kind for kind in listed if kind not in _GRANITE_KINDS]
    if unknown:
        raise config.error(key, f"must be made of {', '.join(_GRANITE_KINDS)}; got {unknown[0]!r}")
    return [_GRANITE_KINDS[kind] for kind in listed]


def _granite_attention(config: Section) -> SelfAttention:
    rotated = config.get("position_embedding_type") == "rope"  # others of the class have no positions at all
    plain = attention(config)
    return plain if rotated else replace(plain, rotary_dim=0)


def _granite_network(config: Section) -> FeedForward:
    act = activation(config, "hidden_act", "silu")
    shared = Mlp(inner=config.integer("shared_intermediate_size", 1024), act=act, gated=True, fused=True)
    experts = config.integer("num_local_experts", 8, least=0)
    if not experts:
        config.ignore("num_experts_per_tok")
        return shared
    chosen = config.integer("num_experts_per_tok", 2)
    return Experts(
        experts=experts,
        chosen=checked_top_k(config, "num_experts_per_tok", "num_local_experts", chosen),
        inner=config.integer("intermediate_size"),
        act=act,
        shared=shared,
    )


def _mamba2(config: Section, *, inner: int = 0, norm: bool = True) -> Mamba2:
    """The mixer that a config describes, `inner` wide, or mamba_expand times the hidden size.

    Raises InputError where its heads do not fill that width.
    """
    inner = inner or config.integer("mamba_expand", 2) * config.integer("hidden_size")
    heads = config.integer("mamba_n_heads", 128)
    if inner % heads:
        raise config.error("mamba_n_heads", f"must divide the inner width {inner}; got {heads}")
    head_dim = inner // heads if config.get("mamba_d_head") in (None, "auto") else config.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise config.error("mamba_d_head", f"times {heads} heads must be the inner width {inner}; got {head_dim}")
    config.ignore("time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "mamba_norm_before_gate")
    return Mamba2(
        inner=inner,
        heads=heads,
        head_dim=head_dim,
        state=config.integer("mamba_d_state", 256),
        groups=config.integer("mamba_n_groups", 1),
        taps=config.integer("mamba_d_conv", 4),
        chunk=config.integer("mamba_chunk_size", 256),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        norm=norm,
    )
