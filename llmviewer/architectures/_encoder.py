"""Layers that see their tokens both ways, by themselves under a head or beside a decoder (arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..documents import Section
from ..forms import ONE, SEQUENCES, SOURCE, TARGET, TOKENS, WHOLE, Stream
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Activation
from ..operators.linear import Linear, LMHead
from ..operators.masks import Across, Everything
from ..precision import Format
from ._attention import scored
from ._decoder import Decoder, FeedForward, Layer, Mixer, folded
from ._parts import HIDDEN, NormKind, Parts, result, with_rows

ENCODED: Final = "encoded"  # what an encoder leaves
_TANH_OPS: Final = 1  # of an element, as every special function


def both_ways(heads: Heads, reach: float | None = None) -> Heads:
    """The same heads, which see what is before them and after, no further than `reach` where it is given."""
    return replace(heads, mask=Everything() if reach is None else Everything(reach))


def stack(
    parts: Parts, layers: Sequence[Layer], hidden: int, *, stream: Stream = WHOLE, leaves: str = ""
) -> list[Block]:
    """A block for each kind of layer, on `stream`; what each leaves is named `leaves` where that is given."""
    blocks = folded(parts, layers, parts.tensor(HIDDEN, hidden))
    if leaves:
        blocks = [replace(block, operators=leaving(block.operators, leaves), output=leaves) for block in blocks]
    return [replace(block, stream=stream) for block in blocks]


def leaving(operators: tuple[Operator, ...], name: str) -> tuple[Operator, ...]:
    """A run of operators whose result is named `name`."""
    last = operators[-1]
    first, *others = last.outputs
    return (*operators[:-1], replace(last, outputs=(replace(first, name=name), *others)))


@dataclass(frozen=True, kw_only=True)
class Head:
    """What is made of the hidden states that an encoder leaves: classes(norm(act(dense(x)))), each where there is one.

    first    of each sequence's first token alone, which stands for all of it; else of every token
    dense    width of the first product; 0 where there is none
    classes  numbers that are put out; 0 where the dense ones are the result
    words    the classes are words of the vocabulary, whose matrix is the embedding's where it is `tied`
    """

    first: bool = False
    dense: int = 0
    act: str = "tanh"
    dense_bias: bool = True
    norm: bool = False
    classes: int = 0
    bias: bool = True
    words: bool = False
    tied: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        rows = SEQUENCES if self.first else TOKENS
        prefix = "pooler" if self.first else "head"
        x = with_rows(x, rows)
        made: tuple[Operator, ...] = ()
        if self.dense:
            dense = _product(parts, f"{prefix}_dense", x, self.dense, bias=self.dense_bias)
            made = (dense, _activated(parts, f"{prefix}_act", self.act, dense.result))
            x = result(made)
        if self.norm:
            made = (*made, parts.norm(f"{prefix}_norm", x))
            x = result(made)
        if self.words:
            return (*made, self._words(parts, x))
        return (*made, _product(parts, "classifier", x, self.classes, bias=self.bias)) if self.classes else made

    def _words(self, parts: Parts, x: Tensor) -> LMHead:
        """The head runs where words are wanted: at every token."""
        matrix = parts.weight("lm_head.weight", self.classes, x.width, tied=self.tied)
        bias = (parts.weight("lm_head.bias", self.classes),) if self.bias else ()
        return LMHead(
            name="lm_head", inputs=(x,), outputs=(parts.tensor("logits", self.classes),), weights=(matrix, *bias)
        )


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Embedding, layers that see both ways, last norm, and heads; or, beside a decoder, no head.

    positions    rows of a table of learned positions; 0 where there is none
    types        rows of a table of token types; likewise
    embed_width  of the embeddings, where they are projected to `hidden`
    embed_norm   a norm follows the embedding
    final_norm   a norm follows the layers
    held         what the layers share, which is held once and read by each
    """

    vocab: int
    hidden: int
    layers: Sequence[Layer]
    norm: NormKind = NormKind.LAYER
    positions: int = 0
    types: int = 0
    embed_width: int = 0
    embed_norm: bool = False
    final_norm: bool = False
    held: Mapping[str, tuple[int, ...]] | None = None
    heads: tuple[Head, ...] = ()

    def graph(self, fmt: Format) -> Graph:
        """The encoder by itself."""
        parts = Parts(format=fmt, norm_kind=self.norm)
        blocks = [self._embedding(parts), *stack(parts, self.layers, self.hidden), *self._norm(parts)]
        if self.heads:
            x = parts.tensor(HIDDEN, self.hidden)
            made = tuple(op for head in self.heads for op in head.operators(parts, x))
            blocks.append(Block(name="head", operators=made, input=HIDDEN, output=result(made).name))
        return Graph(tuple(blocks))

    def beside(self, fmt: Format, front: Block | None = None) -> tuple[Block, ...]:
        """The encoder of a pair, on what it reads of a pass; it leaves ENCODED.

        front  what stands in the place of the embedding
        """
        parts = Parts(format=fmt, norm_kind=self.norm)
        first = front or self._embedding(parts)
        layers = stack(parts, self.layers, self.hidden, stream=SOURCE, leaves=ENCODED)
        ends = (first, *self._norm(parts))
        start, *end = (replace(block, name=f"encoder_{block.name}", stream=SOURCE) for block in ends)
        return (start, *layers, *end)

    def _embedding(self, parts: Parts) -> Block:
        width = self.embed_width or self.hidden
        rows = {"embed_tokens": self.vocab, "embed_positions": self.positions, "embed_types": self.types}
        tables = {f"{name}.weight": count for name, count in rows.items() if count}
        operators: tuple[Operator, ...] = (parts.embed("embed_tokens", tables, width),)
        if self.embed_norm:
            operators = (*operators, parts.norm("embed_norm", result(operators)))
        if width != self.hidden:
            operators = (*operators, parts.project("embed_project", result(operators), self.hidden, bias=True))
        if self.held and not self.final_norm:
            operators = (*operators[:-1], holding(operators[-1], parts, self.held))
        return Block(name="embedding", operators=operators, input="", output=result(operators).name)

    def _norm(self, parts: Parts) -> tuple[Block, ...]:
        if not self.final_norm:
            return ()
        (norm,) = leaving((parts.norm("final_norm", parts.tensor(HIDDEN, self.hidden)),), ENCODED)
        norm = holding(norm, parts, self.held or {})
        return (Block(name="norm", operators=(norm,), input=HIDDEN, output=ENCODED),)


