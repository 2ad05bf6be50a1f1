"""Encoders with bidirectional attention, with a head or with a decoder (arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...documents import Section
from ...forms import LOGITS, ONE, SEQUENCES, SOURCE, TARGET, TOKENS, WHOLE_PASS, WITH_LOGITS, Stream
from ...graph import Block, Graph
from ...operators.attention import Heads
from ...operators.base import Operator, Tensor, Weight
from ...operators.elementwise import Activation, Elementwise
from ...operators.linear import Linear, LMHead
from ...operators.masks import Bidirectional, Cross
from ...precision import Format
from ...records import frozen
from .attention import scored
from .decoder import Decoder, FeedForward, Layer, Mixer, folded
from .parts import HIDDEN, NormKind, Parts, result, with_rows

ENCODED: Final = "encoded"  # name of the output of an encoder
_TANH_OPS: Final = 1  # of an element, as every special function


def bidirectional(heads: Heads, reach: float | None = None) -> Heads:
    """Makes attention of `heads` bidirectional, to at most `reach` tokens on each side if given."""
    return replace(heads, mask=Bidirectional() if reach is None else Bidirectional(reach))


def stack(
    parts: Parts, layers: Sequence[Layer], hidden: int, *, stream: Stream = WHOLE_PASS, leaves: str = ""
) -> list[Block]:
    """A block for each kind of layer, on `stream`; outputs are named `leaves`, if given."""
    blocks = folded(parts, layers, parts.tensor(HIDDEN, hidden))
    if leaves:
        blocks = [replace(block, operators=leaving(block.operators, leaves), output=leaves) for block in blocks]
    return [replace(block, stream=stream) for block in blocks]


def leaving(operators: tuple[Operator, ...], name: str) -> tuple[Operator, ...]:
    """The operators with their result renamed to `name`."""
    last = operators[-1]
    first, *others = last.outputs
    return (*operators[:-1], replace(last, outputs=(replace(first, name=name), *others)))


@frozen(kw_only=True)
class Head:
    """The head of an encoder: classes(norm(act(dense(x)))), without the parts that are 0 or None.

    first    whether it reads only the first token of each sequence; else every token
    mean     tokens of a sequence, whose mean it reads; 0: it reads no mean
    dense    width of the first projection; 0: none
    classes  number of outputs; 0: the result is that of `dense`
    words    whether the classes are tokens of the vocabulary; the matrix is the embedding's if `tied`
    with_logits  whether it runs only at tokens whose logits are needed
    """

    first: bool = False
    mean: int = 0
    dense: int = 0
    act: str = "tanh"
    dense_bias: bool = True
    norm: bool = False
    classes: int = 0
    bias: bool = True
    words: bool = False
    with_logits: bool = False
    tied: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        rows = SEQUENCES if self.first else LOGITS if self.with_logits else TOKENS
        prefix = "pooler" if self.first else "head"
        x = with_rows(x, rows)
        launches: tuple[Operator, ...] = ()
        if self.mean:
            launches = (mean_pooled(parts, x, self.mean),)
            x = result(launches)
        if self.dense:
            dense = _product(parts, f"{prefix}_dense", x, self.dense, bias=self.dense_bias)
            launches = (*launches, dense, _activated(parts, f"{prefix}_act", self.act, dense.result))
            x = result(launches)
        if self.norm:
            launches = (*launches, parts.norm(f"{prefix}_norm", x))
            x = result(launches)
        if self.words:
            return (*launches, self._words(parts, x))
        return (*launches, _product(parts, "classifier", x, self.classes, bias=self.bias)) if self.classes else launches

    def _words(self, parts: Parts, x: Tensor) -> LMHead:
        matrix = parts.weight("lm_head.weight", self.classes, x.width, tied=self.tied)
        if self.with_logits:
            matrix = replace(matrix, rows=self.classes * WITH_LOGITS)
        bias = (parts.weight("lm_head.bias", self.classes),) if self.bias else ()
        return LMHead(
            name="lm_head",
            inputs=(x,),
            outputs=(with_rows(parts.tensor("logits", self.classes), x.rows),),
            weights=(matrix, *bias),
        )


def mean_pooled(parts: Parts, x: Tensor, tokens: int) -> Elementwise:
    """The mean of the `tokens` of each sequence."""
    pool = parts.elementwise("mean_pool", x, ops=tokens)
    return replace(pool, outputs=(with_rows(pool.result, SEQUENCES),))


@frozen(kw_only=True)
class Encoder:
    """Embedding, bidirectional layers, last norm, and heads (none with a decoder).

    positions    rows of the table of learned positions; 0: none
    types        rows of the table of token types; 0: none
    embed_width  width of embeddings, if they are projected to `hidden`
    projected    whether they are projected though they are as wide
    embed_norm   whether a norm follows the embedding
    final_norm   whether a norm follows the layers
    shared_shapes  shapes of weights that all layers share, by name
    """

    vocab: int
    hidden: int
    layers: Sequence[Layer]
    norm: NormKind = NormKind.LAYER
    positions: int = 0
    types: int = 0
    embed_width: int = 0
    projected: bool = False
    embed_norm: bool = False
    final_norm: bool = False
    shared_shapes: Mapping[str, tuple[int, ...]] | None = None
    heads: tuple[Head, ...] = ()

    def graph(self, fmt: Format, front: Block | None = None) -> Graph:
        """The graph of the encoder without a decoder; `front` is a block in place of the embedding."""
        parts = Parts(format=fmt, norm_kind=self.norm)
        blocks = [front or self._embedding(parts), *stack(parts, self.layers, self.hidden), *self._norm(parts)]
        if self.heads:
            x = parts.tensor(HIDDEN, self.hidden)
            operators = tuple(op for head in self.heads for op in head.operators(parts, x))
            blocks.append(Block(name="head", operators=operators, input=HIDDEN, output=result(operators).name))
        return Graph(tuple(blocks))

    def beside(self, fmt: Format, front: Block | None = None) -> tuple[Block, ...]:
        """The blocks of the encoder of an encoder-decoder model; their output is ENCODED.

        front  block in place of the embedding
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
        if width != self.hidden or self.projected:
            operators = (*operators, parts.project("embed_project", result(operators), self.hidden, bias=True))
        if self.shared_shapes and not self.final_norm:
            operators = (*operators[:-1], holding(operators[-1], parts, self.shared_shapes))
        return Block(name="embedding", operators=operators, input="", output=result(operators).name)

    def _norm(self, parts: Parts) -> tuple[Block, ...]:
        if not self.final_norm:
            return ()
        (norm,) = leaving((parts.norm("final_norm", parts.tensor(HIDDEN, self.hidden)),), ENCODED)
        norm = holding(norm, parts, self.shared_shapes or {})
        return (Block(name="norm", operators=(norm,), input=HIDDEN, output=ENCODED),)


