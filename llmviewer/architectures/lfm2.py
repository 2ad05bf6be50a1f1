"""LFM2: gated short convolutions in most layers, attention in some; an MLP or experts in each. LFM3 has sliding
windows in some of its attention, gates per head, and post-norms.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, FeedForward, Layer, Mixer, Residual
from .blocks.feed_forward import Mlp
from .blocks.fields import attention, decoder, gated_mlp, grouped_heads, rotary_dim, sliding_window
from .blocks.moe import experts, for_each_layer, ignore_router_fields, integers, listed
from .blocks.parts import NormKind
from .blocks.state_space import ShortConvMixer

_KINDS = ("conv", "full_attention")
_SLIDING = "sliding_attention"


@architecture("lfm2")
def build(config: Section, fmt: Format) -> Graph:
    """LFM2: gated short convolutions in most layers, grouped-query attention in some, a SwiGLU MLP."""
    mlp = Mlp(inner=_adjusted(config), act="silu", gated=True)
    config.ignore("conv_dim", "conv_dim_out", "block_dim", "block_mlp_init_scale", "block_out_init_scale")
    config.ignore("block_norm_eps", "block_use_swiglu", "block_use_xavier_init", "conv_use_xavier_init", "num_heads")
    return _decoder(config, [("", mlp)] * config.count("num_hidden_layers"), fmt)


@architecture("lfm2_moe")
def build_moe(config: Section, fmt: Format) -> Graph:
    """LFM2-MoE: LFM2 with leading dense layers and routed experts in the others."""
    moe = experts(config, "num_experts", "num_experts_per_tok", inner=config.integer("moe_intermediate_size"))
    mlp = Mlp(inner=config.integer("intermediate_size"), act=moe.act, gated=True)
    dense = config.count("num_dense_layers", 2, least=0)
    layers = config.count("num_hidden_layers")
    ignore_router_fields(config, "use_expert_bias")  # a correction of the scores, which is no parameter
    return _decoder(config, [("_dense", mlp) if i < dense else ("_moe", moe) for i in range(layers)], fmt)


@architecture("lfm3")
def build_lfm3(config: Section, fmt: Format) -> Graph:
    """LFM3: short convolutions, sliding-window and full attention with gates of heads, sandwich norms."""
    heads = grouped_heads(config, kv_heads=4)
    full = attention(
        config,
        heads,
        rotary_dim=rotary_dim(config, heads.head_dim, default=0.5, kind="full_attention"),
        qk_norm=NormKind.RMS,
        gates=heads.num_heads if config.flag("use_attention_gate", default=True) else 0,
    )
    local = full.within(sliding_window(config, 256))
    mixers: dict[str, Mixer] = {
        "conv": _convolution(config, taps=7),
        "full_attention": full,
        _SLIDING: local,
    }
    names = {"conv": "conv", "full_attention": "global", _SLIDING: "local"}
    config.ignore("norm_eps")
    residual = Residual.SANDWICH if config.flag("use_sandwich_norm", default=True) else Residual.PRE
    layers = [
        Layer(mixer=mixers[kind], feed_forward=gated_mlp(config), residual=residual, name=names[kind])
        for kind in _lfm3_kinds(config)
    ]
    return decoder(config, layers, tied=True).graph(fmt)


def _lfm3_kinds(config: Section) -> list[str]:
    """The kind of each layer: as listed, or attention in every other one, without a window and with one in turn."""
    if layer_types := listed(config, "layer_types", (*_KINDS, _SLIDING)):
        return layer_types
    cycle = (_SLIDING, "conv", "full_attention", "conv")
    return [cycle[index % 4] if index else "conv" for index in range(config.count("num_hidden_layers"))]


def _convolution(config: Section, *, taps: int) -> ShortConvMixer:
    return ShortConvMixer(taps=config.integer("conv_L_cache", taps), bias=config.flag("conv_bias", default=False))


def _decoder(config: Section, networks: list[tuple[str, FeedForward]], fmt: Format) -> Graph:
    heads = grouped_heads(config, kv_heads=8)
    mixers: dict[str, Mixer] = {
        "conv": _convolution(config, taps=3),
        "full_attention": SelfAttention(heads=heads, rotary_dim=heads.head_dim, qk_norm=NormKind.RMS),
    }
    layers = [
        Layer(mixer=mixers[kind], feed_forward=network, name=f"{kind.removeprefix('full_')}{suffix}")
        for kind, (suffix, network) in zip(_layer_kinds(config), networks, strict=True)
    ]
    config.ignore("norm_eps", "theta", "use_pos_enc")
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        layers=layers,
        tied=config.flag(config.first("tie_embedding", "tie_word_embeddings"), default=True),
    ).graph(fmt)


def _layer_kinds(config: Section) -> list[str]:
    """The kind of each layer: as listed, or attention where the config says and convolutions elsewhere."""
    listed = config.texts("layer_types")
    layers = config.count("num_hidden_layers")
    if not listed:
        attending = integers(config, "full_attn_idxs") if "full_attn_idxs" in config else range(layers)
        return [_KINDS[index in attending] for index in range(layers)]
    config.ignore("full_attn_idxs")
    for_each_layer(config, "layer_types", listed)
    unknown = [kind for kind in listed if kind not in _KINDS]
    if unknown:
        raise config.error("layer_types", f"must be made of {' and '.join(_KINDS)}; got {unknown[0]!r}")
    return list(listed)


def _adjusted(config: Section) -> int:
    """Width of the MLP: two thirds of what is written, times a factor, rounded up, unless the config says not to."""
    inner = config.integer(config.first("block_ff_dim", "intermediate_size"))
    config.ignore("intermediate_size")  # beside block_ff_dim it says nothing
    multiple, factor = config.integer("block_multiple_of", 256), config.number("block_ffn_dim_multiplier", 1.0)
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return inner
    return -(-int(factor * int(2 * inner / 3)) // multiple) * multiple
