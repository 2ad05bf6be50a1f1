"""Parameters of shapes against their time."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from llmviewer.sweeping.search import PROXIES, ArchitectureSearch, Shape
from llmviewer.units import seconds, si

from .drawing import BLUE, GREEN, INK, ORANGE, VERMILLION, frame, log_axis, plain

_MAX_POINTS: Final = 2000  # candidates of the figure


def front_figure(result: ArchitectureSearch, time: str, proxy: str) -> go.Figure:
    """Candidates that fit, the front, and the model itself, at the bound and as expected.

    time, proxy  names of the time of the front and of the parameters
    """
    title = f"{proxy[0].upper()}{proxy[1:]} against {time}"
    figure = frame(title, "each point is a shape; the line is the Pareto front at the bound")
    times, sizes = getattr(result.numbers, f"{result.by}_s"), getattr(result.numbers, PROXIES[result.proxy])
    fitting = np.flatnonzero(result.numbers.total_bytes <= result.hardware.capacity)
    drawn = fitting[:: max(-(-fitting.size // _MAX_POINTS), 1)]
    figure.add_scatter(
        x=times[drawn], y=sizes[drawn], mode="markers", name="candidates at the bound", hoverinfo="skip",
        marker={"color": INK, "size": 4, "opacity": 0.25},
    )  # fmt: skip
    named = list(map(_named, result.front))
    bounds = [one.bound_s(result.by) for one in result.front]
    figure.add_scatter(
        x=bounds, y=[one.proxy for one in result.front], mode="lines+markers", name="front at the bound",
        line={"color": BLUE, "width": 1, "shape": "hv"}, hovertext=named, hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
    expected = [(each, one) for one in result.shapes if (each := one.expected(result.by))]
    if expected:
        figure.add_scatter(
            x=[float(each.expected) for each, _ in expected], y=[one.proxy for _, one in expected], mode="markers",
            name="as expected", marker={"color": ORANGE, "symbol": "diamond", "size": 8},
            hovertext=[_named(one) for _, one in expected],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    base = result.base
    figure.add_scatter(
        x=[base.bound_s(result.by)], y=[base.proxy], mode="markers", name=result.space.name,
        marker={"color": VERMILLION, "symbol": "star", "size": 13},
    )  # fmt: skip
    limit = result.targets.given().get(f"{result.by}_s")
    if limit:
        figure.add_vline(x=limit, line={"color": GREEN, "width": 1.5, "dash": "dash"})
        figure.add_scatter(
            x=[None], y=[None], mode="lines", name=f"target {plain(seconds(limit))}",
            line={"color": GREEN, "width": 1.5, "dash": "dash"},
        )  # fmt: skip
    every = [*times[drawn], *bounds, *(float(each.expected) for each, _ in expected), base.bound_s(result.by)]
    figure.update_xaxes(title_text=time, **log_axis(every + [limit] * bool(limit), seconds, max_ticks=4))
    figure.update_yaxes(title_text=proxy, **log_axis([*sizes[drawn], base.proxy], si))
    return figure


def _named(one: Shape) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in one.axes.items())
