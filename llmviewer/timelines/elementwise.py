"""Elementwise time, by groups of operator kinds that the same fused kernels run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ..analyzing.phases import OperatorResult
from ..operators.kinds import traced_kinds
from ..records import frozen
from .kinds import KernelOfPass, known_sum

_MOST_PIECES: Final = 8  # kernels of torch for one operator: an RMS norm in single steps takes seven
_PIECES: Final = re.compile(r"^aten::|at::native::")  # torch's kernels, several of which may make up one operator


@frozen(kw_only=True)
class ElementwiseOfPass:
    """Kinds of operators and the kernels that run them in a pass. [s]

    operators   kinds of operators; empty if none is known for the kernels
    kernels     names of kernels; empty if none is known for the operators
    expected_s  None if only the bound is known for some operators
    """

    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    launches: float
    measured_s: float
    bound_s: float
    expected_s: float | None


def elementwise_of(
    kernels: Sequence[KernelOfPass], operators: Sequence[OperatorResult]
) -> tuple[ElementwiseOfPass, ...]:
    """Groups by decreasing time.

    Kernels with unknown names are assigned to the operators that no other kernel names, unless they are launched more
    often than the pieces of those operators could be; then they are of no known operator.
    """
    kinds = frozenset(op.kind for op in operators)
    kinds_by_kernel = {kernel.name: _kinds_of_name(kernel.name) & kinds for kernel in kernels}
    groups = _overlapping_unions(kinds_by_kernel.values())
    unnamed_kinds = kinds.difference(*groups)
    assignments = [
        (group, [k for k in kernels if kinds_by_kernel[k.name] and kinds_by_kernel[k.name] <= group])
        for group in groups
    ]
    unknown = [k for k in kernels if not kinds_by_kernel[k.name]]
    pieces = _MOST_PIECES * sum(op.repeat for op in operators if op.kind in unnamed_kinds)
    if sum(kernel.launches for kernel in unknown) <= pieces:
        assignments.append((unnamed_kinds, unknown))
    else:
        assignments += [(unnamed_kinds, []), (frozenset(), unknown)]
    rows = [_row(group_kernels, [op for op in operators if op.kind in group]) for group, group_kernels in assignments]
    return tuple(sorted((row for row in rows if row.kernels or row.operators), key=lambda row: -row.measured_s))


def _kinds_of_name(name: str) -> frozenset[str]:
    """Kinds of operators that a kernel of this name runs; an addition alone may belong to a norm or to positions."""
    kinds = frozenset(kind for kind, pattern in traced_kinds().items() if re.search(pattern, name, re.IGNORECASE))
    return frozenset() if kinds == {"add"} or _PIECES.search(name) else kinds


def _overlapping_unions(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Unions of sets that overlap."""
    unions: list[frozenset[str]] = []
    for one in filter(None, sets):
        disjoint = [other for other in unions if not other & one]
        unions = [*disjoint, one.union(*(other for other in unions if other & one))]
    return unions


def _row(kernels: Sequence[KernelOfPass], operators: Sequence[OperatorResult]) -> ElementwiseOfPass:
    return ElementwiseOfPass(
        operators=tuple(dict.fromkeys(op.kind for op in operators)),
        kernels=tuple(kernel.name for kernel in kernels),
        launches=sum(kernel.launches for kernel in kernels),
        measured_s=sum(kernel.measured_s for kernel in kernels),
        bound_s=sum(op.bound_time_s for op in operators),
        expected_s=known_sum(op.expected_time_s for op in operators),
    )
