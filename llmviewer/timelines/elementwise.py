"""Elementwise work, shared out to the kinds of operators that kernels do together, as fused ones do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..analyzing.phases import OperatorResult
from .kinds import KernelOfPass, known_sum

# What a name says that its kernel does; an addition alone may be a norm's or one of positions.
_NAMED: Final = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in {
        "norm": "norm|rsqrt",
        "add": "add|residual",
        "activation": "act_|silu|gelu|swiglu|gated_op",
        "rope": r"rope|rotary|_and_cache|append_?paged|(store|set)_kv",  # which writes the cache
        "quantize": "quant",
        "embedding": "(?<!rotary_)embedding",
    }.items()
}
_PIECES: Final = re.compile(r"^aten::|at::native::")  # torch's own, of which several make what one operator is


@dataclass(frozen=True, kw_only=True)
class ElementwiseOfPass:
    """Kinds of operators and the kernels that do them in a pass. [s]

    operators   kinds; none where no operator is known that the kernels could be
    kernels     by name; none where no kernel is known that could be the operators
    expected_s  None where only the bound of some of them is known
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
    """In the order of their times. Kernels whose names say nothing do what is left of the operators."""
    kinds = frozenset(op.kind for op in operators)
    does = {kernel.name: _named(kernel.name) & kinds for kernel in kernels}
    groups = _joined(does.values())
    left = kinds.difference(*groups)
    own = [(group, [k for k in kernels if does[k.name] and does[k.name] <= group]) for group in groups]
    own.append((left, [k for k in kernels if not does[k.name]]))
    rows = [_row(some, [op for op in operators if op.kind in group]) for group, some in own]
    return tuple(sorted((row for row in rows if row.kernels or row.operators), key=lambda row: -row.measured_s))


def _named(name: str) -> frozenset[str]:
    found = frozenset(kind for kind, pattern in _NAMED.items() if pattern.search(name))
    return frozenset() if found == {"add"} or _PIECES.search(name) else found


def _joined(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Those that share something, together."""
    found: list[frozenset[str]] = []
    for one in filter(None, sets):
        apart = [other for other in found if not other & one]
        found = [*apart, one.union(*(other for other in found if other & one))]
    return found


def _row(kernels: Sequence[KernelOfPass], operators: Sequence[OperatorResult]) -> ElementwiseOfPass:
    return ElementwiseOfPass(
        operators=tuple(dict.fromkeys(op.kind for op in operators)),
        kernels=tuple(kernel.name for kernel in kernels),
        launches=sum(kernel.launches for kernel in kernels),
        measured_s=sum(kernel.measured_s for kernel in kernels),
        bound_s=sum(op.bound_time_s for op in operators),
        expected_s=known_sum(op.expected_time_s for op in operators),
    )
