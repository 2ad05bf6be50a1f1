"""Pipeline parallelism: layers divided among successive stages (arXiv:1811.06965)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Final, TypeAlias

from ..errors import InputError
from ..forms import SOURCE, WHOLE, Stream
from ..graph import Block, Graph
from ..operators.attention import Attention, Heads
from ..operators.base import Role, Tensor, Weight
from ..operators.collectives import Group, Send
from ..records import frozen

SEND: Final = "send"  # the operator that ends a stage


@frozen(kw_only=True)
class _Stages:
    """Assignment of layers to stages, as equal as possible.

    number   stages
    layers   layers in all
    reading  layers of the encoder, which come first
    """

    number: int
    layers: int
    reading: int

    @classmethod
    def of(cls, graph: Graph, number: int) -> _Stages:
        reading = sum(len(block.layers) for block in graph.blocks if block.stream == SOURCE)
        return cls(number=number, layers=reading + graph.layers, reading=reading)

    def stage(self, block: Block, layer: int) -> int:
        """The stage of a layer of `block`; -1 is the last layer."""
        own = (self.layers if block.main else self.reading) if layer < 0 else self.reading * block.main
        return (own + layer) * self.number // self.layers

    def pieces(self, graph: Graph) -> Iterator[Block]:
        """Blocks cut at the borders of stages. Blocks outside of layers, such as the embedding, join the stage of the
        first or last layer of their stream.
        """
        for at, block in enumerate(graph.blocks):
            if not block.main and block.stream != SOURCE:
                yield replace(block, stage=0)
            elif not block.layers:
                first = next(i for i, b in enumerate(graph.blocks) if b.stream == block.stream and b.layers)
                yield replace(block, stage=self.stage(block, 0 if at < first else -1))
            else:
                for stage in range(self.number):
                    if layers := tuple(n for n in block.layers if self.stage(block, n) == stage):
                        yield replace(_part(block, layers), stage=stage)

    def apart(self, graph: Graph) -> tuple[int, int] | None:
        """(layer, layer whose cache it reads) in different stages; None if there are none."""
        for block in graph.blocks:
            for heads in _borrowed(block):
                lenders = [n for b in graph.blocks for n in b.layers if heads in _lent(b)]
                for layer in block.layers:  # each reads the cache of the last lender before it
                    lender = max((n for n in lenders if n < layer), default=layer)
                    if self.stage(block, layer) != self.stage(block, lender):
                        return layer, lender
        return None


def staged(graph: Graph, stages: int, group: Group) -> Graph:
    """The graph cut into `stages` stages with as equal numbers of layers as possible, and a send between stages.

    Encoder layers come before decoder layers; image encoders are in the first stage.

    Raises InputError if there are fewer layers than stages, or a layer reads the cache of one in another stage.
    """
    if any(block.stream.name == "acting" for block in graph.blocks):
        what = "every step of the action expert reads the caches of all layers of the vision-language model"
        raise InputError(f"pp={stages}: {what}", hint="use tp or dp")
    cut = _Stages.of(graph, stages)
    if stages > cut.layers:
        raise InputError(f"pp={stages} is more than the {cut.layers} layers", hint=f"try pp={cut.layers} or fewer")
    if apart := cut.apart(graph):
        near = next(n for n in range(stages - 1, 0, -1) if not replace(cut, number=n).apart(graph))
        what = f"layer {apart[0]} reads the cache of layer {apart[1]}, which would be in another stage"
        raise InputError(f"pp={stages}: {what}", hint=f"try pp={near}" if near > 1 else "use tp or dp")
    pieces = list(cut.pieces(graph))
    held = _held(pieces)
    blocks: list[Block] = []
    for stage in range(stages):
        blocks.extend(_with_copies([piece for piece in pieces if piece.stage == stage], held))
        if stage < stages - 1:
            blocks.append(_send(pieces, stage, group))
    return Graph(tuple(blocks))


def _part(block: Block, layers: tuple[int, ...]) -> Block:
    """Some layers of a block."""
    if len(layers) == len(block.layers):
        return block
    span = f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else f"{layers[0]}"
    return replace(block, name=f"{block.name.partition('.')[0]}.{span}", layers=layers)


def _borrowed(block: Block) -> set[Heads]:
    """Heads that attend to a cache of another layer."""
    written = {t.name for op in block.operators for t in op.outputs}
    attention = [op for op in block.operators if isinstance(op, Attention)]
    return {op.heads for op in attention for t in op.inputs if t.role is Role.KV_CACHE and t.name not in written}


def _lent(block: Block) -> set[Heads]:
    """Heads that attend to the layer's own cache."""
    return {op.heads for op in block.operators if isinstance(op, Attention)} - _borrowed(block)


