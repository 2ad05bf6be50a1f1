"""Confidence intervals of means of independent simulations."""

from __future__ import annotations

from functools import cache
from math import nan, pi, sqrt
from typing import Final, NamedTuple

import numpy as np

from .traffic import Times

CONFIDENCE: Final = 0.95
_GRID: Final = 20_001  # points of the integral of a density


class MeanEstimate(NamedTuple):
    """A mean with half the width of its confidence interval; nan with a single value."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    @classmethod
    def of(cls, values: Times) -> MeanEstimate:
        """The estimate of a mean from independent values, by Student's t."""
        count = len(values)
        if count < 2:
            return cls(float(np.mean(values)) if count else nan, nan)
        return cls(float(np.mean(values)), student_t(count - 1) * float(np.std(values, ddof=1)) / sqrt(count))


@cache
def student_t(freedom: int) -> float:
    """The value that |t| exceeds with probability 1 - CONFIDENCE, for so many degrees of freedom.

    With t = sqrt(freedom) tan(a), the density of the angle a is proportional to cos(a) ** (freedom - 1).
    """
    angle = np.linspace(0, pi / 2, _GRID)
    density = np.cos(angle) ** (freedom - 1)
    share = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return float(sqrt(freedom) * np.tan(np.interp(CONFIDENCE, share / share[-1], angle)))
