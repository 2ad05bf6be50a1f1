"""Bounds and expected times against measured kernels: scores as text, and as a page with figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llmviewer.expectation.validate import Validation, ValidationGroup, ValidationPoint
from llmviewer.units import counted, seconds

from .columns import WIDTH
from .parts import Card
from .tables import DASH, Item, Table, filled

if TYPE_CHECKING:
    from .page_figures import Picture

_WORDS: Final = ("family", "device", "dtype", "from", "library", "kernel", "shape")
_BASIS: Final = (
    "Bound: roofline lower bound. Expected: time of the library's measured kernels. Errors are means of "
    "|predicted / measured - 1|."
)
_LEGEND: Final = (
    "Errors in %. bound: mean error of the lower bound; MAPE, median: mean and median error of the expected time; "
    "in 80%: rows within its 80 % interval. --format json adds kernels under and over 20 us, bias, rank "
    "correlation, and rows within 10 and 20 %."
)
_WORST: Final = "Largest errors (row 1 is the first after the header):"
_MAX_BELOW: Final = 0.005  # share of rows faster than the bound that is an alarm


def render_text(scores: Validation, inputs: Mapping[str, Sequence[str]], width: int = WIDTH) -> str:
    """A table for each family, within 80 columns."""
    families = dict.fromkeys(group.family for group in scores.groups)
    tables = [_of_family(family, scores.groups).text(width) for family in families]
    remarks = [*([_LEGEND] if tables else []), *_below_bound(scores.groups)]
    worst = ({k: v for k, v in row.items() if k != "file" or len(inputs["files"]) > 1} for row in scores.worst)
    lists = {_WORST: list(map(_row, worst)), "Not scored:": list(skipped(scores.skipped))}
    parts = [
        filled(f"{_headline(scores, inputs)}.", width) + "\n",
        *tables,
        *(["".join(f"{filled(remark, width)}\n" for remark in remarks)] if remarks else []),
        *(_listed(head, lines, width) for head, lines in lists.items() if lines),
    ]
    return "\n".join(parts)


def _listed(head: str, lines: Sequence[str], width: int) -> str:
    """Lines under a head, indented."""
    texts = (filled(line, width, first="  ", others="    ") for line in lines)
    return "".join(f"{text}\n" for text in (filled(head, width), *texts))


def _headline(scores: Validation, inputs: Mapping[str, Sequence[str]]) -> str:
    rows = sum(group.expected.rows for group in scores.groups)
    devices = list(dict.fromkeys(group.device for group in scores.groups))
    files, profiles = (", ".join(Path(path).name for path in inputs[key]) for key in ("files", "profiles"))
    group_error = f", with profile {profiles}" if profiles else ""
    return f"{counted(rows, 'measured kernel')} on {', '.join(devices) or 'no device'}, of {files}{group_error}"


def _of_family(family: str, groups: Sequence[ValidationGroup]) -> Table:
    rows = tuple(
        (
            *(Item(text=text) for text in (g.device, g.dtype.removesuffix(" cache").replace(", ", "/"), g.source)),
            Item(text=str(g.expected.rows)),
            *(Item(text=_percent(v)) for v in (g.bound.mape, g.expected.mape, g.expected.median, g.expected.covered)),
        )
        for g in groups
        if g.family == family
    )
    head = ("device", "dtype", "from", "rows", "bound", "MAPE", "median", "in 80%")
    return Table(title=family, about="", head=head, words=_WORDS, body=rows)


def _percent(value: float) -> str:
    return "-" if isnan(value) else f"{100 * value:.1f}"


def _below_bound(groups: Sequence[ValidationGroup]) -> Iterator[str]:
    faster = [f"{g.family} {g.device} {g.dtype} {counted(g.violations, 'row')}" for g in groups if g.violations]
    if faster:
        yield f"Measured faster than the bound: {'; '.join(faster)}."


def _row(row: Mapping[str, Any]) -> str:
    """A measured row: its known columns, and its measured and predicted times."""
    time, expected, bound = (seconds(row[f"{key}_us"] / 1e6) for key in ("time", "expected", "bound"))
    return f"{_shape(row)}: measured {time}, expected {expected}, bound >= {bound}"


def _shape(row: Mapping[str, Any], *left_out: str) -> str:
    """The known columns of a row but its times and those left out."""
    facts = {key: value for key, value in row.items() if key not in left_out and not key.endswith("_us")}
    shown_names = {key: value for key, value in facts.items() if str(value) not in ("nan", "")}
    return ", ".join(value if isinstance(value, str) else f"{key} {value:g}" for key, value in shown_names.items())


def skipped(reasons: Mapping[str, int]) -> Iterator[str]:
    """Rows that were not scored, by reason."""
    return (f"{counted(count, 'row')}: {reason}" for reason, count in reasons.items())


def render_html(scores: Validation, inputs: Mapping[str, Sequence[str]]) -> str:
    """A page with figures, in one file."""
    from .page import report_page

    tables = (by_group(scores.groups), _by_device(scores.groups), worst(scores.worst))
    return report_page(
        title="Bound and expectation against measurements",
        headline=_headline(scores, inputs),
        basis=_BASIS,
        cards=_cards(scores),
        pictures=_pictures(scores),
        tables=[table for table in tables if table.body],
        remarks=[f"Not scored: {line}." for line in skipped(scores.skipped)],
        inputs=dict(inputs),
    )


def _cards(scores: Validation) -> list[Card]:
    if not scores.groups:
        return []
    counts = np.array([group.expected.rows for group in scores.groups], dtype=float)

    def mean(values: Sequence[float]) -> str:
        is_number = ~np.isnan(values)
        return (
            f"{np.average(np.asarray(values)[is_number], weights=counts[is_number]):.1%}" if np.any(is_number) else "-"
        )

    faster = sum(group.violations for group in scores.groups)
    return [
        Card(
            label="error of the expectation",
            value=mean([g.expected.mape for g in scores.groups]),
            about="mean over all rows",
        ),
        Card(
            label="error of the bound",
            value=mean([g.bound.mape for g in scores.groups]),
            about="distance of kernels from the roofline",
        ),
        Card(label="within 20 %", value=mean([g.expected.within_20 for g in scores.groups]), about="of the rows"),
        Card(
            label="in the interval",
            value=mean([g.expected.covered for g in scores.groups]),
            about="of the rows; target 80 %",
        ),
        Card(
            label="below the bound",
            value=f"{faster / counts.sum():.2%}",
            about=f"{counted(faster, 'row')} measured faster than the bound",
            alarm=faster > _MAX_BELOW * counts.sum(),
        ),
    ]


def _pictures(scores: Validation) -> list[list[Picture]]:
    if not scores.points:
        return []
    from .accuracy_figures import PREDICTIONS, error_bars, measured_roofline, predicted_and_measured
    from .page_figures import picture

    against = [
        picture(
            predicted_and_measured(
                _clouds(scores.points, prediction), f"{prediction.capitalize()} against measured",
                "dotted lines: 20 % off", prediction=prediction,
            ),
            prediction,
        )
        for prediction in PREDICTIONS
    ]  # fmt: skip
    balanced = [point for point in scores.points if point.balance > 0]
    below = [picture(error_bars(scores.groups), "errors")]
    below += [picture(measured_roofline(balanced), "roofline")] if balanced else []
    return [against, below]


def _clouds(points: Sequence[ValidationPoint], prediction: str) -> dict[str, Any]:
    """Measured and predicted times by family."""
    from .accuracy_figures import Cloud

    clouds = {}
    for family in dict.fromkeys(point.family for point in points):
        same = [point for point in points if point.family == family]
        times = np.array([point.expected_us if prediction == "expected" else point.bound_us for point in same])
        is_predicted = times > 0
        clouds[family] = Cloud(
            np.array([point.measured_us for point in same])[is_predicted], times[is_predicted],
            [f"<b>{point.name}</b><br>" for point, is_shown in zip(same, is_predicted, strict=True) if is_shown],
        )  # fmt: skip
    return {family: cloud for family, cloud in clouds.items() if len(cloud.measured)}


def _share(value: float) -> Item:
    return DASH if isnan(value) else Item(text=f"{value:.1%}", key=value)


def by_group(groups: Sequence[ValidationGroup]) -> Table:
    """Errors by family, device and data type."""
    return Table(
        title="By family, device and data type",
        about="bound, expected: mean error. All other columns are of the expected time: median error; mean error of "
        "kernels under and over 20 us; bias: median of expected / measured - 1; rows within 20 %; rows in the 80 % "
        "interval; rank correlation. below bound: rows measured faster than the bound.",
        head=(
            "family", "device", "dtype", "from", "rows", "bound", "expected", "median", "< 20 us", "> 20 us", "bias",
            "within 20 %", "in 80 %", "rank", "below bound",
        ),
        words=_WORDS,
        body=tuple(
            (*(Item(text=text) for text in (group.family.replace("_", " "), group.device, group.dtype, group.source)),
             *_numbers(group))
            for group in groups
        ),
    )  # fmt: skip


def _numbers(group: ValidationGroup) -> tuple[Item, ...]:
    e = group.expected
    shares = (group.bound.mape, e.mape, e.median, e.mape_short, e.mape_long, e.bias, e.within_20, e.covered)
    rank = DASH if isnan(e.rank) else Item(text=f"{e.rank:.3f}", key=e.rank)
    below = Item(text=f"{group.violations:,}", key=group.violations)
    return Item(text=f"{e.rows:,}", key=e.rows), *map(_share, shares), rank, below


def _by_device(groups: Sequence[ValidationGroup]) -> Table:
    """Errors by device, where there are several."""
    from .accuracy_figures import mean_error

    devices = list(dict.fromkeys(group.device for group in groups))
    rows = []
    for device in devices:
        same = [group for group in groups if group.device == device]
        count = sum(group.expected.rows for group in same)
        errors = (mean_error(same, "bound"), mean_error(same, "expected"))
        rows.append((Item(text=device), Item(text=f"{count:,}", key=count), *map(_share, errors)))
    return Table(
        title="By device", about="", head=("device", "rows", "bound", "expected"), words=_WORDS,
        body=tuple(rows) if len(devices) > 1 else (),
    )  # fmt: skip


def worst(
    rows: Sequence[Mapping[str, Any]], place: Callable[[Mapping[str, Any]], int] = lambda row: int(row["row"])
) -> Table:
    """The rows with the largest errors.

    place  number of a row in its file
    """
    body = []
    for row in rows:
        times = (row["time_us"], row["expected_us"], row["bound_us"])
        error = row["expected_us"] / row["time_us"] - 1
        body.append((
            Item(text=str(place(row)), key=place(row)), Item(text=_shape(row, "row")),
            *(Item(text=seconds(1e-6 * time), key=time) for time in times), Item(text=f"{error:+.0%}", key=error),
        ))  # fmt: skip
    return Table(
        title="Largest errors", about="", head=("row", "shape", "measured", "expected", "bound", "error"),
        words=_WORDS, body=tuple(body),
    )  # fmt: skip
