"""What HTML reports have in common: the template, numbers to see first, figures whose words are the page's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup

from llmviewer import __version__

from .page_figures import PLOTLY_CONFIG, page_figure
from .tables import Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TEMPLATES: Final = Path(__file__).with_name("templates")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A number to see first.

    sign      of at least or at most, where the value is a bound
    bound     what the pass that takes this time waits for most, where it is the time of one
    expected  what to expect of real kernels beside it, with its interval; nothing where that is not known
    alarm     whether it is a verdict against the setting
    """

    label: str
    value: str
    about: str
    sign: str = ""
    bound: str = ""
    expected: str = ""
    alarm: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure whose words are the page's: they wrap where the page is narrow. Heights as of PageFigure."""

    title: str
    subtitle: str
    drawing: Markup
    wide: int
    narrow: int


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def rendered(
    template: str,
    *,
    title: str,
    setting: str,
    cards: Sequence[Card] = (),
    remarks: Sequence[str] = (),
    inputs: Mapping[str, Any] | None = None,
    name: str = "",
    drawn: bool = True,
    **parts: object,
) -> str:
    """A page of a template, with its `parts`. Where something is drawn, it holds plotly.js: some five megabytes.

    name  what a window is called, where it is not the title
    """
    from plotly.offline import get_plotlyjs

    from . import drawing

    return _template(template).render(
        name=name or title,
        title=title,
        setting=setting,
        cards=cards,
        remarks=remarks,
        inputs=json.dumps(inputs, indent=2) if inputs else "",
        version=__version__,
        plotly_js=Markup(get_plotlyjs()) if drawn else "",  # noqa: S704 - a library's own text
        ink=drawing.INK,
        grid=drawing.GRID,
        paper=drawing.PAPER,
        **parts,
    )


def below(title: str, headline: str) -> str:
    """What a headline says that the title above it does not."""
    return headline.removeprefix(title).lstrip(",:; ")


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
    """A page of cards, pictures and tables that sort.

    said      what the times are
    pictures  those of a list stand side by side
    """
    return rendered(
        "listing.html.j2", title=title, setting=below(title, setting), cards=cards, remarks=remarks, inputs=inputs,
        drawn=bool(pictures), said=said, pictures=pictures, tables=tables,
    )  # fmt: skip


def figure_page(figure: go.Figure) -> str:
    """A page of one figure, whose words are those of the page."""
    one = picture(figure, "figure")
    return rendered("figure.html.j2", title=one.title, setting=one.subtitle, picture=one)


def picture(figure: go.Figure, name: str) -> Picture:
    """`figure` for a page, in which no other has its name."""
    one = page_figure(figure)
    html = one.figure.to_html(
        include_plotlyjs=False, include_mathjax=False, full_html=False, div_id=name, default_height="100%",
        config={**PLOTLY_CONFIG, "displayModeBar": "hover", "responsive": True},
    )  # fmt: skip
    drawing = Markup(html)  # noqa: S704 - plotly escapes what it is given
    return Picture(title=one.title, subtitle=one.subtitle, drawing=drawing, wide=one.wide, narrow=one.narrow)
