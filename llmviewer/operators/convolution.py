"""Convolutions as matrix products."""

from __future__ import annotations

from typing import ClassVar

from ..forms import Form
from ..precision import product
from ..records import frozen
from ..resource import Resource, matrix
from .base import Sharding
from .linear import Linear
from .state_space import CausalConv


@frozen(kw_only=True)
class Convolution(Linear):
    """A convolution with weight[n, k, taps] as a product per row of y; x is read once."""

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    kind: str = CausalConv.kind
    left_as_published: bool = True

    def arithmetic(self) -> dict[Resource, Form]:
        x, y = self.inputs[0], self.outputs[0]
        return {matrix(product(x.format, self.weight.format)): 2 * self.weight.numel * y.rows}


class Conv1d(Convolution):
    """y[row, n] = sum over taps and k of x[stride row + tap, k] * weight[n, k, tap]"""


@frozen(kw_only=True)
class Conv2d(Convolution):
    """y[row, column, n] = sum over taps and k of x[stride row + tap, stride column + tap, k] * weight[n, k, taps]

    tokens  positions of an image of the size that the model was made for, if this is its first operator; 0: unknown
    """

    tokens: int = 0
