"""Collectives that overlap with the launch before them: tiles of a matrix product are sent as they are computed
(arXiv:2406.06858), or one half of a batch is sent while the other is computed.
"""

from __future__ import annotations

from dataclasses import replace

from ..forms import Form, total
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.collectives import Collective
from ..records import frozen
from ..resource import Resource


@frozen(kw_only=True)
class Overlapped(Operator):
    """An operator and the collective that sends its result, as one launch that takes as long as the longer of both."""

    first: Operator
    then: Collective

    def arithmetic(self) -> dict[Resource, Form]:
        amounts = dict(self.first.arithmetic())
        for resource, ops in self.then.arithmetic().items():
            amounts[resource] = amounts.get(resource, Form()) + ops
        return amounts

    def reads(self) -> tuple[Tensor, ...]:
        return (*self.first.reads(), *self.then.reads())

    def writes(self) -> tuple[Tensor, ...]:
        return (*self.first.writes(), *self.then.writes())

    def link_traffic(self) -> dict[Resource, Form]:
        sent = (self.first.link_traffic(), self.then.link_traffic())
        return {resource: total(each.get(resource, Form()) for each in sent) for one in sent for resource in one}

    def conversion(self) -> Form:
        return self.first.conversion() + self.then.conversion()

    def state(self) -> tuple[Tensor, ...]:
        return self.first.state()


def overlapped(graph: Graph) -> Graph:
    """The graph with collectives merged into the launch before them, if that computes what they send."""
    return graph.map_blocks(_joined)


def _joined(block: Block) -> Block:
    operators: list[Operator] = []
    for op in block.operators:
        before = operators[-1] if operators else None
        if (
            before
            and isinstance(op, Collective)
            and not isinstance(before, Collective)
            and op.inputs[0] in before.outputs
        ):
            operators[-1] = Overlapped(
                name=f"{before.name}+{_verb(op)}",
                kind=before.kind,
                inputs=before.inputs,
                outputs=(*before.outputs, *op.outputs),
                weights=before.weights,
                transfers=before.transfers,
                first=before,
                then=op,
            )
        else:
            operators.append(op)
    return replace(block, operators=tuple(operators))


def _verb(op: Collective) -> str:
    """The name of the collective operation, such as "all_reduce"."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in type(op).__name__).lstrip("_")
