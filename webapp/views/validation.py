"""Accuracy: errors of profiles, and expected times against measurements of the user."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmviewer.analyzing.facts import finite
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import Error, KernelFit
from llmviewer.reports.accuracy_figures import Cloud, LibraryError, predicted_and_measured, profile_errors
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.tables import Table
from llmviewer.reports.validation import by_group
from llmviewer.reports.validation import skipped as skipped_rows
from llmviewer.reports.validation import worst as worst_rows
from llmviewer.units import counted, seconds

from ..answers import Answer
from .uploads import Measured

_MOST_POINTS, _MOST_GROUPS = 4000, 6  # of a figure
_MOST_REASONS = 10


def rests_on(found: Sequence[Answer]) -> list[tuple[str, ...]]:
    """Expected time of each phase on each device, its interval and its source: heads, then a line for each."""
    lines: list[tuple[str, ...]] = [("device", "phase", "at least", "expected", "80 % interval", "rests on")]
    for one in found:
        for name, phase in one.analysis.phases:
            total = phase.total
            low, high = total.expected_low_s, total.expected_high_s
            between = "-" if low is None else f"{seconds(low)} to {seconds(high)}" if high else f"from {seconds(low)}"
            lines.append((
                one.name, name, seconds(total.bound_time_s), seconds(total.expected_time_s), between,
                total.expectation_source,
            ))  # fmt: skip
    return lines


def profiles(found: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each stack that was measured on one of the devices, its errors in shares of 1."""
    return [
        {
            "id": str(i), "device": fit.device, "family": _said(fit.family), "library": fit.implementation.library,
            "version": fit.version, "dtype": _dtype(fit), "kernel": fit.implementation.kernel, "rows": fit.rows,
            "fitted": fit.fit_mape, **_errors(fit.held_out),
        }
        for i, fit in enumerate(_entries(found))
    ]  # fmt: skip


def transfers() -> list[tuple[str, ...]]:
    """Errors on a device that nothing was fitted on: heads, then a line for each part of a family."""
    lines: list[tuple[str, ...]] = [
        ("family", "of", "from", "mean error", "median row", "under 20 us", "over 20 us", "in the 80 %")
    ]
    for (family, part, near), error in sorted(index().errors.items()):
        numbers = (error.mape, error.median, error.mape_short, error.mape_long, error.covered)
        lines.append((_said(family), part, near, *map(_percent, numbers)))
    return lines


def unmeasured(found: Sequence[Answer]) -> list[str]:
    """The devices that no profile is of."""
    measured = {fit.device for fit in index().fits}
    return [one.name for one in found if one.analysis.hardware.name not in measured]


def errors_figure(found: Sequence[Answer]) -> PageFigure:
    """Errors of the profiles of the devices, and of transfers to devices that were not measured."""
    named: dict[str, list[LibraryError]] = {}
    for fit in _entries(found):
        error, implementation = fit.held_out, fit.implementation
        words = " ".join(filter(None, (implementation.library, fit.version, implementation.kernel, _dtype(fit))))
        text = f"<b>{words}</b><br>{_percent(error.mape)} off, {counted(fit.rows, 'row')}"
        named.setdefault(fit.device, []).append(LibraryError(_said(fit.family), error.mape, text))
    for (family, part, near), error in sorted(index().errors.items()):
        text = f"<b>{part}</b>, carried over from {near}<br>{_percent(error.mape)} off"
        named.setdefault(f"not measured, from {near}", []).append(LibraryError(_said(family), error.mape, text))
    order = [_said(name) for name in FAMILIES]
    named = {name: sorted(dots, key=lambda dot: order.index(dot.row)) for name, dots in named.items()}
    about = "of shapes that were not fitted; a dot for each library, data type and kernel"
    return page_figure(profile_errors(named, "Errors of what is expected", about))


def scatter(one: Measured, name: str) -> PageFigure | None:
    """Expected against measured times; None where no row has both."""
    frame, expected = one.predictions.table.frame, one.predictions.columns["expected_us"]
    if "time_us" not in frame:
        return None
    times = frame["time_us"].to_numpy(float)
    groups: dict[str, list[Any]] = {}
    for rows in one.predictions.table.rows:
        ours = expected[rows.places]
        good = np.isfinite(times[rows.places]) & (times[rows.places] > 0) & np.isfinite(ours) & (ours > 0)
        if good.any():
            called = " ".join(filter(None, (rows.device.name, rows.implementation.library, rows.implementation.dtype)))
            groups.setdefault(called, []).append(rows.places[good])
    if not groups:
        return None
    places = {key: np.concatenate(parts) for key, parts in groups.items()}
    ranked = sorted(places, key=lambda key: -len(places[key]))
    kept = {key: places[key] for key in ranked[: _MOST_GROUPS - (len(ranked) > _MOST_GROUPS)]}
    if len(ranked) > _MOST_GROUPS:
        kept["others"] = np.concatenate([places[key] for key in ranked[len(kept) :]])
    count = sum(map(len, kept.values()))
    each = max(1, math.ceil(count / _MOST_POINTS))
    clouds = {
        key: Cloud(times[own[::each]], expected[own[::each]], [""] * len(own[::each])) for key, own in kept.items()
    }
    every = "" if each == 1 else f"; one of {each} is drawn"
    about = f"{counted(count, 'row')}{every}"
    return page_figure(predicted_and_measured(clouds, f"Expected against measured: {name}", about))


def scores(one: Measured) -> Table:
    """Errors by family, device and data type."""
    return by_group(one.scores.groups)


def worst(one: Measured) -> Table:
    """The rows with the largest errors, by their places in the user's file."""
    return worst_rows(one.scores.worst, lambda row: int(one.places[row["row"] - 1]) + 1)


def skipped(one: Measured) -> list[str]:
    """The most frequent reasons for which rows were not scored."""
    unknown = Counter({f"no device {called[:60]!r}": count for called, count in one.unknown.items()})
    return list(skipped_rows(dict((Counter(one.scores.skipped) + unknown).most_common(_MOST_REASONS))))


def predicted(one: Measured) -> list[tuple[Any, ...]]:
    """The rows on known devices, with what is predicted: heads, then a line for each."""
    frame = one.predictions.frame()
    rows = zip(one.places + 1, frame.itertuples(index=False, name=None), strict=True)
    return [("row", *frame.columns), *((int(place), *row) for place, row in rows)]


def _entries(found: Sequence[Answer]) -> list[KernelFit]:
    names = {one.analysis.hardware.name for one in found}
    return [fit for fit in index().fits if fit.device in names]


def _errors(error: Error) -> dict[str, float | None]:
    return finite({
        "held_out": error.mape, "median": error.median, "short": error.mape_short, "long": error.mape_long,
        "covered": error.covered,
    })  # fmt: skip


def _said(family: str) -> str:
    return family.replace("_", " ")


def _dtype(fit: KernelFit) -> str:
    cache = fit.implementation.kv_dtype
    return (
        f"{fit.implementation.dtype}, {cache} cache"
        if cache and cache != fit.implementation.dtype
        else fit.implementation.dtype
    )


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
