"""Fits parameters to measured times: least squares of log errors, with a loss that is robust to outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import InputError
from ..records import frozen
from .families.base import Array, Family, Features

_SCALE: Final = 0.06  # relative errors above this count in proportion, not squared
_PRIOR_ROWS: Final = 8.0  # cost of a parameter that is a factor of e from its prior, in rows
_STEP: Final = 5e-3  # wide enough to look across the edges of tiles
_ROUNDS: Final = 30
_MIN_ROWS_PER_RESTART: Final = 20  # rows per parameter from which a second search can tell minima apart
_MIN_IMPROVEMENT: Final = 0.03  # relative improvement below which a later fit may be better by chance


@frozen(kw_only=True)
class ParameterFit:
    """Fitted parameters, the variant of the family (how its kernels divide work), and the mean error on fitted rows."""

    parameters: dict[str, float]
    variant: str
    loss: float


def fit_parameters(
    family: Family,
    features: Features,
    measured: Array,
    *,
    priors: Mapping[str, float],
    variant: str = "",
) -> ParameterFit:
    """The parameters with which times of `family` fit `measured` best. [s]

    priors  start of the search, and priors of the parameters

    Raises InputError if scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise InputError("calibrating needs scipy: pip install 'llmviewer[calibrate]'") from None
    names = family.parameters_of(variant or family.variants[0])
    centre = np.array([q.to_search(priors[q.name]) for q in names])
    low, high = (np.array([q.to_search(getattr(q, side)) for q in names]) for side in ("low", "high"))
    starts = [centre]
    for i, q in enumerate(names):
        if q.restart_factor and len(measured) >= _MIN_ROWS_PER_RESTART * len(names):
            start = centre.copy()
            start[i] = q.to_search(q.restart_factor * priors[q.name])
            starts.append(start)
    starts = [np.clip(start, low + 1e-3 * (high - low), high - 1e-3 * (high - low)) for start in starts]
    logs = np.log(measured)

    def parameters_at(position: Array) -> dict[str, float]:
        return {q.name: q.from_search(float(x)) for q, x in zip(names, position, strict=True)}

    def costs(parameters: Mapping[str, float], position: Array) -> Array:
        errors = np.log(family.seconds(parameters, features)) - logs
        return np.concatenate([errors, np.sqrt(_PRIOR_ROWS) * _SCALE * (position - centre)])

    def residuals(position: Array) -> Array:
        return costs(parameters_at(position), position)

    def slopes(position: Array) -> Array:
        parameters, columns = parameters_at(position), []
        origin = costs(parameters, position)
        for i, (q, value, limit) in enumerate(zip(names, position, high, strict=True)):
            step = _STEP if value + _STEP <= limit else -_STEP
            moved = position.copy()
            moved[i] += step
            changed = {**parameters, q.name: q.from_search(float(moved[i]))}
            columns.append((costs(changed, moved) - origin) / step)
        return np.stack(columns, axis=1)

    def search(start: Array) -> Any:
        return least_squares(
            residuals, start, slopes, bounds=(low, high), loss="soft_l1", f_scale=_SCALE, max_nfev=_ROUNDS, ftol=1e-4
        )

    result = search(starts[0])
    for other in map(search, starts[1:]):
        result = other if other.cost < result.cost * (1 - _MIN_IMPROVEMENT) else result
    parameters = parameters_at(result.x)
    errors = np.abs(np.expm1(np.log(family.seconds(parameters, features)) - logs))
    return ParameterFit(parameters=parameters, variant=variant, loss=float(np.mean(np.minimum(errors, 2.0))))


def pick(features: Features, rows: Array) -> dict[str, Any]:
    """Features of some rows; values that all rows share stay."""
    count = max(len(v) for v in features.values() if isinstance(v, np.ndarray))
    return {
        key: value[rows] if isinstance(value, np.ndarray) and value.ndim and len(value) == count else value
        for key, value in features.items()
    }


def best_of(fits: Sequence[ParameterFit]) -> ParameterFit:
    """Returns the first fit, unless a later one is clearly better: variants begin with the simplest."""
    best = fits[0]
    for candidate in fits[1:]:
        best = candidate if candidate.loss < best.loss * (1 - _MIN_IMPROVEMENT) else best
    return best
