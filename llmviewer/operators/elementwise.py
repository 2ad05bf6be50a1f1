"""Operators of a few OPs per element on the vector units: norms, additions, activations, rotations, routing."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from ..forms import Form
from ..records import frozen
from ..resource import Resource, vector
from .attention import Heads
from .base import Operator, Sharding, Tensor
from .kinds import OperatorGroup, declare
from .routing import UNGROUPED, Groups


@frozen(kw_only=True)
class Elementwise(Operator):
    """y[rows, width] = f(inputs), element by element.

    normed  elements normalized together by a fused norm; 0: none
    """

    sharding: ClassVar[Sharding] = Sharding.ELEMENTS

    ops_per_element: float
    normed: int = 0

    kind: str = declare("elementwise", "A function of each element.", measured="add", symbol="diamond-tall")

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): self.ops_per_element * self.outputs[0].elements}


@frozen(kw_only=True)
class Norm(Elementwise):
    """RMSNorm: square, sum, scale, weight. LayerNorm: mean, subtract, square, sum, scale, weight (, bias).

    group  elements normalized together; 0: whole rows
    """

    group: int = 0

    kind: str = declare(
        "norm",
        "Each token's vector brought to one scale.",
        measured="post_attention_layernorm",
        traced="norm|rsqrt",
        symbol="triangle-up",
    )


@frozen(kw_only=True)
class Add(Elementwise):
    """The sum of its inputs: a residual addition, or several in one launch."""

    sharding: ClassVar[Sharding] = Sharding.SUM

    kind: str = declare("add", "The sum of two tensors.", measured="add", traced="add|residual", symbol="cross")


@frozen(kw_only=True)
class Activation(Elementwise):
    """act(x), or act(gate) * up in a gated MLP."""

    kind: str = declare(
        "activation",
        "A function of each element.",
        measured="mlp_act",
        traced="act_|silu|gelu|swiglu|gated_op",
        symbol="square",
    )


@frozen(kw_only=True)
class Rope(Operator):
    """Rotary embedding of queries and keys; rotated keys are written to the KV cache (arXiv:2104.09864).

    Two multiplications and an addition per rotated element; angles are not read from memory.
    """

    sharding: ClassVar[Sharding] = Sharding.HEADS

    heads: Heads
    rotary_dim: int  # rotated elements per head; the others of a query stay in place

    kind: str = declare(
        "rope",
        "Queries and keys turned by their position.",
        measured="attn_rope",
        traced=r"rope|rotary|_and_cache|append_?paged|(store|set)_kv",  # it writes the cache
        symbol="star",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        turned = (self.heads.num_heads + self.heads.num_kv_heads) * self.rotary_dim
        return {vector("fp32"): 3 * turned * self.inputs[0].rows}

    def reads(self) -> tuple[Tensor, ...]:
        return (self._turned(self.inputs[0]), self.inputs[1])

    def writes(self) -> tuple[Tensor, ...]:
        return (self._turned(self.outputs[0]), self.outputs[1])

    def _turned(self, query: Tensor) -> Tensor:
        return replace(query, width=self.heads.num_heads * self.rotary_dim)


@frozen(kw_only=True)
class Quantize(Operator):
    """Quantizes an activation that other operators read unquantized; else its writer quantizes it."""

    kind: str = declare(
        "quantize", "A tensor converted to fewer bits.", measured="quantize", traced="quant", symbol="x"
    )

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}


ACTIVATION_OPS: Final = {  # OPs per element
    "relu": 1,
    "relu2": 2,  # max(x, 0) squared
    "silu": 4,  # negate, exp, add one, divide
    "gelu": 5,  # 0.5 * x * (1 + erf(x / sqrt 2)): scale, erf, add, two products
    "gelu_tanh": 9,  # 0.5 * x * (1 + tanh(c * (x + a * x**3))): cube and scale 3, add, c, tanh, add, two products
    "xielu": 6,  # below zero a (exp(x) - 1 - x) + b x: exp, two subtractions, two products, add (arXiv:2411.13010)
    "situ": 11,  # b tanh(x / b) sigmoid(x) c tanh(y / c): 8 and 3
}


@frozen(kw_only=True)
class Route(Operator):
    """Selects the `top_k` best experts of each token and their weights (arXiv:2101.03961).

    Vector OPs per logit: five of the softmax and one comparison per chosen expert.

    groups  groups of experts that are selected first
    """

    top_k: int
    groups: Groups = UNGROUPED

    kind: str = declare(
        "route",
        "The best experts of each token, and their weights.",
        group=OperatorGroup.EXPERTS,
        symbol="triangle-left",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (5 + self.top_k) * self.inputs[0].elements}


@frozen(kw_only=True)
class Permute(Operator):
    """Copies the row of each token to its experts, grouped by expert."""

    sharding: ClassVar[Sharding] = Sharding.DISPATCH

    kind: str = declare(
        "permute",
        "Each token's row copied to its experts.",
        group=OperatorGroup.EXPERTS,
        symbol="bowtie",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}


@frozen(kw_only=True)
class Combine(Operator):
    """Scales and sums the results of each token's experts, and of a shared expert if there is one."""

    sharding: ClassVar[Sharding] = Sharding.COMBINE

    top_k: int

    kind: str = declare(
        "combine",
        "The results of each token's experts scaled and summed.",
        group=OperatorGroup.EXPERTS,
        symbol="hourglass",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): 2 * self.top_k * self.outputs[0].elements}
