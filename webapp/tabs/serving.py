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

from llmviewer.reports.phrases import below
from llmviewer.reports.serving import REPORT
from llmviewer.reports.serving_front import LoadPoint, front, front_lines
from llmviewer.serving.policy import FIRST_COME_FIRST_SERVED
from llmviewer.units import counted

from .. import traffic
from ..controls import progress
from ..errors import error_line
from ..page_state import shown_state
from ..results import DeviceResult
from ..state import State
from ..views import serving
from ..words import ORDER_LABELS
from . import plan
from .components import (
    Tab,
    collected,
    figure_panel,
    panel,
    register_clientside,
    register_pieces,
    report_parts,
    table,
    with_code,
    with_loading,
)


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Places for the curves, their progress, and how they are made."""
    first = results[0].analysis
    if not first.model.generates or (state.gen < 2 and state.traffic != "tasks"):
        return panel(html.P("Serving needs a model that generates, and at least 2 generated tokens."),
                     className="serving")  # fmt: skip
    jobs = {"link": serving.loads_link(state), "total": len(serving.load_settings(state))}
    return html.Div([
        dcc.Store(id="serving-jobs", data=json.dumps(jobs)), dcc.Store(id="serving-ask"), dcc.Store(id="serving-got"),
        dcc.Store(id="serving-points"), *plan.places(state),
        html.Div([
            *progress("serving", "Simulated points"),
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
        *([html.P(["Plan servers for the ", _planning_link(best[-1], state), " of the last one."], className="soft")]
          if best and state.traffic == "requests" else []),
    ))  # fmt: skip
    if reasons:
        parts.append(panel(html.Details([
            html.Summary(f"{len(reasons)} not possible"), html.Ul([html.Li(one) for one in reasons], className="said"),
        ])))  # fmt: skip
    return parts


def _planning_link(one: LoadPoint, state: State) -> Component:
    """Link to the page that plans servers for the request rate of a point."""
    rate = float(f"{one.numbers['tokens_per_s'] / state.gen:.3g}")
    return dcc.Link(f"{rate:g} requests/s", href=replace(state, plan_rate=rate).link or "?",
                    title="Plan for this rate")  # fmt: skip


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
    plan.register(app)
    register_pieces(app, "serving", lambda state: len(serving.load_settings(state)), serving.simulated)

    @app.callback(
        Output("serving-result", "children"), Input("serving-points", "data"), Held("asked", "data"),
        Held("files", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def draw(points: str | None, link: str, files: Any) -> list[Component]:
        state = shown_state(link, files)
        return _result(*serving.loads_of(collected(points, serving.loads_link(state)), state), state)

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
