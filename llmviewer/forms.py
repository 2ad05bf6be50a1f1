"""Counts as sums of coefficients times features of the workload: what makes a sweep one call and a formula readable.

An operator's OPs and bytes do not depend on the workload; the workload only says what the features (tokens, attended
pairs, cached tokens, ...) amount to. So an operator states a `Form` once; phases, batches and lengths evaluate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Num: TypeAlias = float | npt.NDArray[Any]  # a number, or an array of them: every formula takes both


@dataclass(frozen=True, order=True)
class Feature:
    """An amount that a workload has: `name` is a method of Workload, `arguments` are what it takes."""

    name: str
    arguments: tuple[float, ...] = ()

    def __str__(self) -> str:
        arguments = [f"{a:g}" for a in self.arguments if a < np.inf]  # a window that is none goes without saying
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name

    def of(self, workload: object) -> Num:
        method: Callable[..., Num] = getattr(workload, self.name)
        return method(*self.arguments)


@dataclass(frozen=True)
class Form:
    """sum of coefficient x feature. Adds to forms, multiplies by numbers, in sorted order and without zeros."""

    terms: tuple[tuple[Feature, float], ...] = ()

    @classmethod
    def of(cls, terms: Mapping[Feature, float]) -> Form:
        return cls(tuple(sorted((feature, c) for feature, c in terms.items() if c)))

    def __add__(self, other: Form) -> Form:
        terms = dict(self.terms)
        for feature, c in other.terms:
            terms[feature] = terms.get(feature, 0) + c
        return Form.of(terms)

    def __mul__(self, factor: float) -> Form:
        return Form.of({feature: c * factor for feature, c in self.terms})

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Form:
        return Form.of({feature: c / divisor for feature, c in self.terms})

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __str__(self) -> str:
        """Such as "33554432 tokens + 8 pairs(4096)"."""
        return " + ".join(f"{c:.12g} {feature}" for feature, c in self.terms) or "0"

    def features(self) -> frozenset[Feature]:
        return frozenset(feature for feature, _ in self.terms)

    def __call__(self, values: Mapping[Feature, Num]) -> Num:
        """The amount, from the `values` of its features. The order of summation is fixed, so an entry of an array
        equals the number that the same workload gives alone, to the last bit.
        """
        total: Num = 0.0
        for feature, c in self.terms:
            total = total + c * values[feature]
        return total


def total(forms: Iterable[Form]) -> Form:
    """The sum of any number of forms."""
    terms: dict[Feature, float] = {}
    for form in forms:
        for feature, c in form.terms:
            terms[feature] = terms.get(feature, 0) + c
    return Form.of(terms)


def evaluate(form: Form, workload: object) -> Num:
    """What `form` amounts to in `workload`."""
    return form({feature: feature.of(workload) for feature in form.features()})


def _one(name: str, *arguments: float) -> Form:
    return Form(((Feature(name, arguments), 1.0),))


ONE = _one("one")
SEQUENCES = _one("sequences")
TOKENS = _one("tokens")
LOGITS = _one("logits")
WANTED = _one("wanted")


def pairs(window: float = np.inf) -> Form:
    """(query, key) pairs that a causal mask of `window` keys leaves."""
    return _one("pairs", window)


def cells(window: float = np.inf) -> Form:
    """(query, key) cells of whole score matrices, masked ones included."""
    return _one("cells", window)


def kv_tokens(window: float = np.inf) -> Form:
    """Cached positions that a pass attends to, its own included."""
    return _one("kv_tokens", window)


def kv_streams(tile: float, resident: float, window: float = np.inf) -> Form:
    """Cached positions read when queries are taken `tile` tokens at a time and each tile reads the keys it needs;
    once where there are no more than `resident` of them, which can stay while the queries pass.
    """
    return _one("kv_streams", tile, resident, window)


def chunk_pairs(chunk: int) -> Form:
    """(query, key) pairs within chunks of that many new tokens."""
    return _one("chunk_pairs", chunk)


def distinct_experts(experts: int, chosen: int) -> Form:
    """Experts that are reached when each token chooses some of them, all alike likely, on average."""
    return _one("distinct_experts", experts, chosen)


def table_rows(rows: int) -> Form:
    """Rows of a table of `rows` read to look up one for every token."""
    return _one("table_rows", rows)