def holding(op: Operator, parts: Parts, shapes: Mapping[str, tuple[int, ...]]) -> Operator:
    """`op` with weights that others read and that have to be held somewhere."""
    weights = (replace(parts.weight(name, *shape), rows=0 * ONE) for name, shape in shapes.items())
    return replace(op, weights=(*op.weights, *weights))


@frozen(kw_only=True)
class CrossAttention:
    """Cross-attention of a decoder to the output of the encoder; the result is "cross_o_proj".

    Keys and values are computed once, after the encoder, and cached. Decoder queries attend to them in every pass.

    qk_norm        norm of each head of queries and keys
    encoded        name of the encoder's output
    encoded_width  its width; 0: that of the decoder
    read           stream of the encoder's tokens
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
        heads = replace(self.heads, mask=Cross())
        queries: tuple[Operator, ...] = (parts.project("cross_q_proj", x, heads.q_width, bias=self.q_bias),)
        if self.qk_norm:
            norm = parts.norm("cross_q_norm", result(queries), shared=heads.num_heads, kind=self.qk_norm)
            queries = (*queries, norm)
        widths = {"k": heads.kv_width, "v": heads.num_kv_heads * heads.out_dim}
        encoded = self.encoded_width or x.width
        launches = (
            *self._kept(parts, "k", widths["k"], encoded, bias=self.k_bias, norm=self.qk_norm),
            *self._kept(parts, "v", widths["v"], encoded, bias=self.v_bias),
        )
        k, v = (parts.cache(f"cross_{name}_cache", width, heads.mask) for name, width in widths.items())
        plain = scored(parts, heads, result(queries), (k,), v)
        attended = tuple(_named(op, f"cross_{op.name}") for op in plain)
        return (
            *queries,
            *launches,
            *attended,
            parts.project("cross_o_proj", result(attended), x.width, bias=self.o_bias),
        )

    def _kept(
        self, parts: Parts, name: str, width: int, encoded: int, *, bias: bool, norm: NormKind | None = None
    ) -> tuple[Operator, ...]:
        """The projection of the encoder's output, once per encoder token, and its norm."""
        read = TOKENS.on(self.read)
        x = with_rows(parts.tensor(self.encoded, encoded), read)
        plain, cached_tensor = parts.tensor(f"cross_{name}_proj", width), parts.cached(f"cross_{name}_cache", width)
        out = with_rows(plain if norm else cached_tensor, read)
        operators: tuple[Operator, ...] = (parts.linear(plain.name, x, out, bias=bias),)
        if norm:
            normed = parts.norm(f"cross_{name}_norm", out, shared=self.heads.num_kv_heads, kind=norm)
            operators = (*operators, replace(normed, outputs=(with_rows(cached_tensor, read),)))
        return tuple(op.with_weights(lambda w: replace(w, rows=w.shape[0] * ONE.on(self.read))) for op in operators)


