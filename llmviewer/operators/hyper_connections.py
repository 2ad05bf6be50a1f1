"""Residual streams that weights of each token mix: manifold-constrained hyper-connections (arXiv:2512.24880)."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import Form
from ..resource import Resource, matrix, vector
from .base import Operator


@dataclass(frozen=True, kw_only=True)
class StreamsIn(Operator):
    """x[rows, hidden] = sum over streams of pre * streams[rows, n, hidden], and the weights that bring results back.

    All weights of a token are one product of its normed streams with fn, in tf32: n of pre, n of post where a result
    comes back, and where there are `iterations` n * n of comb, whose columns and rows they scale in turn until all sum
    to one.

    Vector OPs: three an element of the norm and two of the sum; six a sigmoid with scale and bias, seven an element of
    a softmax with them, and a sum and a division each time that comb is scaled.
    """

    streams: int
    iterations: int = 0

    kind: str = "hyper_connection"

    def arithmetic(self) -> dict[Resource, Form]:
        x, n = self.inputs[0], self.streams
        weights = 6 * n * len(self.outputs)
        if self.iterations:  # the first one scales columns alone
            weights += (7 + 2 * (2 * self.iterations - 1)) * n * n
        return {
            matrix("tf32"): 2 * self.weights[0].numel * x.rows,
            vector("fp32"): (5 * x.width + weights) * x.rows,
        }
