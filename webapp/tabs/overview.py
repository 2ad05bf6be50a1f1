"""The overview: where the time goes, the roofline with the inspector beside it, and the operator table."""

from __future__ import annotations

import json
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
from ._parts import LEAVING, Tab, in_browser, panel, picture

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
    {"field": "time", "headerName": "time ≥", "minWidth": 84, "valueFormatter": _SECONDS,
     "sort": "desc"},
    {"field": "share", "minWidth": 62, "headerTooltip": "of the least time of the phase", "valueFormatter": _PERCENT},
    {"field": "expected", "minWidth": 74, "headerTooltip": "of real kernels", "valueFormatter": _SECONDS},
    {"field": "expected_share", "headerName": "expected share", "minWidth": 72, "valueFormatter": _PERCENT,
     "headerTooltip": "of the time expected of the phase"},
    {"field": "intensity", "headerName": "OP/B", "minWidth": 56, "valueFormatter": _SI},
    {"field": "repeat", "headerName": "×", "minWidth": 46},
    {"field": "ops", "headerName": "OPs", "minWidth": 62, "valueFormatter": _SI},
    {"field": "weights", "headerName": "weights [B]", "minWidth": 74, "valueFormatter": _SI},
    {"field": "activations", "headerName": "activ. [B]", "minWidth": 68, "valueFormatter": _SI},
    {"field": "kv", "headerName": "KV cache [B]", "minWidth": 74, "valueFormatter": _SI},
    {"field": "attainable", "headerName": "OP/s ≤", "minWidth": 66, "valueFormatter": _SI},
    {"field": "dtype", "headerName": "computed in", "minWidth": 86},
    {"field": "block", "minWidth": 86}, {"field": "kind", "minWidth": 86},
]  # fmt: skip
_LEAST, _MOST, _LETTER = 108, 150, 7  # widths of the column of operators, and of a letter in it [px]
_WORDS: Final = frozenset(("device", "operator", "block", "kind", "bound", "dtype"))
_DETAILS: Final = ("repeat", "ops", "weights", "activations", "kv", "attainable", "dtype", "block", "kind")
_EVERY: Final = f"""(clicks, columns) => {{
  const fewer = clicks % 2 === 0, details = {json.dumps(_DETAILS)};
  return [
    columns.map((one) => (details.includes(one.field) ? {{...one, hide: fewer}} : one)),
    fewer ? "All columns" : "Fewer columns",
    fewer ? "sideways" : "",
  ];
}}"""


def show(found: tuple[Answer, ...], state: State) -> Component:
    rows = overview.operators(found, state.phase)
    unknown = all(row["expected"] is None for row in rows)
    named = 16 + _LETTER * max(len(row["called"]) for row in rows)
    width = min(max(named, _LEAST), _MOST)
    hidden = {
        "device": len(found) == 1, "expected": unknown, "expected_share": unknown, **dict.fromkeys(_DETAILS, True),
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
            html.Span(["of all launches; sort by a head, filter in its menu",
                       html.Span("; scrolls sideways", id="operators-wide", className="sideways")], className="soft"),
            html.Button("All columns", id="operators-all", type="button", className="quiet"),
            html.Button("CSV", id="operators-csv", type="button", className="quiet",
                        title="All columns in OPs, bytes and seconds, as sorted and filtered"),
        ], className="figcaption"),
        AgGrid(
            id="operators", rowData=rows, columnDefs=columns, className="ag-theme-quartz grid",
            getRowId="params.data.id",
            defaultColDef={"sortable": True, "resizable": True, "flex": 1, "wrapHeaderText": True},
            csvExportParams={"fileName": "operators.csv", "allColumns": True},
            style={"height": min(66 + 30 * len(rows), 680)},
            dashGridOptions={
                "rowHeight": 30, "headerHeight": 46, **LEAVING,
                "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
            },
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
    chosen = Output("op", "value", allow_duplicate=True)
    for figure in ("roofline", "times"):
        in_browser(app, "point", chosen, Input(figure, "clickData"))

    @app.callback(
        Output("roofline", "figure"), Input("op", "value"), Given("asked", "data"), Given("files", "data"),
    )  # fmt: skip
    def mark(op: str | None, link: str, files: list[list[str]]) -> Patch:
        state = asked(link, files)
        figure = Patch()
        figure["data"][0]["x"], figure["data"][0]["y"] = overview.marked(answers(state), state.phase, op or "")
        return figure

    in_browser(app, "row", chosen, Input("operators", "cellClicked"))
    in_browser(app, "n => !!n", Output("operators", "exportDataAsCsv"), Input("operators-csv", "n_clicks"))
    every = [
        Output("operators", "columnDefs"),
        Output("operators-all", "children"),
        Output("operators-wide", "className"),
    ]
    in_browser(app, _EVERY, every, Input("operators-all", "n_clicks"), Given("operators", "columnDefs"))


TAB: Final = Tab(show=show, register=register)
