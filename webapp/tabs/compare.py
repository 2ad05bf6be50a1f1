"""Compare: pinned settings and the current one, by numbers, differences and operators."""

from __future__ import annotations

from typing import Any, Final

from dash import ALL, Dash, Input, Output, ctx, dcc, html
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from llmviewer.reports.side_by_side import (
    bounds_table,
    csv_lines,
    difference_sentences,
    inputs_table,
    numbers_table,
    yields_several_tokens,
)

from ..page_state import shown_state
from ..results import DeviceResult
from ..state import MAX_NAME_CHARACTERS, MAX_PINS, State, pin_name, renamed_pin
from ..views import compare
from ..views.compare import PinnedSetting
from .components import Tab, figure_panel, panel, register_csv, report_table

_HOW_TO_COMPARE: Final = (
    "Pin this setting and change a control, select several devices, or follow a compare link on the overview."
)

_TOKENS_NOTE: Final = "Bars show one pass; with techniques it may yield more than one token per sequence."


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Pinned settings beside the current one: their results, differences, and operators with other bounds."""
    settings, problems = compare.compared_settings(results, state)
    parts = [_settings(settings, state, problems)]
    if len(settings) > 1:
        phase = results[0].phase_name(state.phase)
        inputs, numbers = inputs_table(settings), numbers_table(settings)
        bounds = bounds_table(settings, phase)
        rooflines = compare.roofline_figure(settings, phase)
        parts += [
            panel(
                html.H3("Differences"),
                *([report_table(inputs)] if inputs.body else []),
                html.Ul([html.Li(text) for text in difference_sentences(settings)], className="said"),
            ),
            panel(
                html.Div([
                    html.H3(numbers.title),
                    html.Span(numbers.about, className="soft"),
                    html.Button("CSV", id="compare-csv", type="button", className="quiet"),
                ], className="figcaption"),
                report_table(numbers),
            ),
            panel(
                figure_panel("compare-times", compare.times_figure(settings, state.phase)),
                *([html.P(_TOKENS_NOTE, className="soft")]
                  if yields_several_tokens(settings, state.phase) else []),
            ),
            *([panel(figure_panel("compare-roofline", rooflines))] if rooflines else []),
            panel(
                html.H3(bounds.title),
                html.P(bounds.about, className="soft"),
                report_table(bounds) if bounds.body else html.P("Every operator has the same bound in all settings."),
            ),
        ]  # fmt: skip
    return html.Div([*parts, dcc.Download(id="compare-download")], className="compare")


def _settings(settings: list[PinnedSetting], state: State, problems: tuple[str, ...]) -> Component:
    """The compared settings, with buttons to pin the current setting on a device and to unpin others."""
    full = len(state.pins) >= MAX_PINS
    as_letter = "" if full else f" as {compare.LETTERS[len(state.pins)]}"
    shown_pins = {one.pin for one in settings}
    names = [pin_name(pin) for pin in state.pins]
    lost = [place for place in range(len(state.pins)) if place not in shown_pins]
    return panel(
        html.H3("Compared settings"),
        html.P(_HOW_TO_COMPARE, className="soft"),
        *(html.P(problem, className="notice", role="alert") for problem in problems),
        html.Ul([
            html.Li([html.Strong(one.name), " ", html.Span(one.description, className="soft"), " ",
                     *([_name_field(one.pin, names[one.pin]), _unpin_button(one.pin)] if one.pin >= 0 else [])])
            for one in settings
        ], className="said"),
        html.Div([
            *(html.Button(f"Pin {name if len(state.on) > 1 else 'this setting'}{as_letter}",
                          id={"pin": place}, type="button", disabled=full) for place, name in enumerate(state.on)),
            *(_unpin_button(place) for place in lost),
        ], className="pins"),
    )  # fmt: skip


def _name_field(place: int, name: str) -> Component:
    """Field for the name of the pin at a place."""
    return dcc.Input(
        id={"pin-name": place}, type="text", value=name, placeholder="name", debounce=True, spellCheck=False,
        maxLength=MAX_NAME_CHARACTERS, className="pin-name",
    )  # fmt: skip


def _unpin_button(place: int) -> Component:
    """Button that removes the pin at a place."""
    letter = compare.LETTERS[place]
    return html.Button(
        f"Unpin {letter}",
        id={"unpin": place},
        type="button",
        className="quiet",
        title=f"Remove {letter} from the comparison",
    )


def register(app: Dash) -> None:
    """Connects the buttons that pin and unpin settings."""

    @app.callback(
        Output("pins", "value", allow_duplicate=True),
        Input({"pin": ALL}, "n_clicks"),
        Input({"unpin": ALL}, "n_clicks"),
        Input({"pin-name": ALL}, "value"),
        Held("asked", "data"),
        Held("files", "data"),
        prevent_initial_call=True,
    )
    def pin(pinned: list[int | None], unpinned: list[int | None], _names: Any, link: str, files: Any) -> str:
        button = ctx.triggered_id
        if not button:
            raise PreventUpdate
        state = shown_state(link, files)
        pins = list(state.pins)
        if "pin-name" in button:
            place = button["pin-name"]
            pins[place : place + 1] = [
                renamed_pin(pin, ctx.triggered[0]["value"] or "") for pin in pins[place : place + 1]
            ]
        elif not any((*pinned, *unpinned)):  # buttons were created, not clicked
            raise PreventUpdate
        elif "unpin" in button:
            del pins[button["unpin"] : button["unpin"] + 1]
        elif len(pins) < MAX_PINS and button["pin"] < len(state.on):
            pins.append(state.pin_link(state.on[button["pin"]]))
        if tuple(pins) == state.pins:  # fields were created, not changed
            raise PreventUpdate
        return "|".join(pins)

    register_csv(
        app,
        "compare",
        "comparison.csv",
        lambda results, state: csv_lines(compare.compared_settings(results, state)[0]),
    )


TAB: Final = Tab(show=show, register=register)
