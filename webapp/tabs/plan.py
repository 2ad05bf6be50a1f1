"""Servers for a rate of requests: the lowest price of each device, searched while the page stays usable."""

from __future__ import annotations

import json
from typing import Any

from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component

from llmviewer.units import counted

from ..page_state import shown_state
from ..state import State
from ..views import plan
from ..views.plan import PlanResult, Plans
from ..words import control_label
from .components import collected, panel, register_pieces, table


def places(state: State) -> list[Component]:
    """Places for the plan and the pieces it is made of."""
    jobs = {"link": plan.plan_link(state), "total": len(plan.searches(state))}
    return [
        dcc.Store(id="plan-jobs", data=json.dumps(jobs)), dcc.Store(id="plan-ask"), dcc.Store(id="plan-got"),
        dcc.Store(id="plan-points"), html.Div(id="plan-result"),
    ]  # fmt: skip


def content(plans: Plans, state: State) -> Component:
    """The lowest price of each device with its commands, and why others are impossible."""
    found, reasons = plans.lowest, plans.reasons
    none = "No servers meet the targets: raise these, or the number of devices." if plans.is_complete else "None yet."
    unused = [control_label(name) for name in plan.unused(state)]
    return panel(
        html.H3(f"Servers for {state.plan_rate:g} requests/s"),
        html.P(f"{state.prompt:,} input and {state.gen:,} output tokens per request; {state.within} TTFT <= "
               f"{state.ttft:,} ms, TPOT <= {state.tpot:,} ms; at most {counted(state.plan_most, 'device')}. Lowest "
               "price of each device at which a simulation meets the targets.", className="soft"),
        table([plan.HEAD, *((dcc.Link(one.cells[0], href=one.link), *one.cells[1:]) for one in found)]) if found
        else html.P(none, className="alarm" if plans.is_complete else "soft"),
        *([html.P("TTFT and TPOT: means with Poisson arrivals. Bound: USD/h at roofline lower bounds. Req/s: highest "
                  "rate within the targets.", className="soft")] if found else []),
        *map(_commands, found),
        *([html.P("Choose an engine for the commands that start servers.", className="soft")]
          if found and not state.engine else []),
        *([html.Details([html.Summary(f"{len(reasons)} not possible"),
                         html.Ul([html.Li(one) for one in reasons], className="said")])] if reasons else []),
        *([html.P(f"Not used: {', '.join(unused)}.", className="soft")] if unused else []),
        html.P(["With all alternatives: ", html.Code(plan.plan_command(state))], className="soft"),
    )  # fmt: skip


def _commands(one: PlanResult) -> Component:
    """Commands that simulate and start servers, folded."""
    return html.Details([
        html.Summary(f"Commands for {one.name}, {one.quant}"),
        *(html.P([purpose, html.Br(), html.Code(words)]) for purpose, words in one.commands),
    ])  # fmt: skip


def register(app: Dash) -> None:
    """Searches when the button is clicked, and shows what the browser has collected."""
    register_pieces(app, "plan", lambda state: len(plan.searches(state)), plan.planned, has_button=True)

    @app.callback(
        Output("plan-result", "children"), Input("plan-points", "data"), Held("asked", "data"), Held("files", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def draw(points: str | None, link: str, files: Any) -> Component:
        state = shown_state(link, files)
        return content(plan.plans_of(collected(points, plan.plan_link(state)), state), state)
