"""Operators and blocks that techniques share."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from ..graph import Block
from ..operators.base import Operator, Sharding, Tensor
from ..operators.linear import Linear
from ..records import frozen

_SOME: Final = ("sampled", "together", "thinned")  # streams of a fraction of the generated tokens


@frozen(kw_only=True)
class Instead(Linear):
    """A linear that replaces `of`, with the same inputs and outputs."""

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    of: Linear


def original(op: Operator) -> Operator:
    """`op`, or the linear that it replaces."""
    return original(op.of) if isinstance(op, Instead) else op


def compressible(op: Operator) -> bool:
    """Whether `op` is a plain linear: no head, router, or experts."""
    return type(op) is Linear


def inner(name: str, width: int, like: Tensor) -> Tensor:
    """The tensor between two linears of rank `width`."""
    return replace(like, name=name, width=width)


def layers(block: Block) -> bool:
    """Whether `block` has layers of the model that generates the answer."""
    return bool(block.layers) and (block.main or block.stream.name in _SOME)


def tied(op: Operator) -> Operator:
    """`op` with weights that another operator holds."""
    return op.with_weights(lambda w: replace(w, tied=True))
