"""Distinct shapes of kernels: a grid of batches and prompts repeats most shapes of products."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from .families.base import Array

_MIN_POINTS: Final = 64  # points of a query from which looking for repeated shapes takes less time than it saves
_MAX_KEY_POINTS: Final = 1 << 13  # of a cache key
_MAX_COLUMN_BYTES: Final = 1 << 18  # of a column whose distinct values are cached, as the kernels of a pass share it
_MAX_SHARE: Final = 0.8  # share of distinct shapes up to which they are evaluated once


class DistinctShapes(NamedTuple):
    """Shapes without repetition.

    columns  sizes of the distinct shapes
    places   index of each shape of the query among the distinct ones; None if all are kept as they are
    """

    columns: Mapping[str, Array]
    places: Array | None

    @property
    def is_cacheable(self) -> bool:
        """Whether there are enough points that a look-up saves time, and so few that their key is small."""
        return _MIN_POINTS <= len(next(iter(self.columns.values()))) <= _MAX_KEY_POINTS

    @property
    def key(self) -> Hashable:
        """Content of the columns."""
        return tuple((name, column.tobytes()) for name, column in self.columns.items())


def distinct_shapes(columns: Mapping[str, Array]) -> DistinctShapes:
    """Removes repeated shapes if there are enough of them."""
    count = len(next(iter(columns.values())))
    if count < _MIN_POINTS:
        return DistinctShapes(columns, None)
    first, places = np.zeros(1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for column in columns.values():
        if (column == column[0]).all():
            continue
        if len(first) == 1:
            first, places = _first_and_places(column)
        else:
            codes, number = _first_and_places(column)[1], count + 1
            first, places = _indices(places * number + codes)
        if len(first) > _MAX_SHARE * count:
            return DistinctShapes(columns, None)
    return DistinctShapes({name: column[first] for name, column in columns.items()}, places)


def _first_and_places(column: Array) -> tuple[Array, Array]:
    """Index of the first of each distinct value, and the place of each value among the distinct ones."""
    if column.nbytes > _MAX_COLUMN_BYTES:
        return _indices(column)
    return _indices_of_bytes(column.tobytes(), column.dtype.str)


@lru_cache(maxsize=64)
def _indices_of_bytes(content: bytes, dtype: str) -> tuple[Array, Array]:
    return _indices(np.frombuffer(content, dtype=dtype))


def _indices(values: Array) -> tuple[Array, Array]:
    _, first, places = np.unique(values, return_index=True, return_inverse=True)
    return first, places.reshape(-1)
