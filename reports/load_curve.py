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
from .serving import basis, beyond, devices, lengths
from .tables import Item, Table, digits, number_item, time_item

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KEPT: Final = 0.9  # of the requests, that are to keep to the goals
_DRAINED: Final = 0.15  # of the time, that is worth a word: ten requests of each client, the usual, leave a tenth
_TOGETHER: Final = 0.9  # of the most that is served, from which on more in flight only wait for each other


def title(result: LoadCurve) -> str:
    first, last = result.bound[0].concurrency, result.bound[-1].concurrency
    where = f"{result.setting.model.title} on {devices(result.runs[0])}"
    return f"{where}, {first:,} to {last:,} requests in flight"


def headline(result: LoadCurve) -> str:
    """The request in one line."""
    run = result.runs[0]
    engine = f", {result.setting.engine.title}" if result.setting.engine else ""
    techniques = "".join(f", {one}" for one in result.setting.techniques)
    return f"{title(result)}, {lengths(run.traffic)}, {result.setting.quantization}{techniques}{engine}, {run.policy}"


def tables(result: LoadCurve) -> list[Table]:
    named = {"As expected": result.expected, "At the bound": result.bound}
    return [_table(name, points, last=points is result.bound) for name, points in named.items() if points]


def _table(name: str, points: Sequence[Point], *, last: bool) -> Table:
    has_goals = _has_goals(points)
    about = (
        "Tokens/s of answers: of all devices, of each, and of one request (the inverse of the mean time per token). "
        "TTFT: time to first token. TPOT: time per token. Answer: the whole time of a request. Means but for p99."
    )
    within = " Within: requests that meet the targets." if has_goals else ""
    return Table(
        title=name,
        about=about + within if last else "",
        head=(
            "in flight", "tokens/s", "/device", "/request", "TTFT", "TTFT p99", "TPOT", "answer",
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
    times = (np.mean(run.ttft_s), np.percentile(run.ttft_s, 99), 1 / point.speed, np.mean(run.latency_s))
    return (
        number_item(point.concurrency),
        *(number_item(value) for value in (run.tokens_per_s, point.per_device, point.speed)),
        *(time_item(float(value)) for value in times),
        *((Item(text=f"{run.good:.0%}", key=run.good),) if has_goals else ()),
    )


def _likely(result: LoadCurve) -> tuple[Point, ...]:
    return result.expected or result.bound


def _enough(points: Sequence[Point]) -> Point:
    """The knee: the lowest concurrency with nearly the highest throughput."""
    most = max(point.run.tokens_per_s for point in points)
    return next(point for point in points if point.run.tokens_per_s >= _TOGETHER * most)


def remarks(result: LoadCurve) -> list[str]:
    points = _likely(result)
    enough, lines = _enough(points), list[str]()
    if enough is not points[-1]:
        share = enough.run.tokens_per_s / max(point.run.tokens_per_s for point in points)
        each = "" if np.isnan(enough.speed) else f", with {digits(enough.speed)} tokens/s each"
        lines.append(
            f"Knee: {enough.concurrency:,} requests in flight, with {share:.0%} of the highest throughput{each}."
        )
    if _has_goals(points):
        able = [point for point in points if point.run.good >= _KEPT]
        most = f"{able[-1].concurrency:,} in flight, {digits(able[-1].run.tokens_per_s)} tokens/s" if able else "none"
        lines.append(f"Highest concurrency with which {_KEPT:.0%} of the requests meet the targets: {most}.")
    lines.append(f"With {points[-1].concurrency:,}: {points[-1].run.limit}")
    drained = [point for point in points if point.run.drained > _DRAINED]
    if drained:
        more = " and more" if len(drained) > 1 else ""
        lines.append(
            f"With {drained[0].concurrency:,}{more}, fewer are in flight in up to the last "
            f"{max(point.run.drained for point in drained):.0%} of the time, after the last arrival, which lowers "
            "the throughput. More requests (--requests) make that share smaller."
        )
    longest = max(int(np.max(run.traffic.prompt + run.traffic.gen)) for run in result.runs)
    return [*lines, *beyond(result.setting.model, longest)]


def _cards(result: LoadCurve) -> list[Card]:
    points = _likely(result)
    one, enough, most = points[0], _enough(points), max(points, key=lambda point: point.run.tokens_per_s)
    return [
        Card(
            label="tokens/s of a request", value=number_item(one.speed).text,
            about=f"{one.concurrency} in flight; first token after {seconds(float(np.mean(one.run.ttft_s)))}",
        ),
        Card(
            label="tokens/s of each device", value=digits(most.per_device),
            about=f"at most, {most.concurrency} in flight; {number_item(most.speed).text} for each request",
        ),
        Card(
            label="knee", value=f"{enough.concurrency} in flight",
            about=f"{digits(enough.per_device)} tokens/s of each device, {number_item(enough.speed).text} of a request",
        ),
    ]  # fmt: skip


def figure(result: LoadCurve) -> go.Figure:
    """Throughput per device against the speed of one request."""
    from .drawing import frame, lines

    named = {"expected": result.expected, "at the bound": result.bound}
    curves = {name: points for name, points in named.items() if points}
    chart = frame("Throughput and speed", "each point is a number of requests in flight; up and to the right is better")
    for (name, points), line in zip(curves.items(), lines(len(curves)), strict=True):
        chart.add_scatter(
            x=[point.speed for point in points], y=[point.per_device for point in points], name=name,
            mode="lines+markers+text", line={**line, "width": 2}, marker={"size": 7, "color": line["color"]},
            text=[str(point.concurrency) for point in points], textposition="top right", textfont={"size": 11},
            hovertext=[_words(point) for point in points], hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    chart.update_traces(cliponaxis=False)
    chart.update_xaxes(title_text="tokens/s of a request", rangemode="tozero", exponentformat="none")
    chart.update_yaxes(title_text="tokens/s of each device", rangemode="tozero", exponentformat="none")
    return chart


def _words(point: Point) -> str:
    run = point.run
    return "<br>".join((
        f"<b>{point.concurrency} in flight</b>",
        f"{digits(point.speed)} tokens/s of a request",
        f"{digits(point.per_device)} tokens/s of each device",
        f"first token {seconds(float(np.mean(run.ttft_s)))}, whole answer {seconds(float(np.mean(run.latency_s)))}",
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
