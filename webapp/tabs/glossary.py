"""The glossary."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from ..answers import Answer
from ..state import State
from ..words import GLOSSARY
from ._parts import Tab, panel


def show(_found: tuple[Answer, ...], _state: State) -> Component:
    return panel(
        html.H3("Glossary"),
        html.Dl([
            part
            for term in GLOSSARY
            for part in (
                html.Dt([term.name, *([html.Span(f" ({term.also})", className="soft")] if term.also else [])]),
                html.Dd(term.meaning),
            )
        ]),
    )  # fmt: skip


TAB: Final = Tab(name="glossary", label="Glossary", show=show)