def _named(op: Operator, name: str) -> Operator:
    """`op` under another name, its scores and what it makes of them too."""
    internal_names = ("scores", "probs", "attention")
    return replace(op, name=name).with_tensors(
        lambda t: replace(t, name=f"cross_{t.name}") if t.name in internal_names else t
    )


@frozen(kw_only=True)
class CrossLayer(Layer):
    """A decoder layer with self-attention, cross-attention and feed-forward network."""

    cross: Mixer
    mixer: Mixer
    feed_forward: FeedForward
    name: str = "decoder"

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches: tuple[Operator, ...] = ()
        for name, run in (("attn", self.mixer), ("cross", self.cross), ("mlp", self.feed_forward)):
            launches = (*launches, *self._branch(parts, result(launches) if launches else x, run, name))
        return launches


def pair(
    encoder: Encoder,
    decoder: Decoder,
    fmt: Format,
    *,
    front: Block | None = None,
    shared_shapes: Mapping[str, tuple[int, ...]] | None = None,
    one_table: bool = True,
) -> Graph:
    """The graph of an encoder-decoder model.

    Both parts share one embedding table, unless they have two, or `front` replaces the encoder's embedding.

    shared_shapes  shapes of weights that all decoder layers share, by name
    """
    parts = Parts(format=fmt, norm_kind=decoder.norm)

    def shared(w: Weight) -> Weight:
        return replace(w, tied=True) if w.name == "embed_tokens.weight" and front is None and one_table else w

    def auxiliary(block: Block) -> Block:
        operators = tuple(op.with_weights(shared) for op in block.operators)
        if block.name == "head":
            operators = (holding(operators[0], parts, shared_shapes or {}), *operators[1:])
        return replace(block, operators=operators, stream=TARGET, side_inputs=(ENCODED,) if block.layers else ())

    return Graph((*encoder.beside(fmt, front), *decoder.graph(fmt).map_blocks(auxiliary).blocks))


def task(config: Section, tasks_by_ending: Mapping[str, str], default: str) -> str:
    """The task of a model: the value of `tasks_by_ending` for the suffix of the class named in field `architectures`.

    `default` is the suffix if the config names no class.
    """
    named = config.texts("architectures")
    if not named:
        return tasks_by_ending[default]
    tasks = [value for ending, value in tasks_by_ending.items() if named[0].endswith(ending)]
    if not tasks:
        raise config.error("architectures", f"must end with one of {', '.join(tasks_by_ending)}; got {named[0]!r}")
    return tasks[0]


def _product(parts: Parts, name: str, x: Tensor, width: int, *, bias: bool) -> Linear:
    """A projection of as many rows as x has."""
    return parts.linear(name, x, with_rows(parts.tensor(name, width), x.rows), bias=bias)


def _activated(parts: Parts, name: str, act: str, x: Tensor) -> Activation:
    if act != "tanh":
        return parts.activate(name, act, x)
    return Activation(name=name, inputs=(x,), outputs=(replace(x, name=name),), ops_per_element=_TANH_OPS)