# Tensors sent between stages.


def _send(pieces: Sequence[Block], stage: int, group: Group) -> Block:
    """The send from a stage to the next one: the hidden state, and other tensors that later stages read. It is part of
    the sending stage.
    """
    stream = next(_flow(p) for p in pieces if p.layers and p.stage == stage + 1)
    before = [p for p in pieces if p.layers and p.stage == stage and _flow(p) == stream]
    hidden = [_result(before[-1])] if before else []
    given = list(_given(pieces, stage))
    send = Send(
        name=SEND,
        inputs=(*hidden, *given),
        outputs=(*(replace(t, name="hidden") for t in hidden), *given),
        group=group,
    )
    return Block(
        name=f"{SEND}.{stage}",
        operators=(send,),
        input=hidden[0].name if hidden else "",
        output=send.outputs[0].name,
        stream=stream if before else SOURCE,
        given=tuple(t.name for t in given),
        stage=stage,
    )


def _given(pieces: Sequence[Block], stage: int) -> Iterator[Tensor]:
    """Tensors other than the hidden state that are made up to `stage` and read after it. Of tensors with a part for
    each layer, these are the parts of later layers.
    """
    wanted: dict[str, tuple[Tensor, int]] = {}
    for at, piece in enumerate(pieces):
        for name in piece.given if piece.stage > stage else ():
            source = next(p for p in reversed(pieces[:at]) if p.output == name)
            if source.stage <= stage:
                left = _result(source)
                width = max(t.width for op in piece.operators for t in op.reads() if t.name == name)
                read = wanted.get(name, (left, 0))[1] + piece.repeat * width
                wanted[name] = (replace(left, rows=left.rows.on(source.stream)), read)
    for left, read in wanted.values():
        yield replace(left, width=min(left.width, read))


def _flow(block: Block) -> Stream:
    """The stream of its hidden states; blocks for sequences with images change those of the whole pass."""
    return WHOLE if block.stream.name == "seeing" else block.stream


def _result(block: Block) -> Tensor:
    """The output tensor of a block."""
    return next(t for op in reversed(block.operators) for t in op.outputs if t.name == block.output)


# Parameters that several stages hold.

_Key: TypeAlias = tuple[str, tuple[int, ...], bool]  # name, shape, whether it belongs to the decoder


def _with_copies(own: Sequence[Block], held: Counter[_Key]) -> Iterator[Block]:
    """The blocks of one stage, with copies of tied parameters that other stages hold."""
    here = _held(own)
    for piece in own:
        tied = {_key(w, piece, held) for op in piece.operators for w in op.weights if w.tied}
        wanted = {key for key in tied if held[key] > here[key]}
        copies = min(piece.repeat, max((held[key] - here[key] for key in wanted), default=0))
        if not copies:
            yield piece
            continue
        here.update(dict.fromkeys(wanted, copies))
        yield _copied(_part(piece, piece.layers[:copies]), wanted, held)
        if copies < piece.repeat:
            yield _part(piece, piece.layers[copies:])


def _copied(block: Block, wanted: set[_Key], held: Counter[_Key]) -> Block:
    """The block with a copy of each of the `wanted` parameters, held by its first reader."""
    left = set(wanted)

    def one(w: Weight) -> Weight:
        key = _key(w, block, held)
        if not w.tied or key not in left:
            return w
        left.remove(key)
        return Weight(**{field.name: getattr(w, field.name) for field in fields(Weight)} | {"tied": False})

    return block.map(lambda op: op.with_weights(one))


def _held(blocks: Iterable[Block]) -> Counter[_Key]:
    """The number of instances of each parameter in `blocks`."""
    held: Counter[_Key] = Counter()
    for block in blocks:
        for op in block.operators:
            held.update({(w.name, w.shape, block.main): block.repeat for w in op.weights if not w.tied})
    return held


def _key(weight: Weight, block: Block, held: Counter[_Key]) -> _Key:
    """The parameter that a tied weight refers to: one of its name, else the embedding; in its own stack, if there."""
    names = (weight.name, "embed_tokens.weight") if weight.name == "lm_head.weight" else (weight.name,)
    known = [(name, weight.shape, main) for name in names for main in (block.main, not block.main)]
    return next((key for key in known if held[key]), known[0])
