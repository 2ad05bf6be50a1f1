"""Replacing the attention masks of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from ..forms import SOURCE, Form
from ..graph import Block, Graph
from ..operators.attention import QK, SV, Softmax
from ..operators.base import Operator, Tensor
from ..operators.linear import LatentExpansion
from ..operators.masks import Bidirectional, Causal, Cross, Mask

_ATTENTION = (QK, Softmax, SV)


def causal_masks(graph: Graph) -> Iterator[Causal]:
    """The causal masks of a graph's attention, sliding windows included; one per block."""
    for block in graph.blocks:
        if mask := _causal_mask(block):
            yield mask


def bidirectional_masks(graph: Graph) -> Iterator[Bidirectional]:
    """The full bidirectional masks of encoders; one per block, without towers of images."""
    for block in graph.blocks:
        if mask := _bidirectional_mask(block):
            yield mask


def replace_masks(graph: Graph, change: Callable[[Causal], Mask | None], bidirectional: Mask | None = None) -> Graph:
    """The graph with causal masks replaced by what `change` returns for them; None leaves a mask unchanged.

    Attention with an indexer, to an encoder or in a tower is unchanged.

    bidirectional  replaces the full bidirectional masks of encoders, if given
    """

    def replaced(block: Block) -> Block:
        mask = _causal_mask(block)
        new_mask = change(mask) if mask else None
        if mask and new_mask:
            return _with_mask(block, mask, new_mask)
        other = _bidirectional_mask(block)
        return _with_mask(block, other, bidirectional) if other and bidirectional else block

    return graph.map_blocks(replaced)


def replace_self_attention_mask(block: Block, change: Callable[[Mask], Mask]) -> Block:
    """The block with the mask of its attention, of any kind but to an encoder, replaced by `change` of it."""
    masks = (op.heads.mask for op in block.operators if isinstance(op, QK))
    mask = next((mask for mask in masks if not isinstance(mask, Cross)), None)
    return _with_mask(block, mask, change(mask)) if mask else block


def _bidirectional_mask(block: Block) -> Bidirectional | None:
    if not block.stream.name or block.main or block.stream == SOURCE:
        masks = (op.heads.mask for op in block.operators if isinstance(op, QK))
        return next((mask for mask in masks if type(mask) is Bidirectional and mask.reach == inf), None)
    return None


def _causal_mask(block: Block) -> Causal | None:
    masks = (op.heads.mask for op in block.operators if isinstance(op, QK))
    return next((mask for mask in masks if type(mask) is Causal), None)


def _with_mask(block: Block, old: Mask, new: Mask) -> Block:
    rows = {old.keys_read: new.keys_read, old.cells: new.cells}

    def tensor(t: Tensor) -> Tensor:
        cached_rows: Form | None = new.keys_cached if t.retained_rows == old.keys_cached else t.retained_rows
        return replace(t, rows=rows.get(t.rows, t.rows), retained_rows=cached_rows)

    def operator(op: Operator) -> Operator:
        if isinstance(op, LatentExpansion):
            return op.with_tensors(tensor)
        if isinstance(op, _ATTENTION) and op.heads.mask == old:
            return replace(op.with_tensors(tensor), heads=replace(op.heads, mask=new))
        return op

    return block.map(operator)
