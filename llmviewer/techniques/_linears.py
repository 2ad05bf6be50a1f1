"""Operators as techniques look at them, and small changes to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..graph import Block
from ..operators.base import Operator, Tensor
from ..operators.linear import Linear

_SOME: Final = ("sampled", "together", "thinned")  # streams of some of the tokens that are written


@dataclass(frozen=True, kw_only=True)
class Instead(Linear):
    """A product in the place of another one, with its inputs and results."""

    of: Linear


def original(op: Operator) -> Operator:
    """`op`, or what it stands for."""
    return original(op.of) if isinstance(op, Instead) else op


def compressible(op: Operator) -> bool:
    """Whether `op` is a plain product with one matrix: no head, router, or experts."""
    return type(op) is Linear


def inner(name: str, width: int, like: Tensor) -> Tensor:
    """What is between two products, as wide as their rank."""
    return replace(like, name=name, width=width)


def layers(block: Block) -> bool:
    """Whether it is layers of what writes the answer."""
    return bool(block.layers) and (block.main or block.stream.name in _SOME)


def tied(op: Operator) -> Operator:
    """`op` with weights that are held elsewhere."""
    return op.with_weights(lambda w: replace(w, tied=True))
