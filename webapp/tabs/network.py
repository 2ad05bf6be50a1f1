"""The network: the operator graph, with the inspector beside it."""

from __future__ import annotations

import json
from typing import Any, Final

import dash_cytoscape as cyto
from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component

from ..page_state import analysis_link, shown_state
from ..results import DeviceResult, device_results
from ..state import State
from ..views import network
from . import inspector
from .components import Tab, panel, register_clientside, with_loading

_GREY: Final = "#7d8790"  # legible in the light and the dark color scheme
_SHAPES: Final = [
    {"selector": ".block", "style": {
        "shape": "round-rectangle", "background-color": _GREY, "background-opacity": 0.1,
        "border-color": _GREY, "border-width": 1, "padding": 12,
    }},
    {"selector": ".title", "style": {
        "label": "data(label)", "width": "data(wide)", "height": 18, "background-opacity": 0, "text-valign": "center",
        "text-halign": "center", "font-size": 12, "font-weight": "bold", "color": _GREY, "border-width": 0,
    }},
    {"selector": ".operator", "style": {
        "shape": "data(outline)", "width": network.WIDTH, "height": "data(tall)", "font-size": 12,
        "text-wrap": "wrap", "text-max-width": network.WIDTH, "text-valign": "center", "text-halign": "center",
        "color": "white",
    }},
    {"selector": ".folded", "style": {"border-width": 3, "border-style": "double", "border-color": _GREY}},
    {"selector": ".tensor", "style": {
        "curve-style": "straight", "target-arrow-shape": "triangle", "arrow-scale": 0.8, "width": 1.3,
        "line-color": _GREY, "target-arrow-color": _GREY, "source-endpoint": "0% 50%", "target-endpoint": "0% -50%",
        "events": "no",
    }},
    {"selector": ".around", "style": {
        "curve-style": "segments", "segment-distances": "data(beside)", "segment-weights": "data(along)",
        "edge-distances": "node-position",
    }},
    {"selector": "node:selected", "style": {"border-width": 4, "border-color": "#e69f00", "border-style": "solid"}},
]  # fmt: skip
_LOW: Final = "#66707a"  # of scales of colors, with enough contrast to white text
_HIGH: Final = {"share": "#b34700", "intensity": "#0b5cad", "gap": "#8a2a7a"}
_COLOUR_BY: Final = {
    "bound": "bound", "share": "share of time", "intensity": "OP/B", "gap": "expected / bound",
}  # fmt: skip
_LABELS: Final = {"intensity": "data(label_intensity)", "gap": "data(label_gap)"}
_ENDS: Final = {"share": ("0 %", "the largest"), "intensity": ("0.1 OP/B", "1000 OP/B"), "gap": ("1x", "4x and more")}
_STYLES: Final[dict[str, list[dict[str, Any]]]] = {
    colour_by: [*_SHAPES, {"selector": ".operator", "style": {
        "label": _LABELS.get(colour_by, "data(label)"),
        "background-color": f"mapData({colour_by}, 0, 1, {_LOW}, {_HIGH[colour_by]})" if colour_by in _HIGH
        else "data(colour)",
    }}]
    for colour_by in _COLOUR_BY
}  # fmt: skip
_MAX_HEIGHT_PX: Final = 8000  # at four times this size, the largest zoom, browsers still draw it
_ARIA_LABEL: Final[Any] = {"aria-label": "Operator graph. The Operator list selects the operator in the inspector."}


