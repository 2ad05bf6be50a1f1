"""From measured rows to profiles: parameters fitted, and judged on shape families that were held out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from .families._family import Array, Features
from .fitting import Fit, best_of, fit, pick
from .profile import Entry, Profile, error_of
from .rows import Rows

LEAST: Final = 40  # rows that a stack must have
_MOST: Final = 1500  # rows that a fit uses
_FOLDS: Final = 3


def calibrate(
    rows: Iterable[Rows], *, sources: Sequence[str] = (), progress: Callable[[Entry], None] = lambda _: None
) -> tuple[Profile, ...]:
    """A profile of every device and library that has rows enough."""
    entries: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for group in rows:
        entry = entry_of(group)
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


def entry_of(rows: Rows) -> Entry | None:
    """The fit of one stack; None where it has too few rows."""
    usable = np.isfinite(rows.measured) & (rows.measured > 0) & rows.family.kept(rows.shapes)
    rows = rows.take(np.flatnonzero(usable))
    if len(rows) < LEAST:
        return None
    random = np.random.default_rng(0)
    order = random.permutation(len(rows))
    families = rows.shape_families()
    fold = random.permutation(int(families.max()) + 1)[families] % _FOLDS
    if families.max() + 1 < _FOLDS:
        fold = order % _FOLDS
    candidates = {v: rows.family.features(rows.shapes, rows.device, rows.stack, v) for v in rows.family.variants}
    whole = best_of([_fitted(rows, features, order, variant) for variant, features in candidates.items()])
    features = candidates[whole.variant]
    held_out = np.empty(len(rows))
    for which in range(_FOLDS):
        others = order[fold[order] != which]
        own = np.flatnonzero(fold == which)
        found = _fitted(rows, features, others, whole.variant)
        held_out[own] = rows.family.seconds(found.parameters, pick(features, own))
    held_out = np.maximum(held_out, rows.family.bound(rows.shapes, rows.device, rows.stack))
    return Entry(
        device=rows.device.name,
        family=rows.family.name,
        stack=rows.stack,
        variant=whole.variant,
        parameters=whole.parameters,
        rows=len(rows),
        version=rows.version,
        fit_mape=whole.loss,
        held_out=error_of(held_out, rows.measured, fold),
    )


def _fitted(rows: Rows, features: Features, chosen: Array, variant: str) -> Fit:
    some = chosen[:_MOST]
    return fit(
        rows.family, pick(features, some), rows.measured[some], usual=rows.family.usual(rows.stack), variant=variant
    )
