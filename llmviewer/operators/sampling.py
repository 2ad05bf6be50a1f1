"""Sampling of the next token from logits."""

from __future__ import annotations

from typing import Final

from ..forms import Form
from ..records import frozen
from ..resource import Resource, vector
from .base import Operator
from .kinds import declare

_DRAWN_OPS: Final = 8  # temperature; maximum, subtract, exp, sum, divide; a comparison; the running sum


@frozen(kw_only=True)
class Sample(Operator):
    """tokens[rows] from logits[rows, vocab]: drawn from softmax(logits / temperature) after top-k and top-p.

    Greedy sampling is one comparison per logit. No sort is counted, as top-k and top-p need only a threshold.
    """

    greedy: bool = False

    kind: str = declare("sample", "The next token drawn from the scores.")

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (1 if self.greedy else _DRAWN_OPS) * self.inputs[0].elements}
