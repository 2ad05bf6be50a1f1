"""Manifold-constrained hyper-connections: each token mixes its residual streams (arXiv:2512.24880)."""

from __future__ import annotations

from ..forms import Form
from ..records import frozen
from ..resource import Resource, matrix, vector
from .base import Operator
from .kinds import declare


@frozen(kw_only=True)
class StreamsIn(Operator):
    """x[rows, hidden] = sum over streams of pre * streams[rows, n, hidden], and the weights for the way back.

    The weights of a token are one tf32 product of its normed streams with fn: n of pre; n of post, if a result is
    written back; and with `iterations` n * n of comb, whose columns and rows are scaled in turn until all sum to one.

    Vector OPs: per element of the streams three for the norm and two for the sum; six per sigmoid with scale and bias;
    per element of comb seven for the softmax, and two each time that it is scaled.
    """

    streams: int
    iterations: int = 0

    kind: str = declare("hyper_connection", "The residual streams of each token mixed into the input of a layer.")

    def arithmetic(self) -> dict[Resource, Form]:
        x, n = self.inputs[0], self.streams
        weights = 6 * n * len(self.outputs)
        if self.iterations:  # the first iteration scales only columns
            weights += (7 + 2 * (2 * self.iterations - 1)) * n * n
        return {
            matrix("tf32"): 2 * self.weights[0].numel * x.rows,
            vector("fp32"): (5 * x.width + weights) * x.rows,
        }
