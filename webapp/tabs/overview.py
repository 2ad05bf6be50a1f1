"""The overview: where the time goes, the roofline with the inspector beside it, and the operator table."""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, Patch, html
from dash import State as Given
from dash.development.base_component import Component
from dash_ag_grid import AgGrid

from ..answers import Answer, answers
from ..asked import asked
from ..state import State
from ..views import overview
from . import changes, inspector
from ._parts import Tab, in_browser, panel, picture

_SI: Final = {"function": "amount(params.value)"}
_SECONDS: Final = {"function": "duration(params.value)"}
_COLUMNS: Final[list[dict[str, Any]]] = [
    {"field": "operator", "width": 135, "pinned": "left", "tooltipField": "op"},
    {"field": "device", "width": 105}, {"field": "bound", "width": 105, "cellClassRules": {
        bound: f"params.value == '{bound}'" for bound in ("memory", "compute", "link")
    }},
    {"field": "time", "headerName": "time ≥", "width": 110, "valueFormatter": _SECONDS, "sort": "desc"},
    {"field": "expected", "width": 110, "valueFormatter": _SECONDS},
    {"field": "share", "width": 90, "valueFormatter": {"function": "percent(params.value)"}},
    {"field": "block", "width": 100}, {"field": "kind", "width": 105},
    {"field": "repeat", "headerName": "×", "width": 70},
    {"field": "ops", "headerName": "OPs", "width": 100, "valueFormatter": _SI},
    {"field": "weights", "headerName": "weights [B]", "width": 115, "valueFormatter": _SI},
    {"field": "activations", "headerName": "activations [B]", "width": 130, "valueFormatter": _SI},
    {"field": "kv", "headerName": "KV cache [B]", "width": 120, "valueFormatter": _SI},
    {"field": "intensity", "headerName": "OP/B", "width": 95, "valueFormatter": _SI},
    {"field": "attainable", "headerName": "OP/s ≤", "width": 105, "valueFormatter": _SI},
    {"field": "dtype", "headerName": "computed in", "width": 115},
]  # fmt: skip
_WORDS: Final = frozenset(("device", "operator", "block", "kind", "bound", "dtype"))


def show(found: tuple[Answer, ...], state: State) -> Component:
    rows = overview.operators(found, state.phase)
    hidden = {"device": len(found) == 1, "expected": all(row["expected"] is None for row in rows)}
    columns = [
        {**column, "hide": hidden.get(column["field"], False),
         "filter": "agTextColumnFilter" if column["field"] in _WORDS else "agNumberColumnFilter",
         "type": None if column["field"] in _WORDS else "rightAligned"}
        for column in _COLUMNS
    ]  # fmt: skip
    table = [
        html.Div([
            html.H3("Operators"),
            html.Span("of all launches; sort by a head, filter in its menu", className="soft"),
            html.Button("CSV", id="operators-csv", type="button", className="quiet"),
        ], className="figcaption"),
        AgGrid(
            id="operators", rowData=rows, columnDefs=columns, className="ag-theme-quartz grid",
            getRowId="params.data.id", defaultColDef={"sortable": True, "resizable": True},
            csvExportParams={"fileName": "operators.csv"}, style={"height": min(60 + 30 * len(rows), 680)},
            dashGridOptions={"rowHeight": 30, "headerHeight": 34, "rowSelection": {
                "mode": "singleRow", "checkboxes": False, "enableClickSelection": True}},
        ),
    ]  # fmt: skip
    return html.Div([
        html.Div([
            panel(picture("times", overview.times(found, state.phase))),
            panel(picture("roofline", overview.roofline(found, state.phase))),
            panel(*table, className="operators"),
        ]),
        html.Div([changes.place(state), inspector.place()]),
    ], className="beside overview")  # fmt: skip


def register(app: Dash) -> None:
    inspector.register(app)
    changes.register(app)
    clicked = "c => c && c.points[0].customdata || dash_clientside.no_update"
    chosen = Output("op", "value", allow_duplicate=True)
    for figure in ("roofline", "times"):
        in_browser(app, clicked, chosen, Input(figure, "clickData"))

    @app.callback(
        Output("roofline", "figure"), Input("op", "value"), Given("asked", "data"), Given("files", "data"),
    )  # fmt: skip
    def mark(op: str | None, link: str, files: list[list[str]]) -> Patch:
        state = asked(link, files)
        figure = Patch()
        figure["data"][0]["x"], figure["data"][0]["y"] = overview.marked(answers(state), state.phase, op or "")
        return figure

    row = "c => c && c.rowId ? c.rowId.slice(c.rowId.indexOf(' ') + 1) : dash_clientside.no_update"
    in_browser(app, row, chosen, Input("operators", "cellClicked"))
    in_browser(app, "n => !!n", Output("operators", "exportDataAsCsv"), Input("operators-csv", "n_clicks"))


TAB: Final = Tab(name="overview", label="Overview", show=show, register=register)
