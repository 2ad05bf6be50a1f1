"""Expert capacity: every expert takes the same number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..forms import Feature, Form
from ..graph import Block, Graph
from ..operators.base import Tensor
from ..operators.elementwise import Permute
from ..operators.linear import ExpertsLinear
from ..records import frozen
from . import technique
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique


@technique("expert-capacity")
@frozen(kw_only=True)
class ExpertCapacity(Technique):
    """Expert capacity: every expert takes the same number of tokens, by padding and by dropping tokens.

    Effect: changes the number of rows that experts compute and that are gathered and moved.
    Formula: rows per expert = round(factor x chosen x tokens / experts), at least one, with `chosen` experts per token.
    Source: arXiv:2101.03961, section 2.2; the rounding is that of lilianweng.github.io (2023-01-10).
    Use when: experts run as batched products of one shape, as in training and early engines; a factor below 1 saves
    OPs.
    Limits: it saves no weight traffic. Empty slots are computed, and dropped tokens skip their experts.
    """

    kind = Kind.GRAPH
    requires = Requirement.OTHER_OUTPUT

    factor: float = parameter(
        "capacity factor: slots over the mean number of tokens per expert", 1.25, least=0, open=True
    )

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._padded)

    def _padded(self, block: Block) -> Block:
        permute = next((op for op in block.operators if isinstance(op, Permute)), None)
        experts = [op for op in block.operators if isinstance(op, ExpertsLinear)]
        if permute is None or not experts:
            return block
        count, gathered = experts[0].weight.shape[0], permute.result.rows
        chosen = round(experts[0].weight.active * count)
        places = Form(((Feature("expert_rows", (count, chosen, self.factor), block.stream), 1.0),))

        def tensor(t: Tensor) -> Tensor:
            return replace(t, rows=places) if t.rows == gathered else t

        return block.map(lambda op: op.with_tensors(tensor))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if not any(isinstance(op, Permute) for _, op in setting.model.graph):
            return f"{setting.model.name} has no routed experts"
        return ""
