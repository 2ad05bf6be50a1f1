"""Validation: how far to trust a number, from profiles that ship and from a user's own measurements."""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, dcc, html, no_update
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from dash_ag_grid import AgGrid

from llmviewer.errors import InputError

from ..answers import Answer
from ..controls import drop
from ..payloads import decoded, label
from ..state import State
from ..views import uploads, validation
from ..views.uploads import Measured
from ._parts import LEAVING, Tab, awaited, in_browser, panel, picture, saved, table

_PERCENT: Final = {"function": "percent(params.value)"}
_COLUMNS: Final[list[dict[str, Any]]] = [
    {"field": "device", "width": 105}, {"field": "family", "width": 120},
    {"field": "library", "width": 90}, {"field": "dtype", "headerName": "data type", "width": 80},
    {"field": "held_out", "headerName": "mean error", "width": 84, "valueFormatter": _PERCENT, "sort": "desc"},
    {"field": "median", "headerName": "median row", "width": 74, "valueFormatter": _PERCENT},
    {"field": "short", "headerName": "under 20 us", "width": 78, "valueFormatter": _PERCENT},
    {"field": "long", "headerName": "over 20 us", "width": 78, "valueFormatter": _PERCENT},
    {"field": "covered", "headerName": "within the 80 % interval", "width": 96, "valueFormatter": _PERCENT},
    {"field": "rows", "width": 64}, {"field": "kernel", "width": 130, "tooltipField": "kernel"},
    {"field": "version", "width": 84},
    {"field": "fitted", "headerName": "error where fitted", "width": 84, "valueFormatter": _PERCENT},
]  # fmt: skip
_WORDS: Final = frozenset(("device", "family", "library", "dtype", "kernel", "version"))


def show(found: tuple[Answer, ...], _state: State) -> Component:
    rows = validation.profiles(found)
    alone = validation.unmeasured(found)
    lone = "what is expected there is carried over from relatives, with the errors of a device not measured."
    said = [html.P(f"Nothing was measured on {', '.join(alone)}: {lone}")] * bool(alone)
    return html.Div([
        panel(
            html.H3("What the expected times rest on"),
            html.P("A bound holds for any kernel. What is expected of real ones was fitted to measurements.",
                   className="soft"),
            table(validation.rests_on(found), "words"),
        ),
        panel(*said, picture("validation-errors", validation.errors_figure(found))),
        *([_grid(rows)] if rows else []),
        panel(html.Details([
            html.Summary("Errors on a device that was not measured"),
            html.P("Every device that was, predicted from all others: from siblings, of the same architecture and "
                   "kind of memory, where there are any; else from others of the same maker, or of another one.",
                   className="soft"),
            table(validation.transfers()),
        ])),
        _upload(),
        dcc.Download(id="measured-download"),
    ])  # fmt: skip


def _grid(rows: list[dict[str, Any]]) -> Component:
    words = {"filter": "agTextColumnFilter"}
    numbers = {"filter": "agNumberColumnFilter", "type": "rightAligned"}
    columns = [
        {"headerName": column["field"], **column, **(words if column["field"] in _WORDS else numbers)}
        for column in _COLUMNS[len({row["device"] for row in rows}) == 1 :]  # of one device its name says nothing
    ]
    columns[0]["pinned"] = "left"
    return panel(
        html.Div([
            html.H3("Profiles of these devices"),
            html.Span("errors are means of |expected / measured - 1| on shapes that were not fitted", className="soft"),
            html.Button("CSV", id="profiles-csv", type="button", className="quiet"),
        ], className="figcaption"),
        AgGrid(
            id="profiles", rowData=rows, columnDefs=columns, className="ag-theme-quartz grid",
            getRowId="params.data.id", csvExportParams={"fileName": "profiles.csv"},
            defaultColDef={"sortable": True, "resizable": True, "wrapHeaderText": True},
            style={"height": min(420, 70 + 30 * len(rows))},
            dashGridOptions={"rowHeight": 30, "headerHeight": 48, **LEAVING},
        ),
    )  # fmt: skip


def _upload() -> Component:
    return panel(
        html.H3("Your own measurements"),
        html.P(
            "A .csv or .parquet of up to 5 MB and 20,000 rows with columns gpu, framework, dtype, the shape (M, N, K "
            "of a gemm) and time_us, as `llmviewer docs measurements` says. It is read in memory and not kept.",
            className="soft",
        ),
        drop("measurements", "drop measurements here, or choose a file", most=uploads.LARGEST),
        html.Div(id="measured-error", className="error", role="alert"),
        awaited(html.Div(id="measured-result")),
    )  # fmt: skip


def _result(one: Measured, name: str) -> Component:
    cloud = validation.scatter(one, name)
    groups, worst, skipped = validation.scores(one), validation.worst(one), validation.skipped(one)
    return html.Div([
        *([picture("measured-scatter", cloud)] if cloud else [html.P("No row has both a time and a prediction.")]),
        html.Div([
            html.H4("Errors by family"), html.Button("CSV of all rows", id="measured-csv", type="button",
                                                     className="quiet"),
        ], className="figcaption"),
        *([table(groups.lines(), "scores"), html.P(groups.about, className="soft")] if groups.body else []),
        *([html.H4(worst.title), table(worst.lines(), "facts")] if worst.body else []),
        *([html.H4("Not scored"), html.Ul([html.Li(line) for line in skipped], className="said")] if skipped else []),
    ])  # fmt: skip


def _read(contents: str, name: str | None) -> Measured:
    """Raises InputError where it is no table of measurements."""
    return uploads.measured(label(name), decoded(contents, name, uploads.LARGEST))


def register(app: Dash) -> None:
    in_browser(app, "n => !!n", Output("profiles", "exportDataAsCsv"), Input("profiles-csv", "n_clicks"))

    @app.callback(
        Output("measured-result", "children"),
        Output("measured-error", "children"),
        Input("measurements", "contents"),
        Held("measurements", "filename"),
        prevent_initial_call=True,
    )
    def read(contents: str | None, name: str | None) -> tuple[Any, str]:
        if not contents:
            raise PreventUpdate
        try:
            return _result(_read(contents, name), label(name)), ""
        except InputError as error:
            return no_update, str(error)  # and the last result stays

    @app.callback(
        Output("measured-download", "data"),
        Input("measured-csv", "n_clicks"),
        Held("measurements", "contents"),
        Held("measurements", "filename"),
        prevent_initial_call=True,
    )
    def save(clicks: int | None, contents: str | None, name: str | None) -> dict[str, Any]:
        if not clicks or not contents:
            raise PreventUpdate
        try:
            return saved("predictions.csv", validation.predicted(_read(contents, name)))
        except InputError:  # which the page says where it was dropped in
            raise PreventUpdate from None


TAB: Final = Tab(show=show, register=register)
