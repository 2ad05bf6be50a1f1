"""Residuals of a fit, interpolated to shapes near measured ones.

An expected time is multiplied by the weighted mean of measured / expected of the nearest measured shapes. Distances are
in logarithms of sizes; weights fall with their square. The model itself has a weight too, so that expected times far
from all points do not change.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

import numpy as np

from ..records import frozen
from .families import Family
from .families.base import Array, Shapes

MIN_ROWS: Final = 1000  # rows of an implementation; with fewer, parameters predict as well
MAX_POINTS: Final = 4000  # points that a profile keeps
NEIGHBOURS: Final = 8
_REACH: Final = 1.0  # doublings of a size at which a point weighs as much as the model
_SAME_SHAPE_DISTANCE: Final = 1e-6
_CHUNK: Final = 1024  # rows whose distances to all points are in memory at a time


@frozen(kw_only=True)
class FitResidual:
    """Residuals of one kernel implementation on one device.

    columns   sizes that distinguish shapes
    points    as measured, a row each
    factors   measured / expected of each
    mape      of rows that were held out at random, with the other rows' points
    interval  factors on the expectation near points between which 80 % of measured times lie
    """

    columns: tuple[str, ...]
    points: Array = field(repr=False, compare=False)
    factors: Array = field(repr=False, compare=False)
    mape: float
    interval: tuple[float, float]

    def apply(self, shapes: Shapes) -> ResidualCorrection:
        """Correction factors for expected times of `shapes`, and how near measured points are."""
        places, points = self._place(shapes), _logs(self.points)
        logs = np.log(self.factors)
        parts = [_near(places[i : i + _CHUNK], points, logs) for i in range(0, len(places), _CHUNK)]
        change, nearest = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        return ResidualCorrection(factor=np.exp(change), measured=nearest < _SAME_SHAPE_DISTANCE, near=nearest < _REACH)

    def _place(self, shapes: Shapes) -> Array:
        return _logs(np.stack([np.asarray(shapes[name], dtype=float) for name in self.columns], axis=1))


@frozen(kw_only=True)
class ResidualCorrection:
    """Correction of expected times by the residuals of measured shapes nearby.

    measured  the shape is one of the points
    near      a point is within a doubling of one size
    """

    factor: Array
    measured: Array
    near: Array


def _logs(sizes: Array) -> Array:
    return np.asarray(np.log2(1 + sizes))


def _near(positions: Array, points: Array, logs: Array) -> tuple[Array, Array]:
    """Mean log factor of the nearest points, and the distance of the nearest one."""
    squares = np.sum(positions**2, axis=1)[:, None] + np.sum(points**2, axis=1) - 2 * positions @ points.T
    count = min(NEIGHBOURS, len(points))
    places = np.argpartition(squares, count - 1, axis=1)[:, :count]
    nearest = np.sum((positions[:, None, :] - points[places]) ** 2, axis=2)
    weights = 1 / (nearest + _SAME_SHAPE_DISTANCE**2)
    change = np.sum(weights * logs[places], axis=1) / (np.sum(weights, axis=1) + 1 / _REACH**2)
    return change, np.sqrt(nearest.min(axis=1))


def points_of(family: Family, shapes: Shapes, ratio: Array) -> tuple[tuple[str, ...], Array, Array]:
    """Columns in which rows differ, and the kept points with their factors measured / expected."""
    names = tuple(n for n in (*family.columns, *family.optional) if n in shapes and np.ptp(shapes[n]) > 0)
    points = np.stack([np.asarray(shapes[name], dtype=float) for name in names or family.columns], axis=1)
    distinct, place = np.unique(points, axis=0, return_inverse=True)
    place = place.reshape(-1)
    factors = np.exp(np.bincount(place, np.log(ratio)) / np.bincount(place))
    if len(distinct) > MAX_POINTS:
        chosen = np.sort(np.random.default_rng(0).permutation(len(distinct))[:MAX_POINTS])
        distinct, factors = distinct[chosen], factors[chosen]
    return names or family.columns, distinct, factors


def plain(residual: FitResidual) -> dict[str, Any]:
    """Converts to plain values for a profile's YAML file."""
    rows = np.column_stack([residual.points, [float(f"{f:.4g}") for f in residual.factors]])
    return {
        "columns": list(residual.columns),
        "mape": float(f"{residual.mape:.4g}"),
        "interval": [float(f"{end:.4g}") for end in residual.interval],
        "points": [[int(v) if v == int(v) else float(v) for v in row] for row in rows.tolist()],
    }
