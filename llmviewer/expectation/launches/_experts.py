"""The experts of a layer, which are one fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ...forms import Num
from ...operators.collectives import Collective
from ...operators.elementwise import Combine, Permute
from ...operators.linear import ExpertsLinear
from ..families import Stack
from ._kernel import Kernel, Launch
from ._products import product
from ._work import Work


def experts(works: Mapping[int, Work]) -> list[tuple[int, ...]]:
    """What a fused kernel does: the products of copies by expert, what lies between them, and the sum; no sending."""
    inside: set[str] = set()
    found: list[list[int]] = [[]]
    for place, work in works.items():
        op = work.op
        reads = any(t.name in inside for t in op.inputs)
        if isinstance(op, Collective):
            inside |= {t.name for t in op.outputs} if reads else set()
        elif isinstance(op, Permute | ExpertsLinear) or reads:
            found[-1].append(place)
            inside |= set() if isinstance(op, Combine) else {t.name for t in op.outputs}
            if isinstance(op, Combine):
                found.append([])
    return [tuple(members) for members in found if sum(isinstance(works[m].op, ExpertsLinear) for m in members) > 1]


def moe(members: tuple[int, ...], works: Mapping[int, Work]) -> Launch:
    products = [(op, works[m]) for m in members if isinstance(op := works[m].op, ExpertsLinear)]
    chosen = next((op.chosen for m in members if isinstance(op := works[m].op, Combine)), 1)
    down, work = products[-1]
    count, hidden, inner = down.weight.shape[0], down.weight.shape[1], prod(down.weight.shape[2:])
    up = sum(op.weight.numel for op, _ in products[:-1]) / (count * hidden)
    copies = np.divide(work.ops, 2.0 * hidden * inner)
    shapes: dict[str, Num] = {
        "tokens": np.maximum(np.rint(np.divide(copies, chosen)), 1),
        "hidden": hidden,
        "inter": inner,
        "topk": np.minimum(chosen, np.maximum(copies, 1)),  # of a token, fewer than it chose may be on this device
        "experts": count,
        "gated": float(up > inner),
        "reached": work.of(down.weight.rows) if down.weight.rows else count,
    }
    stack = Stack(library=work.library, dtype=product(down, work.half))
    return Launch(members=members, kernels=(Kernel(family="moe", stack=stack, shapes=shapes),))
