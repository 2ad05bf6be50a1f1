"""Compressed keys, one for several tokens, and rotations of one tensor (arXiv:2606.19348, section 2.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from ..forms import Form
from ..records import frozen
from ..resource import Resource, vector
from .base import Operator, Sharding, Tensor
from .elementwise import Rope
from .kinds import declare


@frozen(kw_only=True)
class Compress(Operator):
    """entry = rotate(norm(sum over tokens of softmax(gate + bias) * value)), elementwise, for each group of tokens.

    `inputs` are values, gates, and the state of the unfinished group. A pass reads one row per token, from the
    projections or from that state. Without gates, an entry is the mean of the values.

    Vector OPs: per element of a value a bias, five of softmax and a multiply-add, or one addition without gates; per
    element of an entry four of the norm, and three if rotated.

    normed  whether entries have a norm
    """

    rotary_dim: int
    normed: bool = True

    kind: str = declare("compress", "The keys or values of several tokens compressed into one.")

    def arithmetic(self) -> dict[Resource, Form]:
        values, entries = self.inputs[0], self.outputs[0]
        ops_per_entry = 4 * entries.width * self.normed + 3 * self.rotary_dim
        gated = len(self.inputs) > 2
        return {vector("fp32"): (8 if gated else 1) * values.elements + ops_per_entry * entries.rows}


@frozen(kw_only=True)
class Turn(Operator):
    """Rotary embedding of one tensor, or its inverse: `rotary_dim` elements of each head; the others stay in place."""

    sharding: ClassVar[Sharding] = Sharding.ELEMENTS

    num_heads: int
    rotary_dim: int

    kind: str = Rope.kind

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): 3 * self._turned(self.inputs[0]).elements}

    def reads(self) -> tuple[Tensor, ...]:
        return (self._turned(self.inputs[0]),)

    def writes(self) -> tuple[Tensor, ...]:
        return (self._turned(self.outputs[0]),)

    def _turned(self, t: Tensor) -> Tensor:
        return replace(t, width=self.num_heads * self.rotary_dim)

    def units(self, t: Tensor) -> int:  # noqa: ARG002
        return self.num_heads

    def cut(self, part: int, width: int) -> Self:
        return replace(self, num_heads=self.num_heads * part // width)
