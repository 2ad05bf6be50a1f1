"""`Decoder`: a decoder composed of layers, as in most architectures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from enum import StrEnum
from typing import Protocol

from ...documents import Section
from ...forms import LOGITS, WITH_LOGITS
from ...graph import Block, Graph
from ...operators.base import Operator, Tensor
from ...operators.linear import LMHead
from ...precision import Format
from ...records import frozen
from .hyper_connections import HyperConnections
from .parts import HIDDEN, NormKind, Parts, result, reused_weight, with_rows


class Mixer(Protocol):
    """The part of a layer that mixes tokens, such as attention."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]: ...


class FeedForward(Protocol):
    """The part of a layer that works on each token separately, such as an MLP."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]: ...


class Residual(StrEnum):
    """Placement of norms and additions; n is a norm, m the mixer, f the feed-forward network."""

    PRE = "pre"  # a = x + m(n(x)); a + f(n(a))
    POST = "post"  # a = n(x + m(x)); n(a + f(a))
    INNER = "inner"  # a = x + n(m(x)); a + n(f(a))
    SANDWICH = "sandwich"  # a = x + n(m(n(x))); a + n(f(n(a)))
    PARALLEL = "parallel"  # x + m(n(x)) + f(n(x)), one norm for both
    PARALLEL_TWO = "parallel_two"  # x + m(n(x)) + f(n(x)), a norm for each


@frozen(kw_only=True)
class Layer:
    """A layer with a mixer, a feed-forward network, or both.

    Equal layers become one block of the graph, named `name`.

    hyper  mixing of several residual streams; norms then precede; None: one stream
    given  names of further inputs from earlier blocks
    """

    mixer: Mixer | None
    feed_forward: FeedForward | None
    residual: Residual = Residual.PRE
    name: str = "layer"
    hyper: HyperConnections | None = None
    given: tuple[str, ...] = ()

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if self.mixer and self.feed_forward and self.residual in (Residual.PARALLEL, Residual.PARALLEL_TWO):
            return self._parallel(parts, x, self.mixer, self.feed_forward)
        launches: tuple[Operator, ...] = ()
        for name, run in (("attn", self.mixer), ("mlp", self.feed_forward)):
            if run:
                launches = (*launches, *self._branch(parts, result(launches) if launches else x, run, name))
        return launches

    def _branch(self, parts: Parts, x: Tensor, run: Mixer | FeedForward, name: str) -> tuple[Operator, ...]:
        """The sum of x and of the result of `run`; named "`name`_add", or "`name`_norm" if a norm is last."""
        if self.hyper:
            branch_input, back = self.hyper.taken(parts, name, x)
            operators = run.operators(parts, result(branch_input))
            return (*branch_input, *operators, self.hyper.merged(parts, f"{name}_add", x, result(operators), back))
        before = self.residual not in (Residual.POST, Residual.INNER)
        first = (parts.norm(f"{name}_norm", x),) if before else ()
        operators = run.operators(parts, first[0].result if first else x)
        if self.residual in (Residual.INNER, Residual.SANDWICH):
            after = f"{name}_post_norm" if before else f"{name}_norm"
            operators = (*operators, parts.norm(after, result(operators)))
        add = parts.add(f"{name}_add", x, result(operators))
        last = (parts.norm(f"{name}_norm", add.result),) if self.residual is Residual.POST else ()
        return (*first, *operators, add, *last)

    def _parallel(self, parts: Parts, x: Tensor, mixer: Mixer, feed_forward: FeedForward) -> tuple[Operator, ...]:
        attn_norm = parts.norm("attn_norm", x)
        mixed = mixer.operators(parts, attn_norm.result)
        second = (parts.norm("mlp_norm", x),) if self.residual is Residual.PARALLEL_TWO else ()
        operators = feed_forward.operators(parts, (*second, attn_norm)[0].result)
        return (attn_norm, *mixed, *second, *operators, parts.add("mlp_add", x, result(mixed), result(operators)))


class UnnormedLayer(Layer):
    """A layer without a norm before its mixer, whose input is normalized already."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        assert self.mixer
        assert self.feed_forward
        mixed = self.mixer.operators(parts, x)
        add = parts.add("attn_add", x, result(mixed))
        return (*mixed, add, *self._branch(parts, add.result, self.feed_forward, "mlp"))


