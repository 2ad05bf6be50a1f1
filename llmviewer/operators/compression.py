"""Keys that stand for several tokens each, and rotations of one tensor (arXiv:2606.19348, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..forms import Form
from ..resource import Resource, vector
from .base import Operator, Tensor


@dataclass(frozen=True, kw_only=True)
class Compress(Operator):
    """entry = rotate(norm(sum over tokens of softmax(gate + bias) * value)), element by element, for each group.

    `inputs` are values, gates, and what the next group has of them so far. A pass reads a row for each of its tokens:
    from the projections or from that state, as the group fills in one pass or in many. Without gates it is their mean.

    An element of a value takes a bias, five OPs of softmax and a multiply-add, or an addition; one of an entry four of
    the norm, and three more where it is rotated.

    normed  there is a norm of entries
    """

    rotary_dim: int
    normed: bool = True

    kind: str = "compress"

    def arithmetic(self) -> dict[Resource, Form]:
        values, entries = self.inputs[0], self.outputs[0]
        of_entry = 4 * entries.width * self.normed + 3 * self.rotary_dim
        gated = len(self.inputs) > 2
        return {vector("fp32"): (8 if gated else 1) * values.elements + of_entry * entries.rows}


@dataclass(frozen=True, kw_only=True)
class Turn(Operator):
    """Rotary embedding of one tensor, forth or back: `rotary_dim` elements of each head; the others stay."""

    num_heads: int
    rotary_dim: int

    kind: str = "rope"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): 3 * self._turned(self.inputs[0]).elements}

    def reads(self) -> tuple[Tensor, ...]:
        return (self._turned(self.inputs[0]),)

    def writes(self) -> tuple[Tensor, ...]:
        return (self._turned(self.outputs[0]),)

    def _turned(self, t: Tensor) -> Tensor:
        return replace(t, width=self.num_heads * self.rotary_dim)
