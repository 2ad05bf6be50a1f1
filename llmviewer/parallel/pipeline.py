"""Pipeline parallelism: layers divided among successive stages (arXiv:1811.06965)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Final, TypeAlias

from ..errors import InputError
from ..forms import SOURCE, WHOLE_PASS, Stream
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
    encoder  layers of the encoder, which come first
    """

    number: int
    layers: int
    encoder: int

    @classmethod
    def of(cls, graph: Graph, number: int) -> _Stages:
        encoder = sum(len(block.layers) for block in graph.blocks if block.stream == SOURCE)
        return cls(number=number, layers=encoder + graph.layers, encoder=encoder)

    def stage(self, block: Block, layer: int) -> int:
        """The stage of a layer of `block`; -1 is the last layer."""
        stream_layers = (self.layers if block.main else self.encoder) if layer < 0 else self.encoder * block.main
        return (stream_layers + layer) * self.number // self.layers

    def pieces(self, graph: Graph) -> Iterator[Block]:
        """Blocks cut at the borders of stages. Blocks outside of layers, such as the embedding, join the stage of the
        first or last layer of their stream.
        """
        for index, block in enumerate(graph.blocks):
            if not block.main and block.stream != SOURCE:
                yield replace(block, stage=0)
            elif not block.layers:
                alike = (b.layers and (b.stream == block.stream or (b.main and block.main)) for b in graph.blocks)
                first = next(i for i, has_layers in enumerate(alike) if has_layers)
                yield replace(block, stage=self.stage(block, 0 if index < first else -1))
            else:
                for stage in range(self.number):
                    if layers := tuple(n for n in block.layers if self.stage(block, n) == stage):
                        yield replace(_part(block, layers), stage=stage)

    def apart(self, graph: Graph) -> tuple[int, int] | None:
        """(layer, layer whose cache it reads) in different stages; None if there are none."""
        for block in graph.blocks:
            for heads in _shared_cache_heads(block):
                lenders = [n for b in graph.blocks for n in b.layers if heads in _own_cache_heads(b)]
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
    if any(block.stream.name == "denoising" for block in graph.blocks):
        reason = "every step of the action expert reads the caches of all layers of the vision-language model"
        raise InputError(f"pp={stages}: {reason}", hint="use tp or dp")
    cut = _Stages.of(graph, stages)
    if stages > cut.layers:
        raise InputError(f"pp={stages} is more than the {cut.layers} layers", hint=f"try pp={cut.layers} or fewer")
    if divided_layers := cut.apart(graph):
        near = next(n for n in range(stages - 1, 0, -1) if not replace(cut, number=n).apart(graph))
        reason = (
            f"layer {divided_layers[0]} reads the cache of layer {divided_layers[1]}, which would be in another stage"
        )
        raise InputError(f"pp={stages}: {reason}", hint=f"try pp={near}" if near > 1 else "use tp or dp")
    pieces = list(cut.pieces(graph))
    instances = _instances(pieces)
    blocks: list[Block] = []
    for stage in range(stages):
        blocks.extend(_with_copies([piece for piece in pieces if piece.stage == stage], instances))
        if stage < stages - 1:
            blocks.append(_send(pieces, stage, group))
    return Graph(tuple(blocks))


def _part(block: Block, layers: tuple[int, ...]) -> Block:
    """The block with only some of its layers."""
    if len(layers) == len(block.layers):
        return block
    span = f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else f"{layers[0]}"
    return replace(block, name=f"{block.name.partition('.')[0]}.{span}", layers=layers)


def _shared_cache_heads(block: Block) -> set[Heads]:
    """Heads that read the cache of another layer."""
    written = {t.name for op in block.operators for t in op.outputs}
    attention = [op for op in block.operators if isinstance(op, Attention)]
    return {op.heads for op in attention for t in op.inputs if t.role is Role.KV_CACHE and t.name not in written}


def _own_cache_heads(block: Block) -> set[Heads]:
    """Heads that attend to the layer's own cache."""
    return {op.heads for op in block.operators if isinstance(op, Attention)} - _shared_cache_heads(block)


# Tensors sent between stages.


