"""Calibration: fits parameters to measured rows, and judges them on held-out shape families."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..errors import InputError
from ..records import frozen
from .families.base import Array, Features
from .fitting import ParameterFit, best_of, fit_parameters, pick
from .profile import FEW_SHAPES, KernelFit, Profile, error_of, sizes_of
from .residual import MIN_ROWS as MIN_RESIDUAL_ROWS
from .residual import FitResidual, points_of
from .rows import MeasuredRows
from .transfer import few_shapes_error, select_fits
from .trend import MIN_ROWS as MIN_TREND_ROWS
from .trend import Trend, trend_of

MIN_ROWS: Final = 20  # rows that a kernel implementation must have
_MAX_FITTED_ROWS: Final = 1500  # rows that a fit uses
_FOLDS: Final = 3
_VARIANT_ROWS: Final = 500  # rows by which variants are preselected
_MAX_VARIANTS: Final = 3  # variants that are tried on held-out shape families
_MAX_SINGLE_FOLDS: Final = 6  # shape families up to which each is held out alone
_MAX_ERROR: Final = 2.0  # error that counts at most
_MIN_TREND_ROWS: Final = 200  # rows from which their own trend replaces that of the nearest fit
_MAX_TREND_ERROR_RATIO: Final = 0.97  # held-out error with a trend over that without, to keep the trend


def calibrate(
    rows: Iterable[MeasuredRows],
    *,
    priors: Sequence[KernelFit] = (),
    residual: bool = False,
    sources: Sequence[str] = (),
    progress: Callable[[KernelFit], None] = lambda _: None,
) -> tuple[Profile, ...]:
    """Profiles of all devices and libraries with enough rows.

    priors    fits whose parameters are priors: of the same implementation, else of the most similar ones
    residual  whether to keep residuals of implementations with enough rows
    """
    fits: dict[tuple[str, str], list[KernelFit]] = defaultdict(list)
    for group in rows:
        kernel_fit = fit_kernel(group, priors, residual=residual)
        if kernel_fit:
            fits[kernel_fit.device, kernel_fit.implementation.library].append(kernel_fit)
            progress(kernel_fit)
    return tuple(
        Profile(
            device=device,
            library=library,
            sources=tuple(sources),
            fits=tuple(
                sorted(
                    fits_of_library,
                    key=lambda e: (e.family, e.implementation.dtype, e.implementation.kv_dtype, -e.rows),
                )
            ),
        )
        for (device, library), fits_of_library in sorted(fits.items())
    )


def fit_kernel(rows: MeasuredRows, priors: Sequence[KernelFit] = (), *, residual: bool = False) -> KernelFit | None:
    """Fit of one kernel implementation; None if it has too few rows."""
    result = cross_validate(rows, priors, residual=residual)
    return result.kernel_fit if result else None


@frozen(kw_only=True)
class CrossValidatedFit:
    """A fit, its rows, and the expected time of each row when its fold was held out. [s]"""

    kernel_fit: KernelFit
    rows: MeasuredRows
    held_out: Array


def cross_validate(
    rows: MeasuredRows,
    priors: Sequence[KernelFit] = (),
    *,
    residual: bool = False,
    bends: bool = True,
    variants: Sequence[str] = (),
) -> CrossValidatedFit | None:
    """Fit of one kernel implementation with its held-out predictions; None if it has too few rows.

    bends     whether it may have a trend
    variants  of the family that are tried; () for all
    """
    rows = rows.take(np.flatnonzero(rows.fittable))
    if len(rows) < MIN_ROWS:
        return None
    order, fold = folds = _shuffled(rows, 0)
    before = nearest_fits(rows, priors)
    priors_by_name, bound = _priors(rows, before), rows.family.bound(rows.shapes, rows.device, rows.implementation)
    problem = _chosen([
        _Problem(rows=rows, variant=variant, priors=priors_by_name, bound=bound,
                 features=rows.family.features(rows.shapes, rows.device, rows.implementation, variant))
        for variant in variants or rows.family.variants
        if rows.family.covers_variant(variant, rows.shapes)
    ])  # fmt: skip
    trend: Trend | bool | None = before[0].trend if before and len(rows) < _MIN_TREND_ROWS else None
    trend = bends and (trend or len(rows) >= MIN_TREND_ROWS)
    plain, bent = problem.held_out(folds, None, trend)
    if _error(bent, rows) > _MAX_TREND_ERROR_RATIO * _error(plain, rows):
        trend, bent = None, plain
    law = problem.law(order, trend)
    error, count = error_of(bent, rows.measured, fold), rows.num_shape_families
    few = count if count in FEW_SHAPES else 0
    kernel_fit = KernelFit(
        device=rows.device.name,
        family=rows.family.name,
        implementation=rows.implementation,
        variant=problem.variant,
        parameters=law.fit.parameters,
        rows=len(rows),
        version=rows.version,
        sizes=sizes_of(rows.family, rows.shapes),
        fit_mape=law.loss,
        held_out=few_shapes_error(rows.family.name, few, error) if few else error,
        shape_families=few,
        trend=law.trend,
        residual=_residual(problem, order, law) if residual and len(rows) >= MIN_RESIDUAL_ROWS else None,
    )
    return CrossValidatedFit(kernel_fit=kernel_fit, rows=rows, held_out=bent)


def held_out_times(rows: MeasuredRows, kernel_fit: KernelFit) -> Array:
    """Expected time of each row by a fit of the same variant to the other folds, with their trend if it has one. [s]"""
    implementation, variant = rows.implementation, kernel_fit.variant
    problem = _Problem(
        rows=rows,
        variant=variant,
        features=rows.family.features(rows.shapes, rows.device, implementation, variant),
        priors=rows.family.default_parameters(implementation, rows.device),
        bound=rows.family.bound(rows.shapes, rows.device, implementation),
    )
    return problem.held_out(_shuffled(rows, 0), kernel_fit.trend is not None)[0]


def _shuffled(rows: MeasuredRows, seed: int, folds: int = _FOLDS) -> tuple[Array, Array]:
    """The rows in random order, and a fold for each: that of its shape family, or a random one if there is only one
    family.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    count = rows.num_shape_families
    if count == 1:
        return order, order % folds
    return order, random.permutation(count)[rows.shape_families()] % folds