def store() -> Component:
    """The folded blocks by choice, which stay while settings change: lines of the model and of names of blocks."""
    return dcc.Store(id="network-folds", data="")


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Controls of the drawing and its place, which a callback fills."""
    return html.Div([
        panel(
            html.Div([
                html.H3(f"Network of {results[0].analysis.model.title}"),
                html.Span(id="network-about", className="soft"),
            ], className="figcaption"),
            html.Div([
                dcc.RadioItems(_COLOUR_BY, "bound", id="network-colour", inline=True, className="choices"),
                html.Div(_legends(), id="network-legend", className="by-bound"),
            ], className="figcaption"),
            html.Div([
                html.Label("Find", htmlFor="network-find", className="soft"),
                dcc.Input(id="network-find", type="search", placeholder="part of a name", spellCheck=False),
                html.Span(id="network-found", className="soft", role="status"),
                html.Button("Fold all", id="network-fold", type="button", className="quiet"),
                html.Button("Unfold all", id="network-unfold", type="button", className="quiet"),
                *(html.Button(sign, type="button", title=action, className=f"quiet zoom {name}")
                  for name, sign, action in (
                      ("fit", "Fit", "Show the whole graph at once"), ("enlarge", "+", "Enlarge the graph"),
                      ("shrink", "\N{MINUS SIGN}", "Shrink the graph"))),
            ], className="figcaption tools"),
            dcc.Store(id="network-styles", data=json.dumps(_STYLES)),
            dcc.Store(id="network-of", data=analysis_link(state)),
            dcc.Store(id="network-blocks"),
            with_loading(html.Div(id="network-drawing", className="scroll", tabIndex=0)),
        ),
        inspector.placeholder(),
    ], className="beside still")  # fmt: skip


def _legends() -> list[Component]:
    """A legend for each choice of colors, of which the style of the page shows one."""
    shape_notes = {"memory": "", "compute": ", cut corners", "link": ", rounded sides"}
    bounds = [html.Span(f"{bound}{note}", className=f"badge {bound}") for bound, note in shape_notes.items()]
    scales = [
        html.Span(
            [low, html.Span(className="scale", style={"background": f"linear-gradient(90deg, {_LOW}, {_HIGH[name]})"}),
             high],
            className=f"soft legend {name}",
        )
        for name, (low, high) in _ENDS.items()
    ]  # fmt: skip
    return [html.Span(bounds, className="legend bound choices"), *scales]


def _graph(one: network.Drawing) -> Component:
    """The drawing."""
    width = one.width * min(1, _MAX_HEIGHT_PX / one.height)
    return html.Div(
        cyto.Cytoscape(
            id="network", elements=one.elements, minZoom=0.02, maxZoom=3, autoRefreshLayout=False,
            layout={"name": "preset", "fit": True, "padding": 6}, stylesheet=_STYLES["bound"],
            style={"width": "100%", "height": "100%"}, responsive=True, autoungrabify=True,
            userZoomingEnabled=False, userPanningEnabled=False, boxSelectionEnabled=False,
        ),
        className="network", role="img", **_ARIA_LABEL,
        style={"aspectRatio": f"{one.width:.0f} / {one.height:.0f}", "--width": f"{width:.0f}px"},
    )  # fmt: skip


def _about(result: DeviceResult, phase: str, one: network.Drawing) -> str:
    """Subtitle of the drawing, with the blocks that it leaves out."""
    names = dict.fromkeys(name.partition("_")[0] for name in one.idle_blocks)
    idle = f"; not drawn, idle in this phase: {', '.join(names)}" if names else ""
    return (
        f"{result.phase_name(phase)} on {result.name}; repeated layers are one block with their total share of time; "
        f"click an operator to inspect it, the title of a block to fold it{idle}"
    )


def register(app: Dash) -> None:
    """Draws the graph, selects an operator and folds a block by a click, and colors and searches in the browser."""

    @app.callback(
        Output("network-drawing", "children"), Output("network-about", "children"), Output("network-blocks", "data"),
        Input("network-of", "data"), Input("network-folds", "data"), Held("files", "data"),
    )  # fmt: skip
    def draw(link: str | None, folds: str | None, files: Any) -> tuple[Component, str, str]:
        state = shown_state(link, files)
        result = device_results(state)[0]
        model, *folded = (folds or "").split("\n")
        one = network.network_drawing(result, state.phase, folded if model == state.model else None)
        blocks = {"model": state.model, "blocks": one.blocks, "folded": one.folded}
        return _graph(one), _about(result, state.phase, one), json.dumps(blocks)

    register_clientside(app, "node", Output("op", "value", allow_duplicate=True), Input("network", "tapNodeData"))
    folds, blocks = Output("network-folds", "data", allow_duplicate=True), Held("network-blocks", "data")
    register_clientside(app, "foldBlock", folds, Input("network", "tapNodeData"), blocks)
    register_clientside(
        app, "foldAll", folds, Input("network-fold", "n_clicks"), Input("network-unfold", "n_clicks"), blocks
    )
    register_clientside(
        app, "styleNetwork",
        [Output("network", "stylesheet"), Output("network-legend", "className"), Output("network-found", "children")],
        Input("network-colour", "value"), Input("network-find", "value"), Input("op", "value"),
        Input("network-blocks", "data"), Held("network-styles", "data"), Held("network", "elements"), at_start=True,
    )  # fmt: skip


TAB: Final = Tab(show=show, register=register)
