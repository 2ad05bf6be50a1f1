"""Figures for a page: their titles become text that wraps, and they have no background of their own."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llmviewer.records import frozen

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from markupsafe import Markup

PLOTLY_CONFIG: Final[Any] = {
    "displaylogo": False,
    "doubleClick": "reset",  # taps may count as a double click, which must not change the axes
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "llmviewer"},
}

_CLEAR: Final = "rgba(0,0,0,0)"
_MODE_BAR, _NOTE = 34, 18  # heights above a plot: of the mode bar, and of words [px]
_AXIS: Final = 70  # height below a plot, of its axis with a title [px]
_LEGEND_ROW: Final = 21  # [px]
_WIDE_ENTRIES, _NARROW_ENTRIES = 4, 2  # most entries in a row of a legend
_PHONE, _SYMBOL, _LETTER = 230, 40, 7  # widths of a legend on a phone, and of a symbol and a letter of an entry [px]


class PageFigure(NamedTuple):
    """A figure without its title, the words of that, and its heights on a wide and on a narrow page. [px]"""

    title: str
    subtitle: str
    figure: go.Figure
    wide: int
    narrow: int


@frozen(kw_only=True)
class Picture:
    """A PageFigure as HTML."""

    title: str
    subtitle: str
    drawing: Markup
    wide: int
    narrow: int


def page_figure(figure: go.Figure) -> PageFigure:
    """`figure` with its words apart; a finger that drags across it scrolls the page, unless it has a `dragmode`."""
    from .drawing import BLUE

    title, margin = figure.layout.title, figure.layout.margin
    words = title.text, title.subtitle.text
    plot = figure.layout.height - margin.t - margin.b
    notes = any(note.yref == "paper" for note in figure.layout.annotations)
    above = _MODE_BAR + _NOTE * notes
    names = [trace.name for trace in figure.data if trace.name is not None and trace.showlegend is not False]
    entries = _PHONE // (_SYMBOL + _LETTER * max(map(len, names), default=0)) or 1
    wide, narrow = (
        above + plot + _AXIS + _LEGEND_ROW * ceil(len(names) / each)
        for each in (_WIDE_ENTRIES, min(entries, _NARROW_ENTRIES))
    )
    figure.update_layout(
        title=None, margin={"t": above, "b": _AXIS}, height=None, autosize=True,
        dragmode=figure.layout.dragmode or False, paper_bgcolor=_CLEAR, plot_bgcolor=_CLEAR,
        modebar={"bgcolor": _CLEAR, "color": "gray", "activecolor": BLUE},
    )  # fmt: skip
    return PageFigure(words[0], words[1], figure, wide, narrow)


def picture(figure: go.Figure, name: str, *, script: str = "", **config: Any) -> Picture:
    """`figure` as HTML.

    name    id of its element, unique on a page
    script  JavaScript that runs after the figure is drawn, in which {plot_id} is its id
    config  of plotly.js, besides PLOTLY_CONFIG
    """
    from markupsafe import Markup

    one = page_figure(figure)
    html = one.figure.to_html(
        include_plotlyjs=False, include_mathjax=False, full_html=False, div_id=name, default_height="100%",
        config={**PLOTLY_CONFIG, "displayModeBar": "hover", "responsive": True, **config}, post_script=script or None,
    )  # fmt: skip
    drawing = Markup(html)  # noqa: S704 - plotly escapes what it is given
    return Picture(title=one.title, subtitle=one.subtitle, drawing=drawing, wide=one.wide, narrow=one.narrow)
