"""What tabs are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from llmviewer.records import frozen
from llmviewer.reports.page_figures import PLOTLY_CONFIG, PageFigure
from llmviewer.reports.parts import Card
from llmviewer.rows import csv_text

from ..answers import Answer, answers
from ..asked import asked
from ..state import State
from ..views import overview

LEAVING: Final[Any] = {  # Tab leaves a grid, in which arrows go from cell to cell
    name: {"function": "false"} for name in ("tabToNextCell", "tabToNextHeader")
}


@frozen(kw_only=True)
class Tab:
    """A tab. `show` makes what is in it of answers, one for each device; `register` adds its callbacks to an app.

    A callback of a tab has what the page asks as Input("asked", "data"), the link of State.question, and what the
    browser holds as State("files", "data"); `asked(link, files)` makes a State of them.
    """

    show: Callable[[tuple[Answer, ...], State], Component]
    register: Callable[[Dash], None] = lambda app: None


def picture(name: str, one: PageFigure) -> Component:
    """A figure under its words."""
    return html.Figure(
        [
            html.Figcaption([
                html.H3(one.title), html.Span(one.subtitle, className="soft"),
                html.Button("SVG", type="button", title="Save the figure as SVG", className="quiet svg"),
            ]),
            html.Div(dcc.Graph(id=name, figure=one.figure, config=PLOTLY_CONFIG, responsive=True), className="drawing",
                     style={"--wide": f"{one.wide}px", "--narrow": f"{one.narrow}px"}),
        ],
        className="picture",
    )  # fmt: skip


def table(lines: Sequence[Sequence[Any]], className: str = "") -> Component:  # noqa: N803 - as Dash has it
    """A line of heads and lines of cells, the first of which names the line."""
    head, *rest = lines
    return html.Div(
        html.Table([
            html.Thead(html.Tr([html.Th(cell, scope="col") for cell in head])),
            html.Tbody([
                html.Tr([
                    html.Th(line[0], scope="row"),
                    *(html.Td(cell, **{"data-of": what}) for what, cell in zip(head[1:], line[1:], strict=True)),
                ]) for line in rest
            ]),
        ]),
        className=f"scroll {className}".rstrip(),
    )  # fmt: skip


def saved(name: str, lines: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Lines as a CSV file for dcc.Download."""
    return {"content": csv_text(lines), "filename": name, "type": "text/csv"}


def saves(
    app: Dash, tab: str, name: str, lines: Callable[[tuple[Answer, ...], State], Sequence[Sequence[Any]]]
) -> None:
    """Makes a tab's button for CSV save a file of a name, with the lines that `lines` makes of answers."""

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
        state = asked(link, files)
        return saved(name, lines(answers(state), state))


def in_browser(
    app: Any,
    script: str,
    output: Output | list[Output],
    *given: Input | Held,
    at_once: bool = False,
) -> None:
    """A callback that the browser answers by itself, by a function or one of page.js by its name; `at_once` also when
    its inputs come.
    """
    function = ClientsideFunction("llmviewer", script) if script.isidentifier() else script
    app.clientside_callback(function, output, *given, prevent_initial_call=not at_once)


def cards(shown: Iterable[Card]) -> Component:
    """Numbers to see first."""
    return html.Dl(
        [
            html.Div([
                html.Dt(card.label),
                html.Dd([*([f"{card.sign}\N{NO-BREAK SPACE}"] if card.sign else []), html.Span(card.value)],
                        className="alarm" if card.alarm else ""),
                *([html.Dd(badge(card.bound))] if card.bound else []),
                *([html.Dd(overview.expected(card), className="expected")] if card.expected else []),
                html.Dd(card.about),
            ], className="card")
            for card in shown
        ],
        className="cards",
    )  # fmt: skip


def badge(bound: str) -> Component:
    return html.Span(f"{bound}-bound", className=f"badge {bound}")


def awaited(place: Component, **options: Any) -> Component:
    """What stays to be read, fainter, while the server works on what comes in its place."""
    return dcc.Loading(
        place, delay_show=200, type="dot", overlay_style={"visibility": "visible", "opacity": 0.5}, **options
    )


def panel(*children: Any, className: str = "") -> Component:  # noqa: N803
    return html.Section(list(children), className=f"panel {className}".rstrip())
