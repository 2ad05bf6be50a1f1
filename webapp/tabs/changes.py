"""What would change the answer, one step at a time: each step is a link to the page on which it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component

from llmviewer.units import fold
from llmviewer.variants.variant import Variant

from ..answers import answers
from ..asked import asked, kept
from ..state import MOST_PINS, State
from ..views import changes
from ..views.changes import Offer, Step
from ._parts import awaited, panel

_PLACE, _MORE = "changes", "more-changes"
_FEW: Final = 3  # devices of which each is told at once


def place(state: State) -> Component:
    """Where they stand; they are worked out after what was asked."""
    where = state.on[0] if len(state.on) == 1 else "each device"
    return panel(
        html.Div([
            html.H3("What would change it"),
            html.Span(f"on {where}, one step at a time; most first, as expected", className="soft"),
        ], className="figcaption"),
        dcc.Store(id="changes-of", data=kept(state)),
        awaited(html.Div(id=_PLACE, className="changes")),
        html.Button("Try every technique", id=_MORE, type="button",
                    title="Some seconds per device; usual parameters; what each does is under Techniques"),
        className="stepping",
    )  # fmt: skip


def content(found: Sequence[Step], refused: Sequence[str], state: State) -> list[Component]:
    good = [_line(one, state) for one in found if one.helps]
    rest = [_line(one, state) for one in found if not one.helps]
    said = [html.Li(line) for line in refused]
    return [
        html.Ul(good) if good else html.P("Nothing that is tried here helps."),
        *([html.Details([html.Summary(f"{len(rest)} that would not help here"), html.Ul(rest)])] if rest else []),
        *([html.Details([html.Summary(f"{len(said)} that cannot be had here"), html.Ul(said)])] if said else []),
    ]


def _line(step: Step, state: State) -> Component:
    offer = step.offer
    return html.Li([
        html.Div([
            dcc.Link(offer.name, href=_link(offer.state), title=f"Set it: {offer.about}"),
            html.Span(offer.about, className="soft"),
        ], className="step"),
        _several(step, state) if len(state.on) > 1 else _alone(step, state),
    ])  # fmt: skip


def _several(step: Step, state: State) -> Component:
    """The gains of a step on several devices, folded if they are many."""
    table = _table(step, state)
    return table if len(step.variants) <= _FEW else html.Details([html.Summary(step.said), table])


def _alone(step: Step, state: State) -> Component:
    """The gain of a step on the only device."""
    variant = step.variants[state.on[0]]
    return html.Div([
        _gain(variant), f", {hoped} " if (hoped := _expected(variant)) else " ", html.Span([
            f"at least {changes.time(variant)}; ",
            html.Span(changes.memory(variant), className="" if variant.fits else "alarm"),
            " \N{MIDDLE DOT} ", _beside(step.offer, state.on[0], state),
        ], className="soft"),
    ], className="bought")  # fmt: skip


def _table(step: Step, state: State) -> Component:
    """The gains of a step on several devices, in short."""
    return html.Table(html.Tbody([
        html.Tr([
            html.Th(device, scope="row"), html.Td(_gain(variant)), html.Td(_expected(variant)),
            html.Td(changes.verdict(variant), className="" if variant.fits else "alarm"),
            html.Td(_beside(step.offer, device, state)),
        ], title=f"{device}: at least {changes.time(variant)}; {changes.memory(variant)}")
        for device, variant in step.variants.items()
    ]), className="bought")  # fmt: skip


def _gain(variant: Variant) -> Component:
    """The gain at the bound, in green if it is expected to be one too."""
    least = min(variant.gain, variant.likely_gain)
    return html.Strong(changes.words(variant), className="gain" if least > 1 else "soft")


def _expected(variant: Variant) -> str:
    gain = variant.expected_gain
    return f"expect {fold(gain)}" if gain else ""


def _beside(offer: Offer, device: str, state: State) -> Component:
    """A link to the step beside the present setting of a device."""
    beside = replace(offer.state, pins=(*state.pins, state.pin(device))[-MOST_PINS:], tab="compare")
    return dcc.Link("compare", href=_link(beside), title=f"{offer.name} beside the present setting, in numbers")


def _link(state: State) -> str:
    return state.link or "?"


def register(app: Dash) -> None:
    @app.callback(
        Output(_PLACE, "children"), Output(_MORE, "hidden"),
        Input("changes-of", "data"), Input(_MORE, "n_clicks"), Held("tab", "value"), Held("op", "value"),
        Held("files", "data"),
    )  # fmt: skip
    def show(link: str, more: int | None, tab: str, op: str | None, files: Any) -> tuple[list[Component], bool]:
        state = replace(asked(link, files), tab=tab, op=op or "")
        return content(*changes.steps(answers(state), state, every=bool(more)), state), bool(more)
