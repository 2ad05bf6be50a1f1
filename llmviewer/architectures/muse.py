"""Muse Glimmer and Muse Spark: gated attention, in three layers of four with a sliding window and positions; norms
without weights on embeddings, queries and keys; in Spark experts in a latent space, and gates on the residual.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..precision import FP32, Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, FeedForward, Layer, Mixer, Residual
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import decoder, filled, grouped_heads, require_false, sliding_window
from .blocks.moe import checked_top_k, for_each_layer, ignore_router_fields, listed, listed_sparse
from .blocks.parts import NormKind, Parts, activation, result

_EVERY: Final = 4  # layers, counted from the last, of which one has neither window nor positions
_WINDOW: Final = 2048
_IGNORED: Final = """
    final_logit_softcapping qk_scale_factor output_multiplier post_norm_eps residual_gate_temperature
"""
_GLIMMER: Final = {
    "vocab_size": 202048, "hidden_size": 6656, "intermediate_size": 19968, "num_hidden_layers": 52,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
}  # fmt: skip
_SPARK: Final = {
    "vocab_size": 202048, "hidden_size": 8192, "intermediate_size": 16384, "num_hidden_layers": 62,
    "num_attention_heads": 128, "num_key_value_heads": 16, "head_dim": 64, "moe_intermediate_size": 4096,
    "num_local_experts": 256, "num_experts_per_tok": 8, "moe_hidden_size": 4096,
}  # fmt: skip


class HeadNormedAttention(SelfAttention):
    """Attention whose result has a norm of each head, without weights."""

    def _scores(self, parts: Parts, q: Tensor) -> tuple[Operator, ...]:
        operators = super()._scores(parts, q)
        return (*operators, parts.norm("o_norm", result(operators), shared=self.heads.num_heads, kind=NormKind.UNIT))


class NarrowExperts(Experts):
    """Experts in a latent space that tokens enter with a norm; what each of them makes has one, too."""

    def _entering(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        down = super()._entering(parts, x)
        return (*down, parts.norm("latent_norm", result(down)))

    def _experts(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        operators = super()._experts(parts, x)
        return (*operators, parts.norm("expert_norm", result(operators)))


class GatedLayer(Layer):
    """A layer that weighs, channel by channel, what it has read and what it has made."""

    def _branch(self, parts: Parts, x: Tensor, run: Mixer | FeedForward, name: str) -> tuple[Operator, ...]:
        before = parts.norm(f"{name}_norm", x)
        operators = run.operators(parts, before.result)
        after = parts.norm(f"{name}_post_norm", result(operators), kind=NormKind.UNIT if name == "attn" else None)
        add = parts.elementwise(f"{name}_add", x, after.result, ops=3, weights={f"{name}_add.gate": x.width})
        return (before, *operators, after, add.with_weights(lambda weight: replace(weight, format=FP32)))


class NormedEmbedding(Decoder):
    """A decoder whose embedding has a norm without weights."""

    def _embedding(self, parts: Parts) -> Block:
        block = super()._embedding(parts)
        norm = parts.norm("embed_norm", result(block.operators), kind=NormKind.UNIT)
        return replace(block, operators=(*block.operators, norm), output=norm.result.name)


@architecture("muse_glimmer_text")
def build_glimmer(config: Section, fmt: Format) -> Graph:
    """Muse Glimmer's language model: gated sliding-window attention in three of four layers, a gated MLP."""
    config = filled(config, _GLIMMER)
    ignore_router_fields(config, *_IGNORED.split())
    network = Mlp(
        inner=config.integer("intermediate_size"),
        act=activation(config, config.first("hidden_activation", "hidden_act"), "silu"),
        gated=True,
    )
    layers = [
        Layer(mixer=mixer, feed_forward=network, residual=Residual.SANDWICH, name=name)
        for name, mixer in _mixers(config, SelfAttention)
    ]
    return NormedEmbedding(**vars(decoder(config, layers))).graph(fmt)


@architecture("muse_spark_text")
def build_spark(config: Section, fmt: Format) -> Graph:
    """Muse Spark's language model: Glimmer's attention, experts in a narrower space, gated residuals."""
    config = filled(config, _SPARK)
    ignore_router_fields(config, *_IGNORED.split())
    act = activation(config, "hidden_act", "silu")
    moe = NarrowExperts(
        experts=config.integer("num_local_experts"),
        chosen=checked_top_k(config, "num_experts_per_tok", "num_local_experts", config.integer("num_experts_per_tok")),
        inner=config.integer("moe_intermediate_size"),
        act=act,
        latent=config.integer("moe_hidden_size"),
    )
    dense = Mlp(inner=config.integer("intermediate_size"), act=act, gated=True)
    sparse = listed_sparse(config) or [True] * config.count("num_hidden_layers")
    layers = [
        GatedLayer(
            mixer=mixer, feed_forward=moe if has_experts else dense, name=name + ("" if has_experts else "_dense")
        )
        for (name, mixer), has_experts in zip(_mixers(config, HeadNormedAttention), sparse, strict=True)
    ]
    return NormedEmbedding(**vars(decoder(config, layers))).graph(fmt)


def _mixers(config: Section, kind: type[SelfAttention]) -> list[tuple[str, SelfAttention]]:
    """The attention of each layer and its name: with a window where layer_types says so, or in all layers but one of
    four; rotated where its theta is not 0, or likewise.
    """
    require_false(config, "attention_bias", "biases of this attention are not modelled")
    heads = grouped_heads(config)
    layers, window = config.count("num_hidden_layers"), sliding_window(config, _WINDOW)
    default_windows = [(layers - 1 - index) % _EVERY != 0 for index in range(layers)]
    layer_types = listed(config, "layer_types", ("sliding_attention", "full_attention"))
    sliding = [each == "sliding_attention" for each in layer_types] or default_windows
    thetas = config.get("layer_rope_theta")
    if thetas is not None and not isinstance(thetas, list):
        raise config.error("layer_rope_theta", f"must be a list of numbers; got {thetas!r}")
    if thetas is not None:
        for_each_layer(config, "layer_rope_theta", thetas)
    rotated = default_windows if thetas is None else [bool(theta) for theta in thetas]
    plain = kind(heads=heads, qk_norm=NormKind.UNIT, gates=heads.q_width)
    return [
        (
            ("local" if slides else "global") + ("" if rotates == slides else "_rope" if rotates else "_nope"),
            replace(plain.within(window) if slides else plain, rotary_dim=heads.head_dim if rotates else 0),
        )
        for slides, rotates in zip(sliding, rotated, strict=True)
    ]
