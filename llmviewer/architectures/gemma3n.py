"""Text part of Gemma 3n: four residual streams, of which each layer computes one and predicts and corrects the others
(AltUp, arXiv:2301.13310), a low-rank path beside attention, and per-layer embeddings as in Gemma 4.

The streams stand side by side in one tensor, the computed one first.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Activation, Elementwise, Norm
from ..operators.linear import BlockLinear
from ..operators.masks import Causal
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.decoder import Layer, Residual
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.moe import for_each_layer, integers
from .blocks.parts import HIDDEN, Parts, activation, result, reused_weight
from .gemma4 import EMBEDDED, Gemma4Attention, Gemma4Decoder, Gemma4Layer, kinds_of_layers

_TEXT = TEXT_CLASSES["Gemma3nTextConfig"] | {"num_kv_shared_layers": 15}
_IGNORED = """
    altup_active_idx altup_coef_clip altup_lr_multiplier final_logit_softcapping query_pre_attn_scalar
    rope_local_base_freq vocab_size_per_layer_input
"""
_MEDIA = """
    audio_token_id boa_token_id boi_token_id eoa_token_id eoi_token_id image_token_id
    audio_soft_tokens_per_image tie_word_embeddings vision_soft_tokens_per_image
"""
_CUT = 6  # OPs of an element for the cut at a part of the gate: mean, deviation (3), difference, maximum
_MAGNITUDE = 4  # OPs of an element to give a stream the magnitude of the first: square, sum, product, quotient


class FirstStreamNorm(Norm):
    """The norm of the stream that is computed."""

    def reads(self) -> tuple[Tensor, ...]:
        return (replace(self.inputs[0], width=self.outputs[0].width),)


class OtherStreamsAdd(Elementwise):
    """A tensor added to every stream but the first, in place."""

    def reads(self) -> tuple[Tensor, ...]:
        streams, added = self.inputs
        return (replace(streams, width=streams.width - added.width), added)

    def writes(self) -> tuple[Tensor, ...]:
        return (replace(self.outputs[0], width=self.outputs[0].width - self.inputs[1].width),)


@frozen(kw_only=True)
class Gemma3nLayer(Gemma4Layer):
    """A layer on `streams` streams.

    rank     of the path beside attention
    cut      the MLP's gate is cut at a part of its values
    scaled   the computed stream is scaled before it meets the layer's own embeddings
    """

    streams: int
    rank: int
    cut: bool = False
    scaled: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        hidden = x.width
        predict = self._predict(parts, replace(x, width=self.streams * hidden), hidden)
        active = replace(result(predict), width=hidden)
        launches = self._computed(parts, active)
        correct = self._correct(parts, result(predict), result(launches))
        return (*predict, *launches, *correct, *self._streams_added(parts, result(correct), hidden))

    def _predict(self, parts: Parts, x: Tensor, hidden: int) -> tuple[Operator, ...]:
        n = self.streams
        plain = parts.norm("router_norm", replace(x, width=hidden))
        norm = FirstStreamNorm(
            name=plain.name,
            inputs=(x,),
            outputs=plain.outputs,
            weights=plain.weights,
            ops_per_element=plain.ops_per_element,
        )
        router = parts.project("modality_router", norm.result, n)
        coefs = parts.project("prediction_coefs", router.result, n * n)
        out = parts.tensor("predictions", x.width)
        mix = Elementwise(name="predict", inputs=(x, coefs.result), outputs=(out,), ops_per_element=2 * n + 1)
        return (norm, router, coefs, mix)

    def _computed(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        """Attention beside the low-rank path, then the MLP, as in a layer of one stream."""
        if self.mixer is None or self.feed_forward is None:
            raise RuntimeError("a layer of Gemma 3n without attention or without an MLP")
        norm = parts.norm("attn_norm", x)
        normed = norm.result
        left = parts.project("linear_left", normed, self.rank)
        right = parts.project("linear_right", left.result, x.width)
        low_norm = parts.norm("laurel_norm", right.result)
        low = parts.add("laurel_add", normed, low_norm.result)
        attention = self.mixer.operators(parts, normed)
        after = parts.norm("attn_post_norm", result(attention))
        add = replace(parts.add("attn_add", x, after.result, low.result), ops_per_element=3)  # and scaled
        mlp = self._branch(parts, add.result, self.feed_forward, "mlp")
        if self.cut:
            mlp = tuple(
                replace(op, ops_per_element=op.ops_per_element + _CUT) if isinstance(op, Activation) else op
                for op in mlp
            )
        return (norm, left, right, low_norm, low, *attention, after, add, *mlp)

    def _correct(self, parts: Parts, predictions: Tensor, computed: Tensor) -> tuple[Operator, ...]:
        """Correction: the computed minus the predicted stream is added to all streams, with a coefficient for each."""
        n = self.streams
        norm = parts.norm("router_norm_again", computed).with_weights(reused_weight)
        router = parts.project("modality_router_again", norm.result, n).with_weights(reused_weight)
        coefs = parts.project("correction_coefs", router.result, n)
        out = parts.tensor("corrected", predictions.width)
        inputs = (predictions, computed, coefs.result)
        return (
            norm,
            router,
            coefs,
            Elementwise(name="correct", inputs=inputs, outputs=(out,), ops_per_element=2 + 1 / n),
        )

    def _streams_added(self, parts: Parts, corrected: Tensor, hidden: int) -> tuple[Operator, ...]:
        first, shapes = replace(corrected, width=hidden), {"correct_output_scale": hidden}
        scale = parts.elementwise("scaled", first, ops=int(self.scaled), weights=shapes)
        *operators, _ = self._own_embeddings(parts, scale.result)
        outputs = (parts.tensor("streams_add", corrected.width),)
        ops = 1 - 1 / self.streams
        add = OtherStreamsAdd(
            name="streams_add", inputs=(corrected, operators[-1].result), outputs=outputs, ops_per_element=ops
        )
        return (scale, *operators, add)


@frozen(kw_only=True)
class Gemma3nDecoder(Gemma4Decoder):
    """Streams are made of the embedding by a projection each, and become one again before the head."""

    streams: int

    def _blocks(self, parts: Parts) -> list[Block]:
        per_layer, *layers = super()._blocks(parts)
        return [per_layer, self._split(parts), *layers]

    def _split(self, parts: Parts) -> Block:
        x = parts.tensor(EMBEDDED, self.hidden)
        others = parts.project("altup_projections", x, (self.streams - 1) * self.hidden)
        ops = _MAGNITUDE * (1 - 1 / self.streams)  # the first stream stays as it is
        stack = parts.elementwise("altup_streams", x, others.result, width=self.streams * self.hidden, ops=ops)
        return Block(name="streams", operators=(others, stack), input="", output=stack.name, side_inputs=(EMBEDDED,))

    def _head(self, parts: Parts) -> Block:
        block = super()._head(parts)
        width = (self.streams - 1) * self.hidden
        weights = (parts.weight("altup_unembed_projections.weight", width, self.hidden),)
        others = BlockLinear(
            name="altup_unembed_projections",
            inputs=(parts.tensor(HIDDEN, width),),
            outputs=(parts.tensor("unembedded", width),),
            weights=weights,
        )
        ops = (_MAGNITUDE + 1) * (self.streams - 1)
        mean = parts.elementwise("altup_mean", parts.tensor(HIDDEN, self.hidden), others.result, ops=ops)
        norm, *rest = block.operators
        return replace(block, operators=(others, mean, replace(norm, inputs=mean.outputs), *rest))


@architecture("gemma3n_text")
def build(config: Section, fmt: Format) -> Graph:
    """Gemma 3n's language model: AltUp streams, low-rank Laurel paths and per-layer embeddings."""
    return _decoder(filled(config, _TEXT)).graph(fmt)


