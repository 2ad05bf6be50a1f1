"""HTML pages in one file: of a report, and of a single figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup, escape

from llmviewer import __version__

from .page_figures import Picture, picture
from .parts import Card, Details, Line
from .phrases import below
from .tables import Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TEMPLATES: Final = Path(__file__).with_name("templates")
_FRAME: Final = 20  # height around a figure in a frame [px]


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


def report_page(
    *,
    title: str,
    headline: str,
    basis: str,
    summary: Sequence[Line] = (),
    cards: Sequence[Card] = (),
    pictures: Sequence[Sequence[Picture | Table]] = (),
    tables: Sequence[Table] = (),
    legend: str = "",
    remarks: Sequence[str] = (),
    details: Sequence[Details] = (),
    inputs: Mapping[str, Any],
) -> str:
    """A page of the parts of a report (report.Report). With a figure it holds plotly.js, some five megabytes."""
    return _rendered(
        "report.html.j2",
        title=title,
        setting=below(title, headline),
        basis=basis,
        summary=summary,
        cards=cards,
        conclusions=[table.conclusion for table in tables if table.conclusion],
        pictures=pictures,
        tables=tables,
        legend=legend,
        remarks=remarks,
        details=details,
        inputs=json.dumps(inputs, indent=2) if inputs else "",
        drawn=bool(pictures),
    )


def figure_page(figure: go.Figure) -> str:
    """A page of one figure."""
    one = picture(figure, "figure")
    return _rendered("figure.html.j2", title=one.title, setting=one.subtitle, inputs="", drawn=True, picture=one)


def _rendered(template: str, *, drawn: bool, **parts: object) -> str:
    """A page of a template with its parts.

    drawn  whether it has figures, which need plotly.js
    """
    from . import drawing

    return _template(template).render(
        version=__version__,
        plotly_js=_plotly_js() if drawn else "",
        ink=drawing.INK,
        grid=drawing.GRID,
        paper=drawing.PAPER,
        **parts,
    )


@cache
def _plotly_js() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())  # noqa: S704 - a library's own text


def notebook_cell(headline: str, summary: Sequence[tuple[str, str]], figure: Picture | None) -> str:
    """A headline, a summary and a figure, which stands in a frame of its own as its scripts must run in order."""
    lines = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in summary)
    cell = f"<p><b>{escape(headline)}</b></p><table>{lines}</table>"
    if figure is None:
        return cell
    from plotly.offline import get_plotlyjs_version

    script = f'<script src="https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"></script>'
    framed = f'{script}<div style="height: {figure.wide}px">{figure.drawing}</div>'
    style = f"width: 100%; height: {figure.wide + _FRAME}px; border: 0"
    return f'{cell}<p>{escape(figure.title)}</p><iframe srcdoc="{escape(framed)}" style="{style}"></iframe>'
