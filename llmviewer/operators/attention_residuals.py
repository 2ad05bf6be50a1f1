"""Attention residuals: layers attend to earlier residual streams (arXiv:2603.15031)."""

from __future__ import annotations

from ..forms import Form
from ..records import frozen
from ..resource import Resource, vector
from .base import Operator
from .kinds import declare


@frozen(kw_only=True)
class Sources(Operator):
    """y[rows, hidden] = sum over sources of softmax(w . norm(source)) source, with a learned query w for each output.

    A source is the residual stream after a run of layers. Vector OPs: per element of a source, four for its norm, or
    three if that has no weight; for each query, two for the product with w and two for the sum, and five per source for
    the softmax. Matrix units are not used because w is a single row, or a few.
    """

    kind: str = declare("attention_residual", "A weighted sum of earlier residual streams.")

    def arithmetic(self) -> dict[Resource, Form]:
        x, queries = self.inputs[0], len(self.outputs)
        norm = 4 if len(self.weights) > 1 else 3
        return {vector("fp32"): len(self.inputs) * ((norm + 4 * queries) * x.width + 5 * queries) * x.rows}
