"""How the page looks: what stands on it before anything is asked, and what it says of answers above its tabs."""

from __future__ import annotations

from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component

from llmviewer import __version__
from llmviewer.reports.phrases import sentence
from llmviewer.units import counted

from . import controls
from .answers import Answer
from .state import State
from .tabs import TABS, timeline
from .tabs._parts import awaited, cards, panel, table
from .views import overview
from .words import CONTROLS

_WAITED_FOR: Final[Any] = {"content": "children"}  # not what tabs fill in by themselves


def layout() -> Component:
    usual = State()
    return html.Div([
        dcc.Location(id="url", refresh=False),
        dcc.Store(id="link"), dcc.Store(id="asked"), dcc.Store(id="files", storage_type="session", data=[]),
        dcc.Download(id="download"),
        html.A("To the results", href="#results", className="skip"),
        html.Header([
            html.H1("llmviewer"),
            html.Span("what bounds a language model on a device, and what would change it", className="soft"),
            html.Div([
                html.Button("Copy link", id="copy", type="button", title="The link opens this page as it is"),
                html.Button("Report", id="save-html", type="button", title="Self-contained HTML, one file a device"),
                html.Button("CSV", id="save-csv", type="button", title="All operators of both phases"),
                html.Button("JSON", id="save-json", type="button", title="All that was found"),
            ], className="buttons"),
        ]),
        html.Div([
            html.Details([html.Summary("Settings"), controls.panel(usual)], open=True, id="settings"),
            html.Main([
                html.Div(id="notices", role="status"),
                html.Div(id="answer"),
                html.Nav(
                    dcc.RadioItems({name: name.capitalize() for name in TABS}, usual.tab, id="tab", inline=True),
                    className="tabs", title="What of the answer is looked at",
                ),
                html.Div([
                    html.Label(CONTROLS["op"].label, htmlFor="op", title=CONTROLS["op"].about),
                    dcc.Dropdown([], None, id="op", placeholder="the one that takes longest", optionHeight=30),
                    html.Div(id="error-op", className="error", role="alert"),
                ], id="chosen"),
                controls.of_sweeps(usual),
                controls.of_trace(),
                timeline.result(),
                controls.pinned(),
                awaited(html.Div(id="content"), target_components=_WAITED_FOR),
            ], id="results"),
        ], className="page"),
        html.Footer([
            f"llmviewer {__version__}. All times are lower bounds unless they are called expected. ",
            "Nothing that you enter is kept by the server.",
        ], className="soft"),
    ])  # fmt: skip


def answer(found: tuple[Answer, ...], now: State) -> list[Component]:
    """The totals, and in a sentence what bounds the phase and what would help."""
    first = found[0]
    what, how = overview.asked(found)
    several = [html.P(f"On {first.name}, the first of {len(found)} devices:", className="soft")] * (len(found) > 1)
    said = [html.Li(sentence(note)) for note in first.analysis.notes]
    notes = html.Details([html.Summary(counted(len(said), "note")), html.Ul(said)])
    lines = (*overview.verdicts(found), *overview.effects(first))
    told = [html.Li([html.Strong(f"{label} "), text]) for label, text in lines]
    return [
        html.H2([what, " ", html.Span(how, className="soft")]),
        cards(overview.cards(first)) if len(found) == 1 else panel(_totals(found, now.phase), className="totals"),
        panel(*several, html.P(overview.advice(first, now.phase), id="advice"),
              *([html.Ul(told, className="said")] if told else []), className="bounds"),
        html.P(overview.sources(found), className="soft"),
        *([notes] if said else []),
    ]  # fmt: skip


def _totals(found: tuple[Answer, ...], phase: str) -> Component:
    """A line for each device."""
    lines = [
        tuple(
            [
                html.Span(one.value, className="alarm") if one.alarm else one.value,
                *([html.Span(one.more, className="more")] if one.more else []),
            ]
            for one in line
        )
        for line in overview.totals(found, phase)
    ]
    return table(lines)
