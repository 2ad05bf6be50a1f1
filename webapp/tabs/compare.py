"""Compare: settings that were pinned beside the present one, in numbers, in words and by operator."""

from __future__ import annotations

from typing import Any, Final

from dash import ALL, Dash, Input, Output, ctx, dcc, html
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ..answers import Answer
from ..asked import asked
from ..state import MOST_PINS, State
from ..views import compare
from ..views.compare import Compared, Moved
from ._parts import Tab, panel, picture, saves, table

_SEVERAL: Final = (
    "Pin this setting and change a control, choose several devices, or follow a link called compare on the overview: "
    "they are then set side by side."
)

_PASSES: Final = "Bars are of one pass, which yields more than one token of a sequence where techniques say so."


def show(found: tuple[Answer, ...], state: State) -> Component:
    settings, problems = compare.compared(found, state)
    parts = [_settings(settings, state, problems)]
    if len(settings) > 1:
        moved = compare.moves(settings, state.phase)
        phase = found[0].phase_name(state.phase)
        parts += [
            panel(html.H3("In words"), html.Ul([html.Li(said) for said in compare.words(settings)], className="said")),
            panel(
                html.Div([
                    html.H3("In numbers"),
                    html.Span(f"in brackets: of {settings[0].short}; times are lower bounds unless expected",
                              className="soft"),
                    html.Button("CSV", id="compare-csv", type="button", className="quiet"),
                ], className="figcaption"),
                table(compare.numbers(settings)),
            ),
            panel(
                picture("compare-times", compare.times(settings, state.phase)),
                *([html.P(_PASSES, className="soft")] if compare.several_tokens(settings, state.phase) else []),
            ),
            panel(
                html.H3("Where the bottleneck moves"),
                html.P(f"Operators of {phase} that are not bound by the same everywhere, and their share of its time.",
                       className="soft"),
                _moves(moved, settings) if moved else html.P("Every operator is bound by the same thing in all."),
            ),
        ]  # fmt: skip
    return html.Div([*parts, dcc.Download(id="compare-download")], className="compare")


def _settings(settings: list[Compared], state: State, problems: tuple[str, ...]) -> Component:
    """What is compared, with buttons that pin the present setting on a device and let go of a pin."""
    full = len(state.pins) >= MOST_PINS
    as_letter = "" if full else f" as {compare.LETTERS[len(state.pins)]}"
    kept = {one.pin for one in settings}
    lost = [place for place in range(len(state.pins)) if place not in kept]
    return panel(
        html.H3("What is compared"),
        html.P(_SEVERAL, className="soft"),
        *(html.P(problem, className="notice", role="alert") for problem in problems),
        html.Ul([
            html.Li([html.Strong(one.name), " ", html.Span(one.about, className="soft"), " ",
                     *([_let_go(one.pin)] if one.pin >= 0 else [])])
            for one in settings
        ], className="said"),
        html.Div([
            *(html.Button(f"Pin {name if len(state.on) > 1 else 'this setting'}{as_letter}",
                          id={"pin": place}, type="button", disabled=full) for place, name in enumerate(state.on)),
            *(_let_go(place) for place in lost),
        ], className="pins"),
    )  # fmt: skip


def _let_go(place: int) -> Component:
    letter = compare.LETTERS[place]
    return html.Button(
        f"Unpin {letter}",
        id={"unpin": place},
        type="button",
        className="quiet",
        title=f"Compare no longer with {letter}",
    )


def _moves(moved: list[Moved], settings: list[Compared]) -> Component:
    def cell(place: tuple[str, float] | None) -> Any:
        return "-" if place is None else [html.Span(place[0], className=f"badge {place[0]}"), f"{place[1]:.1%}"]

    lines = [(one.operator, *(cell(place) for place in one.places)) for one in moved]
    return table([("operator", *(one.name for one in settings)), *lines])


def register(app: Dash) -> None:
    @app.callback(
        Output("pins", "value", allow_duplicate=True),
        Input({"pin": ALL}, "n_clicks"),
        Input({"unpin": ALL}, "n_clicks"),
        Held("asked", "data"),
        Held("files", "data"),
        prevent_initial_call=True,
    )
    def pin(pinned: list[int | None], unpinned: list[int | None], link: str, files: Any) -> str:
        which = ctx.triggered_id
        if not which or not any((*pinned, *unpinned)):  # buttons that have only just come
            raise PreventUpdate
        state = asked(link, files)
        pins = list(state.pins)
        if "unpin" in which:
            del pins[which["unpin"] : which["unpin"] + 1]
        elif len(pins) < MOST_PINS and which["pin"] < len(state.on):
            pins.append(state.pin(state.on[which["pin"]]))
        return "|".join(pins)

    saves(app, "compare", "comparison.csv", lambda found, state: compare.raw(compare.compared(found, state)[0]))


TAB: Final = Tab(show=show, register=register)
