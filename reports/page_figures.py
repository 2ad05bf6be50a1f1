"""A figure as a page shows it: its words apart, so that they wrap, and no paper of its own."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import plotly.graph_objects as go

PLOTLY_CONFIG: Final[Any] = {  # of plotly, in a page
    "displaylogo": False,
    "doubleClick": "reset",  # which a tap can count as: it must not change what is shown
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "llmviewer"},
}

_CLEAR: Final = "rgba(0,0,0,0)"
_ABOVE, _NOTE = 34, 18  # heights of what stands above a plot: the mode bar, and words there [px]
_BELOW: Final = 70  # of an axis with its title, and what is between that and a legend [px]
_ROW: Final = 21  # of a legend [px]
_WIDE, _NARROW = 4, 2  # entries of a legend beside each other, at most
_PHONE, _SYMBOL, _LETTER = 230, 40, 7  # widths of a legend on a phone, and of a symbol and a letter of an entry [px]


class PageFigure(NamedTuple):
    """A figure without its title, the words that were in it, and its heights where the page is wide or narrow. [px]"""

    title: str
    subtitle: str
    figure: go.Figure
    wide: int
    narrow: int


def page_figure(figure: go.Figure) -> PageFigure:
    """`figure` with its words apart; a finger that drags across it scrolls the page."""
    from .drawing import BLUE

    title, margin = figure.layout.title, figure.layout.margin
    words = title.text, title.subtitle.text
    plot = figure.layout.height - margin.t - margin.b
    notes = any(note.yref == "paper" for note in figure.layout.annotations)
    above = _ABOVE + _NOTE * notes
    names = [trace.name for trace in figure.data if trace.name is not None and trace.showlegend is not False]
    beside = _PHONE // (_SYMBOL + _LETTER * max(map(len, names), default=0)) or 1
    wide, narrow = (above + plot + _BELOW + _ROW * ceil(len(names) / each) for each in (_WIDE, min(beside, _NARROW)))
    figure.update_layout(
        title=None, margin={"t": above, "b": _BELOW}, dragmode=False, height=None, autosize=True,
        paper_bgcolor=_CLEAR, plot_bgcolor=_CLEAR,
        modebar={"bgcolor": _CLEAR, "color": "gray", "activecolor": BLUE},
    )  # fmt: skip
    return PageFigure(words[0], words[1], figure, wide, narrow)
