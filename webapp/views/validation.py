"""Accuracy of expected times: errors of profiles, and the user's measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmviewer.analyzing.facts import finite
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import BEYOND_SIZES, FEW_SHAPES, NO_KERNEL, Error, KernelFit
from llmviewer.reports.accuracy_figures import Cloud, LibraryError, predicted_and_measured, profile_errors
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.phrases import interval
from llmviewer.reports.tables import Table
from llmviewer.reports.validation import by_group
from llmviewer.reports.validation import skipped as skipped_rows
from llmviewer.reports.validation import worst as worst_rows
from llmviewer.units import counted, seconds

from ..results import DeviceResult
from ..words import LOWER_BOUND_SIGN
from .uploads import ScoredMeasurements

_MAX_POINTS, _MAX_GROUPS = 4000, 6  # of a figure
_MAX_REASONS = 10
_SPACE = "\N{NO-BREAK SPACE}"
_ANOTHER = "another "  # before what differs beside the device, in the name of a similarity


def source_table(results: Sequence[DeviceResult]) -> list[tuple[str, ...]]:
    """Bound, expected time, interval and source of each phase on each device: a line of heads, then one per phase."""
    lines: list[tuple[str, ...]] = [
        ("device", "phase", f"time {LOWER_BOUND_SIGN}", "expected", "80 % interval", "source")
    ]
    for one in results:
        for name, phase in one.analysis.phases:
            total = phase.total
            low, high = total.expected_low_s, total.expected_high_s
            between = "-" if low is None else interval(low, high) if high else f"from {seconds(low)}"
            between = between.replace(" ", _SPACE)
            lines.append((
                one.name, name, seconds(total.bound_time_s), seconds(total.expected_time_s), between,
                total.expectation_source,
            ))  # fmt: skip
    return lines


def profile_rows(results: Sequence[DeviceResult]) -> list[dict[str, Any]]:
    """A row per kernel implementation measured on the devices, with relative errors."""
    return [
        {
            "id": str(i), "device": fit.device, "family": _family_label(fit.family),
            "library": fit.implementation.library, "version": fit.version, "dtype": _dtype_label(fit),
            "kernel": fit.implementation.kernel, "rows": fit.rows,
            "fitted": fit.fit_mape, **_errors(fit.held_out),
        }
        for i, fit in enumerate(_entries(results))
    ]  # fmt: skip


def transfer_table() -> list[tuple[str, ...]]:
    """Errors on devices without measurements: a line of heads, then one per family and similarity."""
    lines: list[tuple[str, ...]] = [
        (
            "family",
            "kernels",
            "transferred from",
            "mean error",
            "median error",
            "under 20 us",
            "over 20 us",
            "in 80 % interval",
        )
    ]
    for (family, kernels, similarity), error in sorted(index().errors.items()):
        numbers = (error.mape, error.median, error.mape_short, error.mape_long, error.covered)
        lines.append((_family_label(family), kernels, similarity, *map(_percent, numbers)))
    return lines


def unmeasured_devices(results: Sequence[DeviceResult]) -> list[str]:
    """Devices without measured profiles."""
    measured = {fit.device for fit in index().fits}
    return [one.name for one in results if one.analysis.hardware.name not in measured]


def errors_figure(results: Sequence[DeviceResult]) -> PageFigure:
    """Errors of the profiles of the devices, and of transfers to devices without measurements."""
    named: dict[str, list[LibraryError]] = {}
    for fit in _entries(results):
        error, implementation = fit.held_out, fit.implementation
        words = " ".join(filter(None, (implementation.library, fit.version, implementation.kernel, _dtype_label(fit))))
        text = f"<b>{words}</b><br>{_percent(error.mape)} off, {counted(fit.rows, 'row')}"
        named.setdefault(fit.device, []).append(LibraryError(_family_label(fit.family), error.mape, text))
    for (family, kernels, similarity), error in sorted(index().errors.items()):
        source = "without kernels to transfer" if similarity == NO_KERNEL else f"transferred from {similarity}"
        text = f"<b>{kernels}</b>, {source}<br>{_percent(error.mape)} off"
        named.setdefault(_kind_of_transfer(similarity), []).append(
            LibraryError(_family_label(family), error.mape, text)
        )
    order = [_family_label(name) for name in FAMILIES]
    named = {name: sorted(dots, key=lambda dot: order.index(dot.row)) for name, dots in named.items()}
    about = "mean error on held-out shapes; one dot per library, data type and kernel"
    return page_figure(profile_errors(named, "Errors of the expected times", about))


def _kind_of_transfer(similarity: str) -> str:
    """Similarities that share a color in the figure, of which there are too many for one each."""
    if similarity == NO_KERNEL:
        return "without kernels to transfer"
    if _ANOTHER in similarity:
        return "transferred from another kernel, library or data type"
    if similarity in {BEYOND_SIZES, *FEW_SHAPES.values()}:
        return f"transferred from few shapes, or {BEYOND_SIZES}"
    return "transferred from other devices"


def scatter_figure(one: ScoredMeasurements, name: str) -> PageFigure | None:
    """Expected against measured times; None if no row has both."""
    frame, expected = one.predictions.table.frame, one.predictions.columns["expected_us"]
    if "time_us" not in frame:
        return None
    times = frame["time_us"].to_numpy(float)
    groups: dict[str, list[Any]] = {}
    for rows in one.predictions.table.rows:
        expected_us = expected[rows.places]
        valid = (
            np.isfinite(times[rows.places]) & (times[rows.places] > 0) & np.isfinite(expected_us) & (expected_us > 0)
        )
        if valid.any():
            label = " ".join(filter(None, (rows.device.name, rows.implementation.library, rows.implementation.dtype)))
            groups.setdefault(label, []).append(rows.places[valid])
    if not groups:
        return None
    places = {key: np.concatenate(parts) for key, parts in groups.items()}
    ranked = sorted(places, key=lambda key: -len(places[key]))
    shown_groups = {key: places[key] for key in ranked[: _MAX_GROUPS - (len(ranked) > _MAX_GROUPS)]}
    if len(ranked) > _MAX_GROUPS:
        shown_groups["others"] = np.concatenate([places[key] for key in ranked[len(shown_groups) :]])
    count = sum(map(len, shown_groups.values()))
    each = max(1, math.ceil(count / _MAX_POINTS))
    clouds = {
        key: Cloud(times[positions[::each]], expected[positions[::each]], [""] * len(positions[::each]))
        for key, positions in shown_groups.items()
    }
    every = "" if each == 1 else f"; every {each}th is drawn"
    about = f"{counted(count, 'row')}{every}"
    return page_figure(predicted_and_measured(clouds, f"Expected against measured: {name}", about))


def score_table(one: ScoredMeasurements) -> Table:
    """Errors by family, device and data type."""
    return by_group(one.scores.groups)


def worst_table(one: ScoredMeasurements) -> Table:
    """Rows with the largest errors, by their row numbers in the user's file."""
    return worst_rows(one.scores.worst, lambda row: int(one.row_positions[row["row"] - 1]) + 1)


