"""Operators that only traces have: calls that are no operator of an architecture."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from ..forms import SEQUENCES, Form
from ..operators.base import Operator
from ..operators.elementwise import Elementwise
from ..operators.kinds import OperatorGroup, declare
from ..operators.masks import CAUSAL, Bidirectional, Mask
from ..operators.state_space import LinearScan
from ..precision import BF16, FP16, FP32, NAMED, Format, product
from ..records import frozen
from ..resource import Resource, matrix, vector

_FORMATS: Final = {
    "float64": NAMED["fp64"],
    "float32": FP32,
    "float16": FP16,
    "bfloat16": BF16,
    "float8_e4m3fn": NAMED["fp8_e4m3"],
    "float8_e5m2": NAMED["fp8_e5m2"],
}


def format_of(dtype: str) -> Format | None:
    """The format of a torch dtype by its name; None if it is not supported."""
    return _FORMATS.get(dtype)


@frozen(kw_only=True)
class Pointwise(Operator):
    """Element-wise calls in one launch, an OP for every element of the largest tensor of each."""

    ops: Form

    kind: str = Elementwise.kind

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): self.ops}


@frozen(kw_only=True)
class StateStep(Operator):
    """The work of a step on a state, in one launch: element-wise, and products that have one token each.

    ops       of a step, token by token
    products  OPs of matrix units, where a prompt is taken in chunks
    """

    ops: Form
    products: Form = field(default_factory=Form)

    kind: str = LinearScan.kind

    def arithmetic(self) -> dict[Resource, Form]:
        matrix_ops = {matrix(self.outputs[0].format.compute): self.products} if self.products else {}
        return {**matrix_ops, vector("fp32"): self.ops}


@frozen(kw_only=True)
class TracedProduct(Operator):
    """A matmul-like call that is no product of a tensor with a whole parameter.

    mask  which pairs of its rows it needs, where it is a product of attention
    """

    ops: Form
    mask: Mask = CAUSAL

    kind: str = declare("matmul", "Matrix product.", group=OperatorGroup.LINEAR, product=True)

    def arithmetic(self) -> dict[Resource, Form]:
        formats = [*(t.format for t in self.inputs), *(w.format for w in self.weights)]
        return {matrix(product(formats[0], formats[-1])): self.ops}


@frozen(kw_only=True)
class Sized(Bidirectional):
    """All of an input of one size: `queries` x `keys` pairs of each sequence."""

    queries: int
    keys: int

    @property
    def pairs(self) -> Form:
        return self.queries * self.keys * SEQUENCES

    @property
    def cells(self) -> Form:
        return self.pairs

    @property
    def keys_read(self) -> Form:
        return self.keys * SEQUENCES

    def __str__(self) -> str:
        return "pooling" if self.queries == 1 else super().__str__()
