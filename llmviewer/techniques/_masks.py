"""Replacing the attention masks of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..forms import Form
from ..graph import Block, Graph
from ..operators.attention import QK, SV, Softmax
from ..operators.base import Operator, Tensor
from ..operators.linear import LatentExpansion
from ..operators.masks import Causal, Mask

_ATTENTION = (QK, Softmax, SV)


def causal(graph: Graph) -> Iterator[Causal]:
    """The causal masks of a graph's attention, sliding windows included; one per block."""
    for block in graph.blocks:
        if mask := _own(block):
            yield mask


def masked(graph: Graph, change: Callable[[Causal], Mask | None]) -> Graph:
    """The graph with causal masks replaced by what `change` returns for them; None leaves a mask unchanged.

    Attention with an indexer, to an encoder or in a tower is unchanged.
    """

    def one(block: Block) -> Block:
        own = _own(block)
        new = change(own) if own else None
        return _with(block, own, new) if own and new else block

    return graph.map_blocks(one)


def _own(block: Block) -> Causal | None:
    masks = (op.heads.mask for op in block.operators if isinstance(op, QK))
    return next((mask for mask in masks if type(mask) is Causal), None)


def _with(block: Block, own: Causal, new: Mask) -> Block:
    rows = {own.read: new.read, own.cells: new.cells}

    def tensor(t: Tensor) -> Tensor:
        held: Form | None = new.held if t.held == own.held else t.held
        return replace(t, rows=rows.get(t.rows, t.rows), held=held)

    def operator(op: Operator) -> Operator:
        if isinstance(op, LatentExpansion):
            return op.with_tensors(tensor)
        if isinstance(op, _ATTENTION) and op.heads.mask == own:
            return replace(op.with_tensors(tensor), heads=replace(op.heads, mask=new))
        return op

    return block.map(operator)
