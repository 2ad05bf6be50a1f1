"""Matrix products with a weight."""

from __future__ import annotations

from typing import ClassVar

from ..forms import Form
from ..precision import product
from ..records import frozen
from ..resource import Resource, matrix
from .base import Operator, Sharding, Tensor, Weight
from .kinds import OperatorGroup, declare


@frozen(kw_only=True)
class Linear(Operator):
    """y[rows, n] = x[rows, k] @ weight[n, k].T (+ bias[n]); each output is a range of columns of y.

    The bias is read; its addition in the epilogue is not counted, as in torch.utils.flop_counter.
    """

    sharding: ClassVar[Sharding] = Sharding.PRODUCT
    dense: ClassVar[bool] = True  # whether kernel times depend only on the shapes of one product

    kind: str = declare(
        "linear",
        "Matrix product: every new token with the weight.",
        group=OperatorGroup.LINEAR,
        product=True,
        symbol="circle",
    )
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

    sharding: ClassVar[Sharding] = Sharding.ELEMENTS

    def units(self, t: Tensor) -> int:
        return t.width // self.weight.shape[1]


@frozen(kw_only=True)
class LMHead(Linear):
    """The Linear from hidden states to logits, at positions that need logits."""

    sharding: ClassVar[Sharding] = Sharding.LOGITS

    kind: str = declare(
        "lm_head",
        "Matrix product: hidden states to a score for each word of the vocabulary.",
        group=OperatorGroup.HEAD,
        product=True,
        symbol="hexagon2",
    )
    left_as_published: bool = True


class LatentExpansion(Linear):
    """Expansion of the cached latent into the keys and values that queries attend to; outputs are keys, then values."""

    sharding: ClassVar[Sharding] = Sharding.COLUMNS


@frozen(kw_only=True)
class Router(Linear):
    """The Linear whose outputs score the experts for each token."""

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    kind: str = declare(
        "router",
        "Matrix product: which experts each token goes to.",
        group=OperatorGroup.EXPERTS,
        product=True,
        symbol="triangle-right",
    )
    left_as_published: bool = True


@frozen(kw_only=True)
class ChosenLinear(Linear):
    """y[row, n] = x[row, k] @ weight[expert of the row, n, k].T, for rows gathered by expert.

    `rows` of the weight is the mean number of experts that a pass reads.
    """

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    kind: str = declare(
        "experts",
        "Matrix products: every new token with the weights of the experts it chose.",
        group=OperatorGroup.EXPERTS,
        symbol="octagon",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        one = self.weight.numel // self.weight.shape[0]
        return {matrix(product(x.format, self.weight.format)): 2 * one * x.rows}


class ExpertsLinear(ChosenLinear):
    """A ChosenLinear of MLP experts, which expert parallelism distributes over devices."""

    sharding: ClassVar[Sharding] = Sharding.EXPERTS
