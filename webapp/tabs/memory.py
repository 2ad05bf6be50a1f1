"""Memory: use of each device by a request, and the largest batch and context that fit."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from llmviewer.reports.side_by_side import memory_table

from ..results import DeviceResult
from ..state import State
from ..views import memory
from .components import Tab, figure_panel, panel, report_table


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Memory by kind on each device, and the batch and context that fit."""
    inputs = f"batch {state.batch}, {state.prompt} + {state.gen} tokens"
    capacity = memory_table({one.name: one.analysis for one in results})
    return html.Div([
        panel(figure_panel("memories", memory.memory_figure(results))),
        panel(
            html.H3(capacity.title), html.P(f"At {inputs}{memory.per_device_note(results)}.", className="soft"),
            report_table(capacity, "totals"),
        ),
    ])  # fmt: skip


TAB: Final = Tab(show=show)
