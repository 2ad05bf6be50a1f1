"""How far to trust a number: errors of the profiles behind it, and expectations against a user's own measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmviewer.analyzing.facts import finite
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import Entry, Error
from llmviewer.reports.accuracy_figures import LibraryError, measured_and_expected, profile_errors
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.units import counted, seconds

from ..answers import Answer
from .uploads import Measured

_MOST_POINTS, _MOST_GROUPS = 4000, 6  # of a figure


def rests_on(found: Sequence[Answer]) -> list[tuple[str, ...]]:
    """What is expected of each phase on each device, how sure, and of what: heads, then a line for each."""
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
            "id": str(i), "device": entry.device, "family": _said(entry.family), "library": entry.stack.library,
            "version": entry.version, "dtype": _dtype(entry), "kernel": entry.stack.kernel, "rows": entry.rows,
            "fitted": entry.fit_mape, **_errors(entry.held_out),
        }
        for i, entry in enumerate(_entries(found))
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
    measured = {entry.device for entry in index().entries}
    return [one.name for one in found if one.analysis.hardware.name not in measured]


def errors_figure(found: Sequence[Answer]) -> PageFigure:
    """Errors of the profiles of the devices, and of transfers to devices that were not measured."""
    named: dict[str, list[LibraryError]] = {}
    for entry in _entries(found):
        error, stack = entry.held_out, entry.stack
        words = " ".join(filter(None, (stack.library, entry.version, stack.kernel, _dtype(entry))))
        text = f"<b>{words}</b><br>{_percent(error.mape)} off, {counted(entry.rows, 'row')}"
        named.setdefault(entry.device, []).append(LibraryError(_said(entry.family), error.mape, text))
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
            called = " ".join(filter(None, (rows.device.name, rows.stack.library, rows.stack.dtype)))
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
    named = {key: (times[own[::each]], expected[own[::each]]) for key, own in kept.items()}
    every = "" if each == 1 else f"; one of {each} is drawn"
    return page_figure(
        measured_and_expected(named, f"Expected against measured: {name}", f"{counted(count, 'row')}{every}")
    )


def scores(one: Measured) -> list[tuple[str, ...]]:
    """Errors by family, device and data type: heads, then a line for each."""
    lines: list[tuple[str, ...]] = [(
        "family", "device", "data type", "from", "rows", "mean error", "median row", "under 20 us", "over 20 us",
        "bias", "within 20 %", "in the 80 %", "bound's error", "faster than bound",
    )]  # fmt: skip
    for group in one.scores.groups:
        own = group.expected
        shares = (own.mape, own.median, own.mape_short, own.mape_long, own.bias, own.within_20, own.covered)
        lines.append((
            _said(group.family), group.device, group.dtype, group.source, f"{own.rows:,}", *map(_percent, shares),
            _percent(group.bound.mape), f"{group.violations:,}",
        ))  # fmt: skip
    return lines


def worst(one: Measured) -> list[tuple[str, ...]]:
    """The rows that are farthest off: heads, then a line for each."""
    lines: list[tuple[str, ...]] = [("row", "what", "measured", "expected", "at least", "off")]
    for row in one.scores.worst:
        facts = {key: value for key, value in row.items() if key != "row" and not key.endswith("_us") and value != ""}
        what = ", ".join(f"{k} {v:g}" if isinstance(v, float) else v for k, v in facts.items())
        times = (row["time_us"], row["expected_us"], row["bound_us"])
        off = row["expected_us"] / row["time_us"] - 1
        place = one.places[row["row"] - 1] + 1
        lines.append((str(place), what, *(seconds(1e-6 * time) for time in times), f"{off:+.0%}"))
    return lines


def skipped(one: Measured) -> list[str]:
    """Rows that were not scored, with the reason."""
    unknown = Counter({f"no device {called[:60]!r}": count for called, count in one.unknown.items()})
    return [
        f"{counted(count, 'row')}: {reason}"
        for reason, count in (Counter(one.scores.skipped) + unknown).most_common(10)
    ]


def predicted(one: Measured) -> list[tuple[Any, ...]]:
    """The rows on known devices, with what is predicted: heads, then a line for each."""
    frame = one.predictions.frame()
    rows = zip(one.places + 1, frame.itertuples(index=False, name=None), strict=True)
    return [("row", *frame.columns), *((int(place), *row) for place, row in rows)]


def _entries(found: Sequence[Answer]) -> list[Entry]:
    names = {one.analysis.hardware.name for one in found}
    return [entry for entry in index().entries if entry.device in names]


def _errors(error: Error) -> dict[str, float | None]:
    return finite({
        "held_out": error.mape, "median": error.median, "short": error.mape_short, "long": error.mape_long,
        "covered": error.covered,
    })  # fmt: skip


def _said(family: str) -> str:
    return family.replace("_", " ")


def _dtype(entry: Entry) -> str:
    cache = entry.stack.kv_dtype
    return f"{entry.stack.dtype}, {cache} cache" if cache and cache != entry.stack.dtype else entry.stack.dtype


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
