"""Sparse projections of Scaling Transformers: a multiplicative layer, then a convolution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, isqrt

from ..forms import Form
from ..operators.base import Operator
from ..operators.linear import Linear
from ..records import frozen
from ..resource import Resource
from . import technique
from ._linears import ReplacedLinear, rank_tensor
from ._parameters import parameter
from ._technique import SettingView, Technique
from .factors import OnLinears


@frozen(kw_only=True)
class _Module(ReplacedLinear):
    """A part of a sparse projection: `ops` OPs for each token."""

    ops: float

    def arithmetic(self) -> dict[Resource, Form]:
        rows = self.inputs[0].rows
        return dict.fromkeys(self.of.arithmetic(), self.ops * rows)


@technique("multiplicative")
@frozen(kw_only=True)
class Multiplicative(OnLinears):
    """Sparse QKV of Terraformer: two thin matrices whose products are the weights, then a convolution.

    Effect: a linear of n x k becomes a multiplicative layer, whose weight of module s and column m is D[k, s] E[k, m],
    and a convolution over tokens and modules with as many channels as a module has columns.
    Formula: k x modules + k x n / modules parameters, and kernel^2 x (n / modules)^2 of the convolution; 2 n k + k x
    modules OPs per token, as many as of the dense matrix, and 2 x kernel^2 x n x n / modules of the convolution.
    Source: arXiv:2111.12763, section 3.2.
    Use when: decode is bound by weights.
    Limits: no gain for a prefill bound by the compute units, whose OPs are as many; not split among ranks.
    Not modeled: the last tokens, which the convolution keeps. The expected time is that of a dense product with as many
    OPs and bytes.
    """

    order = 0  # as others that replace layers, before low-rank, which factors what they leave

    targets: str = parameter("names of linears, with wildcards and joined by +, such as *_proj or q_proj+v_proj",
                             "[qkv]_proj")  # fmt: skip
    modules: int = parameter("modules; 0: the root of the width, with which the matrices are smallest", 0, least=0)
    kernel: int = parameter("tokens, and modules, that the convolution sees", 3, least=1, most=64)

    def changed(self, op: Linear) -> Iterator[Operator]:
        n, k = op.weight.shape
        modules = self.modules or min(isqrt(k), n)
        columns = ceil(n / modules)
        between = rank_tensor(f"{op.name}_modules", modules * columns, replace(op.inputs[0], format=op.result.format))
        thin = (replace(op.weight, name=f"{op.name}.{name}", shape=(width, k)) for name, width in
                (("modules", modules), ("columns", columns)))  # fmt: skip
        yield _Module(
            name=f"{op.name}_multiplied", inputs=op.inputs, outputs=(between,), weights=tuple(thin), of=op,
            ops=2 * modules * columns * k + k * modules,
        )  # fmt: skip
        taps = self.kernel**2
        filters = replace(op.weight, name=f"{op.name}.filter", shape=(columns, columns * taps))
        yield _Module(
            name=op.name, inputs=(between,), outputs=op.outputs, weights=(filters, *op.weights[1:]), of=op,
            ops=2 * taps * modules * columns**2,
        )  # fmt: skip

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if setting.layout.tp > 1:
            return f"modules are not split among the ranks of tp={setting.layout.tp}; give tp=1"
        if reason := super().incompatibility(setting, others):
            return reason
        for block, op in setting.model.graph:
            if isinstance(op, Linear) and self.chosen(block, op) and self.modules > op.weight.shape[0]:
                return f"modules must be at most {op.weight.shape[0]}, the outputs of {op.name}; got {self.modules}"
        return ""
