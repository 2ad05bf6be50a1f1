"""Timeline: where the time of a recorded pass goes, beside the bound and what is expected."""

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
from llmviewer.reports.timeline import REPORT
from llmviewer.timelines.against import Timeline

from ..answers import Answer, answers
from ..asked import asked
from ..payloads import decoded, label
from ..state import State
from ..views import timeline
from ..views.timeline import Dropped
from ._parts import Tab, awaited, cards, in_browser, panel, picture, table

TRACE: Final = "LLMVIEWER_TRACE"  # in the server's configuration: the path of a trace that the page was started with
_FORMS: Final = {"html": REPORT.html, "csv": REPORT.csv, "json": REPORT.json}
_LABELS: Final = {"html": "Report of the trace", "csv": "CSV", "json": "JSON"}


def result() -> Component:
    """What is found of a trace, once there is one; it stays on the page while another setting is worked out."""
    return html.Div(
        [
            dcc.Store(id="timeline-asked"),
            awaited(html.Div(id="timeline-result")),
            dcc.Download(id="timeline-download"),
        ],
        id="traced",
    )


def show(_found: tuple[Answer, ...], _state: State) -> Component:
    return panel(
        html.H3("Where does the time of a real run go?"),
        html.P("Drop in what a profiler recorded of the model. Each part of a pass is compared with the time that no "
               "kernel beats, and with the time that measured kernels take, so that you see where to look first."),
        html.Ul([
            html.Li("torch.profiler (.json, .json.gz), of vLLM and SGLang too, on a GPU or a CPU; Nsight Systems "
                    "(SQLite, or CSV of nsys stats); rocprofv3 (CSV); vLLM's layerwise profile."),
            html.Li("Set model, device, phase, batch, lengths, precision and parallelism as they were when it was "
                    "recorded; Context is the tokens that decode steps attend to, on average."),
            html.Li(f"Up to {timeline.LARGEST / 1e6:.0f} MB, or {timeline.LARGEST_UNPACKED / 1e6:.0f} MB unpacked. "
                    "A larger one is read where it is: llmviewer web --trace FILE. It is read in memory and not kept."),
        ], className="said"),
        className="timeline",
    )  # fmt: skip


def _shown(found: Timeline, devices: int) -> list[Component]:
    title = REPORT.title(found)
    first = f"The first of {devices} devices. " * (devices > 1)
    return [
        html.H2([title, " ", html.Span(first + below(title, REPORT.headline(found)), className="soft")]),
        cards(REPORT.cards(found)),
        panel(
            html.Ul([html.Li(one) for one in REPORT.remarks(found)], className="said"),
            html.P(REPORT.basis(found), className="soft"),
            className="bounds",
        ),
        panel(picture("timeline-parts", timeline.bars(found))),
        *(
            panel(
                html.H3(one.title), table(one.lines(), "recorded"),
                *([html.P(one.about, className="soft")] if one.about else []),
            )
            for one in REPORT.tables(found)
        ),
        html.Div([
            html.Button(label, id=f"timeline-{form}", type="button", className="quiet")
            for form, label in _LABELS.items()
        ], className="pins"),
    ]  # fmt: skip


def _trace(contents: str | None, name: str | None) -> Dropped | Path | None:
    """The one that was dropped in, else that which the page was started with.

    Raises InputError where it did not arrive whole.
    """
    if not contents:
        started: Path | None = current_app.config.get(TRACE)
        return started
    return Dropped(label(name, "trace"), decoded(contents, name, timeline.LARGEST))


def register(app: Dash) -> None:
    looked_at = '(link, tab) => tab === "timeline" ? link : window.dash_clientside.no_update'  # or nothing is sent
    in_browser(app, looked_at, Output("timeline-asked", "data"), Input("asked", "data"), Input("tab", "value"))

    @app.callback(
        Output("timeline-result", "children"),
        Output("timeline-error", "children"),
        Input("trace", "contents"),
        Input("timeline-asked", "data"),
        Held("trace", "filename"),
        Held("files", "data"),
    )
    def read(contents: str | None, link: str | None, name: str | None, files: Any) -> tuple[Any, str]:
        state = asked(link, files)
        try:
            trace = _trace(contents, name)
            if trace is None or link is None:
                raise PreventUpdate
            found = timeline.found_in(trace, answers(state)[0], state)
        except InputError as error:
            return no_update, str(error)  # and the last result stays
        return _shown(found, len(state.on)), ""

    @app.callback(
        Output("timeline-download", "data"),
        *(Input(f"timeline-{form}", "n_clicks") for form in _FORMS),
        Held("trace", "contents"),
        Held("trace", "filename"),
        Held("timeline-asked", "data"),
        Held("files", "data"),
        prevent_initial_call=True,
    )
    def save(*given: Any) -> dict[str, Any]:
        *clicks, contents, name, link, files = given
        state = asked(link, files)
        try:
            trace = _trace(contents, name)
            form = str(ctx.triggered_id).removeprefix("timeline-")
            if trace is None or not any(clicks) or form not in _FORMS:
                raise PreventUpdate
            found = timeline.found_in(trace, answers(state)[0], state)
        except InputError:  # which the page says where it was dropped in
            raise PreventUpdate from None
        return {"content": _FORMS[form](found), "filename": f"timeline.{form}", "type": "text/plain"}


TAB: Final = Tab(show=show, register=register)
