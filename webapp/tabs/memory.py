"""Memory: what a request takes of each device's, and how far batch and context can grow."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from ..answers import Answer
from ..state import State
from ..views import memory
from ._parts import Tab, panel, picture, table


def show(found: tuple[Answer, ...], state: State) -> Component:
    asked = f"batch {state.batch}, {state.prompt} + {state.gen} tokens"
    return html.Div([
        panel(picture("memories", memory.bars(found))),
        panel(
            html.H3("How far it goes"), html.P(f"At {asked}{memory.whose(found)}.", className="soft"),
            table(memory.table(found), "totals"),
        ),
    ])  # fmt: skip


TAB: Final = Tab(show=show)
