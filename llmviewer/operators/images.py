"""Images: patch embedding, placement of image features into the prompt, relative positions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ..forms import Form
from ..precision import product
from ..records import frozen
from ..resource import Resource, matrix, vector
from .base import Operator, Sharding, Tensor
from .kinds import OperatorGroup, declare
from .linear import Linear


@frozen(kw_only=True)
class Patches(Linear):
    """The Linear over the pixels of each patch: a convolution whose stride is its kernel size.

    tokens  tokens per image, learned ones such as a class token included
    """

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    kind: str = declare(
        "patches",
        "Matrix product: the pixels of each patch with the weight.",
        group=OperatorGroup.LINEAR,
        product=True,
    )
    tokens: int


@frozen(kw_only=True)
class Place(Operator):
    """Writes features[image tokens, width] into hidden[tokens, width], or adds them.

    The other rows stay in place. Engines launch it after the embedding of all tokens of the prompt.

    adds  whether features are added
    """

    kind: str = declare("place", "Image features written into the prompt.", measured="add")
    adds: bool = False

    @property
    def features(self) -> Tensor:
        return self.inputs[1]

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): self.features.elements * self.adds}

    def reads(self) -> tuple[Tensor, ...]:
        return (*([replace(self.inputs[0], rows=self.features.rows)] if self.adds else []), self.features)

    def writes(self) -> tuple[Tensor, ...]:
        return (replace(self.outputs[0], rows=self.features.rows),)


@frozen(kw_only=True)
class RelativePositions(Operator):
    """bias[query, head, row or column] = q[query, head, :] . table[distance to it, :] (arXiv:2112.01526, equation 3).

    head_dim  elements per head
    """

    head_dim: int

    kind: str = declare(
        "positions", "Queries compared with learned vectors of distances.", group=OperatorGroup.LINEAR, product=True
    )

    def arithmetic(self) -> dict[Resource, Form]:
        dtype = product(self.inputs[0].format, self.weights[0].format)
        return {matrix(dtype): 2 * self.head_dim * self.outputs[0].elements}


@frozen(kw_only=True)
class BatchedProduct(Operator):
    """y[i, j] = sum over k of a[i, k] * b[k, j], in batches: a product of two activations.

    inner  multiply-adds per element of the output
    """

    inner: int

    kind: str = declare("product", "Matrix product of two activations.", group=OperatorGroup.LINEAR, product=True)

    def arithmetic(self) -> dict[Resource, Form]:
        a, b = self.inputs[:2]
        return {matrix(product(a.format, b.format)): 2 * self.inner * self.outputs[0].elements}
