"""ZAYA1: attention in a compressed space with two convolutions over queries and keys (arXiv:2510.04476), experts whose
router also takes the router state of the layer before, and learned scales on residuals and outputs.

A token that chooses no expert counts as one that chooses some. The residual stream counts in the model's format.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise, Rope, Route
from ..operators.linear import BlockLinear, Router
from ..operators.masks import Causal
from ..operators.recurrence import ShortConv
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.decoder import Decoder, FeedForward, Layer, Mixer
from .blocks.feed_forward import Experts
from .blocks.fields import grouped_heads, require_false, rotary_dim
from .blocks.moe import checked_top_k, ignore_router_fields, listed
from .blocks.parts import NormKind, Parts, activation, result
from .blocks.state_space import kept

_FULL, _SLIDING = _KINDS = ("hybrid", "hybrid_sliding")


@frozen(kw_only=True)
class ConvolutionalAttention:
    """Queries and keys go through a filter of each channel and one of each head, and are added to the mean of a query
    and its key; values are half of this token and half of the one before it.

    rotary_dim     elements of each head that are rotated
    taps           of the filter of each channel
    head_taps      of that of each head, whose channels it mixes
    """

    heads: Heads
    rotary_dim: int
    taps: int
    head_taps: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        q, k = parts.tensor("q_proj", heads.q_width), parts.tensor("k_proj", heads.kv_width)
        halves = [parts.tensor(f"v_proj_{name}", heads.kv_width // 2) for name in ("current", "delayed")]
        launches = tuple(parts.linear(t.name, x, t) for t in (q, k, *halves))
        mixed = self._mixed(parts, q, k)
        query, key = mixed[-1].outputs
        norms = self._norms(parts, query, key)
        rope = Rope(
            name="rope",
            inputs=tuple(op.result for op in norms),
            outputs=(parts.tensor("q_rope", heads.q_width), parts.kept("k_cache", heads.kv_width, heads.mask)),
            heads=heads,
            rotary_dim=self.rotary_dim,
        )
        before = kept("v_state", heads.kv_width // 2, parts)
        delay = Elementwise(
            name="v",
            inputs=(*halves, before),
            outputs=(parts.kept("v_cache", heads.kv_width, heads.mask), before),
            ops_per_element=0,
        )
        keys, values = (parts.cache(name, heads.kv_width, heads.mask) for name in ("k_cache", "v_cache"))
        attended = scored(parts, heads, rope.result, (keys,), values)
        o_proj = parts.project("o_proj", result(attended), x.width)
        return (*launches, *mixed, *norms, rope, delay, *attended, o_proj)

    def _mixed(self, parts: Parts, q: Tensor, k: Tensor) -> tuple[Operator, ...]:
        wide, state = q.width + k.width, kept("qk_state", (self.taps + self.head_taps - 2) * (q.width + k.width), parts)
        conv = ShortConv(
            name="qk_conv",
            inputs=(q, k, state),
            outputs=(parts.tensor("qk_conv", wide), state),
            weights=(parts.weight("qk_conv.weight", wide, self.taps), parts.weight("qk_conv.bias", wide)),
            taps=self.taps,
        )
        mix = BlockLinear(
            name="qk_mix",
            inputs=conv.outputs[:1],
            outputs=(parts.tensor("qk_mix", wide),),
            weights=(
                parts.weight("qk_mix.weight", wide, self.heads.head_dim * self.head_taps),
                parts.weight("qk_mix.bias", wide),
            ),
        )
        out = (parts.tensor("q_mixed", q.width), parts.tensor("k_mixed", k.width))
        ops = 4 + 2 * k.width / q.width  # the mean with the key, its part in that for the key, and two sums
        add = Elementwise(name="qk_add", inputs=(*mix.outputs, q, k), outputs=out, ops_per_element=ops)
        return (conv, mix, add)

    def _norms(self, parts: Parts, q: Tensor, k: Tensor) -> tuple[Operator, Operator]:
        """L2-normalizes queries and keys; the scale of keys is learned per head."""
        heads = self.heads
        q_norm = parts.norm("q_norm", q, shared=heads.num_heads, kind=NormKind.UNIT)
        k_norm = parts.norm("k_norm", k, shared=heads.num_kv_heads, kind=NormKind.UNIT)
        scale = (parts.weight("k_norm.scale", heads.num_kv_heads),)
        return q_norm, replace(k_norm, weights=scale, ops_per_element=k_norm.ops_per_element + 1)


@frozen(kw_only=True)
class HeardExperts(Experts):
    """Experts whose router is a network.

    rank   of its layers
    heard  what the router of the layer before made is added, scaled
    """

    rank: int
    heard: bool

    def routing(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        down = parts.project("router_down", x, self.rank, bias=True, kind=Router)
        operators: tuple[Operator, ...] = (down,)
        if self.heard:  # states of the layer before, which are as many as its own
            scale = {"router_states.scale": self.rank}
            operators = (down, parts.elementwise("router_states", down.result, down.result, ops=2, weights=scale))
        operators = (*operators, parts.norm("router_norm", result(operators)))
        for name in ("router_fc1", "router_fc2"):
            linear = parts.project(name, result(operators), self.rank, bias=True, kind=Router)
            operators = (*operators, linear, parts.activate(f"{name}_act", "gelu", linear.result))
        router = parts.project("router", result(operators), self.experts + 1, kind=Router)  # the last one is no expert
        weights = parts.tensor("route", self.chosen)
        return (*operators, router, Route(name="route", inputs=router.outputs, outputs=(weights,), top_k=self.chosen))


class ScaledLayer(Layer):
    """A layer whose additions scale and shift both sides."""

    def _branch(self, parts: Parts, x: Tensor, run: Mixer | FeedForward, name: str) -> tuple[Operator, ...]:
        *operators, add = super()._branch(parts, x, run, name)
        return (*operators, rescaled(parts, parts.add(add.name, *add.inputs), 2))


class ScaledDecoder(Decoder):
    """A decoder whose embedding is scaled and shifted."""

    def _embedding(self, parts: Parts) -> Block:
        block = super()._embedding(parts)
        x = result(block.operators)
        scale = rescaled(parts, parts.elementwise("embed_scale", x, ops=0))
        return replace(block, operators=(*block.operators, scale), output=scale.name)


def rescaled(parts: Parts, op: Elementwise, sides: int = 1) -> Elementwise:
    """`op` with a scale and a shift of each of its `sides`."""
    width = op.result.width
    names = [f"{op.name}.{kind}_{side}" for side in range(sides) for kind in ("scale", "bias")]
    return replace(
        op,
        weights=tuple(parts.weight(name, width) for name in names),
        ops_per_element=op.ops_per_element + len(names),
    )


@architecture("zaya")
def build(config: Section, fmt: Format) -> Graph:
    """ZAYA1: attention with convolved queries and keys in a narrow space, MLP routers, scaled residuals."""
    ignore_router_fields(config)
    if config.get("ffn_hidden_size") is not None:
        raise config.error("ffn_hidden_size", "must be absent: its format counts each layer twice; see transformers'")
    for key in ("attention_bias", "lm_head_bias"):
        require_false(config, key, "no published model of this architecture has it")
    layers = config.count("num_hidden_layers", 40)
    layer_types = listed(config, "layer_types", _KINDS) or [_FULL] * layers
    return ScaledDecoder(
        vocab=config.integer("vocab_size", 262272),
        hidden=config.integer("hidden_size", 2048),
        layers=[_layer(config, kind, heard=index > 0) for index, kind in enumerate(layer_types)],
        tied=config.flag("tie_word_embeddings", default=True),
    ).graph(fmt)


def _layer(config: Section, kind: str, *, heard: bool) -> ScaledLayer:
    heads = grouped_heads(config, kv_heads=2, head_dim=128)
    if kind == _SLIDING:
        heads = replace(heads, mask=Causal(config.integer("sliding_window")))
    attention = ConvolutionalAttention(
        heads=heads,
        rotary_dim=rotary_dim(config, heads.head_dim, default=0.5, kind=kind),
        taps=config.integer("cca_time0", 2),
        head_taps=config.integer("cca_time1", 2),
    )
    experts = HeardExperts(
        experts=config.integer("num_experts", 16),
        chosen=checked_top_k(
            config, "num_experts_per_tok", "num_experts", config.integer("num_experts_per_tok", 1), 16
        ),
        inner=config.integer("moe_intermediate_size", 2048),
        act=activation(config, "hidden_act", "silu"),
        rank=config.integer("router_hidden_size", 256),
        heard=heard,
    )
    name = ("local" if kind == _SLIDING else "global") + ("" if heard else "_first")
    return ScaledLayer(mixer=attention, feed_forward=experts, name=name)
