"""How far expectations can be trusted: errors of profiles, and predicted against measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from .drawing import INK, frame, lines, list_rows

Array = npt.NDArray[Any]
_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "cross", "star")
_ERRORS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # ticks
_BAND: Final = 0.2
_ROW, _AROUND = 40, 150  # heights of a row and of what is around rows [px]


class LibraryError(NamedTuple):
    """The error of a stack: where it stands, a mean of |expected / measured - 1|, and what is said of it."""

    row: str
    error: float
    text: str


def profile_errors(named: Mapping[str, Sequence[LibraryError]], title: str, about: str) -> go.Figure:
    """A dot for each stack, a row for each family, a colour and a shape for each name."""
    rows = list(dict.fromkeys(dot.row for dots in named.values() for dot in dots))
    figure = frame(title, about, height=_AROUND + max(_ROW, 14 * len(named)) * len(rows))
    for i, ((name, dots), line) in enumerate(zip(named.items(), lines(len(named)), strict=True)):
        figure.add_box(
            x=[dot.error for dot in dots], y=[dot.row for dot in dots], name=name, orientation="h", boxpoints="all",
            jitter=0.6, pointpos=0, fillcolor="rgba(0,0,0,0)", line={"width": 0, "color": line["color"]},
            marker={"color": line["color"], "symbol": _SYMBOLS[i % len(_SYMBOLS)], "size": 7, "opacity": 0.8},
            hoveron="points", showlegend=False, legendgroup=name, hovertext=[dot.text for dot in dots],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(  # a legend shows nothing of a box without lines
            x=[None], y=[None], mode="markers", name=name, legendgroup=name,
            marker={"color": line["color"], "symbol": _SYMBOLS[i % len(_SYMBOLS)], "size": 9},
        )  # fmt: skip
    every = [dot.error for dots in named.values() for dot in dots if dot.error > 0]
    low, high = min(every, default=0.01), max(every, default=1.0)
    figure.update_layout(boxmode="group", showlegend=True)
    figure.update_xaxes(
        title_text="mean error, held out", type="log", range=[log10(low / 1.2), log10(1.2 * high)],
        tickvals=_ERRORS, ticktext=[f"{error:.0%}" for error in _ERRORS], tickangle=0,
    )  # fmt: skip
    list_rows(figure, rows)
    return figure


def measured_and_expected(named: Mapping[str, tuple[Array, Array]], title: str, about: str) -> go.Figure:
    """Measured and expected times by name [us], the line where they are equal, and those 20 % beside it."""
    figure = frame(title, about, height=520)
    times = np.concatenate([np.concatenate(pair) for pair in named.values()])
    low, high = float(times.min()) / 1.3, 1.3 * float(times.max())
    for (name, (measured, expected)), line, i in zip(
        named.items(), lines(len(named)), range(len(named)), strict=True
    ):  # fmt: skip
        figure.add_scatter(
            x=measured, y=expected, mode="markers", name=name,
            marker={"color": line["color"], "symbol": _SYMBOLS[i % len(_SYMBOLS)], "size": 6, "opacity": 0.6},
            customdata=[f"{e / m - 1:+.0%}" for m, e in zip(measured, expected, strict=True)],
            hovertemplate=f"{name}<br>measured %{{x:.4g}} us, expected %{{y:.4g}} us: %{{customdata}}<extra></extra>",
        )  # fmt: skip
    for label, factor, dash in (("equal", 1.0, "solid"), ("20 % off", 1 + _BAND, "dot"), ("", 1 - _BAND, "dot")):
        figure.add_scatter(
            x=[low, high], y=[factor * low, factor * high], mode="lines", name=label, showlegend=bool(label),
            line={"color": INK, "width": 1, "dash": dash}, hoverinfo="skip",
        )  # fmt: skip
    decades = [10.0**e for e in range(ceil(log10(low)), floor(log10(high)) + 1)]
    axis = {"type": "log", "range": [log10(low), log10(high)], "tickvals": decades,
            "ticktext": [f"{decade:,g}" for decade in decades]}  # fmt: skip
    figure.update_xaxes(title_text="measured [us]", **axis)
    figure.update_yaxes(title_text="expected [us]", **axis)
    return figure