@architecture("gemma3n")
def build_text_of(config: Section, fmt: Format) -> Graph:
    """The decoder of a Gemma 3n with vision and audio: without those towers."""
    config.ignore(*_MEDIA.split())
    return build(config.section("text_config"), fmt)


def _decoder(config: Section) -> Gemma3nDecoder:
    streams = config.integer("altup_num_inputs", 4, least=2)
    added = config.integer("hidden_size_per_layer_input", 256)
    kinds = kinds_of_layers(config, pattern=5)
    inner, cut = _inner(config), _cut(config)
    layers: list[Layer] = [
        Gemma3nLayer(
            mixer=_attention(config, slides=slides, borrows=borrows),
            feed_forward=Mlp(
                inner=inner[i], act=activation(config, "hidden_activation", "gelu_pytorch_tanh"), gated=True
            ),
            residual=Residual.SANDWICH,
            name=f"{'local' if slides else 'global'}{'_borrowing' if borrows else ''}{'_cut' if cut[i] else ''}",
            added=added,
            of_all=added * len(kinds),
            act=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
            streams=streams,
            rank=config.integer("laurel_rank", 64),
            cut=cut[i],
            scaled=config.flag("altup_correct_scale", default=True),
        )
        for i, (slides, borrows) in enumerate(kinds)
    ]
    config.ignore(*_IGNORED.split())
    return Gemma3nDecoder(
        vocab=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        layers=layers,
        tied=config.flag("tie_word_embeddings", default=True),
        added=added,
        added_vocab=config.integer("vocab_size_per_layer_input", 262144),
        streams=streams,
    )


def _inner(config: Section) -> tuple[int, ...]:
    """Width of each layer's MLP: one for all, or a list."""
    if not isinstance(config.get("intermediate_size"), list):
        return (config.integer("intermediate_size"),) * config.count("num_hidden_layers")
    widths = integers(config, "intermediate_size")
    for_each_layer(config, "intermediate_size", widths)
    return widths


def _cut(config: Section) -> list[bool]:
    """Whether each layer's gate is cut: where its sparsity is above 0; of the first ten where the config is silent."""
    pattern, layers = config.get("activation_sparsity_pattern"), config.count("num_hidden_layers")
    if pattern is None:
        return [index < 10 < layers for index in range(layers)]
    if isinstance(pattern, int | float) and not isinstance(pattern, bool):
        pattern = [pattern] * layers
    if not isinstance(pattern, list) or not all(isinstance(part, int | float) and 0 <= part < 1 for part in pattern):
        raise config.error("activation_sparsity_pattern", f"must be parts from 0 to below 1; got {pattern!r}")
    for_each_layer(config, "activation_sparsity_pattern", pattern)
    return [part > 0 for part in pattern]


def _attention(config: Section, *, slides: bool, borrows: bool) -> Gemma4Attention:
    count, kv_heads = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    if count % kv_heads:
        raise config.error("num_attention_heads", f"must be a multiple of the {kv_heads} key-value heads; got {count}")
    head_dim = config.integer("head_dim", 256)
    mask = Causal(config.integer("sliding_window", 512)) if slides else Causal()
    return Gemma4Attention(
        heads=Heads(num_heads=count, num_kv_heads=kv_heads, head_dim=head_dim, mask=mask),
        rotary_dim=head_dim,
        borrowed=borrows,
        bias=config.flag("attention_bias", default=False),
    )
