"""The experts of a layer, which are one fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

import numpy as np

from ...forms import Num, total
from ...operators.base import Operator
from ...operators.collectives import Collective
from ...operators.elementwise import Combine, Permute
from ...operators.linear import ExpertsLinear, Linear
from ..families import Implementation
from ..profile import ANOTHER_TYPE
from ._kernel import KernelSequence, LibraryKernel
from ._products import original_linear, product
from ._work import LaunchWork

_AS_DENSE: Final = "as dense experts with equal weight bytes"


def experts(works: Mapping[int, LaunchWork]) -> list[tuple[int, ...]]:
    """Groups of operators that one fused MoE kernel runs: the products by expert, the operators between them, and the
    sum; no communication.
    """
    inside: set[str] = set()
    groups: list[list[int]] = [[]]
    for place, work in works.items():
        op = work.op
        reads = any(t.name in inside for t in op.inputs)
        if isinstance(op, Collective):
            inside |= {t.name for t in op.outputs} if reads else set()
        elif isinstance(op, Permute) or _expert(op) or reads:
            groups[-1].append(place)
            inside |= set() if isinstance(op, Combine) else {t.name for t in op.outputs}
            if isinstance(op, Combine):
                groups.append([])
    return [tuple(members) for members in groups if sum(_expert(works[m].op) is not None for m in members) > 1]


def _expert(op: Operator) -> ExpertsLinear | None:
    """The product of experts that an operator is, or replaces; None for others."""
    dense = original_linear(op) if isinstance(op, Linear) else op
    return dense if isinstance(dense, ExpertsLinear) else None


def moe(members: tuple[int, ...], works: Mapping[int, LaunchWork]) -> KernelSequence:
    products = [dense for m in members if (dense := _expert(works[m].op))]
    last = [m for m in members if _expert(works[m].op)][-1]
    chosen = next((op.top_k for m in members if isinstance(op := works[m].op, Combine)), 1)
    down, run, work = products[-1], works[last].op, works[last]
    count, hidden, inner = down.weight.shape[0], down.weight.shape[1], prod(down.weight.shape[2:])
    up_width = sum(op.weight.numel for op in products[:-1]) / (count * hidden)
    ops = work.ops if run is down else work.of(total(down.arithmetic().values()))
    copies = np.divide(ops, 2.0 * hidden * inner)
    stored = sum(w.format.stored_bits for w in run.weights) / sum(w.format.stored_bits for w in down.weights)
    shapes: dict[str, Num] = {
        "tokens": np.maximum(np.rint(np.divide(copies, chosen)), 1),
        "hidden": hidden,
        "inter": inner * stored,
        "topk": np.minimum(chosen, np.maximum(copies, 1)),  # of a token, fewer than it chose may be on this device
        "experts": count,
        "gated": float(up_width > inner),
        "reached": work.of(down.weight.rows) if down.weight.rows else count,
    }
    implementation = Implementation(library=work.library, dtype=product(down, work.half))
    kernels = (LibraryKernel(family="moe", implementation=implementation, shapes=shapes),)
    if run is down:
        return KernelSequence(members=members, kernels=kernels)
    return KernelSequence(members=members, kernels=kernels, remark=_AS_DENSE, stand_in_class=ANOTHER_TYPE)
