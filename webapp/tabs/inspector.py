"""Inspector: details of the selected operator, beside the figures that select it."""

from __future__ import annotations

from typing import Final

from dash import Dash, Input, Output, State, html
from dash.development.base_component import Component

from llmviewer.units import seconds

from ..page_state import shown_state
from ..results import device_results
from ..views.inspector import OperatorDetails, operator_details
from ..words import LOWER_BOUND_SIGN
from .components import badge, panel, table

_ELEMENT_ID: Final = "inspector"


def placeholder() -> Component:
    """Empty panel, filled by a callback."""
    return panel(html.Div(id=_ELEMENT_ID), className="inspector")


def content(one: OperatorDetails, device: str = "") -> Component:
    """Details of an operator; `device` is named if there are several."""
    bars = [
        html.Div([
            html.Span(name), html.Div(html.Div(style={"width": f"{100 * share:.3g}%"}), className="bar"),
            html.Span(seconds(time_s)),
        ], className="busy")
        for name, time_s, share in one.busy_times
    ]  # fmt: skip
    improvements = (
        table([("change", f"time {LOWER_BOUND_SIGN}", "gain"), *one.improvements], "wrap gains")
        if one.improvements
        else html.P("No change known to help.")
    )
    return html.Div([
        html.H3([one.title, " ", badge(one.bound)], id="inspected"),
        html.P(f"{one.description} On {device}." if device else one.description, className="soft"),
        table([("time", ""), *one.times], "wrap facts"),
        html.H4("Busy time of one launch, by resource"), *bars, html.P(one.roofline_position),
        html.H4("OPs and bytes of one launch"),
        table([("", "formula", "value"), *one.formulas], "wrap"),
        html.H4("What would help this operator"), improvements,
        html.H4("Memory traffic of one launch, by tensor"), table([("", "tensor", "bytes"), *one.tensors], "wrap"),
    ])  # fmt: skip


def register(app: Dash) -> None:
    """Shows the details of the selected operator."""

    @app.callback(
        Output(_ELEMENT_ID, "children"), Input("op", "value"), State("asked", "data"), State("files", "data"),
        State("tab", "value"),
    )  # fmt: skip
    def show(op: str | None, link: str, files: list[list[str]], tab: str) -> Component:
        state = shown_state(link, files)
        first, *others = device_results(state)
        details = operator_details(first, state.phase, op or "", of_block=tab == "network")  # a node is of one block
        return content(details, first.name if others else "")
