"""Memory: use of each device by a request, and the largest batch and context that fit."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from ..results import DeviceResult
from ..state import State
from ..views import memory
from ._components import Tab, figure_panel, panel, table


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Memory by kind on each device, and the batch and context that fit."""
    inputs = f"batch {state.batch}, {state.prompt} + {state.gen} tokens"
    return html.Div([
        panel(figure_panel("memories", memory.memory_figure(results))),
        panel(
            html.H3("Capacity"), html.P(f"At {inputs}{memory.per_device_note(results)}.", className="soft"),
            table(memory.capacity_table(results), "totals"),
        ),
    ])  # fmt: skip


TAB: Final = Tab(show=show)
