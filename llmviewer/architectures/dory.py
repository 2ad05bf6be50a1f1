"""Dory: a normalized transformer (arXiv:2410.01131) whose middle layers are looped.

Every state, query and key is brought to the unit sphere, and a layer moves the state a learned share of the way to what
it has made. Each run of a middle layer has a cache of its own. Published files list attention and MLP as two layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Rope
from ..operators.masks import Causal
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.decoder import Decoder, Layer
from .blocks.encoder import holding
from .blocks.fields import decoder, grouped_heads, require_false, sliding_layers, sliding_window
from .blocks.parts import NormKind, Parts, activation, result, reused_weight
from .blocks.recurrent import SIGMOID

_WINDOW: Final = 1024
_BLOCKS: Final = ("num_hidden_layers", "n_input_layers", "n_recurrent_layers", "n_output_layers")


@frozen(kw_only=True)
class SphereAttention:
    """Attention whose queries, after their rotation, and gates are scaled by learned channels; what it has attended to
    is gated, and has a norm.
    """

    heads: Heads

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads, width = self.heads, self.heads.q_width
        q, k, g = (
            parts.project(f"{name}_proj", x, wide) for name, wide in (("q", width), ("k", heads.kv_width), ("g", width))
        )
        v = parts.linear("v_proj", x, parts.kept("v_cache", heads.kv_width, heads.mask))
        q_norm = parts.norm("q_norm", q.result, shared=heads.num_heads)
        k_norm = parts.norm("k_norm", k.result, shared=heads.num_kv_heads)
        rope = Rope(
            name="rope",
            inputs=(q_norm.result, k_norm.result),
            outputs=(parts.tensor("q_rope", width), parts.kept("k_cache", heads.kv_width, heads.mask)),
            heads=heads,
            rotary_dim=heads.head_dim,
        )
        scale = parts.elementwise("q_scale", rope.result, ops=1, weights={"q_scale": width})
        keys, values = (parts.cache(f"{name}_cache", heads.kv_width, heads.mask) for name in "kv")
        attended = scored(parts, heads, scale.result, (keys,), values)
        gated = parts.elementwise(
            "gated_attention", result(attended), g.result, ops=SIGMOID + 2, weights={"gate_scale": width}
        )
        norm = parts.norm("attn_sub_norm", gated.result)
        o_proj = parts.project("o_proj", norm.result, x.width)
        return (q, k, v, g, q_norm, k_norm, rope, scale, *attended, gated, norm, o_proj)


@frozen(kw_only=True)
class SphereMlp:
    """A gated MLP with learned scales of both its halves, and a norm before it comes down."""

    inner: int
    act: str

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        gate, up_proj = (parts.project(f"{name}_proj", x, self.inner) for name in ("gate", "up"))
        act = parts.activate("mlp_act", self.act, gate.result, up_proj.result)
        scales = tuple(parts.weight(f"mlp_act.{name}", self.inner) for name in ("gate_scale", "up_scale"))
        act = replace(act, weights=scales, ops_per_element=act.ops_per_element + len(scales))
        norm = parts.norm("mlp_sub_norm", act.result)
        return (gate, up_proj, act, norm, parts.project("down_proj", norm.result, x.width))


@frozen(kw_only=True)
class SphereLayer(Layer):
    """h = n(x); h + rate (n(made(h)) - h), for attention and MLP.

    reused  its parameters are those of an earlier run
    """

    reused: bool

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches: tuple[Operator, ...] = ()
        for name, run in (("attn", self.mixer), ("mlp", self.feed_forward)):
            if run is None:
                raise RuntimeError("a layer of this architecture without attention or an MLP")
            norm = parts.norm(f"{name}_norm", result(launches) if launches else x)
            inner = run.operators(parts, norm.result)
            after = parts.norm(f"{name}_post_norm", result(inner))
            moved = parts.elementwise(
                f"{name}_add", norm.result, after.result, ops=3, weights={f"{name}_add.rate": x.width}
            )
            launches = (*launches, norm, *inner, after, moved)
        return tuple(op.with_weights(reused_weight) for op in launches) if self.reused else launches


class ScaledHead(Decoder):
    """A decoder each of whose logits has a learned scale."""

    def _logits(self, parts: Parts, x: Tensor, norm: str, *, tied: bool) -> tuple[Operator, ...]:
        *before, head = super()._logits(parts, x, norm, tied=tied)
        return (*before, holding(head, parts, {"logit_scale": (self.vocab,)}))


@architecture("dory")
def build(config: Section, fmt: Format) -> Graph:
    """Dory: nGPT layers on the unit sphere, the middle ones run several times with a KV cache per run."""
    config.ignore("ngpt_alpha_init", "initializer_range")
    config.choice("recurrent_kv_cache_mode", ("per_loop",), "per_loop")
    for key in ("attention_bias", "mlp_bias"):
        require_false(config, key, "biases are not modelled")
    config = _paired(config)
    heads = grouped_heads(config, kv_heads=4, head_dim=256)
    windowed = replace(heads, mask=Causal(sliding_window(config, _WINDOW)))
    mlp = SphereMlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "silu"))
    sliding = sliding_layers(config, pattern=4)
    layers = [
        SphereLayer(
            mixer=SphereAttention(heads=windowed if sliding[place] else heads),
            feed_forward=mlp,
            name=("local" if sliding[place] else "global") + ("_again" if reused else ""),
            reused=reused,
        )
        for place, reused in _runs(config)
    ]
    plain = decoder(config, layers, norm=NormKind.UNIT)
    return ScaledHead(**vars(plain)).graph(fmt)


def _paired(config: Section) -> Section:
    """The config where an attention and an MLP are one layer."""
    if "mlp" not in (config.texts("layer_types") if config.get("layer_types") is not None else ()):
        return config
    halved = {key: config.integer(key) // 2 for key in _BLOCKS if config.get(key) is not None}
    return config.with_data({**config.data, **halved, "layer_types": list(config.texts("layer_types"))[::2]})


def _runs(config: Section) -> list[tuple[int, bool]]:
    """Layers in the order in which they run, and whether each has run before."""
    layers = config.count("num_hidden_layers")
    first, last = (config.count(f"n_{end}_layers", 8, least=0) for end in ("input", "output"))
    middle = config.count("n_recurrent_layers", max(layers - first - last, 0), least=0)
    if first + middle + last != layers:
        raise config.error(
            "n_recurrent_layers", f"must, with {first} layers before and {last} after, make {layers}; got {middle}"
        )
    inner = range(first, first + middle)
    loops = config.count("n_recurrent_loops", 2, times=max(middle, 1))
    repeated = [(place, loop > 0) for loop in range(loops) for place in inner]
    return [
        *((place, False) for place in range(first)),
        *repeated,
        *((place, False) for place in range(first + middle, layers)),
    ]
