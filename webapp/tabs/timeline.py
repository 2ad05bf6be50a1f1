"""Timeline: a recorded pass compared with the bound and the expected time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dash import Dash, Input, Output, ctx, dcc, html, no_update
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from flask import current_app

from llmviewer.errors import InputError
from llmviewer.reports.phrases import below
from llmviewer.reports.report import Report
from llmviewer.reports.timeline_lanes import lanes_script
from llmviewer.timelines.against import Timeline
from llmviewer.timelines.pairs import TracePair
from llmviewer.timelines.ranks import RankedTimeline

from ..errors import error_line
from ..page_state import shown_state
from ..payloads import decoded, label
from ..results import DeviceResult, device_results
from ..state import State
from ..views import timeline
from ..views.timeline import DroppedTrace
from .components import Tab, figure_panel, panel, register_clientside, report_parts, with_code, with_loading

TRACE: Final = "LLMVIEWER_TRACE"  # key of the server's configuration: path of a trace given at the start
_MAX_MB, _MAX_UNPACKED_MB = timeline.MAX_TRACE_BYTES / 1e6, timeline.MAX_UNPACKED_BYTES / 1e6
_LABELS: Final = {"html": "Report", "csv": "CSV", "json": "JSON"}


def result() -> Component:
    """Placeholder for the analysis of a trace, which stays on the page while another setting is analyzed."""
    return html.Div(
        [
            dcc.Store(id="timeline-asked"),
            with_loading(html.Div(id="timeline-result")),
            dcc.Download(id="timeline-download"),
        ],
        id="traced",
    )


def show(_results: tuple[DeviceResult, ...], _state: State) -> Component:
    """Explanation of what to upload and how to set the controls; the upload stays outside of the tab."""
    return panel(
        html.H3("Compare a recorded run"),
        html.P("Drop in a profiler trace of the model. Each group of operators is compared with its roofline bound and "
               "the expected time of measured kernels, the largest gaps first."),
        html.Ul([
            html.Li("torch.profiler (.json, .json.gz), of vLLM and SGLang too, on a GPU or a CPU; Nsight Systems "
                    "(SQLite, or CSV of nsys stats); rocprofv3 (CSV); vLLM's layerwise profile."),
            html.Li("Set model, device, phase, batch, lengths, precision and parallelism as in the recorded run, "
                    "and Decode step to the mean context of its steps."),
            html.Li("Several traces: those of the ranks of a run, or one before and one after a change (the second on "
                    "the second device, if there is one)."),
            html.Li("Metrics of a vLLM, SGLang or TensorRT-LLM server (curl HOST/metrics), or a log of its steps; two "
                    "files of metrics count the time between them. Batch and lengths are those that it counted."),
            html.Li(with_code(f"Up to {_MAX_MB:.0f} MB, or {_MAX_UNPACKED_MB:.0f} MB unpacked. "
                              "Open larger traces with `llmviewer web --trace FILE`. Traces are not stored.")),
        ], className="said"),
        className="timeline",
    )  # fmt: skip


def _content(report: Report[Any], result: Any, devices: int) -> list[Component]:
    """Title, cards, findings, figures and tables of what was recorded."""
    title = report.title(result)
    first = f"First of {devices} devices. " * (devices > 1 and not isinstance(result, TracePair))
    return [
        html.H2([title, " ", html.Span(first + below(title, report.headline(result)), className="soft")]),
        *report_parts(report, result, *_drawings(result)),
        html.Div([
            html.Button(label, id=f"timeline-{file_type}", type="button", className="quiet")
            for file_type, label in _LABELS.items()
        ], className="pins"),
    ]  # fmt: skip


def _drawings(result: Any) -> list[Component]:
    """Figures of a recorded pass, or of the ranks of a run."""
    drawings = []
    if isinstance(result, RankedTimeline):
        drawings.append(figure_panel("timeline-ranks", timeline.rank_figure(result)))
        result = result.timelines[result.slowest]
    elif isinstance(result, Timeline):
        drawings.append(figure_panel("timeline-parts", timeline.part_figure(result)))
    if isinstance(result, Timeline) and (lanes := timeline.launch_figure(result)):
        drawings.append(figure_panel("timeline-lanes", lanes, scrollZoom=True))
    return [panel(one) for one in drawings]


def _traces(contents: Any, names: Any) -> list[DroppedTrace] | Path | None:
    """The uploaded files, or else the one given at the start.

    Raises InputError if the upload is incomplete.
    """
    if not contents:
        started: Path | None = current_app.config.get(TRACE)
        return started
    texts = contents if isinstance(contents, list) else [contents]
    titles = names if isinstance(names, list) else [names] * len(texts)
    return [
        DroppedTrace(label(title, "trace"), decoded(text, title, timeline.MAX_TRACE_BYTES))
        for text, title in zip(texts, titles, strict=False)
    ]


def register(app: Dash) -> None:
    """Analyzes an uploaded trace, again when settings change while this tab is open, and saves its reports."""
    draw_lanes = (
        "(event, figure) => {\n" + lanes_script() + "\nconst drawn = figure.data.some((bars) => bars.x.length);\n"
        'const moved = Object.keys(event || {}).some((key) => key.startsWith("xaxis") || key === "autosize");\n'
        "if (drawn && !moved) return window.dash_clientside.no_update;\n"
        'return zoomLanes(figure, event, document.getElementById("timeline-lanes").clientWidth);\n}'
    )
    register_clientside(
        app, draw_lanes, Output("timeline-lanes", "figure"), Input("timeline-lanes", "relayoutData"),
        Held("timeline-lanes", "figure"), at_start=True,
    )  # fmt: skip
    on_this_tab = (
        '(link, tab) => tab === "timeline" ? link : window.dash_clientside.no_update'  # other tabs send no request
    )
    register_clientside(
        app, on_this_tab, Output("timeline-asked", "data"), Input("asked", "data"), Input("tab", "value")
    )

    @app.callback(
        Output("timeline-result", "children"),
        Output("timeline-error", "children"),
        Output("timeline-passes-error", "children"),
        Input("trace", "contents"),
        Input("timeline-asked", "data"),
        Held("trace", "filename"),
        Held("files", "data"),
    )
    def read(contents: Any, link: str | None, names: Any, files: Any) -> tuple[Any, str, str]:
        state = shown_state(link, files)
        try:
            traces = _traces(contents, names)
            if not traces or link is None:
                raise PreventUpdate
            report, result = timeline.recorded(traces, device_results(state), state)
        except InputError as error:
            text = error_line(error)
            texts = ("", text) if "--passes" in str(error) else (text, "")  # beside the control that it names
            return no_update, *texts  # the last result stays
        return _content(report, result, len(state.on)), "", ""

    @app.callback(
        Output("timeline-download", "data"),
        *(Input(f"timeline-{file_type}", "n_clicks") for file_type in _LABELS),
        Held("trace", "contents"),
        Held("trace", "filename"),
        Held("timeline-asked", "data"),
        Held("files", "data"),
        prevent_initial_call=True,
    )
    def save(*values: Any) -> dict[str, Any]:
        *clicks, contents, names, link, files = values
        state = shown_state(link, files)
        try:
            traces = _traces(contents, names)
            file_type = str(ctx.triggered_id).removeprefix("timeline-")
            if not traces or not any(clicks) or file_type not in _LABELS:
                raise PreventUpdate
            report, result = timeline.recorded(traces, device_results(state), state)
        except InputError:  # shown below the upload
            raise PreventUpdate from None
        return {
            "content": getattr(report, file_type)(result),
            "filename": f"timeline.{file_type}",
            "type": "text/plain",
        }


TAB: Final = Tab(show=show, register=register)
