"""What would change the answer, one step at a time: each step is a link to the page on which it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component

from ..answers import answers
from ..asked import asked, kept
from ..state import MOST_PINS, State
from ..views import changes
from ..views.changes import Change, Offer
from ._parts import panel

_PLACE, _MORE = "changes", "more-changes"


def place(state: State) -> Component:
    """Where they stand; they are worked out after what was asked."""
    return panel(
        html.Div([
            html.H3("What would change it"),
            html.Span(f"on {state.on[0]}, one step at a time; most first", className="soft"),
        ], className="figcaption"),
        dcc.Store(id="changes-of", data=kept(state)),
        dcc.Loading(html.Div(id=_PLACE, className="changes"), delay_show=200, type="dot"),
        html.Button("Try every technique", id=_MORE, type="button",
                    title="With their usual parameters; what each does is under Techniques"),
        className="stepping",
    )  # fmt: skip


def content(found: Sequence[Change], refused: Sequence[tuple[Offer, str]], state: State) -> list[Component]:
    good = [one for one in found if one.helps]
    rest = [_line(one, state) for one in found if not one.helps]
    said = [html.Li(f"{offer.name}: {why}") for offer, why in refused]
    return [
        html.Ul([_line(one, state) for one in good]) if good else html.P("Nothing that is tried here helps."),
        *([html.Details([html.Summary(f"{len(rest)} that would not help here"), html.Ul(rest)])] if rest else []),
        *([html.Details([html.Summary(f"{len(said)} that cannot be had here"), html.Ul(said)])] if said else []),
    ]


def _line(one: Change, state: State) -> Component:
    offer, pin = one.offer, state.pin(state.on[0])
    beside = replace(offer.state, pins=(*state.pins, pin)[-MOST_PINS:], tab="compare")
    expected = f", expect {one.expected:.3g}x" if one.expected else ""
    return html.Li([
        html.Div([
            dcc.Link(offer.name, href=_link(offer.state), title=f"Set it: {offer.about}"),
            html.Span(offer.about, className="soft"),
        ], className="step"),
        html.Div([
            html.Strong(one.words, className="gain" if one.gain > 1 else "soft"), f"{expected}: at least {one.time}; ",
            html.Span(one.memory, className="" if one.fits else "alarm"), " \N{MIDDLE DOT} ",
            dcc.Link("compare", href=_link(beside), title=f"{offer.name} beside the present setting, in numbers"),
        ], className="bought"),
    ])  # fmt: skip


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
        first = answers(state)[0]
        steps = [*changes.offers(first, state), *(changes.further(state) if more else ())]
        found, refused = changes.changes(first, state, steps)
        return content(found, refused, state), bool(more)