def holding(op: Operator, parts: Parts, held: Mapping[str, tuple[int, ...]]) -> Operator:
    """`op` with weights that others read and that have to be held somewhere."""
    weights = (replace(parts.weight(name, *shape), rows=0 * ONE) for name, shape in held.items())
    return replace(op, weights=(*op.weights, *weights))


@dataclass(frozen=True, kw_only=True)
class CrossAttention:
    """Attention of a decoder to all that the encoder beside it has read; leaves "cross_o_proj".

    Keys and values are made of what the encoder leaves, when it has read, and stay. The decoder's own queries see them
    in every step.

    qk_norm        norm of each head of queries and keys
    encoded        the name of what the encoder leaves
    encoded_width  of that; 0 where it is the decoder's own
    read           the part of a pass that it reads
    """

    heads: Heads
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    qk_norm: NormKind | None = None
    encoded: str = ENCODED
    encoded_width: int = 0
    read: Stream = SOURCE

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = replace(self.heads, mask=Across())
        queries: tuple[Operator, ...] = (parts.project("cross_q_proj", x, heads.q_width, bias=self.q_bias),)
        if self.qk_norm:
            norm = parts.norm("cross_q_norm", result(queries), shared=heads.num_heads, kind=self.qk_norm)
            queries = (*queries, norm)
        widths = {"k": heads.kv_width, "v": heads.num_kv_heads * heads.out_dim}
        encoded = self.encoded_width or x.width
        made = (
            *self._kept(parts, "k", widths["k"], encoded, bias=self.k_bias, norm=self.qk_norm),
            *self._kept(parts, "v", widths["v"], encoded, bias=self.v_bias),
        )
        k, v = (parts.cache(f"cross_{name}_cache", width, heads.mask) for name, width in widths.items())
        plain = scored(parts, heads, result(queries), (k,), v)
        attended = tuple(_named(op, f"cross_{op.name}") for op in plain)
        return (*queries, *made, *attended, parts.project("cross_o_proj", result(attended), x.width, bias=self.o_bias))

    def _kept(
        self, parts: Parts, name: str, width: int, encoded: int, *, bias: bool, norm: NormKind | None = None
    ) -> tuple[Operator, ...]:
        """The projection of what the encoder leaves, once for each token that it has read, and its norm."""
        read = TOKENS.on(self.read)
        x = with_rows(parts.tensor(self.encoded, encoded), read)
        plain, kept = parts.tensor(f"cross_{name}_proj", width), parts.cached(f"cross_{name}_cache", width)
        out = with_rows(plain if norm else kept, read)
        made: tuple[Operator, ...] = (parts.linear(plain.name, x, out, bias=bias),)
        if norm:
            normed = parts.norm(f"cross_{name}_norm", out, shared=self.heads.num_kv_heads, kind=norm)
            made = (*made, replace(normed, outputs=(with_rows(kept, read),)))
        return tuple(op.with_weights(lambda w: replace(w, rows=w.shape[0] * ONE.on(self.read))) for op in made)