@frozen(kw_only=True)
class _Law:
    """Fitted parameters, and the trend of their residuals over shapes.

    loss  the mean error on those rows
    """

    fit: ParameterFit
    trend: Trend | None
    loss: float

    def seconds(self, rows: MeasuredRows, features: Features) -> Array:
        times = rows.family.seconds(self.fit.parameters, features)
        return times * np.exp(self.trend.change(rows.family, rows.shapes)) if self.trend else times


@frozen(kw_only=True)
class _Problem:
    """Rows, and a variant of the family that their kernel may be.

    priors  start of the search for its parameters
    bound   roofline lower bound of each row [s]

    A trend is fitted with the parameters if it is True; else it is a given one, to which the parameters are fitted.
    """

    rows: MeasuredRows
    variant: str
    features: Features
    priors: Mapping[str, float]
    bound: Array

    def law(self, chosen: Array, trend: Trend | bool | None = None) -> _Law:
        """Fits the rows `chosen`."""
        rows, features = self.rows.take(chosen), pick(self.features, chosen)
        given_trend = trend if isinstance(trend, Trend) else None
        plain = rows.measured / np.exp(given_trend.change(rows.family, rows.shapes)) if given_trend else rows.measured
        fitted_rows = np.arange(len(chosen))[:_MAX_FITTED_ROWS]
        fit = fit_parameters(
            rows.family, pick(features, fitted_rows), plain[fitted_rows], priors=self.priors, variant=self.variant
        )
        law = _Law(fit=fit, trend=given_trend, loss=fit.loss)
        if given_trend:
            return replace(law, loss=_error(law.seconds(rows, features), rows))
        return self.bent(law, chosen) if trend else law

    def bent(self, law: _Law, chosen: Array) -> _Law:
        """Adds the trend of the residuals of a law on the rows `chosen` that it was fitted to."""
        rows, features = self.rows.take(chosen), pick(self.features, chosen)
        trend = trend_of(rows.family, rows.shapes, rows.measured / law.seconds(rows, features))
        bent = replace(law, trend=trend)
        return replace(bent, loss=_error(bent.seconds(rows, features), rows))

    def held_out(self, folds: tuple[Array, Array], *trends: Trend | bool | None) -> tuple[Array, ...]:
        """Expected time of each row by a fit to the other folds, for each choice of a trend. [s]"""
        order, fold = folds
        expected = np.empty((len(trends), len(self.rows)))
        for number in np.unique(fold):
            held_out_rows, others = np.flatnonzero(fold == number), order[fold[order] != number]
            rows, features = self.rows.take(held_out_rows), pick(self.features, held_out_rows)
            plain = self.law(others)
            for place, trend in enumerate(trends):
                law = plain if not trend else self.bent(plain, others) if trend is True else self.law(others, trend)
                expected[place, held_out_rows] = law.seconds(rows, features)
        return tuple(np.maximum(expected, self.bound))