def skipped_reasons(one: ScoredMeasurements) -> list[str]:
    """Most frequent reasons why rows were not scored."""
    unknown = Counter({f"no device {label[:60]!r}": count for label, count in one.unknown_devices.items()})
    return list(skipped_rows(dict((Counter(one.scores.skipped) + unknown).most_common(_MAX_REASONS))))


def prediction_rows(one: ScoredMeasurements) -> list[tuple[Any, ...]]:
    """Rows on known devices with their predictions, for a CSV file: a line of heads, then one per row."""
    frame = one.predictions.frame()
    rows = zip(one.row_positions + 1, frame.itertuples(index=False, name=None), strict=True)
    return [("row", *frame.columns), *((int(place), *row) for place, row in rows)]


def _entries(results: Sequence[DeviceResult]) -> list[KernelFit]:
    names = {one.analysis.hardware.name for one in results}
    return [fit for fit in index().fits if fit.device in names]


def _errors(error: Error) -> dict[str, float | None]:
    """Columns of errors; None for undefined ones."""
    return finite({
        "held_out": error.mape, "median": error.median, "short": error.mape_short, "long": error.mape_long,
        "covered": error.covered,
    })  # fmt: skip


def _family_label(family: str) -> str:
    return family.replace("_", " ")


def _dtype_label(fit: KernelFit) -> str:
    cache = fit.implementation.kv_dtype
    return (
        f"{fit.implementation.dtype}, {cache} cache"
        if cache and cache != fit.implementation.dtype
        else fit.implementation.dtype
    )


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
