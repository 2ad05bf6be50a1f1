"""Matrix products with a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..forms import Form
from ..precision import product
from ..resource import Resource, matrix
from .base import Operator, Weight


@dataclass(frozen=True, kw_only=True)
class Linear(Operator):
    """y[rows, n] = x[rows, k] @ weight[n, k].T (+ bias[n]); each output is a range of columns of y.

    The bias is read; its addition in the epilogue is not counted, as in torch.utils.flop_counter.
    """

    dense: ClassVar[bool] = True  # whether kernel times depend only on the shapes of one product

    kind: str = "linear"
    left_as_published: bool = False  # quantization schemes change it only if they name it

    @property
    def weight(self) -> Weight:
        return self.weights[0]

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        return {matrix(product(x.format, self.weight.format)): 2 * self.weight.numel * x.rows}

    def dequantized(self) -> tuple[Form, ...]:
        same = self.weight.format.compute == self.inputs[0].format.compute
        return () if same else (self.weight.elements,)


class BlockLinear(Linear):
    """A Linear with equal column blocks of x, one per output: weight[n, k / outputs]."""


@dataclass(frozen=True, kw_only=True)
class LMHead(Linear):
    """The Linear from hidden states to logits, at positions that need logits."""

    kind: str = "lm_head"
    left_as_published: bool = True


class LatentExpansion(Linear):
    """Expansion of the cached latent into the keys and values that queries see; outputs are keys, then values."""


@dataclass(frozen=True, kw_only=True)
class Router(Linear):
    """The Linear whose outputs score the experts for each token."""

    kind: str = "router"
    left_as_published: bool = True


@dataclass(frozen=True, kw_only=True)
class ChosenLinear(Linear):
    """y[row, n] = x[row, k] @ weight[expert of the row, n, k].T, for rows gathered by expert.

    `rows` of the weight is the mean number of experts that a pass reads.
    """

    kind: str = "experts"

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        one = self.weight.numel // self.weight.shape[0]
        return {matrix(product(x.format, self.weight.format)): 2 * one * x.rows}


class ExpertsLinear(ChosenLinear):
    """A ChosenLinear of MLP experts, which expert parallelism distributes over devices."""
