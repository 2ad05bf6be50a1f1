"""The report on throughput against the speed of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from llmviewer.serving.load_curve import LoadCurve, Point
from llmviewer.units import seconds

from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .serving import basis, beyond, lengths, lockstep, models
from .tables import Item, Table, digits, number_item, time_item

if TYPE_CHECKING:
    import plotly.graph_objects as go

_REQUIRED_GOODPUT: Final = 0.9  # share of requests within the targets
_NOTABLE_DRAIN: Final = 0.15  # share of the span from which the drain is reported; 10 requests per client leave 0.1
_KNEE_THROUGHPUT: Final = 0.9  # share of the highest throughput at the knee


def title(result: LoadCurve) -> str:
    """The model, its devices and the range of concurrency."""
    first, last = result.bound[0].concurrency, result.bound[-1].concurrency
    where = models(result.runs[0])
    return f"{where}: concurrency {first:,} to {last:,}"


def headline(result: LoadCurve) -> str:
    """The request in one line."""
    run = result.runs[0]
    engine = f", {result.setting.engine.title}" if result.setting.engine else ""
    techniques = "".join(f", {one}" for one in result.setting.techniques)
    return f"{title(result)}, {lengths(run.traffic)}, {result.setting.quantization}{techniques}{engine}, {run.policy}"


def tables(result: LoadCurve) -> list[Table]:
    """Throughput and latency by concurrency, expected and at the bound."""
    named = {"Expected": result.expected, "At the bound": result.bound}
    return [_table(name, points, last=points is result.bound) for name, points in named.items() if points]


def _table(name: str, points: Sequence[Point], *, last: bool) -> Table:
    has_goals = _has_goals(points)
    about = (
        "Output token throughput in tok/s: of all devices, per device, and per request (1 / mean TPOT). Latencies are "
        "means, p50 and p99 those of the TTFT."
    )
    within = " Within: share of requests within the targets." if has_goals else ""
    return Table(
        title=name,
        about=about + within if last else "",
        head=(
            "concurrency", "tok/s", "/device", "/request", "TTFT", "p50", "p99", "TPOT", "E2E",
            *(("within",) if has_goals else ()),
        ),
        words=(),
        body=tuple(_row(point, has_goals=has_goals) for point in points),
    )  # fmt: skip


def _has_goals(points: Sequence[Point]) -> bool:
    """Whether there are latency targets."""
    goals = points[0].run.goals
    return min(goals.ttft_s, goals.tpot_s) < np.inf


def _row(point: Point, *, has_goals: bool) -> tuple[Item, ...]:
    run = point.run
    times = (np.mean(run.ttft_s), *np.percentile(run.ttft_s, (50, 99)), 1 / point.speed, np.mean(run.latency_s))
    return (
        number_item(point.concurrency),
        *(number_item(value) for value in (run.tokens_per_s, point.per_device, point.speed)),
        *(time_item(float(value)) for value in times),
        *((Item(text=f"{run.good:.0%}", key=run.good),) if has_goals else ()),
    )


def _likely(result: LoadCurve) -> tuple[Point, ...]:
    return result.expected or result.bound


def _knee(points: Sequence[Point]) -> Point:
    """The knee: the lowest concurrency with nearly the highest throughput."""
    max_tokens_per_s = max(point.run.tokens_per_s for point in points)
    return next(point for point in points if point.run.tokens_per_s >= _KNEE_THROUGHPUT * max_tokens_per_s)


def remarks(result: LoadCurve) -> list[str]:
    """The knee, the highest concurrency within the targets, the bottleneck, and what qualifies the results."""
    points = _likely(result)
    knee, lines = _knee(points), list[str]()
    if knee is not points[-1]:
        share = knee.run.tokens_per_s / max(point.run.tokens_per_s for point in points)
        speed = "" if np.isnan(knee.speed) else f", {digits(knee.speed)} tok/s per request"
        lines.append(f"Knee: concurrency {knee.concurrency:,}, {share:.0%} of the highest throughput{speed}.")
    if _has_goals(points):
        meeting_targets = [point for point in points if point.run.good >= _REQUIRED_GOODPUT]
        highest = (
            f"{meeting_targets[-1].concurrency:,}, {digits(meeting_targets[-1].run.tokens_per_s)} tok/s"
            if meeting_targets
            else "none"
        )
        lines.append(f"Highest concurrency with {_REQUIRED_GOODPUT:.0%} of the requests within the targets: {highest}.")
    lines.append(f"Bottleneck at concurrency {points[-1].concurrency:,}: {points[-1].run.limit}")
    drained = [point for point in points if point.run.drained > _NOTABLE_DRAIN]
    if drained:
        or_more = " or more" if len(drained) > 1 else ""
        lines.append(
            f"Drain: at concurrency {drained[0].concurrency:,}{or_more}, fewer requests are running in up to the "
            f"last {max(point.run.drained for point in drained):.0%} of the time, which lowers the throughput. More "
            "requests (--requests) reduce that share."
        )
    longest = max(int(np.max(run.traffic.prompt + run.traffic.gen)) for run in result.runs)
    return [*lines, *lockstep(result.runs[-1].traffic), *beyond(result.setting.model, longest)]


def _cards(result: LoadCurve) -> list[Card]:
    points = _likely(result)
    first, knee, peak = points[0], _knee(points), max(points, key=lambda point: point.run.tokens_per_s)
    return [
        Card(
            label="tok/s per request", value=number_item(first.speed).text,
            about=f"concurrency {first.concurrency}; TTFT {seconds(float(np.mean(first.run.ttft_s)))}",
        ),
        Card(
            label="max tok/s per device", value=digits(peak.per_device),
            about=f"concurrency {peak.concurrency}; {number_item(peak.speed).text} tok/s per request",
        ),
        Card(
            label="knee", value=f"concurrency {knee.concurrency}",
            about=f"{digits(knee.per_device)} tok/s per device, {number_item(knee.speed).text} per request",
        ),
    ]  # fmt: skip


def figure(result: LoadCurve) -> go.Figure:
    """Throughput per device against the speed of one request."""
    from .drawing import frame, lines

    named = {"expected": result.expected, "at the bound": result.bound}
    curves = {name: points for name, points in named.items() if points}
    chart = frame("Throughput and speed", "each point is a concurrency; up and to the right is better")
    for (name, points), line in zip(curves.items(), lines(len(curves)), strict=True):
        chart.add_scatter(
            x=[point.speed for point in points], y=[point.per_device for point in points], name=name,
            mode="lines+markers+text", line={**line, "width": 2}, marker={"size": 7, "color": line["color"]},
            text=[str(point.concurrency) for point in points], textposition="top right", textfont={"size": 11},
            hovertext=[_hover_text(point) for point in points], hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    chart.update_traces(cliponaxis=False)
    chart.update_xaxes(title_text="tok/s per request", rangemode="tozero", exponentformat="none")
    chart.update_yaxes(title_text="tok/s per device", rangemode="tozero", exponentformat="none")
    return chart


def _hover_text(point: Point) -> str:
    run = point.run
    return "<br>".join((
        f"<b>concurrency {point.concurrency}</b>",
        f"{digits(point.speed)} tok/s per request",
        f"{digits(point.per_device)} tok/s per device",
        f"TTFT {seconds(float(np.mean(run.ttft_s)))}, E2E latency {seconds(float(np.mean(run.latency_s)))}",
    ))  # fmt: skip


def _pictures(result: LoadCurve) -> list[list[Picture]]:
    if np.isnan(result.bound[0].speed):
        return []
    return [[picture(figure(result), "load-curve")]]


def _basis(result: LoadCurve) -> str:
    return basis(result.runs[0])


REPORT: Final = Report[LoadCurve](
    name="load-curve",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=_basis,
    cards=_cards,
    pictures=_pictures,
)
