"""Phi-4-mini-flash (SambaY): Mamba and sliding-window attention, one layer of global attention, then layers that
cross-attend to its KV cache or gate the memory of the last Mamba (arXiv:2507.06607).

Attention is differential and without positions. Layers after the one of global attention have no state of their own
and process only the tokens whose logits are needed.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from ..documents import Section
from ..forms import LOGIT_TOKENS
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.masks import CAUSAL, Causal
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.borrowed import borrowed
from .blocks.decoder import Layer, Mixer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, grouped_heads, require_false, sliding_window
from .blocks.parts import NormKind, Parts, activation, result
from .blocks.recurrent import SIGMOID
from .blocks.state_space import Mamba

_AFTER = ("cross", "gated")  # names of the layers that process tokens with logits alone


@frozen(kw_only=True)
class Phi4FlashAttention:
    """Each head sees the values of two; the results of one half, scaled, are subtracted from the other, and normalized.

    has_kv  whether keys and values are this layer's; else those of an earlier one
    """

    heads: Heads
    has_kv: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads, two = self.heads, 2 * self.heads.head_dim
        q = parts.tensor("q_proj", heads.q_width)
        names = ("k_cache", "v_cache")
        if self.has_kv:
            caches = (parts.kept(name, heads.kv_width, heads.mask) for name in names)
            projection = parts.linear("qkv_proj", x, q, *caches, bias=True)
            k, v = (parts.cache(name, heads.kv_width, heads.mask) for name in names)
        else:
            projection = parts.linear("q_proj", x, q, bias=True)
            k, v = (borrowed(parts, name, heads.kv_width, heads.mask) for name in names)
        launches = scored(parts, replace(heads, value_dim=two), q, (k,), v)
        weights = {f"lambda_{name}": heads.head_dim for name in ("q1", "k1", "q2", "k2")} | {"subln.weight": two}
        # product, difference, four of an RMSNorm, a factor
        difference = parts.elementwise(
            "difference", result(launches), width=heads.q_width, ops=7, weights=weights, normed=two
        )
        return (projection, *launches, difference, parts.project("o_proj", difference.result, x.width, bias=True))


@frozen(kw_only=True)
class GatedMemory:
    """The output of an earlier scan, gated by a projection of x.

    inner  channels of the scan
    """

    inner: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        gate = parts.project("in_proj", x, self.inner)
        memory = gate.result  # has the width of the gate, so that reading that twice counts it
        gated = parts.elementwise("gated_memory", gate.result, memory, ops=SIGMOID + 2)
        return (gate, gated, parts.project("out_proj", gated.result, x.width))


@architecture("phi4flash")
def build(config: Section, fmt: Format) -> Graph:
    """Phi-4-mini-flash (SambaY): Mamba and sliding windows, then layers that reuse one KV cache or gate its memory."""
    config.ignore(
        "attention_dropout", "embd_pdrop", "resid_pdrop", "lm_head_bias", "layer_types", "mamba_dt_rank",
        "attention_bias",
    )  # fmt: skip
    for key in ("mlp_bias", "lm_head_bias", "mamba_proj_bias"):
        require_false(config, key, "no published model has these biases")
    layers, hidden = config.count("num_hidden_layers"), config.integer("hidden_size")
    every, half = config.count("mb_per_layer", 2), layers // 2
    if every != 2 or layers % 4:
        raise config.error("mb_per_layer", "must be 2, with num_hidden_layers a multiple of 4, as published")
    plain = grouped_heads(config)
    inner = hidden * config.integer("mamba_expand", 2)
    rank = config.get("mamba_dt_rank")
    mamba = Mamba(
        inner=inner,
        state=config.integer("mamba_d_state", 16),
        taps=config.integer("mamba_d_conv", 4),
        step_rank=ceil(hidden / 16) if rank in (None, "auto") else config.integer("mamba_dt_rank"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )
    near = replace(plain, mask=Causal(sliding_window(config)))
    mixers: dict[str, Mixer] = {
        "mamba": mamba,
        "local": Phi4FlashAttention(heads=near),
        "global": Phi4FlashAttention(heads=replace(plain, mask=CAUSAL)),
        "gated": GatedMemory(inner=inner),
        "cross": Phi4FlashAttention(heads=replace(plain, mask=CAUSAL), has_kv=False),
    }
    act = activation(config, "hidden_act", "silu")
    mlp = Mlp(inner=config.integer("intermediate_size"), act=act, gated=True, fused=True)
    kinds = ["mamba", "local"] * (half // 2) + ["mamba", "global"] + ["gated", "cross"] * (half // 2 - 1)
    all_layers = [Layer(mixer=mixers[kind], feed_forward=mlp, name=kind) for kind in kinds]
    graph = decoder(config, all_layers, norm=NormKind.LAYER, tied=True).graph(fmt)
    return graph.map_blocks(lambda b: replace(b, stream=LOGIT_TOKENS) if b.name in (*_AFTER, "head") else b)