def folded(parts: Parts, layers: Sequence[Layer], x: Tensor) -> list[Block]:
    """A block for each kind of layer, in the order of first layers; the first one reads x."""
    places: dict[Layer, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    operators_by_layer = {layer: layer.operators(parts, x) for layer in places}
    return [
        Block(
            name=layer.name,
            operators=operators,
            input=HIDDEN,
            output=result(operators).name,
            layers=tuple(places[layer]),
            side_inputs=layer.given,
        )
        for layer, operators in operators_by_layer.items()
    ]


class SharedLayer(Layer):
    """A layer that has the weights of one before it."""

    @classmethod
    def of(cls, layer: Layer) -> SharedLayer:
        """A layer like `layer`, with its weights."""
        return cls(**{f.name: getattr(layer, f.name) for f in fields(Layer)} | {"name": "shared"})

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return tuple(op.with_weights(reused_weight) for op in super().operators(parts, x))


@frozen(kw_only=True)
class Prediction:
    """Layers of multi-token prediction (arXiv:2412.19437, section 2.2).

    Each joins the hidden state of the previous one with the embedding of the predicted token, and has its own norm
    before the head. Embedding and head are those of the model.

    norm  whether there is this norm before the head
    """

    layers: Sequence[Layer]
    norm: bool = True

    @classmethod
    def of(cls, config: Section, key: str, layer: Layer, *, default: int = 0, norm: bool = True) -> Prediction | None:
        """Makes as many layers as field `key` says, equal to `layer`; None if there are none."""
        return cls.each([layer] * config.count(key, default, least=0), norm=norm)

    @classmethod
    def each(cls, layers: Sequence[Layer], *, norm: bool = True) -> Prediction | None:
        """`layers` in their order; None if there are none."""
        return cls(layers=[replace(layer, name="mtp") for layer in layers], norm=norm) if layers else None


@frozen(kw_only=True)
class Decoder:
    """Embedding, layers in order, last norm and prediction head.

    positions     rows of the table of learned positions; 0: none
    embed_width   width of embeddings, if they are projected to `hidden` and back (OPT-350m)
    words         rows of the head, if they are not those of the embedding; 0: as many
    embed_norm    whether a norm follows the embedding
    final_norm    whether a norm precedes the head
    tied          whether the head's matrix is that of the embedding
    hyper         mixing of several residual streams; None: one stream
    prediction    layers of multi-token prediction, which passes run on request
    """

    vocab: int
    hidden: int
    layers: Sequence[Layer]
    norm: NormKind = NormKind.RMS
    tied: bool = False
    head_bias: bool = False
    positions: int = 0
    embed_width: int = 0
    words: int = 0
    embed_norm: bool = False
    final_norm: bool = True
    hyper: HyperConnections | None = None
    prediction: Prediction | None = None

    def graph(self, fmt: Format) -> Graph:
        parts = Parts(format=fmt, norm_kind=self.norm)
        blocks = (self._embedding(parts), *self._blocks(parts), self._head(parts))
        return Graph(blocks, self._predicting(parts, self.prediction) if self.prediction else ())

    def _hidden(self, parts: Parts) -> Tensor:
        """The input of layers: the residual stream, or several side by side."""
        return parts.tensor(HIDDEN, self.hidden * (self.hyper.streams if self.hyper else 1))

    def _blocks(self, parts: Parts) -> list[Block]:
        return folded(parts, self.layers, self._hidden(parts))

    def _embedding(self, parts: Parts) -> Block:
        width = self.embed_width or self.hidden
        tables = {"embed_tokens.weight": self.vocab}
        positions = {"embed_positions.weight": self.positions} if self.positions else {}
        operators: tuple[Operator, ...] = (parts.embed("embed_tokens", tables | positions, width),)
        if width != self.hidden:  # positions are as wide as the layers
            operators = (parts.embed("embed_tokens", tables, width),)
            operators = (*operators, parts.project("project_in", result(operators), self.hidden))
            if positions:
                places = parts.embed("embed_positions", positions, self.hidden)
                operators = (*operators, places, parts.add("position_add", result(operators), places.result))
        if self.embed_norm:
            operators = (*operators, parts.norm("embed_norm", result(operators)))
        if self.hyper:  # every stream starts as the embedding
            operators = (replace(operators[0], outputs=(replace(self._hidden(parts), name="embed_tokens"),)),)
        return Block(name="embedding", operators=operators, input="", output=result(operators).name)

    def _head(self, parts: Parts) -> Block:
        operators = self._logits(parts, self._hidden(parts), "final_norm" * self.final_norm, tied=self.tied)
        return Block(name="head", operators=operators, input=HIDDEN, output="logits")

    def _logits(self, parts: Parts, x: Tensor, norm: str, *, tied: bool) -> tuple[Operator, ...]:
        """The last norm over all tokens, unless its name is empty, and logits where they are used."""
        before: tuple[Operator, ...] = self.hyper.last(parts, x) if self.hyper else ()
        if norm:
            before = (*before, parts.norm(norm, result(before) if before else x))
        width = self.embed_width or self.hidden
        if width != self.hidden:
            before = (*before, parts.project("project_out", result(before) if before else x, width))
        hidden = with_rows(result(before) if before else x, LOGITS)
        words = self.words or self.vocab
        matrix = parts.weight("lm_head.weight", words, width, tied=tied)
        bias = (parts.weight("lm_head.bias", words),) if self.head_bias else ()
        logits = with_rows(parts.tensor("logits", words), LOGITS)
        weights = (replace(matrix, rows=words * WITH_LOGITS), *bias)
        return (*before, LMHead(name="lm_head", inputs=(hidden,), outputs=(logits,), weights=weights))

    def _predicting(self, parts: Parts, prediction: Prediction) -> tuple[Block, ...]:
        """A block for each kind of its layers."""
        first, joined = len(self.layers), self._joined(parts, self._hidden(parts))
        return tuple(
            replace(
                block,
                operators=(*joined, *block.operators, *self._predicted(parts, block, prediction)),
                layers=tuple(first + layer for layer in block.layers),
            )
            for block in folded(parts, prediction.layers, result(joined))
        )

    def _predicted(self, parts: Parts, block: Block, prediction: Prediction) -> tuple[Operator, ...]:
        """Logits of a layer of multi-token prediction; the head is the model's."""
        return self._logits(parts, result(block.operators), "shared_head_norm" * prediction.norm, tied=True)

    def _joined(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        """The hidden state and the embedding of the next token, each after a norm, projected to the hidden width."""
        embed = parts.embed("embed_tokens", {"embed_tokens.weight": self.vocab}, self.hidden)
        embed = embed.with_weights(lambda w: replace(w, tied=True))
        if self.hyper:
            return (embed, *self.hyper.joined(parts, x, embed.result))
        norms = [parts.norm(name, t) for name, t in (("hnorm", x), ("enorm", embed.result))]
        joined_hidden = replace(
            norms[0],
            name="eh_norm",
            inputs=(x, embed.result),
            outputs=(parts.tensor("eh_norm", 2 * self.hidden),),
            weights=tuple(w for norm in norms for w in norm.weights),
        )
        return (embed, joined_hidden, parts.project("eh_proj", joined_hidden.result, self.hidden))
