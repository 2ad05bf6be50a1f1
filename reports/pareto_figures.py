"""What plans cost against how long they take."""

from __future__ import annotations

from math import inf, isnan

import plotly.graph_objects as go

from llmviewer.serving.candidates import Candidate
from llmviewer.serving.service_plan import ServicePlan
from llmviewer.units import seconds

from .drawing import BLUE, GREEN, INK, VERMILLION, frame, log_axis, plain
from .tables import digits

_MOST = 2000  # points
_BESIDE = 4  # times beside each other that a phone has room for


def pareto_front(found: ServicePlan, key: str, name: str) -> go.Figure:
    """Every candidate with a price, those that no other beats, and the best."""
    figure = frame(f"{found.unit} against {name}", "each point keeps to the goals; the line joins what is best in both")
    priced = [one for one in found.able if not isnan(one.price(found.by))][:_MOST]
    kept = {id(one) for one in found.front}
    groups = {
        "beaten": ([one for one in priced if id(one) not in kept], INK, 5, 0.35),
        "beaten by none": ([one for one in priced if id(one) in kept], BLUE, 8, 0.9),
        "lowest": ([found.best] if found.best else [], VERMILLION, 13, 1.0),
    }
    for label, (ones, color, size, opacity) in groups.items():
        if ones:
            figure.add_scatter(
                x=[getattr(one, key) for one in ones], y=[one.price(found.by) for one in ones], mode="markers",
                name=label, marker={"color": color, "size": size, "opacity": opacity},
                hovertext=[_words(one, found) for one in ones], hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    steps = _stairs(priced, found, key)
    figure.add_scatter(
        x=[x for x, _ in steps], y=[y for _, y in steps], mode="lines", showlegend=False, hoverinfo="skip",
        line={"color": BLUE, "width": 1, "shape": "vh"},
    )  # fmt: skip
    goal = getattr(found.goals, key)
    if goal < inf:
        figure.add_vline(x=goal, line={"color": GREEN, "width": 1.5, "dash": "dash"})
        figure.add_scatter(
            x=[None], y=[None], mode="lines", name=f"goal {plain(seconds(goal))}",
            line={"color": GREEN, "width": 1.5, "dash": "dash"},
        )  # fmt: skip
    times = [getattr(one, key) for one in priced] + [goal] * (goal < inf)
    prices = [one.price(found.by) for one in priced]
    figure.update_xaxes(title_text=name, **log_axis(times, seconds, most=_BESIDE))
    figure.update_yaxes(title_text=found.unit, **log_axis(prices, "{:g}".format))
    return figure


def _stairs(ones: list[Candidate], found: ServicePlan, key: str) -> list[tuple[float, float]]:
    """Those than which none is both quicker and cheaper, quickest first."""
    steps: list[tuple[float, float]] = []
    for x, y in sorted((getattr(one, key), one.price(found.by)) for one in ones):
        if not steps or y < steps[-1][1]:
            steps.append((x, y))
    return steps


def _words(one: Candidate, found: ServicePlan) -> str:
    sides = (one.readers, one) if one.readers else (one,)
    laid = (f"<b>{each.copies} x {each.layout.devices} x {each.hardware.name}</b>, {each.layout}" for each in sides)
    lines = (
        ", read for<br>".join(laid),
        f"{one.quant}, {one.price(found.by):.3g} {found.unit}",
        f"first token {seconds(one.ttft_s)}, {seconds(one.tpot_s)} a token",
        f"{digits(one.batch)} at a time on each copy, up to {digits(one.rate_within)} requests/s",
        *((f"at the bound {one.least.price(found.by):.3g} {found.unit}",) if one.least else ()),
    )
    return "<br>".join(lines)
