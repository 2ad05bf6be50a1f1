"""The inspector: what is shown of the operator that is selected, beside a figure in which it was."""

from __future__ import annotations

from dash import Dash, Input, Output, State, html
from dash.development.base_component import Component

from llmviewer.units import seconds

from ..answers import answers
from ..asked import asked
from ..views.inspector import Inspected, inspect
from ._parts import badge, panel, table

PLACE = "inspector"


def place() -> Component:
    """Where it stands; it fills itself."""
    return panel(html.Div(id=PLACE), className="inspector")


def content(one: Inspected, device: str = "") -> Component:
    """What is found of an operator on a device, which is named where there are several."""
    bars = [
        html.Div([
            html.Span(name), html.Div(html.Div(style={"width": f"{100 * share:.3g}%"}), className="bar"),
            html.Span(seconds(time_s)),
        ], className="busy")
        for name, time_s, share in one.busy
    ]  # fmt: skip
    helps = (
        table([("change", "time", "gain"), *one.helps], "wrap gains") if one.helps else html.P("Nothing known here.")
    )
    return html.Div([
        html.H3([one.title, " ", badge(one.bound)], id="inspected"),
        html.P(f"{one.does} On {device}." if device else one.does, className="soft"),
        table([("time", ""), *one.times], "wrap facts"),
        html.H4("What one launch keeps busy"), *bars, html.P(one.position),
        html.H4("Formula, of one launch"),
        table([("amount", "for each, and how many the pass has", "value"), *one.formulas], "wrap"),
        html.H4("What would help this operator"), helps,
        html.H4("Bytes by tensor, of one launch"), table([("", "tensor", "bytes"), *one.tensors], "wrap"),
    ])  # fmt: skip


def register(app: Dash) -> None:
    @app.callback(
        Output(PLACE, "children"), Input("op", "value"), State("asked", "data"), State("files", "data"),
    )  # fmt: skip
    def show(op: str | None, link: str, files: list[list[str]]) -> Component:
        state = asked(link, files)
        first, *others = answers(state)
        return content(inspect(first, state.phase, op or ""), first.name if others else "")
