"""Trends: residuals of a kernel model that are smooth over shapes.

Libraries select kernels and tile work by more rules than parameters can express. So an expected time is multiplied by
the exponential of a sum of Gaussians in the logarithms of sizes, at nodes that are spread over the measured shapes:
radial basis functions, fitted by ridge regression. A few doublings away from all measured shapes the sum vanishes, and
only the parameters remain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..records import frozen
from .families import Family
from .families.base import Array, Shapes

MIN_ROWS: Final = 40  # rows of an implementation; with fewer, residuals are mostly noise
_NODES: Final = 256
_REACH: Final = 1.5  # doublings of one size in which a Gaussian falls to exp(-1/2)
_RIDGE: Final = 0.5  # ridge penalty relative to the errors of rows
_MAX_ROWS: Final = 6000  # used for the fit
_MAX_LOG_ERROR: Final = 0.4  # log errors are clipped to this
_SCALE: Final = 0.06  # errors above this share count in proportion, not squared
_ROUNDS: Final = 4
# Shapes that are evaluated at a time: few enough for one core, and always as many, as matrix products of other sizes
# round otherwise: the trend of a shape must not depend on the other shapes of a query.
_CHUNK: Final = 128
# exp() of it adds nothing to a sum in 32 bits. That of less is denormal, with which sums take ten times as long.
_MIN_EXPONENT: Final = np.float32(-80.0)


@frozen(kw_only=True)
class Trend:
    """Residuals of one kernel implementation on one device.

    columns  sizes that distinguish shapes
    nodes    the sizes of one and its weight; the next after a semicolon. As text, since few of all are ever looked at
    """

    columns: tuple[str, ...]
    nodes: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Trend:
        """Inverse of plain()."""
        return cls(columns=tuple(document["columns"]), nodes=document["nodes"])

    @cached_property
    def rows(self) -> Array:
        """Sizes of each node, and its weight in the last column."""
        return np.fromstring(self.nodes.replace(";", " "), sep=" ").reshape(-1, len(self.columns) + 1)

    @cached_property
    def _sum(self) -> tuple[_Gaussians, Array]:
        return _Gaussians(_places(self.rows[:, :-1])), self.rows[:, -1].astype(np.float32)

    def change(self, family: Family, shapes: Shapes) -> Array:
        """Logarithm of the factor on expected times of `shapes`."""
        sizes = family.sizes(shapes)
        gaussians, weights = self._sum
        return gaussians.sums(_places(np.stack([sizes[name] for name in self.columns], axis=1)), weights)


def trend_of(family: Family, shapes: Shapes, ratio: Array) -> Trend | None:
    """Fits a trend to measured / expected of the first shapes, which must be in random order; None if all are equal."""
    sizes_by_name = family.sizes(shapes)
    columns = tuple(name for name, sizes in sizes_by_name.items() if np.ptp(sizes) > 0)
    if not columns:
        return None
    sizes = np.stack([sizes_by_name[name][:_MAX_ROWS] for name in columns], axis=1)
    places = _places(sizes)
    nodes = _spread(places)
    gaussians = _Gaussians(places[nodes])
    near, among = (gaussians.at(points).astype(float) for points in (places, places[nodes]))
    logs = np.clip(np.log(ratio[:_MAX_ROWS]), -_MAX_LOG_ERROR, _MAX_LOG_ERROR)
    counts = np.ones(len(logs))
    for _ in range(_ROUNDS):
        weighted = (near * counts[:, None]).T
        weights = np.linalg.solve(weighted @ near + _RIDGE * among + 1e-6 * np.eye(len(nodes)), weighted @ logs)
        counts = np.minimum(1, _SCALE / np.maximum(np.abs(logs - near @ weights), 1e-9))
    texts = (
        " ".join([*(f"{size:.6g}" for size in sizes[node]), f"{weight:.3g}"])
        for node, weight in zip(nodes, weights, strict=True)
    )
    return Trend(columns=columns, nodes="; ".join(texts))


def plain(trend: Trend) -> dict[str, Any]:
    """Converts to plain values for a profile's YAML file."""
    return {"columns": list(trend.columns), "nodes": trend.nodes}


def _places(sizes: Array) -> Array:
    return np.asarray(np.log2(1 + sizes), dtype=np.float32)


class _Gaussians:
    """Gaussians around nodes, in 32 bits, as they take most of the time of an expectation.

    An exponent -|a - b|^2 / 2 is one product of the vectors (a, -|a|^2 / 2, 1) and (b, 1, -|b|^2 / 2).
    """

    def __init__(self, centres: Array) -> None:
        self._middle = centres.mean(axis=0)  # from which distances are of few digits
        b = self._scaled(centres)
        self._others = np.vstack([b.T, np.ones(len(b), dtype=b.dtype), _half_squares(b)])

    def at(self, points: Array) -> Array:
        """Values of all Gaussians at each point, [point, node]."""
        exponents = self._vectors(points) @ self._others
        return np.asarray(np.exp(exponents, out=exponents))

    def sums(self, points: Array, weights: Array) -> Array:
        """Weighted sum of all Gaussians at each point, the same whatever other points are evaluated with it."""
        count = len(points)
        padded = np.zeros((count + -count % _CHUNK, points.shape[1]), dtype=points.dtype)
        padded[:count] = points
        vectors, result = self._vectors(padded), np.empty(len(padded), dtype=np.float32)
        values = np.empty((_CHUNK, len(weights)), dtype=np.float32)
        for start in range(0, count, _CHUNK):
            np.matmul(vectors[start : start + _CHUNK], self._others, out=values)
            used = values[: count - start]  # rows of the padding keep their exponents
            np.maximum(used, _MIN_EXPONENT, out=used)
            np.exp(used, out=used)
            np.matmul(values, weights, out=result[start : start + _CHUNK])
        return result[:count].astype(float)

    def _vectors(self, points: Array) -> Array:
        a = self._scaled(points)
        return np.column_stack([a, _half_squares(a), np.ones(len(a), dtype=a.dtype)])

    def _scaled(self, places: Array) -> Array:
        return np.asarray((places - self._middle) / np.float32(_REACH))


def _half_squares(places: Array) -> Array:
    return np.asarray(-np.sum(places**2, axis=1) / np.float32(2))


def _spread(places: Array) -> list[int]:
    """Selects nodes, each the farthest from all before it."""
    nodes = [0]
    distances = np.sum((places - places[0]) ** 2, axis=1)
    while len(nodes) < _NODES and distances.max() > 0:
        nodes.append(int(np.argmax(distances)))
        distances = np.minimum(distances, np.sum((places - places[nodes[-1]]) ** 2, axis=1))
    return nodes
