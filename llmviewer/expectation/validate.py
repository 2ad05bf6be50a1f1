"""Bounds and expected times against measured rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..records import frozen
from .families.base import Array
from .profile import SHORT_S, KernelFit
from .rows import NO_TIME, MeasurementTable
from .statistics import mean, rank_correlation
from .transfer import Expectation, expect

if TYPE_CHECKING:
    import pandas as pd

_MAX_WORST_ROWS: Final = 10
_MAX_POINTS: Final = 4000  # points of a report, chosen at random where there are more
COLUMNS: Final = ("bound_us", "expected_us", "expected_low_us", "expected_high_us", "expected_source")
_BOUND: Final = "bound"  # source of rows without an expected time, whose interval is unbounded
_TOLERANCE: Final = 1.005  # bound over time from which a row violates the bound, beyond the resolution of clocks


@frozen(kw_only=True)
class Score:
    """Errors of predictions, as shares of 1.

    bias      median of predicted / measured, minus 1
    covered   share of measured times within the 80 % interval; nan for a bound
    """

    rows: int
    mape: float
    median: float
    mape_short: float
    mape_long: float
    bias: float
    rank: float
    within_10: float
    within_20: float
    covered: float


@frozen(kw_only=True)
class ValidationGroup:
    """Scores of one family, device, data type and class of source.

    violations  rows that were measured faster than the bound
    """

    family: str
    device: str
    dtype: str
    source: str
    bound: Score
    expected: Score
    violations: int


@frozen(kw_only=True)
class ValidationPoint:
    """A measured and predicted row.

    balance   least time of its arithmetic / that of its bytes: the arithmetic intensity / the ridge's; 0 without any
    attained  share of the peak
    """

    family: str
    device: str
    name: str
    measured_us: float
    bound_us: float
    expected_us: float
    balance: float
    attained: float


@frozen(kw_only=True)
class Validation:
    """The scores of files.

    points   points of the figures
    worst    rows with the largest errors, with file and row number from 1
    skipped  rows without a prediction or a time, by reason
    """

    groups: tuple[ValidationGroup, ...]
    points: tuple[ValidationPoint, ...]
    worst: tuple[dict[str, Any], ...]
    skipped: dict[str, int]


@frozen(kw_only=True)
class Predictions:
    """A table with predictions for its rows; nan without a prediction. [us]"""

    table: MeasurementTable
    columns: dict[str, Array]
    skipped: dict[str, int]

    def frame(self) -> pd.DataFrame:
        return self.table.frame.assign(**self.columns)


def predict(table: MeasurementTable, fits: Sequence[KernelFit]) -> Predictions:
    """Bound and expected time of the rows of a table."""
    count = len(table.frame)
    columns: dict[str, Array] = {name: np.full(count, np.nan) for name in COLUMNS[:-1]}
    columns["expected_source"] = np.full(count, "", dtype=object)
    skipped = Counter(table.unread)
    for rows in table.rows:
        try:
            with np.errstate(all="ignore"):
                expectation = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, fits)
        except InputError as error:
            skipped[str(error)] += len(rows)
            continue
        finite = np.isfinite(expectation.expected)
        skipped["sizes are too large to be expected"] += int(np.count_nonzero(~finite))
        for name, values in zip(COLUMNS, _values(expectation), strict=True):
            columns[name][rows.places[finite]] = np.broadcast_to(values, len(rows))[finite]
    return Predictions(table=table, columns=columns, skipped={k: n for k, n in skipped.items() if n})


def _values(expectation: Expectation) -> tuple[Any, ...]:
    times = (expectation.bound, expectation.expected, expectation.low, expectation.high)
    return (*(time * 1e6 for time in times), expectation.source if expectation.sources is None else expectation.sources)


def validate(predictions: Iterable[Predictions]) -> Validation:
    """Scores by family, device, data type and source of the expected times."""
    groups, skipped, worst = [], Counter[str](), []
    points: list[ValidationPoint] = []
    for one in predictions:
        skipped.update(one.skipped)
        for rows in one.table.rows:
            if unmeasured := int(np.count_nonzero(~rows.timed)):
                skipped[NO_TIME] += unmeasured
        groups += _groups(one)
        worst += _worst(one)
        points += _points(one)
    worst.sort(key=lambda row: -abs(np.log(row["expected_us"] / row["time_us"])))
    chosen = np.random.default_rng(0).permutation(len(points))[:_MAX_POINTS]
    return Validation(
        groups=tuple(groups),
        points=tuple(points[i] for i in sorted(chosen)),
        worst=tuple(worst[:_MAX_WORST_ROWS]),
        skipped=dict(skipped),
    )


def _points(one: Predictions) -> list[ValidationPoint]:
    """Points of measured and predicted times, drawn at random if there are more than the figure shows."""
    scored = np.isfinite(one.columns["expected_us"])
    share = min(1.0, _MAX_POINTS / max(int(np.count_nonzero(scored)), 1))
    random = np.random.default_rng(0)
    points = []
    for rows in one.table.rows:
        usable = rows.timed & scored[rows.places]
        drawn = rows.take(np.flatnonzero(usable & (random.random(len(rows)) < share)))
        if not len(drawn):
            continue
        arithmetic, moving = rows.family.ideal_times(drawn.shapes, rows.device, rows.implementation)
        name = " ".join(
            filter(
                None,
                (rows.device.name, rows.implementation.library, rows.implementation.dtype, rows.implementation.kernel),
            )
        )
        times = (one.columns[column][drawn.places] for column in ("bound_us", "expected_us"))
        columns = (drawn.measured, *times, arithmetic, moving)
        for measured, bound, expected, of_ops, of_bytes in zip(*(c.tolist() for c in columns), strict=True):
            points.append(
                ValidationPoint(
                    family=rows.family.name,
                    device=rows.device.name,
                    name=name,
                    measured_us=measured * 1e6,
                    bound_us=bound,
                    expected_us=expected,
                    balance=of_ops / of_bytes if rows.family.multiplies_matrices else 0.0,
                    attained=of_ops / measured if rows.family.multiplies_matrices else 0.0,
                )
            )
    return points


def _groups(one: Predictions) -> list[ValidationGroup]:
    gathered: dict[tuple[str, str, str, str], list[npt.NDArray[np.int64]]] = {}
    for rows in one.table.rows:
        places = rows.places[rows.timed & np.isfinite(one.columns["expected_us"][rows.places])]
        kinds = np.array([str(source).split()[0].rstrip(",:;") for source in one.columns["expected_source"][places]])
        for source in np.unique(kinds):
            key = (
                rows.family.name,
                rows.device.name,
                _type(rows.implementation.dtype, rows.implementation.kv_dtype),
                str(source),
            )
            gathered.setdefault(key, []).append(places[kinds == source])
    groups = []
    for (family, device, dtype, source), parts in sorted(gathered.items()):
        places = np.concatenate(parts)
        measured = one.table.frame["time_us"].to_numpy(float)[places]
        bound, expected, low, high = (one.columns[name][places] for name in COLUMNS[:-1])
        inside = None if source == _BOUND else (measured >= low) & (measured <= high)
        groups.append(
            ValidationGroup(
                family=family,
                device=device,
                dtype=dtype,
                source=source,
                bound=score(bound, measured),
                expected=score(expected, measured, inside),
                violations=int(np.count_nonzero(measured * _TOLERANCE < bound)),
            )
        )
    return groups


def _type(dtype: str, kv_dtype: str) -> str:
    return f"{dtype}, {kv_dtype} cache" if kv_dtype and kv_dtype != dtype else dtype


def score(predicted: Array, measured: Array, inside: Array | None = None) -> Score:
    """Scores predicted against measured times. [us]"""
    errors = np.abs(predicted / measured - 1)
    brief = measured < SHORT_S * 1e6
    return Score(
        rows=len(measured),
        mape=float(np.mean(errors)),
        median=float(np.median(errors)),
        mape_short=mean(errors[brief]),
        mape_long=mean(errors[~brief]),
        bias=float(np.median(predicted / measured) - 1),
        rank=rank_correlation(predicted, measured),
        within_10=float(np.mean(errors <= 0.1)),
        within_20=float(np.mean(errors <= 0.2)),
        covered=float(np.mean(inside)) if inside is not None else float("nan"),
    )


def _worst(one: Predictions) -> list[dict[str, Any]]:
    if "time_us" not in one.table.frame:
        return []
    measured = one.table.frame["time_us"].to_numpy(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        log_errors = np.abs(np.log(one.columns["expected_us"] / measured))
    places = np.argsort(-np.where(np.isfinite(log_errors), log_errors, -1))[:_MAX_WORST_ROWS]
    names = [n for n in ("gpu", "framework", "kernel", "dtype", "kv_dtype") if n in one.table.frame]
    rows = []
    for place in places[np.isfinite(log_errors[places])]:
        row = one.table.frame.iloc[int(place)]
        stack = next(rows for rows in one.table.rows if place in rows.places)
        index = np.flatnonzero(stack.places == place)[0]
        facts: dict[str, Any] = {name: str(row[name]) for name in names}
        facts |= {name: float(stack.shapes[name][index]) for name in stack.family.columns}
        times = {name: float(one.columns[name][place]) for name in ("bound_us", "expected_us")}
        placed = {"file": str(one.table.path), "row": int(place) + 1}
        rows.append({**placed, **facts, "time_us": float(measured[place]), **times})
    return rows
