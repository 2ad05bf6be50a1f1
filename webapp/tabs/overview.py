"""Overview: time by operator, roofline, operator table, changes that would help, and the inspector."""

from __future__ import annotations

import json
from typing import Any, Final

from dash import Dash, Input, Output, Patch, html
from dash import State as Given
from dash.development.base_component import Component
from dash_ag_grid import AgGrid

from ..controls import error_text
from ..page_state import shown_state
from ..results import DeviceResult, device_results
from ..state import State
from ..views import overview
from ..words import LOWER_BOUND_SIGN, UPPER_BOUND_SIGN
from . import changes, inspector
from .components import TAB_KEY_LEAVES_GRID, Tab, figure_panel, panel, register_clientside

_SI: Final = {"function": "amount(params.value)"}
_SECONDS: Final = {"function": "duration(params.value)"}
_PERCENT: Final = {"function": "percent(params.value)"}
_COLUMNS: Final[list[dict[str, Any]]] = [
    {"field": "operator", "flex": None, "pinned": "left", "tooltipField": "op",
     "valueFormatter": {"function": "params.data.called"}},
    {"field": "device", "minWidth": 80, "tooltipField": "device"},
    {"field": "bound", "minWidth": 74, "cellClassRules": {
        bound: f"params.value == '{bound}'" for bound in ("memory", "compute", "link")
    }},
    {"field": "time", "headerName": f"time {LOWER_BOUND_SIGN}", "minWidth": 84, "valueFormatter": _SECONDS,
     "sort": "desc"},
    {"field": "share", "minWidth": 62, "headerTooltip": "share of the roofline time of the phase",
     "valueFormatter": _PERCENT},
    {"field": "expected", "minWidth": 74, "headerTooltip": "expected time, from measured kernels",
     "valueFormatter": _SECONDS},
    {"field": "expected_share", "headerName": "expected share", "minWidth": 72, "valueFormatter": _PERCENT,
     "headerTooltip": "share of the expected time of the phase"},
    {"field": "intensity", "headerName": "OP/B", "minWidth": 56, "valueFormatter": _SI},
    {"field": "repeat", "headerName": "×", "minWidth": 46},
    {"field": "ops", "headerName": "OPs", "minWidth": 62, "valueFormatter": _SI},
    {"field": "weights", "headerName": "weights [B]", "minWidth": 74, "valueFormatter": _SI},
    {"field": "activations", "headerName": "activ. [B]", "minWidth": 68, "valueFormatter": _SI},
    {"field": "kv", "headerName": "KV cache [B]", "minWidth": 74, "valueFormatter": _SI},
    {"field": "attainable", "headerName": f"OP/s {UPPER_BOUND_SIGN}", "minWidth": 66, "valueFormatter": _SI},
    {"field": "dtype", "headerName": "computed in", "minWidth": 86},
    {"field": "block", "minWidth": 86}, {"field": "kind", "minWidth": 86},
]  # fmt: skip
_MIN_WIDTH_PX, _MAX_WIDTH_PX, _LETTER_PX = 108, 150, 7  # of the operator column and a letter in it
_WORDS: Final = frozenset(("device", "operator", "block", "kind", "bound", "dtype"))
_DETAILS: Final = ("repeat", "ops", "weights", "activations", "kv", "attainable", "dtype", "block", "kind")
_TOGGLE_COLUMNS: Final = f"""(clicks, columns) => {{
  const fewer = clicks % 2 === 0, details = {json.dumps(_DETAILS)};
  return [
    columns.map((one) => (details.includes(one.field) ? {{...one, hide: fewer}} : one)),
    fewer ? "All columns" : "Fewer columns",
    fewer ? "sideways" : "",
  ];
}}"""


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Roofline and time by operator of each device and precision, and table of operators on each device."""
    rows = overview.operator_rows(results, state.phase)
    drawn, problems = overview.drawn_results(results, state)
    has_no_expectation = all(row["expected"] is None for row in rows)
    text_width = 16 + _LETTER_PX * max(len(row["called"]) for row in rows)
    width = min(max(text_width, _MIN_WIDTH_PX), _MAX_WIDTH_PX)
    hidden = {
        "device": len(results) == 1, "expected": has_no_expectation, "expected_share": has_no_expectation,
        **dict.fromkeys(_DETAILS, True),
    }  # fmt: skip
    columns = [
        {"headerName": column["field"], **column, "hide": hidden.get(column["field"], False),
         **({"width": width} if column["field"] == "operator" else {}),
         "filter": "agTextColumnFilter" if column["field"] in _WORDS else "agNumberColumnFilter",
         "type": None if column["field"] in _WORDS else "rightAligned", "useValueFormatterForExport": False}
        for column in _COLUMNS
    ]  # fmt: skip
    table = [
        html.Div([
            html.H3("Operators"),
            html.Span(["all launches; click a header to sort or filter",
                       html.Span("; scrolls sideways", id="operators-wide", className="sideways")], className="soft"),
            html.Button("All columns", id="operators-all", type="button", className="quiet"),
            html.Button("CSV", id="operators-csv", type="button", className="quiet",
                        title="All columns in OPs, bytes and seconds, with the current sorting and filters"),
        ], className="figcaption"),
        AgGrid(
            id="operators", rowData=rows, columnDefs=columns, className="ag-theme-quartz grid",
            getRowId="params.data.id",
            defaultColDef={"sortable": True, "resizable": True, "flex": 1, "wrapHeaderText": True},
            csvExportParams={"fileName": "operators.csv", "allColumns": True},
            style={"height": min(66 + 30 * len(rows), 680)},
            dashGridOptions={
                "rowHeight": 30, "headerHeight": 46, **TAB_KEY_LEAVES_GRID,
                "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
            },
        ),
    ]  # fmt: skip
    return html.Div([
        html.Div([
            panel(
                figure_panel("times", overview.times_figure(drawn, state.phase)),
                *(html.Div(error_text(text), className="error", role="alert") for text in problems),
            ),
            panel(figure_panel("roofline", overview.roofline_figure(drawn, state.phase))),
            panel(*table, className="operators"),
        ]),
        html.Div([changes.placeholder(state), inspector.placeholder()]),
    ], className="beside overview")  # fmt: skip


def register(app: Dash) -> None:
    """Selects an operator by a click on a figure or a row, and marks it in the figures."""
    inspector.register(app)
    changes.register(app)
    chosen = Output("op", "value", allow_duplicate=True)
    for figure in ("roofline", "times"):
        register_clientside(app, "point", chosen, Input(figure, "clickData"))

    @app.callback(
        Output("roofline", "figure"), Input("op", "value"), Given("asked", "data"), Given("files", "data"),
    )  # fmt: skip
    def mark(op: str | None, link: str, files: list[list[str]]) -> Patch:
        state = shown_state(link, files)
        figure = Patch()
        drawn, _ = overview.drawn_results(device_results(state), state)
        figure["data"][0]["x"], figure["data"][0]["y"] = overview.selected_points(drawn.values(), state.phase, op or "")
        return figure

    register_clientside(app, "row", chosen, Input("operators", "cellClicked"))
    register_clientside(app, "n => !!n", Output("operators", "exportDataAsCsv"), Input("operators-csv", "n_clicks"))
    every = [
        Output("operators", "columnDefs"),
        Output("operators-all", "children"),
        Output("operators-wide", "className"),
    ]
    register_clientside(
        app, _TOGGLE_COLUMNS, every, Input("operators-all", "n_clicks"), Given("operators", "columnDefs")
    )


TAB: Final = Tab(show=show, register=register)
