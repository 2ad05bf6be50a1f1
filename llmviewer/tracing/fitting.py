"""Counts of passes of several shapes -> forms, exactly or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Final

import numpy as np

from ..forms import LOGITS, ONE, SEQUENCES, TOKENS, Form, cells, kv_tokens, pairs, total


@dataclass(frozen=True)
class Shape:
    """`batch` sequences of `q_len` new tokens after `past` that are cached."""

    batch: int
    q_len: int
    past: int

    @property
    def monomials(self) -> tuple[int, ...]:
        b, q, k = self.batch, self.q_len, self.past + self.q_len
        return (1, b, q, b * q, k, b * k, q * k, b * q * k)

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.q_len} new tokens after {self.past}"


# What the monomials of a shape are called. Those without the batch belong to positions, which all sequences of a trace
# share because they are equally long; sequences in general do not, so they count for each.
_NAMES: Final = (ONE, SEQUENCES, TOKENS, TOKENS, kv_tokens(), kv_tokens(), cells(), cells())
# Eight make the system regular; the others check what it gives.
SHAPES: Final = (*(Shape(b, q, p) for b, q, p in product((2, 3), (3, 5), (7, 12))), Shape(4, 2, 21), Shape(5, 7, 4))
_SOLVER: Final = np.linalg.inv(np.array([s.monomials for s in SHAPES[:8]], dtype=np.float64))


def fit(counts: Sequence[int]) -> Form | None:
    """The integer combination of features that gives `counts` for SHAPES; None where there is none."""
    found = [round(c) for c in (_SOLVER @ np.array(counts[:8], dtype=np.float64)).tolist()]
    if any(predict(found, shape) != count for shape, count in zip(SHAPES, counts, strict=True)):
        return None
    return total(c * name for c, name in zip(found, _NAMES, strict=True))


def predict(coefficients: Sequence[int], shape: Shape) -> int:
    return sum(c * m for c, m in zip(coefficients, shape.monomials, strict=True))


def amount(form: Form, shape: Shape) -> int:
    """What a form fitted to matrix products, which go by batch, is in a pass of `shape`."""
    values = dict(zip((f.terms[0][0] for f in _NAMES[1::2]), shape.monomials[1::2], strict=True))
    values[ONE.terms[0][0]] = 1
    return round(sum(c * values[feature] for feature, c in form.terms))


def renamed(form: Form, old: Form, new: Form) -> Form:
    """`form` with one feature in the place of another."""
    return total(c * (new if feature == old.terms[0][0] else Form(((feature, 1.0),))) for feature, c in form.terms)


def masked(form: Form) -> Form:
    """OPs of whole score matrices as those that a causal mask leaves."""
    return renamed(form, cells(), pairs())


def wanted(form: Form) -> Form:
    """Rows of the prediction head, which is run where logits are wanted."""
    return renamed(renamed(form, TOKENS, LOGITS), SEQUENCES, LOGITS)


def rows_and_width(form: Form) -> tuple[Form, int]:
    """A tensor's elements as rows of the widest row that there is."""
    width = 0
    for _, c in form.terms:
        width = gcd(width, abs(round(c)))
    return (form / width, width) if width else (ONE * 0, 0)
