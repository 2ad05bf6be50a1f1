"""Colors and style of all figures, and their axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from math import ceil, floor, log10
from typing import Any, Final

import plotly.graph_objects as go

# The palette of Okabe and Ito (jfly.uni-koeln.de/color), which all common kinds of colour vision tell apart.
BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
ORANGE: Final = "#E69F00"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
YELLOW: Final = "#F0E442"
BOUND_COLOR: Final = {"memory": VERMILLION, "compute": GREEN, "link": BLUE}
# Kinds of operators where all have one bound, dark enough for white words: contrasts of 4.5 and more. The last: others.
KIND_COLOR: Final = (BLUE, "#A0527F", "#8A6100", "#00785A", "#5E50B5", "#66707A")
PART_COLOR: Final = {"weights": BLUE, "KV cache": ORANGE, "activations": PURPLE}
PART_INK: Final = {"weights": "white", "KV cache": "black", "activations": "black"}  # on those, on a dark page too
# Written as browsers write them, so that a style sheet can find them and put colours of a dark page in their place.
INK: Final = "rgb(42, 46, 51)"
GRID: Final = "rgb(222, 226, 230)"
PAPER: Final = "rgb(254, 254, 254)"

# The text of a piece of a horizontal bar.
INSIDE: Final = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}

_LINES: Final = (
    {"color": BLUE, "dash": "solid"}, {"color": VERMILLION, "dash": "dash"}, {"color": GREEN, "dash": "dashdot"},
    {"color": PURPLE, "dash": "dot"}, {"color": ORANGE, "dash": "6px,3px"}, {"color": SKY, "dash": "9px,3px,2px,3px"},
    {"color": INK, "dash": "14px,4px"}, {"color": "#7d8790", "dash": "3px,2px"},
)  # fmt: skip
TOP, BOTTOM = 76, 92  # margins [px]
_AXIS_MARGIN: Final = 1.1  # around the values of a logarithmic axis
_AXIS: Final[dict[str, Any]] = {
    "gridcolor": GRID, "linecolor": INK, "tickcolor": INK, "ticks": "outside", "showline": True, "zeroline": False,
    "automargin": True, "exponentformat": "SI", "title": {"font": {"size": 13}},
}  # fmt: skip
_TEMPLATE: Final = go.layout.Template(
    layout={
        "font": {"family": "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif", "size": 13, "color": INK},
        "title": {
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 16},
            "font": {"size": 16},
            "subtitle": {"font": {"size": 12, "color": INK}},
        },
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"l": 60, "r": 20},
        "legend": {"orientation": "h", "x": 0, "yanchor": "top", "font": {"size": 12}, "traceorder": "normal"},
        "hoverlabel": {"bgcolor": "white", "font": {"color": "black", "size": 12}, "align": "left"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


def list_rows(figure: go.Figure, rows: Iterable[str]) -> None:
    """Orders bars by name from the top down, with their names clear of them."""
    figure.update_yaxes(
        categoryorder="array", categoryarray=list(rows)[::-1], showline=False, ticks="", ticklabelstandoff=5
    )


def frame(
    title: str,
    subtitle: str,
    *,
    height: int = 420,
    top: int = TOP,
    bottom: int = BOTTOM,
    traces: Sequence[dict[str, Any]] = (),
    **layout: Any,
) -> go.Figure:
    """A figure in the common style, with a legend below it. [px]

    Traces, shapes and axes given here cost plotly a third of what adding them later does.
    """
    return go.Figure(
        data=list(traces),
        layout={
            "template": _TEMPLATE,
            "height": height,
            "margin": {"t": top, "b": bottom},
            "title": {"text": title, "subtitle": {"text": subtitle}},
            # From the upper edge of the plot; the title of the x axis ends 64 pixels below the lower one.
            "legend": {"y": -64 / (height - top - bottom)},
            **layout,
        },
    )


def lines(count: int) -> list[dict[str, str]]:
    """Colors and dashes of `count` lines; each is unique as long as there are few."""
    return list(islice(cycle(_LINES), count))


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two, for a logarithmic axis: as many as can be read; even steps where the two are near.

    >>> ticks(1.5, 400), ticks(0.02, 0.2), ticks(32, 44)
    ([3.0, 10.0, 30.0, 100.0, 300.0], [0.02, 0.05, 0.1, 0.2], [32.0, 34.0, 36.0, 38.0, 40.0, 42.0, 44.0])
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    marks: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5)):
        marks = [value for e in decades for d in digits if low <= (value := float(f"{d}e{e}")) <= high]
        if len(marks) >= 4:
            break
    return marks[:: 1 + len(marks) // 8] if len(marks) > 2 or low == high else _steps(low, high)


def _steps(low: float, high: float) -> list[float]:
    """Round numbers between two, at the smallest even steps that give at most eight."""
    exponent = floor(log10((high - low) / 4))
    digit = next(d for d in (1, 2, 5, 10) if (high - low) / float(f"{d}e{exponent}") <= 8)
    step = float(f"{digit}e{exponent}")
    return [float(f"{digit * i}e{exponent}") for i in range(ceil(low / step), floor(high / step) + 1)]


def log_axis(values: Sequence[float], text: Callable[[float], str], *, max_ticks: int = 8) -> dict[str, Any]:
    """A logarithmic axis around `values`, with at most `most` ticks."""
    low, high = min(values) / _AXIS_MARGIN, max(values) * _AXIS_MARGIN
    marks = ticks(low, high)
    marks = marks[:: ceil(len(marks) / max_ticks)]
    return {
        "type": "log", "range": [log10(low), log10(high)], "tickvals": marks,
        "ticktext": [plain(text(mark)) for mark in marks], "tickangle": 0,
    }  # fmt: skip


def time_unit(longest: float) -> tuple[float, str]:
    """Factor and unit for an axis of seconds that ends at `longest`."""
    return next((s, u) for s, u in ((1.0, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")) if s * longest >= 1)


def plain(text: str) -> str:
    """A number with its unit, without zeros that say nothing of a round one.

    >>> plain("30.0 ms"), plain("1.50 s"), plain("100 GB")
    ('30 ms', '1.50 s', '100 GB')
    """
    return re.sub(r"\.0+(?!\d)", "", text)
