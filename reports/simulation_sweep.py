"""The report on a sweep of simulations: means over seeds with their confidence intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from llmviewer.serving.confidence import CONFIDENCE, MeanEstimate
from llmviewer.serving.simulation_sweep import Combination, Measures, SimulationSweep
from llmviewer.units import counted, seconds

from .page_figures import Picture, picture
from .report import Report
from .tables import DASH, Item, Table, digits, number_item

if TYPE_CHECKING:
    import plotly.graph_objects as go

_REQUIRED_GOODPUT: Final = 0.9  # share of requests within the targets
_LATENCIES: Final = {
    "mean_ttft_s": "TTFT", "p99_ttft_s": "p99 TTFT", "mean_tpot_s": "TPOT", "mean_latency_s": "E2E",
}  # fmt: skip
_RATE: Final = "rate"
_NAMED: Final = ("model", "hardware")  # axes in the title
_SHARES: Final = ("good", "utilization", "failed")
_MAX_LINES: Final = 12  # of a figure
_Row = tuple[Combination, Measures]


def title(result: SimulationSweep) -> str:
    """The models, the devices and the number of simulations."""
    models, devices = (_listed(result.design.axes[axis]) for axis in _NAMED)
    return f"{models} on {devices}: {counted(result.finished, 'simulation')}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"


def headline(result: SimulationSweep) -> str:
    """The sweep in one line."""
    design = result.design
    axes = [f"{len(design.axes[axis])} values of {axis}" for axis in design.varied if axis not in _NAMED]
    constants = {axis: values[0] for axis, values in design.axes.items() if len(values) == 1 and axis not in _NAMED}
    options = [f"{name} {_option(value)}" for name, value in {**constants, **design.options}.items()]
    return ", ".join((title(result), counted(len(design.seeds), "seed"), *axes, *options))


def _option(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def tables(result: SimulationSweep) -> list[Table]:
    """Latencies and throughput of each combination, expected and at the bound; the highest rates within the targets."""
    expected = [(point, point.expected) for point in result.points if point.expected]
    bound = [(point, point.bound) for point in result.points]
    bases = {", expected": expected, " at the bound": bound}
    return [
        *(_latency(result, f"Latency{basis}", rows, last=rows is bound) for basis, rows in bases.items() if rows),
        *(_throughput(result, f"Throughput{basis}", rows, last=rows is bound) for basis, rows in bases.items() if rows),
        *_within(result),
    ]


def _latency(result: SimulationSweep, name: str, rows: Sequence[_Row], *, last: bool) -> Table:
    about = "Means over the requests, and the 99th percentile of TTFT. E2E: end-to-end latency." if last else ""
    return _table(result, name, rows, _LATENCIES, about=about)


def _throughput(result: SimulationSweep, name: str, rows: Sequence[_Row], *, last: bool) -> Table:
    columns = {"tokens_per_s": "tok/s", "utilization": "busy"}
    about = "Tok/s: output tokens of all devices; busy: share of the time in which replicas work."
    if {"mtbf", "autoscale"} & {*result.design.axes, *result.design.options}:
        columns |= {"mean_replicas": "paid", "failed": "failed"}
        about += " Paid: replicas that are paid for on average; failed: share of requests."
    if result.has_goals:
        columns["good"] = "within"
        about += " Within: share of requests within the targets."
    return _table(result, name, rows, columns, about=about if last else "")


def _table(
    result: SimulationSweep, name: str, rows: Sequence[_Row], columns: Mapping[str, str], *, about: str
) -> Table:
    """Measures of each combination, those that are known of any; `columns` has their heads."""
    columns = {key: head for key, head in columns.items() if not all(isnan(measures[key].mean) for _, measures in rows)}
    varied = result.design.varied
    incomplete = any(point.seeds < len(result.design.seeds) for point, _ in rows)
    return Table(
        title=name,
        about=about,
        head=(*varied, *(("seeds",) if incomplete else ()), *columns.values()),
        words=varied,
        body=tuple(
            (
                *(_value(point.axes[axis]) for axis in varied),
                *((number_item(point.seeds),) if incomplete else ()),
                *(_item(key, measures[key]) for key in columns),
            )
            for point, measures in rows
        ),
    )


def _value(value: Any) -> Item:
    return number_item(value) if isinstance(value, int | float) else Item(text=str(value) or "one device")


def _item(key: str, estimate: MeanEstimate) -> Item:
    """A mean with half of its interval relative to it; of shares, in points."""
    if isnan(estimate.mean):
        return DASH
    if key in _SHARES:
        return Item(text=f"{estimate.mean:.1%}{_interval(100 * estimate.half)}", key=estimate.mean)
    text = seconds(estimate.mean) if key.endswith("_s") and not key.endswith("_per_s") else digits(estimate.mean)
    half = _interval(100 * estimate.half / estimate.mean, "%") if estimate.mean else ""
    return Item(text=f"{text}{half}", key=estimate.mean)


def _interval(half: float, unit: str = "") -> str:
    """Half the width of an interval, such as " ±1.2%"; "" if unknown."""
    return "" if isnan(half) else f" ±{half:.{0 if half >= 9.95 else 1}f}{unit}"


def _within(result: SimulationSweep) -> Iterator[Table]:
    """The highest rate within the targets, by the other axes."""
    if not result.has_goals or _RATE not in result.design.varied:
        return
    others = tuple(axis for axis in result.design.varied if axis != _RATE)
    points = sorted(result.points, key=lambda point: [str(point.axes[axis]) for axis in others])
    body = []
    for values, group in groupby(points, key=lambda point: tuple(point.axes[axis] for axis in others)):
        meeting = [point for point in group if _surely_good(point) >= _REQUIRED_GOODPUT]
        best = max(meeting, key=lambda point: point.axes[_RATE], default=None)
        cells = (
            (number_item(best.axes[_RATE]), _item("tokens_per_s", best.likely["tokens_per_s"]))
            if best
            else (Item(text="none", key=0.0), DASH)
        )
        body.append((*map(_value, values), *cells))
    yield Table(
        title="Highest rate within the targets",
        about=f"{_REQUIRED_GOODPUT:.0%} of the requests are, also at the lower end of the interval.",
        head=(*others, "req/s", "tok/s"),
        words=others,
        body=tuple(body),
    )


def _surely_good(point: Combination) -> float:
    """The lower end of the share of requests within the targets; their mean with one seed."""
    good = point.likely["good"]
    return good.mean if isnan(good.half) else good.low


def remarks(result: SimulationSweep) -> list[str]:
    """The meaning of the intervals, and what is missing."""
    lines = []
    if len(result.design.seeds) > 1:
        lines.append(
            f"±: {CONFIDENCE:.0%} confidence interval of the mean over seeds (Student's t), of shares in percentage "
            "points. It is of random arrivals and lengths alone: more --seeds narrow it, and that of expected step "
            "times is apart (docs/accuracy.md). All combinations have the same seeds, so differences between them are "
            "more certain than each alone."
        )
    if result.finished < result.design.shards:
        lines.append(
            f"Incomplete: {result.finished:,} of {result.design.shards:,} simulations; the same command resumes."
        )
    for one in result.refused:
        settings = " ".join(f"{axis} {one[axis]}" for axis in result.design.varied if one.get(axis))
        lines.append(f"Refused{f': {settings}' if settings else ''}: {one['reason']}")
    return lines


def _basis(result: SimulationSweep) -> str:
    bound = "At the bound: each step takes its roofline lower bound; another policy may serve more."
    if result.unknown:
        return f"{bound} No expected times: {result.unknown}."
    if not any(point.expected for point in result.points):
        return bound
    return f"{bound} Expected: step times from measured kernels, as simulate gives them."


def figure(result: SimulationSweep) -> go.Figure:
    """Mean TTFT and throughput against the first numeric axis, with intervals."""
    from .drawing import frame, lines

    axis = _numeric_axis(result)
    others = [one for one in result.design.varied if one != axis]
    groups: dict[str, list[Combination]] = {}
    for point in result.points:
        groups.setdefault(", ".join(f"{one} {point.axes[one]}" for one in others), []).append(point)
    drawn_groups = dict(list(groups.items())[:_MAX_LINES])
    chart = frame("Mean TTFT", f"against {axis}; bars: {CONFIDENCE:.0%} confidence intervals over seeds")
    for (name, points), line in zip(drawn_groups.items(), lines(len(drawn_groups)), strict=True):
        estimates = [point.likely["mean_ttft_s"] for point in points]
        halves = [0.0 if isnan(one.half) else one.half for one in estimates]
        chart.add_scatter(
            x=[point.axes[axis] for point in points], y=[one.mean for one in estimates], name=name or "TTFT",
            mode="lines+markers", line={**line, "width": 2}, error_y={"type": "data", "array": halves},
        )  # fmt: skip
    chart.update_xaxes(title_text=axis, exponentformat="none")
    chart.update_yaxes(title_text="mean TTFT [s]", rangemode="tozero", exponentformat="none")
    return chart


def _numeric_axis(result: SimulationSweep) -> str:
    """The first axis with several numbers; "" without one."""
    axes = result.design.axes
    return next((axis for axis in result.design.varied if isinstance(axes[axis][0], int | float)), "")


def _pictures(result: SimulationSweep) -> list[list[Picture]]:
    return [[picture(figure(result), "simulation-sweep")]] if _numeric_axis(result) and result.points else []


REPORT: Final = Report[SimulationSweep](
    name="simulation-sweep",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=_basis,
    pictures=_pictures,
)
