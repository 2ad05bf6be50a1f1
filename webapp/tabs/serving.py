"""Serving: throughput against the speed of a request, simulated point by point while the page stays usable.

The browser asks for one point after another and collects them, so a long curve is no long request, any worker can
answer, and *Stop* ends it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from llmviewer.errors import InputError
from llmviewer.reports.phrases import below
from llmviewer.reports.serving import REPORT
from llmviewer.reports.serving_front import LoadPoint, front, front_lines
from llmviewer.serving.policy import FIRST_COME_FIRST_SERVED
from llmviewer.units import counted

from .. import traffic
from ..errors import error_line
from ..page_state import shown_state
from ..results import DeviceResult
from ..state import State
from ..views import serving
from ..words import ORDER_LABELS
from ._components import (
    Tab,
    figure_panel,
    panel,
    register_clientside,
    report_parts,
    table,
    with_code,
    with_loading,
)

_PROGRESS_LABEL: Final[Any] = {"aria-label": "Simulated points"}
_SEPARATOR: Final = "#"  # between the place of a point and the link of its state, and between that and points


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Places for the curves, their progress, and how they are made."""
    first = results[0].analysis
    if not first.model.generates or (state.gen < 2 and state.traffic != "tasks"):
        return panel(html.P("Serving needs a model that generates, and at least 2 generated tokens."),
                     className="serving")  # fmt: skip
    jobs = {"link": serving.loads_link(state), "total": len(serving.load_settings(state))}
    return html.Div([
        dcc.Store(id="serving-jobs", data=json.dumps(jobs)), dcc.Store(id="serving-ask"), dcc.Store(id="serving-got"),
        dcc.Store(id="serving-points"),
        html.Div([
            html.Progress(id="serving-bar", value="0", max="1", **_PROGRESS_LABEL),
            html.Span(id="serving-progress", className="soft", role="status"),
            html.Button("Stop", id="serving-stop", type="button", className="quiet"),
        ], className="pins"),
        html.Div(id="serving-result"),
        html.Div([
            html.Label("Report of a point", htmlFor="serving-chosen"),
            dcc.Dropdown(_choices(state), None, id="serving-chosen", placeholder="choose or click one"),
        ], className="chosen"),
        with_loading(html.Div(id="serving-report")),
        panel(html.P(with_code(_about(state)), className="soft")),
    ], className="serving")  # fmt: skip


def _choices(state: State) -> list[dict[str, Any]]:
    """The points to choose from, by place."""
    return [
        {"label": f"{one.name}, {one.load}", "value": str(place)}
        for place, one in enumerate(serving.load_settings(state))
    ]


def _about(state: State) -> str:
    """The loads in words."""
    degrees = serving.degrees(state)
    layouts = f", in tensor parallelism of {_listed(degrees)}" if len(degrees) > 1 else ""
    copies = f", on {state.replicas} replicas, router {state.router}" if state.replicas > 1 else ""
    order = f", waiting requests: {ORDER_LABELS[state.order]}" if state.order != FIRST_COME_FIRST_SERVED else ""
    tenants = f", of tenants with shares {state.tenants}" if state.tenants else ""
    if state.load == "rates":
        rates = [f"{rate:g}" for rate in traffic.rates(state)]
        load = f"Random arrivals of {_listed(rates)} {state.traffic} per second, {_sent(state)}"
        copies += f", with {counted(state.prefill_replicas, 'prefill replica')}" if state.prefill_replicas else ""
    else:
        load = f"Closed loops of {_listed(serving.concurrencies(state))} clients with {_sent(state)}"
    return (
        f"{load}{tenants}{order}, simulated as by `llmviewer simulate`{copies}{layouts}. Batches form from requests in "
        "flight; the control Batch is not used. Costs: cloud prices. Energy: TDP."
    )


def _sent(state: State) -> str:
    """Requests of a client or an arrival, in words."""
    one = "" if state.load == "rates" else " at a time,"
    lengths = f"{state.prompt} input and {state.gen} output tokens"
    if state.traffic == "requests":
        return f"{lengths} per request"
    if state.traffic == "tasks":
        name, calls = traffic.task(state).name, traffic.mean_calls(state)
        return f"a task {name}{one} of {calls:.3g} calls in the mean"
    system = f", after a system prompt of {state.system_prompt} tokens" if state.system_prompt else ""
    think = f", think time {state.think_time}" if state.think_time else ""
    return f"a session{one} of {counted(state.session_turns, 'turn')} of {lengths} each{think}{system}"


