"""A figure as a page shows it: its words apart, so that they wrap, and no paper of its own."""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

import plotly.graph_objects as go

_CLEAR: Final = "rgba(0,0,0,0)"
_ABOVE: Final = 34  # of the mode bar, which stands above a plot [px]
_ROW, _COLUMNS = 20, 2  # of a legend below a plot where the page is narrow: height [px], entries beside each other


class Shown(NamedTuple):
    """A figure without its title, and the words that were in it."""

    title: str
    subtitle: str
    figure: go.Figure


def shown(figure: go.Figure) -> Shown:
    """`figure` with its words apart; a finger that drags across it scrolls the page."""
    title, margin = figure.layout.title, figure.layout.margin
    words = title.text, title.subtitle.text
    notes = any(note.yref == "paper" for note in figure.layout.annotations)
    above = margin.t if notes else _ABOVE
    named = sum(trace.name is not None and trace.showlegend is not False for trace in figure.data)
    below = margin.b + _ROW * max(ceil(named / _COLUMNS) - 1, 0)
    figure.update_layout(
        title=None, margin={"t": above, "b": below}, dragmode=False,
        height=figure.layout.height + above - margin.t + below - margin.b,
        paper_bgcolor=_CLEAR, plot_bgcolor=_CLEAR, modebar={"bgcolor": _CLEAR, "color": "gray"},
    )  # fmt: skip
    return Shown(words[0], words[1], figure)
