"""Changes that would help, one at a time, with their gains; each links to the page with that change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component

from llmviewer.units import fold
from llmviewer.variants.variant import Variant

from ..page_state import analysis_link, shown_state
from ..results import device_results
from ..state import MAX_PINS, State
from ..views import changes
from ..views.changes import CandidateChange, CandidateGains
from .components import panel, with_loading

_PLACE, _ALL_TECHNIQUES = "changes", "more-changes"
_MAX_UNFOLDED_CHANGES: Final = 5
_MAX_UNFOLDED_DEVICES: Final = 3  # gains on more devices are folded


def placeholder(state: State) -> Component:
    """Empty panel for the changes, which are computed after the results."""
    where = state.on[0] if len(state.on) == 1 else "each device"
    return panel(
        html.Div([
            html.H3("What would help"),
            html.Span(f"on {where}, one change at a time; largest expected gain first", className="soft"),
        ], className="figcaption"),
        dcc.Store(id="changes-of", data=analysis_link(state)),
        with_loading(html.Div(id=_PLACE, className="changes")),
        html.Button("Try every technique", id=_ALL_TECHNIQUES, type="button",
                    title="Takes seconds per device. Default parameters; Techniques describes each."),
        className="stepping",
    )  # fmt: skip


def content(changes: Sequence[CandidateGains], impossible: Sequence[str], state: State) -> list[Component]:
    """Helpful changes, then folded the ones without gain and the impossible ones with their reasons."""
    worthwhile = [_line(one, state) for one in changes if one.is_worthwhile]
    helpful, smaller_gains = worthwhile[:_MAX_UNFOLDED_CHANGES], worthwhile[_MAX_UNFOLDED_CHANGES:]
    others = [_line(one, state) for one in changes if not one.is_worthwhile]
    impossible_items = [html.Li(line) for line in impossible]
    return [
        html.Ul(helpful) if helpful else html.P("None of the changes tried here helps."),
        *(
            [html.Details([html.Summary(f"{len(smaller_gains)} more that help less"), html.Ul(smaller_gains)])]
            if smaller_gains
            else []
        ),
        *([html.Details([html.Summary(f"{len(others)} without gain here"), html.Ul(others)])] if others else []),
        *(
            [html.Details([html.Summary(f"{len(impossible_items)} not possible here"), html.Ul(impossible_items)])]
            if impossible_items
            else []
        ),
    ]


def _line(gains: CandidateGains, state: State) -> Component:
    candidate = gains.candidate
    return html.Li([
        html.Div([
            dcc.Link(candidate.name, href=_link(candidate.state), title=f"Apply: {candidate.about}"),
            html.Span(candidate.about, className="soft"),
        ], className="step"),
        _several_devices_gain(gains, state) if len(state.on) > 1 else _single_device_gain(gains, state),
    ])  # fmt: skip


def _several_devices_gain(gains: CandidateGains, state: State) -> Component:
    """Gains of a change on several devices, folded if they are many."""
    table = _table(gains, state)
    return table if len(gains.variants) <= _MAX_UNFOLDED_DEVICES else html.Details([html.Summary(gains.summary), table])


def _single_device_gain(gains: CandidateGains, state: State) -> Component:
    """Gain of a change on the only device."""
    variant = gains.variants[state.on[0]]
    return html.Div([
        _gain(variant), f", {gain} " if (gain := _expected(variant)) else " ", html.Span([
            f"{changes.time_text(variant)}; ",
            html.Span(changes.memory_text(variant), className="" if variant.fits else "alarm"),
            " \N{MIDDLE DOT} ", _compare_link(gains.candidate, state.on[0], state),
        ], className="soft"),
    ], className="bought")  # fmt: skip


def _table(gains: CandidateGains, state: State) -> Component:
    """Table of the gains of a change on several devices."""
    return html.Table(html.Tbody([
        html.Tr([
            html.Th(device, scope="row"), html.Td(_gain(variant)), html.Td(_expected(variant)),
            html.Td(changes.memory_verdict(variant), className="" if variant.fits else "alarm"),
            html.Td(_compare_link(gains.candidate, device, state)),
        ], title=f"{device}: {changes.time_text(variant)}; {changes.memory_text(variant)}")
        for device, variant in gains.variants.items()
    ]), className="bought")  # fmt: skip


def _gain(variant: Variant) -> Component:
    """Gain at the bound, highlighted if a gain is expected too."""
    smaller_gain = min(variant.gain, variant.likely_gain)
    return html.Strong(changes.gain_text(variant), className="gain" if smaller_gain > 1 else "soft")


def _expected(variant: Variant) -> str:
    gain = variant.expected_gain
    return f"expected {fold(gain)}" if gain else ""


def _compare_link(candidate: CandidateChange, device: str, state: State) -> Component:
    """Link to the comparison of a change with the current setting of a device."""
    compare_state = replace(candidate.state, pins=(*state.pins, state.pin_link(device))[-MAX_PINS:], tab="compare")
    return dcc.Link("compare", href=_link(compare_state), title=f"Compare {candidate.name} with the current setting")


def _link(state: State) -> str:
    return state.link or "?"


def register(app: Dash) -> None:
    """Ranks changes of the shown setting after the tab itself is shown, and all techniques on request."""

    @app.callback(
        Output(_PLACE, "children"), Output(_ALL_TECHNIQUES, "hidden"),
        Input("changes-of", "data"), Input(_ALL_TECHNIQUES, "n_clicks"), Held("tab", "value"), Held("op", "value"),
        Held("files", "data"),
    )  # fmt: skip
    def show(
        link: str, all_techniques: int | None, tab: str, op: str | None, files: Any
    ) -> tuple[list[Component], bool]:
        state = replace(shown_state(link, files), tab=tab, op=op or "")
        return content(
            *changes.ranked_changes(device_results(state), state, with_techniques=bool(all_techniques)), state
        ), bool(all_techniques)
