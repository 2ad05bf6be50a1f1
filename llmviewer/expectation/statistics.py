"""What numbers of many kernels, or devices, have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .families._family import Array


def mean(values: Array) -> float:
    """Of all of them; nan where there are none."""
    return float(np.mean(values)) if len(values) else float("nan")


def rank_correlation(one: Array | Sequence[float], other: Array | Sequence[float]) -> float:
    """Spearman's: Pearson's of the ranks, equals sharing the mean of theirs. nan where all of one are alike."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Array | Sequence[float]) -> Array:
    _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place.reshape(-1)]