def _chosen(problems: Sequence[_Problem]) -> _Problem:
    """Selects the variant with the smallest sum of fitted and held-out errors.

    Fitted errors alone do not tell variants apart, as parameters can compensate; held-out errors alone depend on few
    shape families. The folds differ from those of the reported error.
    """
    if len(problems) == 1:
        return problems[0]
    rows = problems[0].rows
    count = rows.num_shape_families
    folds = _shuffled(rows, 1, count if _FOLDS <= count <= _MAX_SINGLE_FOLDS else _FOLDS)
    fits = {problem.variant: problem.law(folds[0][:_VARIANT_ROWS]).fit for problem in problems}
    nearest = sorted(fits.values(), key=lambda fit: fit.loss)[:_MAX_VARIANTS]
    tried = []
    for problem in problems:
        fit = fits[problem.variant]
        if fit in nearest:
            tried.append(replace(fit, loss=fit.loss + _error(problem.held_out(folds, None)[0], rows)))
    best = best_of(tried).variant
    return next(problem for problem in problems if problem.variant == best)


def _error(expected: Array, rows: MeasuredRows) -> float:
    return float(np.mean(np.minimum(np.abs(expected / rows.measured - 1), _MAX_ERROR)))


def _residual(problem: _Problem, order: Array, law: _Law) -> FitResidual:
    """Residuals of a fit, judged on rows held out at random, as they are for shapes between those measured."""
    rows, features = problem.rows, problem.features
    near = replace(problem, priors=law.fit.parameters)
    held_out, fold = np.empty(len(rows)), np.empty(len(rows))
    fold[order] = np.arange(len(rows)) % _FOLDS
    for number in range(_FOLDS):
        held_out_rows, others = np.flatnonzero(fold == number), order[fold[order] != number]
        times = near.law(others, law.trend is not None).seconds(rows, features)
        fitted_rows = rows.take(others)
        columns, points, factors = points_of(rows.family, fitted_rows.shapes, fitted_rows.measured / times[others])
        part = FitResidual(columns=columns, points=points, factors=factors, mape=0.0, interval=(1.0, 1.0))
        changed = times[held_out_rows] * part.apply(rows.take(held_out_rows).shapes).factor
        held_out[held_out_rows] = np.maximum(changed, problem.bound[held_out_rows])
    error = error_of(held_out, rows.measured, fold)
    expected = law.seconds(rows, features)
    columns, points, factors = points_of(rows.family, rows.shapes, rows.measured / expected)
    return FitResidual(columns=columns, points=points, factors=factors, mape=error.mape, interval=error.long)


def nearest_fits(rows: MeasuredRows, priors: Sequence[KernelFit]) -> tuple[KernelFit, ...]:
    """Fits that are used for the implementation so far, whose parameters are its priors."""
    try:
        return select_fits(rows.family.name, rows.device, rows.implementation, priors).fits
    except InputError:
        return ()


def _priors(rows: MeasuredRows, before: Sequence[KernelFit]) -> dict[str, float]:
    """Start of the search by parameter: the mean of the nearest fits, or the default of the family."""
    priors = rows.family.default_parameters(rows.implementation, rows.device)
    for q in rows.family.parameters:
        if values := [q.to_search(e.parameters[q.name]) for e in before if q.name in e.parameters]:
            priors[q.name] = q.from_search(float(np.mean(values)))
    return priors
