"""Statistics over kernels or devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .families.base import Array


def mean(values: Array) -> float:
    """Arithmetic mean; nan for an empty array."""
    return float(np.mean(values)) if len(values) else float("nan")


def rank_correlation(one: Array | Sequence[float], other: Array | Sequence[float]) -> float:
    """Spearman's rank correlation, with mean ranks for ties; nan if all values of one side are equal."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Array | Sequence[float]) -> Array:
    _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place.reshape(-1)]
