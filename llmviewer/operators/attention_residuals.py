"""Attention residuals: layers attend to earlier residual streams (arXiv:2603.15031)."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import Form
from ..resource import Resource, vector
from .base import Operator


@dataclass(frozen=True, kw_only=True)
class Sources(Operator):
    """y[rows, hidden] = sum over sources of softmax(w . norm(source)) source, with a learned query w.

    A source is the residual stream after a run of layers. Vector OPs: per element of a source, four for its norm, two
    for the product with w and two for the sum; per source, five for the softmax. Matrix units are not used because w
    is a single row.
    """

    kind: str = "attention_residual"

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        return {vector("fp32"): len(self.inputs) * (8 * x.width + 5) * x.rows}
