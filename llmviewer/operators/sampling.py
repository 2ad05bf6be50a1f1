"""The next token of each sequence, from its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..forms import Form
from ..resource import Resource, vector
from .base import Operator

_DRAWN_OPS: Final = 8  # temperature; maximum, subtract, exp, sum, divide; a comparison; the running sum


@dataclass(frozen=True, kw_only=True)
class Sample(Operator):
    """tokens[rows] from logits[rows, vocab]: drawn from softmax(logits / temperature) of what top-k and top-p leave.

    Greedy, it is the largest logit: a comparison each. No sort is counted, as what is left takes a threshold alone.
    """

    greedy: bool = False

    kind: str = "sample"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (1 if self.greedy else _DRAWN_OPS) * self.inputs[0].elements}
