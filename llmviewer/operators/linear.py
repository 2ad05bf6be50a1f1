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
    """y[rows, n] = x[rows, k] @ weight[n, k].T (+ bias[n]); outputs share the columns of y between them.

    The bias is read but its addition, part of the epilogue, is not counted, as torch.utils.flop_counter has it.
    """

    dense: ClassVar[bool] = True  # a kernel takes what one product of these shapes does

    kind: str = "linear"
    left_as_published: bool = False  # quantization schemes leave it alone unless they name it

    @property
    def weight(self) -> Weight:
        return self.weights[0]

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        return {matrix(product(x.format, self.weight.format)): 2 * self.weight.numel * x.rows}

    def dequantized(self) -> tuple[Form, ...]:
        same = self.weight.format.compute == self.inputs[0].format.compute
        return () if same else (self.weight.elements,)


@dataclass(frozen=True, kw_only=True)
class BlockLinear(Linear):
    """A Linear whose outputs each read an equal part of x of their own: weight[n, k / outputs]."""


@dataclass(frozen=True, kw_only=True)
class LMHead(Linear):
    """The Linear that turns hidden states into logits, at the positions where logits are wanted."""

    kind: str = "lm_head"
    left_as_published: bool = True


@dataclass(frozen=True, kw_only=True)
class LatentExpansion(Linear):
    """Keys and values of all that is attended to, from the cached latent; outputs are keys, then values."""


@dataclass(frozen=True, kw_only=True)
class Router(Linear):
    """The Linear whose outputs say which experts a token goes to."""

    kind: str = "router"
    left_as_published: bool = True


@dataclass(frozen=True, kw_only=True)
class ChosenLinear(Linear):
    """y[row, n] = x[row, k] @ weight[expert of the row, n, k].T, for rows gathered by expert.

    A pass reads the experts that its tokens reach: the weight says how many, on average.
    """

    kind: str = "experts"

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        one = self.weight.numel // self.weight.shape[0]
        return {matrix(product(x.format, self.weight.format)): 2 * one * x.rows}


@dataclass(frozen=True, kw_only=True)
class ExpertsLinear(ChosenLinear):
    """That of experts by which several devices may share out tokens: MLPs."""