def _listed(numbers: Sequence[object]) -> str:
    *firsts, last = map(str, numbers)
    return f"{', '.join(firsts)} and {last}" if firsts else last


def _result(points: Sequence[LoadPoint], reasons: Sequence[str], state: State) -> list[Component]:
    """Figure, Pareto front and what to start for the best point within the targets."""
    wanted_targets = serving.targets(state)
    best = front(points, wanted_targets)
    lines = front_lines(points, wanted_targets)
    settings = serving.load_settings(state)
    rows = [
        (
            dcc.Link(line[0], href=replace(serving.load_state(state, settings[one.place]), tab="overview").link or "?"),
            *line[1:],
        )
        for one, line in zip(best, lines[1:], strict=True)
    ]
    parts: list[Component] = []
    if points:
        parts.append(panel(figure_panel("serving-front", serving.front_figure(points, state))))
    parts.append(panel(
        html.H3("Pareto front within the targets"),
        table([lines[0], *rows]) if rows
        else html.P("No simulated point is within the targets: raise them, or add devices.", className="alarm"),
        *([html.P(["Plan servers for the request rate of the last one: ",
                  html.Code(serving.plan_command(state, best[-1]))], className="soft")]
          if best and state.traffic == "requests" else []),
    ))  # fmt: skip
    if reasons:
        parts.append(panel(html.Details([
            html.Summary(f"{len(reasons)} not possible"), html.Ul([html.Li(one) for one in reasons], className="said"),
        ])))  # fmt: skip
    return parts


def _report(state: State, place: int) -> list[Component]:
    """The report of a point, as `llmviewer simulate` prints it."""
    one = serving.load_settings(state)[place]
    run = serving.simulation(state, one)
    title = REPORT.title(run)
    return [
        html.H3([title, " ", html.Span(below(title, REPORT.headline(run)), className="soft")]),
        *report_parts(REPORT, run),
        *([html.P(html.Code(command), className="soft")] if (command := serving.simulate_command(state, one)) else []),
    ]


def register(app: Dash) -> None:
    """Simulates a point when the browser asks for it, and draws those that it has collected."""
    register_clientside(
        app, "startServing", Output("serving-ask", "data"), Input("serving-jobs", "data"), at_start=True
    )  # fmt: skip
    register_clientside(
        app, "collectServing", Output("serving-progress", "children"), Input("serving-got", "data"),
        Held("serving-jobs", "data"),
    )  # fmt: skip
    register_clientside(app, "stopServing", Output("serving-stop", "disabled"), Input("serving-stop", "n_clicks"))

    @app.callback(
        Output("serving-got", "data"), Input("serving-ask", "data"), Held("files", "data"), prevent_initial_call=True
    )  # fmt: skip
    def simulate(ask: str | None, files: Any) -> str:
        place, separator, link = (ask or "").partition(_SEPARATOR)
        if not separator:
            raise PreventUpdate
        state = shown_state(link, files)
        if not place.isdecimal() or int(place) >= len(serving.load_settings(state)):
            raise InputError("serving: no such point; reload the page")
        return json.dumps({"link": link, **serving.simulated(state, int(place))})

    @app.callback(
        Output("serving-result", "children"), Input("serving-points", "data"), Held("asked", "data"),
        Held("files", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def draw(points: str | None, link: str, files: Any) -> list[Component]:
        state = shown_state(link, files)
        loads_link, _, rows = (points or "").partition(_SEPARATOR)
        if loads_link != serving.loads_link(state):
            raise PreventUpdate  # they are of earlier settings
        return _result(*serving.loads_of(rows, state), state)

    register_clientside(
        app,
        "(clicked) => clicked ? String(clicked.points[0].customdata) : window.dash_clientside.no_update",
        Output("serving-chosen", "value"), Input("serving-front", "clickData"),
    )  # fmt: skip

    @app.callback(
        Output("serving-report", "children"), Input("serving-chosen", "value"), Held("asked", "data"),
        Held("files", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def report(chosen: str | None, link: str, files: Any) -> Any:
        state = shown_state(link, files)
        if chosen is None or chosen not in [one["value"] for one in _choices(state)]:
            return []
        try:
            return _report(state, int(chosen))
        except Exception as error:  # noqa: BLE001 - the page stays
            return html.P(error_line(error, state.link), className="error", role="alert")


TAB: Final = Tab(show=show, register=register)
