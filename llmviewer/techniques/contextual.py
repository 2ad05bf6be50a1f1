"""Neurons that the context needs, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..architectures._parts import HIDDEN, Parts
from ..forms import any_of
from ..graph import Block, Graph
from ..hardware import Hardware
from ..model import Model
from ..operators.base import Operator
from ..operators.elementwise import Activation
from ..operators.linear import ExpertsLinear, Linear
from . import technique
from ._drafting import in_turn
from ._parameters import parameter
from ._schedule import Run, Schedule
from ._technique import Kind, Machine, Technique
from .drafts import beside_model, width
from .sparsity import SparseLinear

_OF_HEADS: Final = ("q_proj", "o_proj")


@technique("contextual-sparsity")
@dataclass(frozen=True, kw_only=True)
class Contextual(Technique):
    """Contextual sparsity (Deja Vu): a decode step reads and multiplies only the neurons that a predictor names.

    Changes: in decode, feed-forward linears do the part `active` of their OPs, and read the neurons that any token of
    the batch needs; so do projections of queries and results with `heads`. A predictor of two linears runs before each
    network, and is held besides.
    Formula: OPs x active; weights read x (1 - (1 - active)^tokens), the union over the batch; predictor d x rank +
    rank x neurons.
    Source: arXiv:2310.17157, sections 3 and 4.
    Helps: single sequences of models with ReLU, whose neurons are mostly zero.
    Cannot: help batches, whose union soon has all neurons, the prefill, or memory; experts are left as they are.
    Left out: that scattered rows are read slower than a whole matrix. Keys and values are made and read as before.
    """

    kind = Kind.DECODING
    decode_alone = True

    active: float = parameter("part of the neurons that a token needs", 0.2, least=0, most=1, open=True)
    heads: float = parameter("part of the heads of attention that a token needs", 1.0, least=0, most=1)
    rank: int = parameter("width of the predictor; 0 for one that takes nothing", 1024, least=0)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._active) if decode else graph

    def _active(self, block: Block) -> Block:
        parts = {op.name: self.active for op in _feed_forward(block)}
        if self.heads < 1 and block.main:
            parts |= {op.name: self.heads for op in block.operators if op.name in _OF_HEADS}
        return block.map(lambda op: _some(op, parts[op.name]) if op.name in parts and isinstance(op, Linear) else op)

    def schedule(self, schedule: Schedule, machine: Machine) -> Schedule:
        if not self.rank:
            return schedule

        def predicted(run: Run) -> Iterator[Run]:
            if run.main:
                plan = self._predictors(machine).decode_plan
                yield in_turn(run, plan, "predictors", passes=1, tokens=1)
            yield run

        return schedule.map(rest=predicted)

    def beside(self, machine: Machine) -> tuple[Graph, ...]:
        return (self._predictors(machine).decode_graph,) if self.rank else ()

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if not any(True for block in machine.model.graph.blocks for _ in _feed_forward(block)):
            return f"{machine.model.name} has no feed-forward network that all tokens go through"
        return ""

    def _predictors(self, machine: Machine) -> Machine:
        model = machine.model
        blocks = tuple(block for place in model.graph.blocks if (block := self._predictor(model, place)) is not None)
        return machine.helper(beside_model(model, blocks), "W16A16")

    def _predictor(self, model: Model, block: Block) -> Block | None:
        """What chooses the neurons of a block's feed-forward network."""
        down = list(_feed_forward(block))[-1:]
        if not down or not block.layers:
            return None
        parts = Parts(format=model.format)
        x = parts.tensor(HIDDEN, width(model))
        first = parts.project("predictor_in", x, self.rank)
        second = parts.project("predictor_out", first.outputs[0], down[0].inputs[0].width)
        return Block(
            name=f"{block.name}.predictor",
            operators=(first, second),
            input=HIDDEN,
            output="predictor_out",
            layers=block.layers,
        )


def _some(op: Linear, part: float) -> Operator:
    """A product of which a token needs `part`."""
    return SparseLinear(
        name=op.name,
        kind=op.kind,
        inputs=op.inputs,
        outputs=op.outputs,
        weights=(replace(op.weight, rows=op.weight.shape[0] * any_of(part)), *op.weights[1:]),
        transfers=op.transfers,
        whole=op,
        density=part,
    )


def _feed_forward(block: Block) -> Iterator[Linear]:
    """The linears around an activation of a block of layers, the last one last; not those of experts."""
    if not block.main:
        return
    for act in (op for op in block.operators if isinstance(op, Activation)):
        inputs = {t.name for t in act.inputs}
        outputs = {t.name for t in act.outputs}
        around = [
            op
            for op in block.operators
            if isinstance(op, Linear)
            and not isinstance(op, ExpertsLinear)
            and (inputs & {t.name for t in op.outputs} or outputs & {t.name for t in op.inputs})
        ]
        yield from around
