"""Glossary of the field's terms."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from ..results import DeviceResult
from ..state import State
from ..words import CONTROLS, GLOSSARY, Term
from .components import Tab, panel


def show(_results: tuple[DeviceResult, ...], _state: State) -> Component:
    """Terms with synonyms, meaning and the controls that set them."""
    terms = html.Dl([html.Div(_entry(term)) for term in GLOSSARY], className="terms")
    return panel(html.H3("Glossary"), terms, className="glossary")


def _entry(term: Term) -> list[Component]:
    """A term with its synonyms, its meaning, and the controls that set it."""
    labels = dict.fromkeys(word.label for word in CONTROLS.values() if word.term == term.name)
    controls = html.Span(f" Control: {', '.join(labels)}.", className="soft")
    also = html.Span(f" ({term.also})", className="soft")
    return [
        html.Dt([term.name, *([also] if term.also else [])]), html.Dd([term.meaning, *([controls] if labels else [])])
    ]  # fmt: skip


TAB: Final = Tab(show=show)
