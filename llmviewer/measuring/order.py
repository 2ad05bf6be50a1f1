"""Which launches to measure first, where there is no time for all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def spread(points: npt.ArrayLike) -> list[int]:
    """The places of points[n, d] so that those up to any of them fill the space of all: corners, then what is between.

    The first is the smallest, and each the farthest from all before it, on the logarithms of its sizes, each scaled to
    its range.
    """
    logs = np.log2(np.maximum(np.asarray(points, dtype=float), 1))
    logs = (logs - logs.min(axis=0)) / np.maximum(np.ptp(logs, axis=0), 1e-9)
    order = [int(np.argmin(logs.sum(axis=1)))]
    apart = np.full(len(logs), np.inf)
    for _ in range(len(logs) - 1):
        apart = np.minimum(apart, np.linalg.norm(logs - logs[order[-1]], axis=1))
        apart[order[-1]] = -1
        order.append(int(np.argmax(apart)))
    return order
