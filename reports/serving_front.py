"""Throughput against the speed of a request on several devices and layouts, within targets, and its Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Final

from llmviewer.records import frozen
from llmviewer.units import seconds

from .tables import digits

if TYPE_CHECKING:
    from collections.abc import Mapping

    import plotly.graph_objects as go

PERCENTILES: Final = (50, 90, 99)  # of TTFT and TPOT over requests


@frozen(kw_only=True)
class Targets:
    """Latency targets that a percentile of the requests meets. [s]"""

    ttft_s: float
    tpot_s: float
    percentile: int


@frozen(kw_only=True)
class LoadPoint:
    """A setting under a load, at the bound or expected.

    name     device and layout
    place    identifies setting and load; the point at the bound and that of expected times have the same
    basis    "bound" or "expected"
    concurrency  clients of a closed loop; 0 of arrivals at random times
    kind     "session" or "task" where requests are parts of these
    rate     mean rate of arrivals of requests, sessions or tasks; 0 of a closed loop [1/s]
    numbers  by name: speed and per_device [1/s], ttft_p99_s and others [s], usd_per_million, joules_per_token; with
             a kind also task_p99_s and others [s], hit_rate, usd_per_task; nan if unknown
    """

    name: str
    place: int
    basis: str
    concurrency: int
    numbers: Mapping[str, float]
    kind: str = ""
    rate: float = 0.0

    @property
    def load(self) -> str:
        """The load in words: "concurrency 16" or "4 req/s"."""
        return f"{self.rate:g} {self.kind or 'req'}/s" if self.rate else f"concurrency {self.concurrency:,}"

    def meets(self, targets: Targets) -> bool:
        """Whether a percentile of its requests is within the targets."""
        percentile = f"p{targets.percentile}_s"
        return (
            self.numbers[f"ttft_{percentile}"] <= targets.ttft_s
            and self.numbers[f"tpot_{percentile}"] <= targets.tpot_s
        )


def likely(points: Sequence[LoadPoint]) -> list[LoadPoint]:
    """Expected points, and those at the bound of settings where only bounds are known."""
    expected = {one.name for one in points if one.basis == "expected"}
    return [one for one in points if one.basis == "expected" or one.name not in expected]


def front(points: Sequence[LoadPoint], targets: Targets) -> list[LoadPoint]:
    """Likely points within the targets that no other one exceeds in speed and in throughput per device, by speed."""
    within = [one for one in likely(points) if one.meets(targets)]
    ranked = sorted(within, key=lambda one: (-one.numbers["speed"], -one.numbers["per_device"]))
    best: list[LoadPoint] = []
    for one in ranked:
        if not best or one.numbers["per_device"] > best[-1].numbers["per_device"]:
            best.append(one)
    return best


def front_lines(points: Sequence[LoadPoint], targets: Targets) -> list[tuple[str, ...]]:
    """The Pareto front as a table: a line of heads, then one per point."""
    percentile, best = f"p{targets.percentile}", front(points, targets)
    kind = next((one.kind for one in points), "")
    load = "arrivals/s" if any(one.rate for one in points) else "concurrency"
    heads = ("setting", load, "tok/s per request", "tok/s per device", f"TTFT {percentile}",
             f"TPOT {percentile}", "USD per million", "J per token")  # fmt: skip
    task_heads = (f"E2E of a {kind} {percentile}", "cache hits", f"USD per {kind}") if kind else ()
    return [(*heads, *task_heads), *((*_line(one, percentile), *_task_cells(one, percentile)) for one in best)]


def _task_cells(one: LoadPoint, percentile: str) -> tuple[str, ...]:
    """Cells of the time, prefix-cache hits and cost of sessions or tasks."""
    if not one.kind:
        return ()
    numbers = one.numbers
    return (seconds(numbers[f"task_{percentile}_s"]), f"{numbers['hit_rate']:.0%}", _digits(numbers["usd_per_task"]))


def _line(one: LoadPoint, percentile: str) -> tuple[str, ...]:
    numbers = one.numbers
    return (
        one.name if one.basis == "expected" else f"{one.name} (bound)",
        f"{one.rate:g}" if one.rate else f"{one.concurrency:,}",
        *(_digits(numbers[key]) for key in ("speed", "per_device")),
        *(seconds(numbers[f"{name}_{percentile}_s"]) for name in ("ttft", "tpot")),
        *(_digits(numbers[key]) for key in ("usd_per_million", "joules_per_token")),
    )


def _digits(value: float) -> str:
    return "-" if isnan(value) else digits(value)


def figure(points: Sequence[LoadPoint], targets: Targets) -> go.Figure:
    """Throughput per device against the speed of a request: a curve per setting, dotted at the bound.

    Points within the targets are filled, those on the Pareto front ringed; `customdata` has their places.
    """
    from .drawing import INK, PAPER, frame, lines, log_axis

    names = list(dict.fromkeys(one.name for one in points))
    chart = frame(
        "Throughput against the speed of a request",
        f"a point per load, filled where p{targets.percentile} is within TTFT {seconds(targets.ttft_s)} and "
        f"TPOT {seconds(targets.tpot_s)}; dotted: bounds; rings: Pareto front",
        height=460,
    )  # fmt: skip
    for name, line in zip(names, lines(len(names)), strict=True):
        for basis, dash in (("bound", "dot"), ("expected", "solid")):
            curve = [one for one in points if (one.name, one.basis) == (name, basis)]
            if curve:
                filled = [line["color"] if one.meets(targets) else PAPER for one in curve]
                chart.add_scatter(
                    x=[one.numbers["speed"] for one in curve], y=[one.numbers["per_device"] for one in curve],
                    name=name, legendgroup=name, showlegend=basis == "expected" or not _has_expected(points, name),
                    mode="lines+markers", line={"color": line["color"], "dash": dash, "width": 1.5},
                    marker={"size": 8 if basis == "expected" else 5, "color": filled,
                            "line": {"color": line["color"], "width": 1.5}},
                    customdata=[one.place for one in curve], hovertext=[_hover(one, targets) for one in curve],
                    hovertemplate="%{hovertext}<extra></extra>",
                )  # fmt: skip
    best = front(points, targets)
    if best:
        chart.add_scatter(
            x=[one.numbers["speed"] for one in best], y=[one.numbers["per_device"] for one in best], mode="markers",
            name="Pareto front", hoverinfo="skip", marker={"symbol": "circle-open", "size": 15, "color": INK},
        )  # fmt: skip
    for update, key, words in (
        (chart.update_xaxes, "speed", "tok/s per request"), (chart.update_yaxes, "per_device", "tok/s per device"),
    ):  # fmt: skip
        values = [one.numbers[key] for one in points if one.numbers[key] > 0]
        update(title_text=words, **(log_axis(values, digits) if values else {}))
    return chart


def _has_expected(points: Sequence[LoadPoint], name: str) -> bool:
    return any(one.name == name and one.basis == "expected" for one in points)


def _hover(one: LoadPoint, targets: Targets) -> str:
    _, _, speed, rate, ttft, tpot, cost, energy = _line(one, f"p{targets.percentile}")
    basis = "at the bound" if one.basis == "bound" else "expected"
    return "<br>".join((
        f"<b>{one.name}, {one.load}</b>, {basis}", f"{speed} tok/s per request, {rate} per device",
        f"p{targets.percentile}: TTFT {ttft}, TPOT {tpot}",
        f"USD {cost} per million output tokens, {energy} J per token",
        *_hover_tasks(one, targets),
    ))  # fmt: skip


def _hover_tasks(one: LoadPoint, targets: Targets) -> list[str]:
    """A line on sessions or tasks, where requests are parts of these."""
    if not one.kind:
        return []
    latency, hits, cost = _task_cells(one, f"p{targets.percentile}")
    return [f"{one.kind}: {latency}, USD {cost}; {hits} of the prompt tokens cached"]
