"""The decode batch at which departures keep up with arrivals, by Little's law (doi:10.1287/opre.9.3.383).

The sequences that decode are the rate of requests times how long each decodes, which in turn depends on how many they
are. The last axis of arrays runs over decode batches; those before it, if any, over devices and rates.
"""

from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt

from .markov_chain import Column


def token_interval_s(step_s: Column, busy: Column, joined: Column | float = 0.0) -> Column:
    """Time between two decode steps of a sequence; inf where prefills leave no time to decode. [s]

    step_s  a step that only decodes [s]
    busy    fraction of the time in which prefills run
    joined  rate of steps with prefills in which the sequence takes part [1/s]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(busy < 1, step_s / (1 - busy + joined * step_s), inf))


def decode_batch(
    rate: Column, steps: float, interval_s: Column, others: Column
) -> tuple[Column, npt.NDArray[np.bool_], Column]:
    """The balanced batch, as an index with fraction; whether there is one; and by how much arrivals exceed each batch.

    rate        of requests [1/s], with a last axis of 1
    steps       decode steps of a request
    interval_s  time between two of them, by batch [s]
    others      sequences that decode beside one of them, by batch
    """
    with np.errstate(invalid="ignore"):
        missing = np.where(np.isinf(interval_s), inf, rate * steps * interval_s - others)
        index, stable = _zero_crossing(missing)
    return index, stable, missing


def _zero_crossing(values: Column) -> tuple[Column, npt.NDArray[np.bool_]]:
    """Zero crossing of the last axis, as an index with fraction, and whether there is one."""
    index = np.argmax(values <= 0, axis=-1)
    before = np.maximum(index - 1, 0)
    left, right = (_entries(values, place) for place in (before, index))
    crosses = right <= 0
    between = np.where(np.isinf(left), 1.0, left / np.where(left == right, 1.0, left - right))
    fraction = np.where(index > 0, between, 0.0)
    return np.where(crosses, before + fraction, 0.0), crosses


def value_at(values: Column, index: Column) -> Column:
    """Entries of the last axis at indices with fractions, by linear interpolation; an axis of one entry is constant."""
    if not values.ndim:
        return values
    if values.shape[-1] == 1:
        return values[..., 0]
    low = np.floor(index).astype(int)
    high = np.minimum(low + 1, values.shape[-1] - 1)
    left, right = (_entries(values, place) for place in (low, high))
    return np.asarray(left + (index - low) * (right - left))


def descent(values: Column, positions: Column, index: Column) -> Column:
    """Steepness of the fall of `values` along the last axis, at fractional indices of its `positions`."""
    high = np.maximum(np.ceil(index).astype(int), 1)
    left, right = (_entries(values, place) for place in (high - 1, high))
    return np.asarray((left - right) / (positions[high] - positions[high - 1]))


def _entries(values: Column, place: npt.NDArray[np.intp]) -> Column:
    """Entries of the last axis at whole indices."""
    if values.ndim == 1:
        return values[place]
    shape = np.broadcast_shapes(values.shape[:-1], place.shape)
    values = np.broadcast_to(values, (*shape, values.shape[-1]))
    return np.take_along_axis(values, np.broadcast_to(place, shape)[..., None], axis=-1)[..., 0]
