"""The network: the operator graph, with the inspector beside it."""

from __future__ import annotations

from typing import Any, Final

import dash_cytoscape as cyto
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from ..answers import Answer
from ..state import State
from ..views import network
from . import inspector
from ._parts import Tab, in_browser, panel

_GREY: Final = "#7d8790"  # which is read on a light page and on a dark one
_PANEL: Final = "#fefefe"  # in whose place the browser puts that of the page
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
    by: [*_SHAPES, {"selector": ".operator", "style": {"background-color": colour}}]
    for by, colour in (("bound", "data(colour)"), ("share", "mapData(heat, 0, 1, #66707a, #b34700)"))
}
_TALLEST: Final = 8000  # of a drawing, which can be enlarged four times: browsers draw nothing that is larger [px]
_SAID: Final[Any] = {"aria-label": "The operator graph. The list Operator chooses what the inspector shows."}
_COLOURED: Final = """(by, styles) => JSON.parse(JSON.stringify(styles[by] || styles.bound).replaceAll(
  "#fefefe", getComputedStyle(document.documentElement).getPropertyValue("--panel").trim()))"""


def show(found: tuple[Answer, ...], state: State) -> Component:
    looks = {"memory": "", "compute": ", cut corners", "link": ", rounded sides"}
    legend = [html.Span(f"{bound}{look}", className=f"badge {bound}") for bound, look in looks.items()]
    one = network.drawing(found[0], state.phase)
    width = one.width * min(1, _TALLEST / one.height)
    return html.Div([
        panel(
            html.Div([
                html.H3(f"Network of {found[0].analysis.model.title}"),
                html.Span(f"{found[0].phase_name(state.phase)} on {found[0].name}; what repeats is one block, with its "
                          "share of the time in all; click an operator" + _left_out(one.idle), className="soft"),
                dcc.RadioItems({"bound": "by bound", "share": "by share of time"}, "bound", id="network-colour",
                               inline=True, className="choices"),
                html.Div(legend, className="choices"),
                *(html.Button(sign, type="button", title=f"{what} the drawing", className=f"quiet zoom {what.lower()}")
                  for sign, what in (("+", "Enlarge"), ("\N{MINUS SIGN}", "Shrink"))),
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
                    className="network", role="img", **_SAID,
                    style={"aspectRatio": f"{one.width:.0f} / {one.height:.0f}", "--width": f"{width:.0f}px"},
                ),
                className="scroll", tabIndex=0,
            ),
        ),
        inspector.place(),
    ], className="beside still")  # fmt: skip


def _left_out(idle: tuple[str, ...]) -> str:
    """What is said of blocks that are not drawn, by the first words of their names."""
    parts = dict.fromkeys(name.partition("_")[0] for name in idle)
    return f"; not drawn, as nothing of it runs here: {', '.join(parts)}" if parts else ""


def register(app: Dash) -> None:
    in_browser(app, "node", Output("op", "value", allow_duplicate=True), Input("network", "tapNodeData"))
    styled = Output("network", "stylesheet")
    in_browser(app, _COLOURED, styled, Input("network-colour", "value"), Input("network-styles", "data"), at_once=True)


TAB: Final = Tab(show=show, register=register)
