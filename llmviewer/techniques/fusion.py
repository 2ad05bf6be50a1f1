"""Launches that become one: what is between them stays on the chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..devices.hardware import Hardware
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.elementwise import Activation, Add, Norm, Rope
from ..operators.fused import Fused, once
from ..operators.linear import Linear, LMHead
from ..workload import Workload
from . import technique
from ._parameters import parameter
from ._technique import Finding, Kind, Machine, Technique, Touches

_Pair = Callable[[Operator, Operator], bool]


@technique("fusion")
@dataclass(frozen=True, kw_only=True)
class Fusion(Technique):
    """Kernel fusion: launches that follow each other become one, as libraries for serving have them.

    Changes: bytes of what is between them, and the number of launches; no OPs.
    Formula: a fused launch reads each input once and writes what others read; it takes as long as the resource that is
    busy longest over all of its parts, at most the sum of what they took.
    Source: arXiv:2404.14294, section 6.1.1; with everything on, a layer of LLaMA is the 7 launches of FlashDecoding++
    (arXiv:2311.01282, section 6).
    Helps: small operators between matrix products, most of all where launches themselves take time, which the bound
    does not count.
    Cannot: help what waits for weights, as decode with small batches does: they are read as before.
    """

    kind = Kind.GRAPH
    touches = Touches.NOTHING
    order = 5  # what runs in one launch is what others have left

    qkv: bool = parameter("queries, keys and values in one product", default=True)
    rope: bool = parameter("rotation at the end of that product", default=True)
    add: bool = parameter("residual addition at the end of the product before", default=True)
    norm: bool = parameter("norm with the addition before it, where that is a launch of its own", default=True)
    gate_up: bool = parameter("gate and up in one product", default=True)
    activation: bool = parameter("activation at the end of that product", default=True)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._fused)

    def _fused(self, block: Block) -> Block:
        operators = list(block.operators)
        for asked, fits in (
            (self.qkv, _makes(*_QKV)),
            (self.rope, lambda a, b: isinstance(b, Rope) and _made_by(a, b)),
            (self.gate_up, _makes(*_GATE_UP)),
            (self.activation, lambda a, b: isinstance(b, Activation) and _made_by(a, b) and _product(a)),
            (self.add, lambda a, b: isinstance(b, Add) and _product(a) and _any_made_by(a, b)),
            (self.norm, lambda a, b: isinstance(a, Add) and isinstance(b, Norm) and _any_made_by(a, b)),
        ):
            operators = _joined(operators, fits) if asked else operators
        return replace(block, operators=tuple(_closed(operators, block)))

    def findings(self, machine: Machine, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        layers = [block for block in machine.decode_graph.blocks if block.main and block.layers]
        if not layers:
            return ()
        launches = sum(len(block.operators) * len(block.layers) for block in layers)
        each = launches / sum(len(block.layers) for block in layers)
        text = f"a layer is {each:.3g} launches in a decode step"
        return (Finding(key="launches_per_layer", value=each, text=text),)


_QKV: Final = ("q_proj", "k_proj", "v_proj")
_GATE_UP: Final = ("gate_proj", "up_proj")


def _makes(*names: str) -> _Pair:
    """Whether two products of the same input are of these names."""

    def fits(a: Operator, b: Operator) -> bool:
        last = a.parts[-1] if isinstance(a, Fused) else a
        both = isinstance(last, Linear) and isinstance(b, Linear)
        return both and {last.name, b.name} <= set(names) and last.inputs[0] == b.inputs[0]

    return fits


def _product(op: Operator) -> bool:
    first = op.parts[0] if isinstance(op, Fused) else op
    return isinstance(first, Linear) and not isinstance(first, LMHead)


def _made_by(a: Operator, b: Operator) -> bool:
    """Whether `a` makes all that `b` reads."""
    return {t.name for t in b.inputs} <= {t.name for t in a.outputs}


def _any_made_by(a: Operator, b: Operator) -> bool:
    return bool({t.name for t in b.inputs} & {t.name for t in a.outputs})


def _joined(operators: Sequence[Operator], fits: _Pair) -> list[Operator]:
    """Each operator in one launch with the one before it, where they fit."""
    found: list[Operator] = []
    for op in operators:
        if found and fits(found[-1], op):
            found[-1] = _one(found[-1], op)
        else:
            found.append(op)
    return found


def _one(a: Operator, b: Operator) -> Fused:
    parts = (*(a.parts if isinstance(a, Fused) else (a,)), *(b.parts if isinstance(b, Fused) else (b,)))
    made = {t.name for part in parts for t in part.outputs}
    return Fused(
        name=f"{_short(a)}+{_short(b)}",
        kind=a.kind,
        inputs=once(t for part in parts for t in part.inputs if t.name not in made),
        outputs=once(t for part in parts for t in part.outputs),
        weights=tuple(w for part in parts for w in part.weights),
        parts=parts,
    )


def _short(op: Operator) -> str:
    """Such as "gate" of gate_proj and "add" of attn_add, as several names stand in one."""
    return (
        op.name if isinstance(op, Fused) else op.name.removesuffix("_proj").removeprefix("attn_").removeprefix("mlp_")
    )


def _closed(operators: Sequence[Operator], block: Block) -> list[Operator]:
    """Fused launches that leave only what others read."""
    read = [{t.name for t in op.inputs} for op in operators]
    closed: list[Operator] = []
    for index, op in enumerate(operators):
        if not isinstance(op, Fused):
            closed.append(op)
            continue
        others = {block.output, *block.kept}.union(*(names for place, names in enumerate(read) if place != index))
        inside = {t.name for part in op.parts for t in part.inputs}
        closed.append(replace(op, outputs=tuple(t for t in op.outputs if t.name in others or t.name not in inside)))
    return closed
