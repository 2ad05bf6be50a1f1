"""The number of concurrently decoding sequences at which departures keep up with arrivals, by Little's law."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .markov_chain import Column


def crossing(missing: Column) -> tuple[Column, npt.NDArray[np.bool_]]:
    """Where a row of the last axis falls to 0, as a place with its fraction, and whether it does."""
    place = np.argmax(missing <= 0, axis=-1)
    stable = np.take_along_axis(missing, place[..., None], axis=-1)[..., 0] <= 0
    before = np.maximum(place - 1, 0)
    left, right = (np.take_along_axis(missing, p[..., None], axis=-1)[..., 0] for p in (before, place))
    between = np.where(np.isinf(left), 1.0, left / np.where(left == right, 1.0, left - right))
    fraction = np.where(place > 0, between, 0.0)
    return np.where(stable, before + fraction, 0.0), stable


def value_at(values: Column, at: Column) -> Column:
    """Entries of the last axis at places with fractions."""
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, values.shape[-1] - 1)
    if values.ndim == 1:
        left, right = values[low], values[high]
    else:
        left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (low, high))
    return np.asarray(left + (at - low) * (right - left))
