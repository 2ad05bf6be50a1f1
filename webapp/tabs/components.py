"""Components and callbacks that tabs share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports.page_figures import PLOTLY_CONFIG, PageFigure
from llmviewer.reports.parts import Card
from llmviewer.reports.report import Report
from llmviewer.reports.tables import Item, Table
from llmviewer.rows import csv_text

from ..page_state import shown_state
from ..results import DeviceResult, device_results
from ..state import State
from ..views import overview
from ..words import page_text

_NUMBERED: Final = re.compile(r"\d+\. ")
_SEPARATOR: Final = "#"  # between the place of a piece and the link of its state, and between that and pieces
TAB_KEY_LEAVES_GRID: Final[Any] = {  # Tab leaves a grid, in which arrows go from cell to cell
    name: {"function": "false"} for name in ("tabToNextCell", "tabToNextHeader")
}


@frozen(kw_only=True)
class Tab:
    """A tab. `show` renders results, one per device; `register` adds its callbacks to an app.

    A callback of a tab takes Input("asked", "data"), the link of the analyzed state, and State("files", "data"), the
    files that the browser stores; `shown_state(link, files)` parses them.
    """

    show: Callable[[tuple[DeviceResult, ...], State], Component]
    register: Callable[[Dash], None] = lambda app: None


def figure_panel(name: str, one: PageFigure, **config: Any) -> Component:
    """A figure below its title and subtitle; `config` is of plotly.js, besides PLOTLY_CONFIG."""
    options: Any = {**PLOTLY_CONFIG, **config}
    return html.Figure(
        [
            html.Figcaption([
                html.H3(one.title), html.Span(one.subtitle, className="soft"),
                html.Button("SVG", type="button", title="Save the figure as SVG", className="quiet svg"),
            ]),
            html.Div(
                dcc.Graph(id=name, figure=one.figure, config=options, responsive=True),
                className="drawing", style={"--wide": f"{one.wide}px", "--narrow": f"{one.narrow}px"},
            ),
        ],
        className="picture",
    )  # fmt: skip


def table(lines: Sequence[Iterable[Any]], className: str = "") -> Component:  # noqa: N803 - as Dash has it
    """A table of a line of column heads and lines of cells; the first cell of a line is its row head."""
    head, *rest = map(tuple, lines)
    names: list[Any] = [{"data-of": _words(column)} for column in head[1:]]
    return html.Div(
        html.Table([
            html.Thead(html.Tr([html.Th(cell, scope="col") for cell in head])),
            html.Tbody([
                html.Tr([
                    html.Th(line[0], scope="row"),
                    *(html.Td(cell, **name) for name, cell in zip(names, line[1:], strict=True)),
                ]) for line in rest
            ]),
        ]),
        className=f"scroll {className}".rstrip(), tabIndex=0,
    )  # fmt: skip


def _words(part: Any) -> str:
    """The text of a component, or of a list of components and texts."""
    if isinstance(part, Component):
        return _words(getattr(part, "children", ""))
    return " ".join(map(_words, part)) if isinstance(part, list | tuple) else str(part or "")


def report_table(one: Table, class_name: str = "") -> Component:
    """The table of a report, with a badge for what bounds a cell."""
    return table([one.head, *(map(_shown_item, row) for row in one.text_rows())], class_name)


def _shown_item(item: Item) -> Component | str:
    if item.bound:
        return html.Span(item.text, className=f"badge {item.bound}")
    return html.Span(item.text, className="alarm") if item.alarm else item.text


def long_table(lines: Sequence[Sequence[str]]) -> Component:
    """A table of hundreds of cells as aligned text: browsers take seconds to lay out as many components."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return html.Div(html.Pre(text), className="scroll", tabIndex=0)


def with_code(text: str) -> list[Component | str]:
    """A text whose parts between backticks are shown as code."""
    return [html.Code(part) if place % 2 else part for place, part in enumerate(text.split("`"))]


def _remark(text: str) -> Component:
    """A remark of a list; one that has a number has no mark beside it."""
    return html.Li(page_text(text), className="numbered" if _NUMBERED.match(text) else "")


def report_parts(report: Report[Any], result: Any, *drawings: Component) -> list[Component]:
    """Cards, remarks, drawings and tables of a report, in the words of the page."""
    return [
        cards(report.cards(result)),
        panel(
            html.Ul([_remark(one) for one in report.remarks(result)], className="said"),
            html.P(with_code(page_text(report.basis(result))), className="soft"),
            className="bounds",
        ),
        *drawings,
        *(
            panel(
                html.H3(one.title), report_table(one, "recorded"),
                *([html.P(page_text(one.about), className="soft")] if one.about else []),
            )
            for one in report.tables(result)
        ),
    ]  # fmt: skip


