"""Counts of passes of several shapes -> forms, exactly or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import gcd
from typing import Final

import numpy as np

from ..forms import LOGITS, ONE, SEQUENCES, TOKENS, Form, cells, kv_tokens, total
from ..operators.masks import Mask
from ..records import frozen


@frozen
class PassShape:
    """`batch` sequences of `q_len` new tokens after `past` that are cached."""

    batch: int
    q_len: int
    past: int = 0

    @property
    def monomials(self) -> tuple[int, ...]:
        b, q, k = self.batch, self.q_len, self.past + self.q_len
        return (1, b, q, b * q, k, b * k, q * k, b * q * k)

    def clipped(self, band: tuple[int, int] | None) -> tuple[int, int] | None:
        """A band of keys before and after a query's own, clipped to this shape; -1 is all, None hides nothing."""
        if band is None:
            return None
        keys = self.past + self.q_len
        before, after = (-1 if n >= keys - 1 else n for n in band)
        return None if before < 0 and (after < 0 or self.q_len == 1) else (before, after)

    def __str__(self) -> str:
        after = f" new tokens after {self.past}" if self.past else " tokens"
        return f"batch {self.batch}, {self.q_len}{after}"


# What the monomials of a shape are called. Those without the batch belong to positions, which all sequences of a trace
# share because they are equally long; sequences in general do not, so they count for each.
_NEW_TOKENS, _CACHED_TOKENS = 3, 4  # indices of monomials
_NAMES: Final = (ONE, SEQUENCES, TOKENS, TOKENS, kv_tokens(), kv_tokens(), cells(), cells())


@frozen
class Basis:
    """Monomials that counts are sums of, and the shapes of the passes that tell how much of each they have.

    As many shapes as monomials make the system regular; the others check what it gives.
    """

    monomials: tuple[int, ...]
    shapes: tuple[PassShape, ...]
    told: str  # what the monomials are, in words

    def solve(self, counts: Sequence[int]) -> tuple[int, ...] | None:
        """Whole coefficients of the monomials that give `counts` for the shapes; None if there are none."""
        rows = np.array([[shape.monomials[m] for m in self.monomials] for shape in self.shapes], dtype=np.float64)
        regular = len(self.monomials)
        coefficients = tuple(
            round(c) for c in np.linalg.solve(rows[:regular], np.array(counts[:regular], np.float64)).tolist()
        )
        fitted_counts = (self.amount(coefficients, shape) for shape in self.shapes)
        return coefficients if all(one == count for one, count in zip(fitted_counts, counts, strict=True)) else None

    def amount(self, coefficients: Sequence[int], shape: PassShape) -> int:
        """The sum of the monomials of `shape`, times the coefficients."""
        return sum(c * shape.monomials[m] for c, m in zip(coefficients, self.monomials, strict=True))

    def is_constant(self, counts: Sequence[int]) -> bool:
        """Whether `counts` fit, and do not grow with the cached tokens."""
        coefficients = self.solve(counts)
        return coefficients is not None and not any(coefficients[self.monomials.index(_CACHED_TOKENS) :])

    def per_token(self, coefficients: Sequence[int]) -> int:
        return coefficients[self.monomials.index(_NEW_TOKENS)]

    def form(self, coefficients: Sequence[int]) -> Form:
        """The same as features of a workload."""
        return total(c * _NAMES[m] for c, m in zip(coefficients, self.monomials, strict=True))


CACHED: Final = Basis(
    tuple(range(8)),
    (*(PassShape(b, q, p) for b, q, p in product((2, 3), (3, 5), (7, 12))), PassShape(4, 2, 21), PassShape(5, 7, 4)),
    "tokens, sequences, cached tokens and cells",
)
# Token by token, all that a token does counts for each, however many a pass has. `kv_tokens` and `cells` are one then:
# what is read of the cache is the former, which the program knows.
STEPS: Final = Basis(
    (0, 3, 4, 7),
    (
        PassShape(2, 1, 5),
        PassShape(3, 1, 5),
        PassShape(2, 1, 8),
        PassShape(3, 1, 8),
        PassShape(4, 1, 7),
        PassShape(5, 1, 9),
    ),
    "tokens, cached tokens and cells",
)
# Without a past, keys are queries. Lengths without a common factor tell apart what goes by steps.
UNCACHED: Final = Basis(
    (0, 1, 2, 3, 6, 7),
    (*(PassShape(b, q) for b, q in product((2, 3), (3, 5, 8))), PassShape(4, 7), PassShape(5, 11)),
    "tokens, sequences and cells",
)
FIXED: Final = Basis((0, 1), tuple(PassShape(b, 1) for b in (2, 3, 4, 7)), "sequences")


def replace_feature(form: Form, old: Form, new: Form) -> Form:
    """`form` with one feature in the place of another."""
    return total(c * (new if feature == old.terms[0][0] else Form(((feature, 1.0),))) for feature, c in form.terms)


def per_sequence(form: Form) -> Form:
    """Amounts that each sequence has once, however many tokens a pass has; keys count once each."""
    return replace_feature(replace_feature(form, TOKENS, SEQUENCES), cells(), kv_tokens())


def per_cached_token(form: Form, length: int) -> Form:
    """Amounts of a buffer of `length` places for each sequence, all of which a pass takes, as those of the tokens that
    are in it.
    """
    return replace_feature(replace_feature(form, TOKENS, cells()), SEQUENCES, kv_tokens()) / length


def masked_ops(form: Form, mask: Mask) -> Form:
    """OPs of whole score matrices as those that a mask leaves."""
    return replace_feature(form, cells(), mask.pairs)


def at_logits(form: Form) -> Form:
    """Rows of the prediction head, which is run where logits are wanted."""
    return replace_feature(replace_feature(form, TOKENS, LOGITS), SEQUENCES, LOGITS)


def rows_and_width(form: Form, last: int = 0) -> tuple[Form, int]:
    """A tensor's elements as rows of `last` elements where they are that, or of the widest row that there is."""
    if last and not any(round(c) % last for _, c in form.terms):
        return form / last, last
    width = 0
    for _, c in form.terms:
        width = gcd(width, abs(round(c)))
    return (form / width, width) if width else (ONE * 0, 0)
