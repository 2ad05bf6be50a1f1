"""From measured rows to profiles: parameters fitted, and judged on shape families that were held out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..errors import InputError
from .families._family import Array, Features
from .fitting import Fit, best_of, fit, pick
from .profile import Entry, Profile, error_of, sizes_of
from .residual import LEAST as LEAST_POINTS
from .residual import Residual, points_of
from .rows import Rows
from .transfer import choose

LEAST: Final = 20  # rows that a stack must have
_MOST: Final = 1500  # rows that a fit uses
_FOLDS: Final = 3
_FEW: Final = 500  # rows that tell which variants are worth a try
_TRIED: Final = 3  # of them, on families that are held out
_APART: Final = 6  # families that are held out one by one
_WORST: Final = 2.0  # error that counts at most


def calibrate(
    rows: Iterable[Rows],
    *,
    priors: Sequence[Entry] = (),
    residual: bool = False,
    sources: Sequence[str] = (),
    progress: Callable[[Entry], None] = lambda _: None,
) -> tuple[Profile, ...]:
    """A profile of every device and library that has rows enough.

    priors    what parameters are drawn to where rows do not tell: those of the same stack, or its nearest relatives
    residual  keep what parameters leave of stacks that have rows enough for it
    """
    entries: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for group in rows:
        entry = entry_of(group, priors, residual=residual)
        if entry:
            entries[entry.device, entry.stack.library].append(entry)
            progress(entry)
    return tuple(
        Profile(
            device=device,
            library=library,
            sources=tuple(sources),
            entries=tuple(sorted(found, key=lambda e: (e.family, e.stack.dtype, e.stack.kv_dtype, -e.rows))),
        )
        for (device, library), found in sorted(entries.items())
    )


def entry_of(rows: Rows, priors: Sequence[Entry] = (), *, residual: bool = False) -> Entry | None:
    """The fit of one stack; None where it has too few rows."""
    found = judged(rows, priors, residual=residual)
    return found.entry if found else None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A fit, the rows that it may rest on, and what was expected of each when its part was held out. [s]"""

    entry: Entry
    rows: Rows
    held_out: Array


def judged(rows: Rows, priors: Sequence[Entry] = (), *, residual: bool = False) -> Judged | None:
    """The fit of one stack, with what its error is made of."""
    usable = np.isfinite(rows.measured) & (rows.measured > 0) & rows.family.kept(rows.shapes)
    rows = rows.take(np.flatnonzero(usable))
    if len(rows) < LEAST:
        return None
    order, fold = _shuffled(rows, 0)
    usual = _usual(rows, priors)
    candidates = {v: rows.family.features(rows.shapes, rows.device, rows.stack, v) for v in rows.family.variants}
    variant = _chosen(rows, candidates, usual)
    features = candidates[variant]
    whole = _fitted(rows, features, order, usual, variant)
    held_out = _held_out(rows, features, (order, fold), usual, variant)
    held_out = np.maximum(held_out, rows.family.bound(rows.shapes, rows.device, rows.stack))
    entry = Entry(
        device=rows.device.name,
        family=rows.family.name,
        stack=rows.stack,
        variant=variant,
        parameters=whole.parameters,
        rows=len(rows),
        version=rows.version,
        sizes=sizes_of(rows.family, rows.shapes),
        fit_mape=whole.loss,
        held_out=error_of(held_out, rows.measured, fold),
        residual=_residual(rows, features, order, whole) if residual and len(rows) >= LEAST_POINTS else None,
    )
    return Judged(entry=entry, rows=rows, held_out=held_out)


def _shuffled(rows: Rows, seed: int, folds: int = _FOLDS) -> tuple[Array, Array]:
    """The rows in random order, and a fold for each: that of its shape family, if there are families enough."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    families = rows.shape_families()
    if families.max() + 1 < folds:
        return order, order % folds
    return order, random.permutation(int(families.max()) + 1)[families] % folds


def _held_out(
    rows: Rows, features: Features, folds: tuple[Array, Array], usual: Mapping[str, float], variant: str
) -> Array:
    """What is expected of each fold by parameters that are fitted to the others. [s]"""
    order, fold = folds
    expected = np.empty(len(rows))
    for which in np.unique(fold):
        own = np.flatnonzero(fold == which)
        found = _fitted(rows, features, order[fold[order] != which], usual, variant)
        expected[own] = rows.family.seconds(found.parameters, pick(features, own))
    return expected


def _chosen(rows: Rows, candidates: Mapping[str, Features], usual: Mapping[str, float]) -> str:
    """The variant with the least errors of rows that it is fitted to and of shape families that are held out.

    Of the first alone, parameters may do what a variant does not, and of the second, few families decide by luck. The
    folds are others than those it is judged by.
    """
    if len(candidates) == 1:
        return next(iter(candidates))
    count = int(rows.shape_families().max()) + 1
    folds = _shuffled(rows, 1, count if _FOLDS <= count <= _APART else _FOLDS)
    few = folds[0][:_FEW]
    fits = [_fitted(rows, features, few, usual, variant) for variant, features in candidates.items()]
    nearest = sorted(fits, key=lambda found: found.loss)[:_TRIED]
    tried = []
    for found in (one for one in fits if one in nearest):
        expected = _held_out(rows, candidates[found.variant], folds, usual, found.variant)
        errors = np.minimum(np.abs(expected / rows.measured - 1), _WORST)
        tried.append(replace(found, loss=found.loss + float(np.mean(errors))))
    return best_of(tried).variant


def _residual(rows: Rows, features: Features, order: Array, whole: Fit) -> Residual:
    """What a fit leaves, judged on rows that are held out at random: it is for shapes between those measured."""
    expected = rows.family.seconds(whole.parameters, features)
    bound = rows.family.bound(rows.shapes, rows.device, rows.stack)
    held_out, fold = np.empty(len(rows)), np.empty(len(rows))
    fold[order] = np.arange(len(rows)) % _FOLDS
    for which in range(_FOLDS):
        own, others = np.flatnonzero(fold == which), order[fold[order] != which]
        found = _fitted(rows, features, others, whole.parameters, whole.variant)
        times = rows.family.seconds(found.parameters, features)
        kept = rows.take(others)
        columns, points, factors = points_of(rows.family, kept.shapes, kept.measured / times[others])
        part = Residual(columns=columns, points=points, factors=factors, mape=0.0, interval=(1.0, 1.0))
        held_out[own] = np.maximum(times[own] * part.apply(rows.take(own).shapes).factor, bound[own])
    error = error_of(held_out, rows.measured, fold)
    columns, points, factors = points_of(rows.family, rows.shapes, rows.measured / expected)
    return Residual(columns=columns, points=points, factors=factors, mape=error.mape, interval=error.long)


def _usual(rows: Rows, priors: Sequence[Entry]) -> dict[str, float]:
    """Where the search begins: the family's usual parameters, or the mean of what speaks for the stack already."""
    usual = rows.family.usual(rows.stack)
    try:
        entries = choose(rows.family.name, rows.device, rows.stack, priors).entries
    except InputError:
        return usual
    for q in rows.family.parameters:
        if known := [q.sought(e.parameters[q.name]) for e in entries if q.name in e.parameters]:
            usual[q.name] = q.found(float(np.mean(known)))
    return usual


def _fitted(rows: Rows, features: Features, chosen: Array, usual: Mapping[str, float], variant: str) -> Fit:
    some = chosen[:_MOST]
    return fit(rows.family, pick(features, some), rows.measured[some], usual=usual, variant=variant)