def _named(op: Operator, name: str) -> Operator:
    """`op` under another name, its scores and what it makes of them too."""
    own = ("scores", "probs", "attention")
    return replace(op, name=name).with_tensors(lambda t: replace(t, name=f"cross_{t.name}") if t.name in own else t)


@dataclass(frozen=True, kw_only=True)
class CrossLayer(Layer):
    """A layer of a decoder beside an encoder: self-attention, cross-attention, feed-forward network."""

    cross: Mixer
    mixer: Mixer
    feed_forward: FeedForward
    name: str = "decoder"

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        made: tuple[Operator, ...] = ()
        for name, run in (("attn", self.mixer), ("cross", self.cross), ("mlp", self.feed_forward)):
            made = (*made, *self._branch(parts, result(made) if made else x, run, name))
        return made


def pair(
    encoder: Encoder,
    decoder: Decoder,
    fmt: Format,
    *,
    front: Block | None = None,
    held: Mapping[str, tuple[int, ...]] | None = None,
    one_table: bool = True,
) -> Graph:
    """An encoder and the decoder that attends to what it leaves.

    Both look tokens up in one table, unless they have two, or the encoder reads something else: what `front` makes
    tokens of.

    held  what the layers of the decoder share, which is held once and read by each
    """
    parts = Parts(format=fmt, norm_kind=decoder.norm)

    def shared(w: Weight) -> Weight:
        return replace(w, tied=True) if w.name == "embed_tokens.weight" and front is None and one_table else w

    def beside(block: Block) -> Block:
        operators = tuple(op.with_weights(shared) for op in block.operators)
        if block.name == "head":
            operators = (holding(operators[0], parts, held or {}), *operators[1:])
        return replace(block, operators=operators, stream=TARGET, given=(ENCODED,) if block.layers else ())

    return Graph((*encoder.beside(fmt, front), *decoder.graph(fmt).map_blocks(beside).blocks))


def task(config: Section, known: Mapping[str, str], default: str) -> str:
    """What a model is for: the value of `known` whose key the class that `architectures` names ends with.

    Where the config names no class, that of `default`.
    """
    named = config.texts("architectures")
    if not named:
        return known[default]
    found = [value for ending, value in known.items() if named[0].endswith(ending)]
    if not found:
        raise config.error("architectures", f"must end with one of {', '.join(known)}; got {named[0]!r}")
    return found[0]


def _product(parts: Parts, name: str, x: Tensor, width: int, *, bias: bool) -> Linear:
    """A projection of as many rows as x has."""
    return parts.linear(name, x, with_rows(parts.tensor(name, width), x.rows), bias=bias)


def _activated(parts: Parts, name: str, act: str, x: Tensor) -> Activation:
    if act != "tanh":
        return parts.activate(name, act, x)
    return Activation(name=name, inputs=(x,), outputs=(replace(x, name=name),), ops_per_element=_TANH_OPS)
