"""Accuracy of expectations: errors of profiles, and predicted against measured times of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from llmviewer.expectation.validate import ValidationGroup, ValidationPoint

from .drawing import BLUE, INK, ORANGE, frame, lines, list_rows

Array = npt.NDArray[Any]
PREDICTIONS: Final = ("expected", "bound")

_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "cross", "star")
_ERROR_TICKS: Final = (0.01, 0.03, 0.1, 0.3, 1.0)  # as many as a phone has room for
_BAND: Final = 0.2  # relative error of the dotted lines
_MAX_SVG: Final = 5000  # points that a browser draws fast without WebGL
_MAX_DEPTH: Final = 100  # measured over predicted times at the lower edge of a figure
_ROW, _NAME, _AROUND = 40, 8, 150  # heights of a row, of a name in it, and of title, axis and legend [px]
_BAR_ROW, _AROUND_BARS = 34, 168  # the same of bars [px]


class LibraryError(NamedTuple):
    """The error of a library's kernels: its row in a figure, the mean of |expected / measured - 1|, and a text."""

    row: str
    error: float
    text: str


class Cloud(NamedTuple):
    """Times of several kernels, and texts ahead of them on hover; "" for none. [us]"""

    measured: Array
    predicted: Array
    texts: Sequence[str]


def profile_errors(named: Mapping[str, Sequence[LibraryError]], title: str, about: str) -> go.Figure:
    """A point for each library, a row for each family of kernels, a colour and a shape for each name."""
    rows = list(dict.fromkeys(one.row for errors in named.values() for one in errors))
    figure = frame(title, about, height=_AROUND + max(_ROW, _NAME * len(named)) * len(rows))
    for (name, errors), line, symbol in zip(named.items(), lines(len(named)), cycle(_SYMBOLS), strict=False):
        marker = {"color": line["color"], "symbol": symbol}
        figure.add_box(
            x=[one.error for one in errors], y=[one.row for one in errors], name=name, orientation="h",
            boxpoints="all", jitter=0.6, pointpos=0, fillcolor="rgba(0,0,0,0)",
            line={"width": 0, "color": line["color"]}, marker={**marker, "size": 7, "opacity": 0.8},
            hoveron="points", showlegend=False, legendgroup=name, hovertext=[one.text for one in errors],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(  # a legend shows nothing of a box without lines
            x=[None], y=[None], mode="markers", name=name, legendgroup=name, marker={**marker, "size": 9}
        )  # fmt: skip
    positive_errors = [one.error for errors in named.values() for one in errors if one.error > 0]
    low, high = min(positive_errors, default=0.01), max(positive_errors, default=1.0)
    figure.update_layout(boxmode="group", showlegend=True)
    figure.update_xaxes(
        title_text="mean error, held out", type="log", range=[log10(low / 1.2), log10(1.2 * high)],
        tickvals=_ERROR_TICKS, ticktext=[f"{error:.0%}" for error in _ERROR_TICKS], tickangle=0,
    )  # fmt: skip
    list_rows(figure, rows)
    return figure


def predicted_and_measured(
    clouds: Mapping[str, Cloud], title: str, about: str, *, prediction: str = "expected"
) -> go.Figure:
    """Predicted against measured times by name, the line where they are equal, and those with 20 % of error.

    prediction  "expected" or "bound"
    """
    figure = frame(title, about, height=520)
    times = np.concatenate([cloud.measured for cloud in clouds.values()])
    predicted = np.concatenate([cloud.predicted for cloud in clouds.values()])
    low = float(min(times.min(), predicted.min())) / 1.3
    high = 1.3 * float(max(times.max(), predicted.max()))
    left = float(times.min()) / 1.3
    low = max(low, left / _MAX_DEPTH)
    for (name, cloud), line, symbol in zip(clouds.items(), lines(len(clouds)), cycle(_SYMBOLS), strict=False):
        texts = [
            f"{text}measured {measured:.4g} us, {prediction} {time:.4g} us: {time / measured - 1:+.0%}"
            for measured, time, text in zip(*cloud, strict=True)
        ]
        figure.add_trace({
            "type": "scatter" if len(times) <= _MAX_SVG else "scattergl", "x": cloud.measured, "y": cloud.predicted,
            "mode": "markers", "name": name, "hovertext": texts, "hovertemplate": "%{hovertext}<extra></extra>",
            "marker": {"color": line["color"], "symbol": symbol, "size": 6, "opacity": 0.6},
        })  # fmt: skip
    for label, factor, dash in (("equal", 1.0, "solid"), ("20 % off", 1 + _BAND, "dot"), ("", 1 - _BAND, "dot")):
        figure.add_scatter(
            x=[left, high], y=[factor * left, factor * high], mode="lines", name=label, showlegend=bool(label),
            line={"color": INK, "width": 1, "dash": dash}, hoverinfo="skip",
        )  # fmt: skip
    for axis, start, head in ((figure.update_xaxes, left, "measured"), (figure.update_yaxes, low, prediction)):
        decades = [10.0**e for e in range(ceil(log10(start)), floor(log10(high)) + 1)]
        axis(
            title_text=f"{head} [us]", type="log", range=[log10(start), log10(high)], tickvals=decades,
            ticktext=[f"{decade:,g}" for decade in decades],
        )  # fmt: skip
    return figure


def measured_roofline(points: Sequence[ValidationPoint]) -> go.Figure:
    """Measured kernels under the roof of their device and data type, relative to its ridge point."""
    figure = frame(
        "Measured kernels on the roofline",
        "relative to the ridge point and peak of each device and data type",
        height=460,
    )
    x = np.array([point.balance for point in points])
    y = np.array([point.attained for point in points])
    low, high = min(x.min() / 2, 0.01), max(x.max() * 2, 10)
    figure.add_scatter(
        x=[low, 1, high], y=[low, 1, 1], mode="lines", line={"color": INK, "width": 2}, name="roof", hoverinfo="skip"
    )
    families = list(dict.fromkeys(point.family for point in points))
    for family, line, symbol in zip(families, lines(len(families)), cycle(_SYMBOLS), strict=False):
        same = [point for point in points if point.family == family]
        figure.add_scattergl(
            x=[point.balance for point in same], y=[point.attained for point in same], mode="markers", name=family,
            marker={"color": line["color"], "symbol": symbol, "size": 5, "opacity": 0.55},
            hovertext=[
                f"<b>{point.name}</b><br>{point.measured_us:.4g} us, {point.attained:.1%} of the peak" for point in same
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(
        title_text="arithmetic intensity / ridge point", type="log", dtick=1, range=[log10(low), log10(high)]
    )
    figure.update_yaxes(
        title_text="OP/s / peak", type="log", dtick=1, tickformat="~g", range=[log10(max(y.min() / 2, 1e-6)), 0.3]
    )
    return figure


def error_bars(groups: Sequence[ValidationGroup]) -> go.Figure:
    """Mean errors of expectation and bound, of each family on each device."""
    kinds = list(dict.fromkeys((group.family, group.device) for group in groups))
    names = [f"{family}, {device}" for family, device in kinds]
    height = _AROUND_BARS + _BAR_ROW * len(kinds)
    figure = frame("Error by family and device", "mean of |predicted / measured - 1|", height=height)
    longest = 0.0
    for prediction, color in zip(PREDICTIONS, (BLUE, ORANGE), strict=True):
        errors = [mean_error([g for g in groups if (g.family, g.device) == kind], prediction) for kind in kinds]
        longest = max(longest, *errors)
        figure.add_bar(
            orientation="h", y=names, x=errors, name=prediction, marker={"color": color},
            text=[f"{error:.1%}" for error in errors], textposition="outside", cliponaxis=False,
            hovertemplate="%{y}: %{x:.1%}<extra>" + prediction + "</extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="error", tickformat=".0%", range=[0, 1.3 * longest], nticks=5)
    list_rows(figure, names)
    return figure


def mean_error(groups: Sequence[ValidationGroup], prediction: str) -> float:
    """Mean error over all rows of several groups."""
    scores = [group.expected if prediction == "expected" else group.bound for group in groups]
    return float(np.average([score.mape for score in scores], weights=[score.rows for score in scores]))
