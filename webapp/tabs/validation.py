"""Validation: accuracy of the expected times, from shipped profiles and the user's own measurements."""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, dcc, html, no_update
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from dash_ag_grid import AgGrid

from llmviewer.errors import InputError

from ..controls import drop
from ..errors import error_line
from ..payloads import decoded, label
from ..results import DeviceResult
from ..state import State
from ..views import uploads, validation
from ..views.uploads import ScoredMeasurements
from .components import (
    TAB_KEY_LEAVES_GRID,
    Tab,
    csv_download,
    figure_panel,
    long_table,
    panel,
    register_clientside,
    table,
    with_code,
    with_loading,
)

_PERCENT: Final = {"function": "percent(params.value)"}
_COLUMNS: Final[list[dict[str, Any]]] = [
    {"field": "device", "width": 105}, {"field": "family", "width": 120},
    {"field": "library", "width": 90}, {"field": "dtype", "headerName": "data type", "width": 80},
    {"field": "held_out", "headerName": "mean error", "width": 84, "valueFormatter": _PERCENT, "sort": "desc"},
    {"field": "median", "headerName": "median error", "width": 74, "valueFormatter": _PERCENT},
    {"field": "short", "headerName": "under 20 us", "width": 78, "valueFormatter": _PERCENT},
    {"field": "long", "headerName": "over 20 us", "width": 78, "valueFormatter": _PERCENT},
    {"field": "covered", "headerName": "within the 80 % interval", "width": 96, "valueFormatter": _PERCENT},
    {"field": "rows", "width": 64}, {"field": "kernel", "width": 130, "tooltipField": "kernel"},
    {"field": "version", "width": 84},
    {"field": "fitted", "headerName": "fit error", "width": 84, "valueFormatter": _PERCENT},
]  # fmt: skip
_WORDS: Final = frozenset(("device", "family", "library", "dtype", "kernel", "version"))


def show(results: tuple[DeviceResult, ...], _state: State) -> Component:
    """Sources of the expected times with their errors, and an upload of measurements."""
    rows = validation.profile_rows(results)
    unmeasured = validation.unmeasured_devices(results)
    notes = [
        html.P(f"No measurements on {', '.join(unmeasured)}: expected times are transferred from similar devices.")
    ] * bool(unmeasured)
    return html.Div([
        panel(
            html.H3("Sources of the expected times"),
            html.P("Bounds hold for any kernel. Expected times are fitted to measured kernels.",
                   className="soft"),
            table(validation.source_table(results), "words"),
        ),
        panel(*notes, figure_panel("validation-errors", validation.errors_figure(results))),
        *([_grid(rows)] if rows else []),
        panel(html.Details([
            html.Summary("Errors on devices without measurements"),
            html.P("Each measured device, predicted from all others: from siblings (same architecture and type of "
                   "memory) if there are any, else from the same vendor, else from other vendors.",
                   className="soft"),
            long_table(validation.transfer_table()),
        ])),
        _upload(),
        dcc.Download(id="measured-download"),
    ])  # fmt: skip


def _grid(rows: list[dict[str, Any]]) -> Component:
    """Sortable table of profiles and their errors."""
    words = {"filter": "agTextColumnFilter"}
    numbers = {"filter": "agNumberColumnFilter", "type": "rightAligned"}
    columns = [
        {"headerName": column["field"], **column, **(words if column["field"] in _WORDS else numbers)}
        for column in _COLUMNS[len({row["device"] for row in rows}) == 1 :]  # no device column for a single device
    ]
    columns[0]["pinned"] = "left"
    return panel(
        html.Div([
            html.H3("Profiles of these devices"),
            html.Span("mean |expected / measured - 1| on held-out shapes", className="soft"),
            html.Button("CSV", id="profiles-csv", type="button", className="quiet"),
        ], className="figcaption"),
        AgGrid(
            id="profiles", rowData=rows, columnDefs=columns, className="ag-theme-quartz grid",
            getRowId="params.data.id", csvExportParams={"fileName": "profiles.csv"},
            defaultColDef={"sortable": True, "resizable": True, "wrapHeaderText": True},
            style={"height": min(420, 70 + 30 * len(rows))},
            dashGridOptions={"rowHeight": 30, "headerHeight": 48, **TAB_KEY_LEAVES_GRID},
        ),
    )  # fmt: skip


def _upload() -> Component:
    """Upload of the user's measurements."""
    return panel(
        html.H3("Your own measurements"),
        html.P(with_code(
            "A .csv or .parquet of up to 5 MB and 20,000 rows with the columns gpu, framework, dtype, the shape (M, N, "
            "K of a gemm) and time_us; see `llmviewer docs measurements`. Files are not stored."
        ), className="soft"),
        drop("measurements", "drop measurements here, or choose a file", max_bytes=uploads.MAX_UPLOAD_BYTES),
        html.Div(id="measured-error", className="error", role="alert"),
        with_loading(html.Div(id="measured-result")),
    )  # fmt: skip


def _result(one: ScoredMeasurements, name: str) -> Component:
    """Figure and tables of scored measurements."""
    figure = validation.scatter_figure(one, name)
    groups, worst, skipped = validation.score_table(one), validation.worst_table(one), validation.skipped_reasons(one)
    return html.Div([
        *([figure_panel("measured-scatter", figure)] if figure
          else [html.P("No row has both a measured and an expected time.")]),
        html.Div([
            html.H4("Errors by family"), html.Button("CSV of all rows", id="measured-csv", type="button",
                                                     className="quiet"),
        ], className="figcaption"),
        *([table(groups.lines(), "scores"), html.P(groups.about, className="soft")] if groups.body else []),
        *([html.H4(worst.title), table(worst.lines(), "facts")] if worst.body else []),
        *([html.H4("Not scored"), html.Ul([html.Li(line) for line in skipped], className="said")] if skipped else []),
    ])  # fmt: skip


def _scored_upload(contents: str, name: str | None) -> ScoredMeasurements:
    """Parses and scores an upload.

    Raises InputError if it is not a table of measurements.
    """
    return uploads.scored_measurements(label(name), decoded(contents, name, uploads.MAX_UPLOAD_BYTES))


def register(app: Dash) -> None:
    """Scores uploaded measurements, and connects the downloads as CSV."""
    register_clientside(app, "n => !!n", Output("profiles", "exportDataAsCsv"), Input("profiles-csv", "n_clicks"))

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
            return _result(_scored_upload(contents, name), label(name)), ""
        except InputError as error:
            return no_update, error_line(error)  # the last result stays

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
            return csv_download("predictions.csv", validation.prediction_rows(_scored_upload(contents, name)))
        except InputError:  # shown below the upload
            raise PreventUpdate from None


TAB: Final = Tab(show=show, register=register)
