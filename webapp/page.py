"""Layout of the page, and the summary of results above its tabs."""

from __future__ import annotations

from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component

from llmviewer import __version__
from llmviewer.units import counted

from . import controls
from .results import DeviceResult
from .state import State
from .tabs import TABS, network, timeline
from .tabs.components import cards, panel, table, with_loading
from .views import overview
from .words import CONTROLS, LOWER_BOUND_SIGN

_WAITED_FOR: Final[Any] = {"content": "children"}  # tabs load their own components


def layout() -> Component:
    """Components of the page before any result."""
    defaults = State()
    return html.Div([
        dcc.Location(id="url", refresh=False),
        dcc.Store(id="link"), dcc.Store(id="asked"), dcc.Store(id="files", storage_type="session", data=[]),
        dcc.Download(id="download"), network.store(),
        html.A("To the results", href="#results", className="skip"),
        html.Header([
            html.H1("llmviewer"),
            html.Span("what bounds LLM inference on a device, and what makes it faster", className="soft"),
            html.Div([
                html.Button("Copy link", id="copy", type="button", title="Link to this page with all settings"),
                html.Button("Report", id="save-html", type="button", title="Self-contained HTML, one file per device"),
                html.Button("CSV", id="save-csv", type="button", title="Operators of prefill and decode"),
                html.Button("JSON", id="save-json", type="button", title="Complete analysis"),
            ], className="buttons"),
        ]),
        html.Div([
            html.Details([html.Summary("Settings"), controls.panel(defaults)], open=True, id="settings"),
            html.Main([
                html.Div(id="notices", role="status"),
                html.Div(id="answer"),
                html.Nav(
                    dcc.RadioItems({name: name.capitalize() for name in TABS}, defaults.tab, id="tab", inline=True),
                    className="tabs", title="View",
                ),
                html.Div([
                    controls.step_controls(),
                    controls.precision_controls(),
                    html.Div([
                        html.Label(CONTROLS["op"].label, htmlFor="op", title=CONTROLS["op"].about),
                        dcc.Dropdown([], None, id="op", placeholder="the slowest operator", optionHeight=30),
                        html.Div(id="error-op", className="error", role="alert"),
                    ], id="chosen"),
                ], id="toolbar"),
                controls.sweep_controls(defaults),
                controls.serving_controls(defaults),
                controls.trace_controls(defaults),
                timeline.result(),
                controls.pin_controls(),
                with_loading(html.Div(id="content"), target_components=_WAITED_FOR),
            ], id="results"),
        ], className="page"),
        html.Footer([
            f"llmviewer {__version__}. {LOWER_BOUND_SIGN}: roofline bound. Expected: from measured kernels. ",
            "The server stores nothing that you enter.",
        ], className="soft"),
    ])  # fmt: skip


def summary(results: tuple[DeviceResult, ...], state: State) -> list[Component]:
    """Totals of the results and a line of verdict, which unfolds to a sentence on what makes the phase faster."""
    first = results[0]
    title, how = overview.heading(results)
    several = [html.P(f"On {first.name}, the first of {len(results)} devices:", className="soft")] * (len(results) > 1)
    memory, time = overview.verdict(results, state)
    verdict = html.Summary([html.Span(memory, className="" if first.analysis.memory.fits else "alarm"), f" {time}"])
    note_items = [html.Li(note) for note in overview.notes(first)]
    notes = html.Details([html.Summary(counted(len(note_items), "note")), html.Ul(note_items)])
    lines = (*overview.verdicts(results), *overview.technique_effects(first))
    rows = [html.Li([html.Strong(f"{label} "), text]) for label, text in lines]
    return [
        html.H2([title, " ", html.Span(how, className="soft")]),
        cards(overview.cards(first, state)) if len(results) == 1
        else panel(_totals(results, state), className="totals"),
        html.Details([
            verdict, *several, html.P(overview.advice(first, state.phase), id="advice"),
            html.P(overview.sources(results), className="soft"), *([notes] if note_items else []),
        ], id="verdict"),
        *([html.Ul(rows, className="said")] if rows else []),
    ]  # fmt: skip


def _detail(text: str) -> list[Component | str]:
    """An expected value, and its interval, for which narrow pages have no room."""
    value, bracket, interval = overview.broken_before_interval(text).partition("(")
    return [value, *([html.Span(f"({interval}", className="interval")] if bracket else [])]


def _totals(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Table of totals, one row per device."""
    lines = [
        tuple(
            [
                html.Span(one.value, className="alarm") if one.alarm else one.value,
                *([html.Span(_detail(one.detail), className="more")] if one.detail else []),
            ]
            for one in line
        )
        for line in overview.totals(results, state)
    ]
    return table(lines)
