"""Kernel fusion: consecutive operators in one launch, intermediate tensors on the chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ..devices.hardware import Hardware
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.elementwise import Activation, Add, Norm, Rope
from ..operators.fused import Fused, parts_of, unique_tensors
from ..operators.linear import Linear, LMHead
from ..records import frozen
from ..workload import Workload
from . import technique
from ._parameters import parameter
from ._technique import Finding, Kind, Requirement, SettingView, Technique

_Pair = Callable[[Operator, Operator], bool]


@technique("fusion")
@frozen(kw_only=True)
class Fusion(Technique):
    """Kernel fusion: consecutive operators run in one launch, as in serving libraries.

    Effect: fewer bytes of intermediate tensors and fewer launches. OPs are unchanged.
    Formula: a fused launch reads each input once and writes what others read. It takes as long as its busiest resource
    over all parts, at most the sum of their times.
    Source: arXiv:2404.14294, section 6.1.1; with all options, a layer of LLaMA is the 7 launches of FlashDecoding++
    (arXiv:2311.01282, section 6).
    Use when: small operators stand between matrix products, above all if launches take time, which the bound does not
    count.
    Limits: no gain for operators bound by weights, as in decode with small batches.
    """

    kind = Kind.GRAPH
    requires = Requirement.NOTHING
    order = 5  # after techniques that add or replace operators

    qkv: bool = parameter("one product for queries, keys and values", default=True)
    rope: bool = parameter("rotary embedding in that launch", default=True)
    add: bool = parameter("residual addition in the launch of the product before it", default=True)
    norm: bool = parameter("norm in the launch of the addition before it, if that is not fused", default=True)
    gate_up: bool = parameter("one product for gate and up projections", default=True)
    activation: bool = parameter("activation in that launch", default=True)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._fused)

    def _fused(self, block: Block) -> Block:
        operators = list(block.operators)
        for enabled, is_fusible in (
            (self.qkv, _are_named(*_QKV)),
            (self.rope, lambda a, b: isinstance(b, Rope) and _writes_all_inputs(a, b)),
            (self.gate_up, _are_named(*_GATE_UP)),
            (self.activation, lambda a, b: isinstance(b, Activation) and _writes_all_inputs(a, b) and _is_linear(a)),
            (self.add, lambda a, b: isinstance(b, Add) and _is_linear(a) and _writes_an_input(a, b)),
            (self.norm, lambda a, b: isinstance(a, Add) and isinstance(b, Norm) and _writes_an_input(a, b)),
        ):
            operators = _fuse_pairs(operators, is_fusible) if enabled else operators
        return replace(block, operators=tuple(_without_inner_outputs(operators, block)))

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        layers = [block for block in setting.decode_graph.blocks if block.main and block.layers]
        if not layers:
            return ()
        launches = sum(len(block.operators) * len(block.layers) for block in layers)
        launches_per_layer = launches / sum(len(block.layers) for block in layers)
        text = f"a layer has {launches_per_layer:.3g} launches in a decode step"
        return (Finding(key="launches_per_layer", value=launches_per_layer, text=text),)


_QKV: Final = ("q_proj", "k_proj", "v_proj")
_GATE_UP: Final = ("gate_proj", "up_proj")


def _are_named(*names: str) -> _Pair:
    """A predicate: two linears of the same input have these names."""

    def is_pair_of(a: Operator, b: Operator) -> bool:
        last = parts_of(a)[-1]
        is_pair = isinstance(last, Linear) and isinstance(b, Linear)
        return is_pair and {last.name, b.name} <= set(names) and last.inputs[0] == b.inputs[0]

    return is_pair_of


def _is_linear(op: Operator) -> bool:
    first = parts_of(op)[0]
    return isinstance(first, Linear) and not isinstance(first, LMHead)


def _writes_all_inputs(a: Operator, b: Operator) -> bool:
    """Whether operator `a` writes all inputs of operator `b`."""
    return {t.name for t in b.inputs} <= {t.name for t in a.outputs}


def _writes_an_input(a: Operator, b: Operator) -> bool:
    return bool({t.name for t in b.inputs} & {t.name for t in a.outputs})


def _fuse_pairs(operators: Sequence[Operator], is_fusible: _Pair) -> list[Operator]:
    """Fuses each operator with the launch before it where `is_fusible`."""
    launches: list[Operator] = []
    for op in operators:
        if launches and is_fusible(launches[-1], op):
            launches[-1] = _fuse(launches[-1], op)
        else:
            launches.append(op)
    return launches


def _fuse(a: Operator, b: Operator) -> Fused:
    parts = parts_of(a) + parts_of(b)
    written_names = {t.name for part in parts for t in part.outputs}
    return Fused(
        name=f"{_short_name(a)}+{_short_name(b)}",
        kind=a.kind,
        inputs=unique_tensors(t for part in parts for t in part.inputs if t.name not in written_names),
        outputs=unique_tensors(t for part in parts for t in part.outputs),
        weights=tuple(w for part in parts for w in part.weights),
        parts=parts,
    )


def _short_name(op: Operator) -> str:
    """The name without affixes, for names of fused launches: "gate" of gate_proj, "add" of attn_add."""
    return (
        op.name if isinstance(op, Fused) else op.name.removesuffix("_proj").removeprefix("attn_").removeprefix("mlp_")
    )


def _without_inner_outputs(operators: Sequence[Operator], block: Block) -> list[Operator]:
    """Removes outputs of fused launches that no other operator reads."""
    read = [{t.name for t in op.inputs} for op in operators]
    closed: list[Operator] = []
    for index, op in enumerate(operators):
        if not isinstance(op, Fused):
            closed.append(op)
            continue
        others = {block.output, *block.live_tensors}.union(
            *(names for place, names in enumerate(read) if place != index)
        )
        inside = {t.name for part in op.parts for t in part.inputs}
        closed.append(replace(op, outputs=tuple(t for t in op.outputs if t.name in others or t.name not in inside)))
    return closed
