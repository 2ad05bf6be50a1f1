"""Cost of plans against their latency."""

from __future__ import annotations

from math import inf, isnan

import plotly.graph_objects as go

from llmviewer.serving.candidates import Candidate
from llmviewer.serving.service_plan import ServicePlan
from llmviewer.units import seconds

from .drawing import BLUE, GREEN, INK, VERMILLION, frame, log_axis, plain
from .tables import digits

_MAX_POINTS = 2000  # points
_MAX_TICKS = 4  # times beside each other that a phone has room for


def pareto_front(result: ServicePlan, key: str, name: str) -> go.Figure:
    """Every candidate with a price, the Pareto front, and the best."""
    figure = frame(f"{result.unit} against {name}", "each point meets the targets; the line is the Pareto front")
    priced = [one for one in result.within_targets if not isnan(one.price(result.by))][:_MAX_POINTS]
    front = {id(one) for one in result.front}
    groups = {
        "others": ([one for one in priced if id(one) not in front], INK, 5, 0.35),
        "Pareto front": ([one for one in priced if id(one) in front], BLUE, 8, 0.9),
        "lowest": ([result.best] if result.best else [], VERMILLION, 13, 1.0),
    }
    for label, (ones, color, size, opacity) in groups.items():
        if ones:
            figure.add_scatter(
                x=[getattr(one, key) for one in ones], y=[one.price(result.by) for one in ones], mode="markers",
                name=label, marker={"color": color, "size": size, "opacity": opacity},
                hovertext=[_words(one, result) for one in ones], hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    steps = _stairs(priced, result, key)
    figure.add_scatter(
        x=[x for x, _ in steps], y=[y for _, y in steps], mode="lines", showlegend=False, hoverinfo="skip",
        line={"color": BLUE, "width": 1, "shape": "vh"},
    )  # fmt: skip
    goal = getattr(result.goals, key)
    if goal < inf:
        figure.add_vline(x=goal, line={"color": GREEN, "width": 1.5, "dash": "dash"})
        figure.add_scatter(
            x=[None], y=[None], mode="lines", name=f"target {plain(seconds(goal))}",
            line={"color": GREEN, "width": 1.5, "dash": "dash"},
        )  # fmt: skip
    times = [getattr(one, key) for one in priced] + [goal] * (goal < inf)
    prices = [one.price(result.by) for one in priced]
    figure.update_xaxes(title_text=name, **log_axis(times, seconds, max_ticks=_MAX_TICKS))
    figure.update_yaxes(title_text=result.unit, **log_axis(prices, "{:g}".format))
    return figure


def _stairs(ones: list[Candidate], result: ServicePlan, key: str) -> list[tuple[float, float]]:
    """(time, price) of the candidates on the front of both, fastest first."""
    steps: list[tuple[float, float]] = []
    for x, y in sorted((getattr(one, key), one.price(result.by)) for one in ones):
        if not steps or y < steps[-1][1]:
            steps.append((x, y))
    return steps


def _words(one: Candidate, result: ServicePlan) -> str:
    """A candidate in a few lines, for a point of the figure."""
    sides = (one.prefill_workers, one) if one.prefill_workers else (one,)
    laid = (f"<b>{each.copies} x {each.layout.devices} x {each.hardware.name}</b>, {each.layout}" for each in sides)
    lines = (
        " prefill for<br>".join(laid),
        f"{one.quant}, {one.price(result.by):.3g} {result.unit}",
        f"TTFT {seconds(one.ttft_s)}, TPOT {seconds(one.tpot_s)}",
        f"{digits(one.batch)} concurrent sequences per replica, up to {digits(one.rate_within)} requests/s",
        *((f"at the bound {one.at_bound.price(result.by):.3g} {result.unit}",) if one.at_bound else ()),
    )
    return "<br>".join(lines)
