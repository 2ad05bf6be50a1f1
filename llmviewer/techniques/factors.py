"""Thin matrices in place of linears (low-rank) or beside them (LoRA)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod
from typing import ClassVar, Final

from ..devices.hardware import Hardware
from ..errors import suggest
from ..forms import SINGLE, Form, distinct_experts
from ..graph import Block, Graph
from ..operators.base import Operator, Role, Sharding, Tensor, Weight
from ..operators.kinds import OperatorGroup, declare
from ..operators.linear import Linear
from ..precision import HALF, product, resolved
from ..records import frozen
from ..resource import Resource, matrix
from ..workload import Workload
from . import technique
from ._linears import is_main_layer, is_plain_linear, original_linear, rank_tensor
from ._parameters import Condition, parameter
from ._technique import Finding, Kind, Requirement, SettingView, Technique

_MULTIPLE: Final = 16  # ranks are multiples of this


@frozen(kw_only=True)
class OnLinears(Technique):
    """A technique on the linears of layers whose names match `targets`."""

    kind = Kind.COMPRESSION
    requires = Requirement.NEW_WEIGHTS
    order = 1  # after techniques that replace layers

    targets: str = parameter("names of linears, with wildcards and joined by +, such as *_proj or q_proj+v_proj", "*")

    def chosen(self, block: Block, op: Operator) -> bool:
        """Whether the technique applies to `op`."""
        named = any(fnmatchcase(op.name, target) for target in self.targets.split("+"))
        return named and is_main_layer(block) and is_plain_linear(original_linear(op))

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return self.applied(graph)

    def applied(self, graph: Graph) -> Graph:
        """The graph with the chosen linears replaced."""
        return graph.map_blocks(
            lambda block: replace(
                block,
                operators=tuple(
                    new
                    for op in block.operators
                    for new in (self.changed(op) if isinstance(op, Linear) and self.chosen(block, op) else (op,))
                ),
            )
        )

    def changed(self, op: Linear) -> Iterator[Operator]:
        """The operators that replace `op`."""
        raise NotImplementedError

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        graph = setting.model.graph
        names = {op.name for block, op in graph if is_main_layer(block) and is_plain_linear(op)}
        for target in self.targets.split("+"):
            if not any(replace(self, targets=target).chosen(block, op) for block, op in graph):
                return f"no linear is called {target!r}; {suggest(target, names)}"
        return ""


@technique("low-rank")
@frozen(kw_only=True)
class LowRank(OnLinears):
    """Low-rank factorization (SVD-LLM, ASVD): a matrix becomes a product of two thin ones.

    Effect: a linear of n x k becomes two, of rank x k and n x rank, with a tensor of width rank between them.
    Formula: OPs and bytes of weights x rank (n + k) / (n k); fewer only if rank < n k / (n + k).
    Source: arXiv:2404.14294, section 5.2.3, equation 11; arXiv:2403.07378.
    Use when: memory, bytes of decode and OPs of the prefill should all shrink alike.
    Limits: no gain above the break-even rank, which is half the width of a square matrix. The number of launches
    doubles. A pass of very many tokens moves more bytes: tensors between factors outgrow the weights saved.
    """

    rank: int = parameter("rank of all factors; 0: set by ratio", 0, least=0)
    ratio: float = parameter(
        "fraction of its parameters that a matrix keeps", 0.5, least=0.001, most=1, condition=Condition("rank", (0,))
    )

    def changed(self, op: Linear) -> Iterator[Operator]:
        n, k = op.weight.shape
        rank = self._rank(n, k)
        x = op.inputs[0]
        between = rank_tensor(f"{op.name}_rank", rank, replace(x, format=op.result.format))
        first, second = (replace(op.weight, name=f"{op.name}.{part}.weight", shape=shape)
                         for part, shape in (("in", (rank, k)), ("out", (n, rank))))  # fmt: skip
        yield Linear(name=f"{op.name}_in", inputs=(x,), outputs=(between,), weights=(first,))
        yield replace(op, inputs=(between,), weights=(second, *op.weights[1:]))

    def _rank(self, n: int, k: int) -> int:
        """`rank` if given, else the largest multiple of 16 within `ratio`, or less if that is 0."""
        real_rank = self.ratio * n * k / (n + k)
        return self.rank or int(real_rank // _MULTIPLE * _MULTIPLE) or max(round(real_rank), 1)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if reason := super().incompatibility(setting, others):
            return reason
        max_rank = max(map(min, self._shapes(setting)))
        return (
            f"rank must be at most {max_rank}, the largest of any matrix; got {self.rank}"
            if self.rank > max_rank
            else ""
        )

    def _shapes(self, setting: SettingView) -> set[tuple[int, ...]]:
        return {op.weight.shape for b, op in setting.model.graph if isinstance(op, Linear) and self.chosen(b, op)}

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        break_even = min(prod(shape) / sum(shape) for shape in self._shapes(setting))
        text = f"break-even rank of the smallest matrix: {break_even:.0f}"
        return (Finding(key="break_even_rank", value=break_even, text=text),)

    def notes(self, setting: SettingView) -> tuple[str, ...]:
        shapes = self._shapes(setting)
        grown = sum(1 for n, k in shapes if self._rank(n, k) * (n + k) >= n * k)
        return (f"low-rank: {grown} of {len(shapes)} matrix shapes do not get smaller",) if grown else ()


@frozen(kw_only=True)
class Thin(Linear):
    """y[row, n] = x[row, k] @ weight[adapter of the row, n, k].T (+ the result of the base linear)."""

    sharding: ClassVar[Sharding] = Sharding.REPLICATED
    dense: ClassVar[bool] = False

    kind: str = declare(
        "lora",
        "Matrix product: every new token with the thin matrix of its adapter.",
        group=OperatorGroup.LINEAR,
        product=True,
    )

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        elements = self.weight.numel // self.weight.shape[0]
        return {matrix(product(x.format, self.weight.format)): 2 * elements * x.rows}


@technique("lora")
@frozen(kw_only=True)
class Lora(OnLinears):
    """LoRA adapters: two thin matrices beside each linear, merged into it or run separately, for one or many models.

    Effect: unmerged, each linear has two thin ones beside it, the second of which adds to its result. A pass reads the
    adapters that its sequences use; all are held in memory, in 16 bits. Merged, nothing changes.
    Formula: 2 x rank x (n + k) OPs per token; adapters read = a (1 - (1 - 1/a)^sequences) of a.
    Source: arXiv:2106.09685, section 4; many at once: arXiv:2311.03285.
    Use when: many fine-tuned models share the memory of one; or, merged, a single one should cost nothing.
    Limits: adapters cannot be merged if sequences of a batch use different ones. Small launches take longer than the
    bound says.
    """

    order = 2  # after low-rank, whose linears get adapters too

    rank: int = parameter("rank of the adapters", 16, least=1)
    adapters: int = parameter("adapters in memory, all equally likely", 1, least=1)
    merged: bool = parameter("whether the adapter, if there is one, is added to the weights", default=False)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph if self.merged else self.applied(graph)

    def changed(self, op: Linear) -> Iterator[Operator]:
        x, outputs = op.inputs[0], op.outputs
        n, k = sum(t.width for t in outputs), x.width
        fmt = outputs[0].format if outputs[0].format.bits >= HALF.bits else resolved(HALF, x.format)
        between = rank_tensor(f"{op.name}_lora", self.rank, replace(x, format=fmt))
        base = tuple(
            replace(t, name=f"{t.name}_base", format=fmt, role=Role.ACTIVATION, retained_rows=None) for t in outputs
        )
        yield replace(op, outputs=base)
        yield self._thin(f"{op.name}_lora_in", (x,), (between,), (self.rank, k))
        yield self._thin(f"{op.name}_lora_out", (between, *base), outputs, (n, self.rank))

    def _thin(self, name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], shape: tuple[int, int]) -> Thin:
        """A product with the adapter of each sequence."""
        chosen = distinct_experts(self.adapters, 1).on(SINGLE)
        fmt = resolved(HALF, inputs[0].format)
        matrices = Weight(name=f"{name}.weight", shape=(self.adapters, *shape), format=fmt, rows=chosen)
        return Thin(name=name, inputs=inputs, outputs=outputs, weights=(matrices,))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.merged and self.adapters > 1:
            return f"only one adapter can be merged; got adapters={self.adapters}; drop merged"
        return super().incompatibility(setting, others)
