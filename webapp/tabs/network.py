"""The network: the operator graph, with the inspector beside it."""

from __future__ import annotations

from typing import Any, Final

import dash_cytoscape as cyto
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from llmviewer.reports.drawing import BOUND_COLOR

from ..answers import Answer
from ..state import State
from ..views import network
from . import inspector
from ._parts import Tab, in_browser, panel

_GREY: Final = "#7d8790"  # which is read on a light page and on a dark one
_SHAPES: Final = [
    {"selector": ".block", "style": {
        "label": "data(label)", "shape": "round-rectangle", "background-color": _GREY, "background-opacity": 0.12,
        "border-color": _GREY, "border-width": 1, "font-size": 12, "font-weight": "bold", "color": _GREY,
        "text-valign": "top", "text-margin-y": -4, "padding": 14,
    }},
    {"selector": ".operator", "style": {
        "label": "data(label)", "shape": "round-rectangle", "width": 112, "height": 40, "font-size": 13,
        "text-wrap": "wrap", "text-valign": "center", "text-halign": "center", "color": "white",
        "font-weight": "bold",
    }},
    {"selector": ".tensor", "style": {
        "curve-style": "bezier", "target-arrow-shape": "triangle", "arrow-scale": 0.8, "width": 1.3,
        "line-color": _GREY, "target-arrow-color": _GREY, "label": "data(label)", "font-size": 10, "color": _GREY,
        "min-zoomed-font-size": 7,
    }},
    {"selector": "node:selected", "style": {"border-width": 3, "border-color": "#e69f00"}},
]  # fmt: skip
_COLOURS: Final[dict[str, list[dict[str, Any]]]] = {
    "bound": [{"selector": ".operator", "style": {"background-color": "data(colour)"}}],
    "share": [{"selector": ".operator", "style": {"background-color": "mapData(heat, 0, 1, #8a939c, #d55e00)"}}],
}


def show(found: tuple[Answer, ...], state: State) -> Component:
    legend = [html.Span(bound, className=f"badge {bound}") for bound in BOUND_COLOR]
    return html.Div([
        panel(
            html.Div([
                html.H3(f"Network of {found[0].analysis.model.title}"),
                html.Span(f"{found[0].phase_name(state.phase)} on {found[0].name}; what repeats is one block; drag, "
                          "zoom, click an operator", className="soft"),
                dcc.RadioItems({"bound": "by bound", "share": "by share of time"}, "bound", id="network-colour",
                               inline=True, className="choices"),
                html.Div(legend),
            ], className="figcaption"),
            cyto.Cytoscape(
                id="network", elements=network.elements(found[0], state.phase), minZoom=0.15, maxZoom=4,
                layout={"name": "dagre", "rankDir": "TB", "rankSep": 26, "nodeSep": 56, "animate": False},
                stylesheet=[*_SHAPES, *_COLOURS["bound"]], style={"width": "100%", "height": "960px"}, responsive=True,
            ),
        ),
        inspector.place(),
    ], className="beside")  # fmt: skip


def register(app: Dash) -> None:
    cyto.load_extra_layouts()
    tapped = "d => d && d.parent ? d.id : dash_clientside.no_update"
    in_browser(app, tapped, Output("op", "value", allow_duplicate=True), Input("network", "tapNodeData"))

    @app.callback(Output("network", "stylesheet"), Input("network-colour", "value"), prevent_initial_call=True)
    def colour(by: str) -> list[dict[str, Any]]:
        return [*_SHAPES, *_COLOURS.get(by, _COLOURS["bound"])]


TAB: Final = Tab(name="network", label="Network", show=show, register=register)
