"""Operators as techniques look at them, and small changes to them."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Block
from ..operators.base import Operator, Tensor
from ..operators.linear import Linear


def compressible(op: Operator) -> bool:
    """Whether `op` is a plain product with one matrix: no head, router, or experts."""
    return type(op) is Linear


def inner(name: str, width: int, like: Tensor) -> Tensor:
    """What is between two products, as wide as their rank."""
    return replace(like, name=name, width=width)


def layers(block: Block) -> bool:
    """Whether it is layers of what writes the answer."""
    return block.main and bool(block.layers)


def tied(op: Operator) -> Operator:
    """`op` with weights that are held elsewhere."""
    return op.with_weights(lambda w: replace(w, tied=True))
