"""Contextual sparsity: the neurons that a token needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from ..architectures.blocks.parts import Parts
from ..devices.hardware import Hardware
from ..forms import any_of
from ..graph import Block, Graph
from ..operators.base import Operator, Sharding, Tensor
from ..operators.elementwise import Activation
from ..operators.linear import ChosenLinear, Linear
from ..precision import HALF, resolved
from ..records import frozen
from . import technique
from ._linears import is_main_layer
from ._parameters import Condition, parameter
from ._technique import Kind, Requirement, SettingView, Technique
from .drafts import auxiliary_model
from .sparsity import sparse_linear

_HEAD_LINEARS: Final = ("q_proj", "o_proj")


@technique("contextual-sparsity")
@frozen(kw_only=True)
class Contextual(Technique):
    """Contextual sparsity (Deja Vu, MoEfication): a decode step uses only the neurons that a predictor selects.

    Effect: in decode, feed-forward linears do the fraction `active` of their OPs and read the neurons that any token of
    the batch needs; with `heads`, query and output projections do the same by heads. A predictor of two linears runs
    before each feed-forward network; with `groups`, of one that selects groups of neurons as if they were experts
    (MoEfication). Its weights are held in memory.
    Formula: OPs x active; weights read x (1 - (1 - active)^tokens), the union over the batch; predictor: d x rank +
    rank x neurons, or d x groups.
    Source: arXiv:2310.17157, sections 3 and 4; groups: arXiv:2110.01786.
    Use when: single sequences run on a model with ReLU, most of whose neurons are zero.
    Limits: no gain for large batches, whose union soon has all neurons, for the prefill, or in memory. Experts and the
    projections of keys and values are unchanged.
    Not modeled: that scattered rows are read slower than a whole matrix. The expected time is that of a dense product
    with as many OPs and bytes, because no such kernels were measured.
    """

    kind = Kind.DECODING
    requires = Requirement.NEW_WEIGHTS
    separate_decode_graph = True
    order = 1  # after techniques that replace linears

    active: float = parameter("fraction of the neurons that a token needs", 0.2, least=0, most=1, open=True)
    heads: float = parameter("fraction of the attention heads that a token needs", 1.0, least=0, most=1)
    rank: int = parameter(
        "width of the predictor; 0 for one without cost", 1024, least=0, condition=Condition("groups", (0,))
    )
    groups: int = parameter("groups of neurons of a network, of which one linear selects; 0: neurons", 0, least=0)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._active) if decode else graph

    def _active(self, block: Block) -> Block:
        network = list(_feed_forward(block))
        densities = {op.name: self.active for op in network}
        if self.heads < 1 and is_main_layer(block):
            densities |= {op.name: self.heads for op in block.operators if op.name in _HEAD_LINEARS}
        operators: list[Operator] = []
        for op in block.operators:
            if network and op == network[0]:
                operators += self._predictor(op.inputs[0], network[-1].inputs[0].width)
            operators.append(
                sparse_linear(op, densities[op.name], any_of(densities[op.name]))
                if op.name in densities and isinstance(op, Linear)
                else op
            )
        return replace(block, operators=tuple(operators))

    def _predictor(self, x: Tensor, neurons: int) -> Iterator[Linear]:
        """The linears that select `neurons` from the input `x` of their network."""
        parts = Parts(format=resolved(HALF, x.format))
        if self.groups:
            yield parts.project("predictor_out", x, self.groups, kind=Predictor)
        elif self.rank:
            yield parts.project("predictor_in", x, self.rank, kind=Predictor)
            between = parts.tensor("predictor_in", self.rank)
            yield parts.project("predictor_out", between, neurons, kind=Predictor)

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        return (self._predictors(setting).decode_graph,) if self.rank or self.groups else ()

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        networks = [network for block in setting.model.graph.blocks if (network := list(_feed_forward(block)))]
        if not networks:
            return f"{setting.model.name} has no dense feed-forward network"
        neurons = min(network[-1].inputs[0].width for network in networks)
        if self.groups > neurons:
            return f"groups must be at most {neurons}, the neurons of a network; got {self.groups}"
        return ""

    def _predictors(self, setting: SettingView) -> SettingView:
        model = setting.model
        blocks = tuple(
            Block(
                name=f"{block.name}.predictor",
                operators=tuple(self._predictor(network[0].inputs[0], network[-1].inputs[0].width)),
                input=network[0].inputs[0].name,
                output="predictor_out",
                layers=block.layers,
            )
            for block in model.graph.blocks
            if (network := list(_feed_forward(block)))
        )
        return setting.helper(auxiliary_model(model, blocks), "W16A16")


class Predictor(Linear):
    """A linear of the predictor."""

    sharding: ClassVar[Sharding] = Sharding.REPLICATED


def _feed_forward(block: Block) -> Iterator[Linear]:
    """The linears around each activation in a block of layers, in order; without experts."""
    if not is_main_layer(block):
        return
    for act in (op for op in block.operators if isinstance(op, Activation)):
        inputs = {t.name for t in act.inputs}
        outputs = {t.name for t in act.outputs}
        around = [
            op
            for op in block.operators
            if isinstance(op, Linear)
            and not isinstance(op, ChosenLinear)
            and (inputs & {t.name for t in op.outputs} or outputs & {t.name for t in op.inputs})
        ]
        yield from around
