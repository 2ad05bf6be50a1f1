"""The order of measurements, if there is no time for all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def spread(points: npt.ArrayLike) -> list[int]:
    """Indices of points[n, d] in an order whose beginnings cover the space: corners first, then points between.

    The first point is the smallest; each further one is the farthest from all before it, in logarithms of the sizes,
    scaled to their ranges.
    """
    logs = np.log2(np.maximum(np.asarray(points, dtype=float), 1))
    logs = (logs - logs.min(axis=0)) / np.maximum(np.ptp(logs, axis=0), 1e-9)
    order = [int(np.argmin(logs.sum(axis=1)))]
    distances = np.full(len(logs), np.inf)
    for _ in range(len(logs) - 1):
        distances = np.minimum(distances, np.linalg.norm(logs - logs[order[-1]], axis=1))
        distances[order[-1]] = -1
        order.append(int(np.argmax(distances)))
    return order
