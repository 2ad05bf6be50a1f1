"""Residual streams that a layer attends to: attention residuals (arXiv:2603.15031)."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import Form
from ..resource import Resource, vector
from .base import Operator


@dataclass(frozen=True, kw_only=True)
class Sources(Operator):
    """y[rows, hidden] = sum over sources of softmax(w . norm(source)) source: what earlier layers left, one a run of
    layers, weighed by a learned query w.

    Vector OPs: four an element of a source for its norm, two for the product with w and two for the sum; five a source
    for the softmax. As w is a single row, no matrix unit has a use.
    """

    kind: str = "attention_residual"

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        return {vector("fp32"): len(self.inputs) * (8 * x.width + 5) * x.rows}
