"""The network: the operator graph, with the inspector beside it."""

from __future__ import annotations

from typing import Any, Final

import dash_cytoscape as cyto
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from ..results import DeviceResult
from ..state import State
from ..views import network
from . import inspector
from ._components import Tab, panel, register_clientside

_GREY: Final = "#7d8790"  # legible in the light and the dark color scheme
_PANEL: Final = "#fefefe"  # placeholder that the browser replaces by the color of the page
_SHAPES: Final = [
    {"selector": ".block", "style": {
        "shape": "round-rectangle", "background-color": _GREY, "background-opacity": 0.1,
        "border-color": _GREY, "border-width": 1, "padding": 12,
    }},
    {"selector": ".title", "style": {
        "label": "data(label)", "width": 1, "height": 12, "background-opacity": 0, "text-valign": "center",
        "text-halign": "right", "font-size": 12, "font-weight": "bold", "color": _GREY, "events": "no",
    }},
    {"selector": ".operator", "style": {
        "label": "data(label)", "shape": "data(outline)", "width": network.WIDTH, "height": network.HEIGHT,
        "font-size": 12, "text-wrap": "wrap", "text-max-width": network.WIDTH - 4, "text-overflow-wrap": "whitespace",
        "text-valign": "center", "text-halign": "center", "color": "white", "font-weight": "bold",
    }},
    {"selector": ".tensor", "style": {
        "curve-style": "straight", "target-arrow-shape": "triangle", "arrow-scale": 0.8, "width": 1.3,
        "line-color": _GREY, "target-arrow-color": _GREY, "source-label": "data(label)", "font-size": 10,
        "source-text-offset": "data(offset)", "color": _GREY, "text-wrap": "wrap",
        "text-background-color": _PANEL, "text-background-opacity": 0.85,
        "text-background-padding": 1, "min-zoomed-font-size": 6,
    }},
    {"selector": ".around", "style": {
        "curve-style": "segments", "segment-distances": "data(beside)", "segment-weights": "data(along)",
        "edge-distances": "node-position",
    }},
    {"selector": "node:selected", "style": {"border-width": 4, "border-color": "#e69f00"}},
]  # fmt: skip
_COLOURS: Final[dict[str, list[dict[str, Any]]]] = {
    colour_by: [*_SHAPES, {"selector": ".operator", "style": {"background-color": colour}}]
    for colour_by, colour in (("bound", "data(colour)"), ("share", "mapData(heat, 0, 1, #66707a, #b34700)"))
}
_MAX_HEIGHT_PX: Final = 8000  # at four times this size, the largest zoom, browsers still draw it
_ARIA_LABEL: Final[Any] = {"aria-label": "Operator graph. The Operator list selects the operator in the inspector."}
_COLOURED: Final = """(by, styles) => JSON.parse(JSON.stringify(styles[by] || styles.bound).replaceAll(
  "#fefefe", getComputedStyle(document.documentElement).getPropertyValue("--panel").trim()))"""


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Operator graph of the first device, sized by time and coloured by bound."""
    shape_notes = {"memory": "", "compute": ", cut corners", "link": ", rounded sides"}
    legend = [
        html.Span(f"{bound}{shape_note}", className=f"badge {bound}") for bound, shape_note in shape_notes.items()
    ]
    one = network.network_drawing(results[0], state.phase)
    width = one.width * min(1, _MAX_HEIGHT_PX / one.height)
    subtitle = (
        f"{results[0].phase_name(state.phase)} on {results[0].name}; repeated layers are one block with their total "
        f"share of time; click an operator{_idle_note(one.idle_blocks)}"
    )
    return html.Div([
        panel(
            html.Div([
                html.H3(f"Network of {results[0].analysis.model.title}"),
                html.Span(subtitle, className="soft"),
                dcc.RadioItems({"bound": "by bound", "share": "by share of time"}, "bound", id="network-colour",
                               inline=True, className="choices"),
                html.Div(legend, className="choices"),
                *(html.Button(sign, type="button", title=f"{action} the graph",
                              className=f"quiet zoom {action.lower()}")
                  for sign, action in (("+", "Enlarge"), ("\N{MINUS SIGN}", "Shrink"))),
            ], className="figcaption"),
            dcc.Store(id="network-styles", data=_COLOURS),
            html.Div(
                html.Div(
                    cyto.Cytoscape(
                        id="network", elements=one.elements, minZoom=0.1, maxZoom=3, autoRefreshLayout=False,
                        layout={"name": "preset", "fit": True, "padding": 6}, stylesheet=_COLOURS["bound"],
                        style={"width": "100%", "height": "100%"}, responsive=True, autoungrabify=True,
                        userZoomingEnabled=False, userPanningEnabled=False, boxSelectionEnabled=False,
                    ),
                    className="network", role="img", **_ARIA_LABEL,
                    style={"aspectRatio": f"{one.width:.0f} / {one.height:.0f}", "--width": f"{width:.0f}px"},
                ),
                className="scroll", tabIndex=0,
            ),
        ),
        inspector.placeholder(),
    ], className="beside still")  # fmt: skip


def _idle_note(idle_blocks: tuple[str, ...]) -> str:
    """Note on blocks that are not drawn, by the first words of their names."""
    names = dict.fromkeys(name.partition("_")[0] for name in idle_blocks)
    return f"; not drawn, idle in this phase: {', '.join(names)}" if names else ""


def register(app: Dash) -> None:
    """Selects an operator by a click, and recolours the graph in the browser."""
    register_clientside(app, "node", Output("op", "value", allow_duplicate=True), Input("network", "tapNodeData"))
    styled = Output("network", "stylesheet")
    register_clientside(
        app, _COLOURED, styled, Input("network-colour", "value"), Input("network-styles", "data"), at_start=True
    )


TAB: Final = Tab(show=show, register=register)
