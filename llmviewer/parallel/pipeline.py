"""Pipeline parallelism: layers shared out among stages that follow each other (arXiv:1811.06965)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import InputError
from ..forms import TOKENS
from ..graph import Block, Graph
from ..operators.base import Tensor
from ..operators.collectives import Group, Send


def staged(graph: Graph, stages: int, group: Group) -> Graph:
    """Blocks cut at the borders of `stages` runs of layers, as equal as can be; a send at each border.

    What comes before the first layer is in the first stage, what comes after the last one in the last.

    Raises InputError where there are fewer layers than stages, or all layers read one result, such as an encoder's.
    """
    layers = graph.layers
    if stages > layers:
        raise InputError(f"pp={stages} is more than the {layers} layers; try pp={layers} or fewer")
    if any(block.given and block.main and block.layers for block in graph.blocks):
        raise InputError(
            f"pp={stages}: layers that all read one earlier result cannot be cut into stages; use tp or dp"
        )
    first = [-(-layers * stage // stages) for stage in range(stages + 1)]
    at = next(index for index, block in enumerate(graph.blocks) if block.main and block.layers)
    pieces = [
        piece
        for index, block in enumerate(graph.blocks)
        for piece in (_cut(block, first) if index >= at else [replace(block, stage=0)])
    ]
    blocks: list[Block] = []
    for piece in sorted(pieces, key=lambda block: block.stage):
        if blocks and piece.stage > blocks[-1].stage:
            blocks.append(_send(blocks[-1], group))
        blocks.append(piece)
    return Graph(tuple(blocks))


def _cut(block: Block, first: list[int]) -> Iterator[Block]:
    """`block` in pieces of one stage each."""
    last = len(first) - 2
    if not block.layers:
        yield replace(block, stage=last)
        return
    for stage in range(last + 1):
        layers = tuple(n for n in block.layers if first[stage] <= n < first[stage + 1])
        if layers:
            name = block.name if len(layers) == len(block.layers) else f"{block.name}.{layers[0]}-{layers[-1]}"
            yield replace(block, name=name, layers=layers, stage=stage)


def _send(block: Block, group: Group) -> Block:
    """The hidden state on its way to the next stage; a launch of the stage that it leaves."""
    last = next(t for op in reversed(block.operators) for t in op.outputs if t.name == block.output)
    left = Tensor(name=block.output, width=last.width, format=last.format, rows=TOKENS)
    came = replace(left, name="hidden")
    send = Send(name="send", inputs=(left,), outputs=(came,), group=group)
    return Block(name=f"send.{block.stage}", operators=(send,), input=block.output, output=came.name, stage=block.stage)