def _send(pieces: Sequence[Block], stage: int, group: Group) -> Block:
    """The send from a stage to the next one: the hidden state, and other tensors that later stages read. It is part of
    the sending stage.
    """
    stream = next(_flow(p) for p in pieces if p.layers and p.stage == stage + 1)
    before = [p for p in pieces if p.layers and p.stage == stage and _flow(p) == stream]
    hidden = [before[-1].result] if before else []
    side_tensors = list(_side_tensors(pieces, stage))
    send = Send(
        name=SEND,
        inputs=(*hidden, *side_tensors),
        outputs=(*(replace(t, name="hidden") for t in hidden), *side_tensors),
        group=group,
    )
    return Block(
        name=f"{SEND}.{stage}",
        operators=(send,),
        input=hidden[0].name if hidden else "",
        output=send.outputs[0].name,
        stream=stream if before else SOURCE,
        side_inputs=tuple(t.name for t in side_tensors),
        stage=stage,
    )


def _side_tensors(pieces: Sequence[Block], stage: int) -> Iterator[Tensor]:
    """Tensors other than the hidden state that are made up to `stage` and read after it. Of tensors with a part for
    each layer, these are the parts of later layers.
    """
    widths_read: dict[str, tuple[Tensor, int]] = {}
    for index, piece in enumerate(pieces):
        for name in piece.side_inputs if piece.stage > stage else ():
            source = next(p for p in reversed(pieces[:index]) if p.output == name)
            if source.stage <= stage:
                written = source.result
                width = max(t.width for op in piece.operators for t in op.reads() if t.name == name)
                read = widths_read.get(name, (written, 0))[1] + piece.repeat * width
                widths_read[name] = (replace(written, rows=written.rows.on(source.stream)), read)
    for written, read in widths_read.values():
        yield replace(written, width=min(written.width, read))


def _flow(block: Block) -> Stream:
    """The stream of its hidden states; blocks for sequences with images change those of the whole pass."""
    return WHOLE_PASS if block.stream.name == "with_images" else block.stream


# Parameters that several stages hold.

_Key: TypeAlias = tuple[str, tuple[int, ...], bool]  # name, shape, whether it belongs to the decoder


def _with_copies(blocks: Sequence[Block], instances: Counter[_Key]) -> Iterator[Block]:
    """The blocks of one stage, with copies of tied parameters that other stages hold."""
    local_instances = _instances(blocks)
    for piece in blocks:
        tied = {_key(w, piece, instances) for op in piece.operators for w in op.weights if w.tied}
        missing = {key for key in tied if instances[key] > local_instances[key]}
        copies = min(piece.repeat, max((instances[key] - local_instances[key] for key in missing), default=0))
        if not copies:
            yield piece
            continue
        local_instances.update(dict.fromkeys(missing, copies))
        yield _copied(_part(piece, piece.layers[:copies]), missing, instances)
        if copies < piece.repeat:
            yield _part(piece, piece.layers[copies:])


def _copied(block: Block, missing: set[_Key], instances: Counter[_Key]) -> Block:
    """The block with a copy of each of the `wanted` parameters, held by its first reader."""
    uncopied = set(missing)

    def one(w: Weight) -> Weight:
        key = _key(w, block, instances)
        if not w.tied or key not in uncopied:
            return w
        uncopied.remove(key)
        return Weight(**{field.name: getattr(w, field.name) for field in fields(Weight)} | {"tied": False})

    return block.map(lambda op: op.with_weights(one))


def _instances(blocks: Iterable[Block]) -> Counter[_Key]:
    """The number of instances of each parameter in `blocks`."""
    counts: Counter[_Key] = Counter()
    for block in blocks:
        for op in block.operators:
            counts.update({(w.name, w.shape, block.main): block.repeat for w in op.weights if not w.tied})
    return counts


def _key(weight: Weight, block: Block, instances: Counter[_Key]) -> _Key:
    """The parameter that a tied weight refers to: one of its name, else the embedding; in its own stack, if there."""
    names = (weight.name, "embed_tokens.weight") if weight.name == "lm_head.weight" else (weight.name,)
    candidates = [(name, weight.shape, main) for name in names for main in (block.main, not block.main)]
    return next((key for key in candidates if instances[key]), candidates[0])
