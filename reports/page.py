"""What HTML reports have in common: the template, numbers to see first, figures whose words are the page's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup

from llmviewer import __version__

from .listing import Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TEMPLATES: Final = Path(__file__).with_name("templates")
_CLEAR: Final = "rgba(0,0,0,0)"
_CONFIG: Final = {
    "displaylogo": False,
    "displayModeBar": "hover",
    "doubleClick": "reset",  # which a tap can count as: it must not change what is shown
    "responsive": True,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "toImage"],
}
_MODE_BAR, _NOTE = 30, 18  # heights of what stands above a plot: the mode bar, and words there [px]
_BELOW: Final = 72  # height of an axis with its title, and of what is between that and a legend [px]
_ROW, _COLUMNS = 20, 2  # of a legend where the page is narrow: height [px], entries beside each other


@dataclass(frozen=True, kw_only=True)
class Card:
    """A number to see first.

    bound     the sign of at least or at most, where the value is a bound
    expected  what to expect of real kernels beside it, with its interval; nothing where that is not known
    alarm     whether it is a verdict against the setting
    """

    label: str
    value: str
    about: str
    bound: str = ""
    expected: str = ""
    alarm: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure whose words are the page's: they wrap where the page is narrow."""

    title: str
    subtitle: str
    drawing: Markup


def plotly_js() -> Markup:
    """The library that draws, for a page to hold: some five megabytes."""
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())  # noqa: S704 - a library's own text


@cache
def template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def below(title: str, headline: str) -> str:
    """What a headline says that the title above it does not."""
    return headline.removeprefix(title).lstrip(",: ")


def listing_page(
    *,
    title: str,
    setting: str,
    said: str,
    cards: Sequence[Card],
    pictures: Sequence[Sequence[Picture]],
    tables: Sequence[Table],
    remarks: Sequence[str],
    inputs: Mapping[str, Any],
) -> str:
    """A page of cards, pictures and tables that sort. With pictures it holds plotly.js: some five megabytes.

    said      what the times are
    pictures  those of a list stand side by side
    """
    from . import drawing

    return template("comparison.html.j2").render(
        title=title,
        setting=below(title, setting),
        bounds_said=said,
        remarks=remarks,
        cards=cards,
        pictures=pictures,
        tables=tables,
        version=__version__,
        inputs=json.dumps(inputs, indent=2),
        plotly_js=plotly_js() if pictures else "",
        ink=drawing.INK,
        grid=drawing.GRID,
        paper=drawing.PAPER,
    )


def picture(figure: go.Figure, name: str) -> Picture:
    """`figure` without its title and its paper, and so that a finger that drags across it scrolls the page."""
    from .drawing import BLUE

    title, top = figure.layout.title, figure.layout.margin.t
    words = title.text, title.subtitle.text
    kept = _MODE_BAR + (_NOTE if any(note.yref == "paper" for note in figure.layout.annotations) else 0)
    named = sum(trace.name is not None and trace.showlegend is not False for trace in figure.data)
    below = max(figure.layout.margin.b, _BELOW + _ROW * ceil(named / _COLUMNS))
    figure.update_layout(
        title=None, margin={"t": kept, "b": below}, dragmode=False,
        height=figure.layout.height - top + kept + below - figure.layout.margin.b,
        paper_bgcolor=_CLEAR, plot_bgcolor=_CLEAR,
        modebar={"bgcolor": _CLEAR, "color": "gray", "activecolor": BLUE},
    )  # fmt: skip
    html = figure.to_html(
        include_plotlyjs=False, include_mathjax=False, full_html=False, div_id=name, config=_CONFIG
    )  # fmt: skip
    return Picture(title=words[0], subtitle=words[1], drawing=Markup(html))  # noqa: S704 - plotly escapes what it is given
