"""Operators and blocks that techniques share."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from ..graph import Block
from ..operators.base import Operator, Sharding, Tensor
from ..operators.linear import Linear
from ..records import frozen

_PARTIAL_STREAMS: Final = ("sampled", "pass_fraction", "thinned")  # streams of a fraction of the generated tokens


@frozen(kw_only=True)
class ReplacedLinear(Linear):
    """A linear that replaces `of`, with the same inputs and outputs."""

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    of: Linear


def original_linear(op: Operator) -> Operator:
    """The linear that `op` replaces, or `op` itself."""
    return original_linear(op.of) if isinstance(op, ReplacedLinear) else op


def is_plain_linear(op: Operator) -> bool:
    """Whether `op` is a plain linear, not a head, router, or expert."""
    return type(op) is Linear


def rank_tensor(name: str, width: int, like: Tensor) -> Tensor:
    """The tensor between two linears of rank `width`."""
    return replace(like, name=name, width=width)


def is_main_layer(block: Block) -> bool:
    """Whether `block` has layers of the generating model, not of an encoder or a tower."""
    return bool(block.layers) and (block.main or block.stream.name in _PARTIAL_STREAMS)


def with_tied_weights(op: Operator) -> Operator:
    """The operator with its weights tied to another operator's."""
    return op.with_weights(lambda w: replace(w, tied=True))
