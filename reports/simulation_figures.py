"""Figures of a simulation: requests over time, and the distribution of latencies."""

from __future__ import annotations

from math import ceil
from typing import Final

import numpy as np
import plotly.graph_objects as go

from llmviewer.serving.outcome import Simulation, thinned
from llmviewer.units import seconds

from .drawing import INK, frame, lines, plain, ticks

_QUANTILES: Final = 200  # points of a line
_MAX_TIME_TICKS: Final = 4  # labels of a time axis that fit the width of a phone
_NAMES: Final = {"ttft_s": "TTFT", "tpot_s": "TPOT", "gap_s": "max ITL"}


def queue(result: Simulation) -> go.Figure:
    """Queued requests and all unfinished requests over time."""
    figure = frame("Requests over time", "queued, and all unfinished")
    series = {"queued": result.waiting, "queued or running": result.in_system}
    for (name, (time_s, count)), line in zip(series.items(), lines(len(series)), strict=True):
        x, y = thinned(time_s, count)
        figure.add_scatter(
            x=x, y=y, name=name, mode="lines", line={"color": line["color"], "shape": "hv", "width": 1.5}
        )
    figure.update_xaxes(title_text="time [s]", exponentformat="none")
    figure.update_yaxes(title_text="requests", rangemode="tozero")
    return figure


def spread(result: Simulation) -> go.Figure:
    """Cumulative distribution of latencies with their targets; dotted at the bound."""
    dotted = "; dotted: at the bound" if result.expected else ""
    figure = frame("Latency distribution", f"cumulative share of requests{dotted}")
    share = np.linspace(0, 1, _QUANTILES)
    goals = {"ttft_s": result.goals.ttft_s, "tpot_s": result.goals.tpot_s}
    for (key, name), line in zip(_NAMES.items(), lines(len(_NAMES)), strict=True):
        values = result.likely.metrics[key]
        if not len(values):
            continue
        figure.add_scatter(
            x=np.maximum(np.quantile(values, share), 1e-6), y=share, name=name, mode="lines",
            line={**line, "width": 2}, hovertemplate=f"{name}: %{{x:.3s}}s for %{{y:.0%}}<extra></extra>",
        )  # fmt: skip
        if result.expected:
            figure.add_scatter(
                x=np.maximum(np.quantile(result.metrics[key], share), 1e-6), y=share, mode="lines", showlegend=False,
                line={"color": line["color"], "dash": "dot", "width": 1},
                hovertemplate=f"{name} at the bound: %{{x:.3s}}s for %{{y:.0%}}<extra></extra>",
            )  # fmt: skip
        if goals.get(key, np.inf) < np.inf:
            figure.add_vline(x=goals[key], line={"color": line["color"], "width": 1, "dash": "dot"})
    times = np.concatenate([trace.x for trace in figure.data] or [np.array([0.01, 1.0])])
    marks = ticks(float(times.min()), float(times.max()))
    marks = marks[:: ceil(len(marks) / _MAX_TIME_TICKS)]
    figure.update_xaxes(title_text="time", type="log", tickvals=marks, ticktext=[plain(seconds(t)) for t in marks])
    figure.update_yaxes(title_text="share of requests", tickformat=".0%", range=[0, 1.01], linecolor=INK)
    return figure