def csv_download(name: str, lines: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A CSV file of lines for dcc.Download."""
    return {"content": csv_text(lines), "filename": name, "type": "text/csv"}


def register_csv(
    app: Dash, tab: str, name: str, lines: Callable[[tuple[DeviceResult, ...], State], Sequence[Sequence[Any]]]
) -> None:
    """Registers the CSV button of a tab, which saves the lines that `lines` makes of the results."""

    @app.callback(
        Output(f"{tab}-download", "data"),
        Input(f"{tab}-csv", "n_clicks"),
        Held("asked", "data"),
        Held("files", "data"),
        prevent_initial_call=True,
    )
    def save(clicks: int | None, link: str, files: Any) -> dict[str, Any]:
        if not clicks:
            raise PreventUpdate
        state = shown_state(link, files)
        return csv_download(name, lines(device_results(state), state))


def register_clientside(
    app: Any,
    script: str,
    output: Output | list[Output],
    *dependencies: Input | Held,
    at_start: bool = False,
) -> None:
    """Registers a callback that runs in the browser: JavaScript source, or the name of a function of page.js.

    at_start  whether it also runs when its inputs are created
    """
    function = ClientsideFunction("llmviewer", script) if script.isidentifier() else script
    app.clientside_callback(function, output, *dependencies, prevent_initial_call=not at_start)


def register_pieces(
    app: Dash,
    name: str,
    count: Callable[[State], int],
    compute: Callable[[State, int], dict[str, Any]],
    *,
    has_button: bool = False,
) -> None:
    """Registers long work that page.js asks for in pieces and collects, so that no request is long.

    count    number of the pieces of a state
    compute  the piece at a place as JSON
    has_button  whether a button starts it, in place of each new state
    """
    register_clientside(app, f"{name}Start", Output(f"{name}-ask", "data"), Input(f"{name}-jobs", "data"),
                        *([Input(f"{name}-start", "n_clicks")] if has_button else []), at_start=True)  # fmt: skip
    register_clientside(app, f"{name}Collect", Output(f"{name}-progress", "children"), Input(f"{name}-got", "data"),
                        Held(f"{name}-jobs", "data"))  # fmt: skip
    register_clientside(app, f"{name}Stop", Output(f"{name}-stop", "disabled"), Input(f"{name}-stop", "n_clicks"))

    @app.callback(
        Output(f"{name}-got", "data"), Input(f"{name}-ask", "data"), Held("files", "data"), prevent_initial_call=True
    )  # fmt: skip
    def piece(ask: str | None, files: Any) -> str:
        place, separator, link = (ask or "").partition(_SEPARATOR)
        if not separator:
            raise PreventUpdate
        state = shown_state(link, files)
        if not place.isdecimal() or int(place) >= count(state):
            raise InputError(f"{name}: no such piece; reload the page")
        return json.dumps({"link": link, **compute(state, int(place))})


def collected(points: str | None, link: str) -> str:
    """The pieces that the browser has collected of a link.

    Raises PreventUpdate if they are of another one.
    """
    points_link, _, rows = (points or "").partition(_SEPARATOR)
    if points_link != link:
        raise PreventUpdate
    return rows


def cards(card_list: Iterable[Card]) -> Component:
    """Cards of the most important numbers."""
    return html.Dl(
        [
            html.Div([
                html.Dt(card.label),
                html.Dd([*([f"{card.sign}\N{NO-BREAK SPACE}"] if card.sign else []), html.Span(card.value),
                         *([badge(card.bound)] if card.bound else [])], className="alarm" if card.alarm else ""),
                *([html.Dd(overview.expected_text(card), className="expected")] if card.expected else []),
                html.Dd(card.about, className="about"),
            ], className="card", title=card.about)
            for card in card_list
        ],
        className="cards",
    )  # fmt: skip


def badge(bound: str) -> Component:
    """Badge of a bound, such as memory-bound."""
    return html.Span(f"{bound}-bound", className=f"badge {bound}")


def with_loading(place: Component, **options: Any) -> Component:
    """A component that stays visible, faded, while the server computes its new content."""
    return dcc.Loading(
        place, delay_show=200, type="dot", overlay_style={"visibility": "visible", "opacity": 0.5}, **options
    )


def panel(*children: Any, className: str = "") -> Component:  # noqa: N803
    """A bordered section."""
    return html.Section(list(children), className=f"panel {className}".rstrip())
