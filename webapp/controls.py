"""The controls of the page, one for each field of a state and its name for an id."""

from __future__ import annotations

from math import log2
from textwrap import shorten
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component
from dash_ag_grid import AgGrid

from llmviewer.expectation.engines import ENGINES
from llmviewer.parameters import DEGREES

from .answers import model_catalogue
from .fields import FILE_TYPES, PARTS, SLIDERS, USUAL
from .options import device_options, model_options, technique_options
from .state import KINDS, LARGEST_FILE, Number, State, libraries
from .views.timeline import LARGEST
from .words import CONTROLS

_NAMES: Final = {
    "16": "16 bits", "8": "int8", "4": "int4", "4g128": "int4, groups of 128", "3g128": "int3, groups of 128",
    "2g128": "int2, groups of 128", "1.58": "ternary (1.58 bits)",
    **{name: f"llama.cpp's {name}" for name in FILE_TYPES},
}  # fmt: skip
PHASES: Final = {"decode": "Decode", "prefill": "Prefill"}
_LONG: Final = 140  # of what is wrong with a control; it is some four lines
_BEGINNING: Final = 80  # of what is longer
_PRESETS: Final = (
    "W8A16", "W4A16g128", "W3A16g128", "W8A8", "fp8", "W4A8KV4", "W4A4KV4", "nvfp4", "mxfp4", "W1.58A8", "KV8",
    "Q4_K_M", "Q8_0",
)  # fmt: skip
_SWEEPS: Final = {
    "batch": "Curves along the batch", "length": "Curves along the length",
    "figure-4": "Figure 4: roofline of operators", "figure-5": "Figure 5: rooflines by data type",
    "figure-6": "Figure 6: memory by precision", "figure-7": "Figure 7: decode time by precision",
    "figure-8": "Figure 8: prefill time by precision",
}  # fmt: skip


def panel(state: State) -> Component:
    """All controls. The page fills in what its link says."""
    return html.Form(
        [
            _control("model", dcc.Dropdown(model_options(()), state.model, id="model", clearable=False, maxHeight=420,
                                           placeholder=f"Search {len(model_catalogue())} models"),
                     drop("model-file", "or drop a config.json here", most=LARGEST_FILE)),
            _control("on", dcc.Dropdown(device_options(()), list(state.on), id="on", multi=True, maxHeight=420,
                                        closeOnSelect=False),
                     drop("on-file", "or drop a device YAML here", most=LARGEST_FILE), _numbers()),
            _control("phase", _radio("phase", PHASES, state.phase)),
            *(_scaled(name, getattr(state, name)) for name in SLIDERS),
            _control("quant", dcc.Input(id="quant", type="text", value="", debounce=True,
                                        placeholder="as published, or W4A16g128", spellCheck=False,
                                        list="known-precisions"),
                     html.Datalist([html.Option(value=text) for text in _PRESETS], id="known-precisions"),
                     html.Div([_part(letter) for letter in PARTS], className="parts")),
            _control("attention", _radio("attention", {"flash": "Flash", "eager": "Eager"}, "flash")),
            _control("techniques",
                     dcc.Dropdown(technique_options(), [], id="techniques-chosen", multi=True, maxHeight=420,
                                  placeholder=f"Search {len(technique_options())} of them"),
                     dcc.Input(id="techniques", type="text", value="", debounce=True, spellCheck=False,
                               placeholder="medusa:heads=4; sparsity")),
            html.Div(id="techniques-about", className="known"),
            html.Details([
                html.Summary("Kernels and measured times"),
                _control("library", dcc.Dropdown(
                    [{"label": name or "measured most", "value": name} for name in libraries()], "", id="library",
                    clearable=False, searchable=False)),
                _control("engine", dcc.Dropdown(
                    [{"label": "none: no gaps between launches", "value": ""},
                     *({"label": one.title, "value": name} for name, one in ENGINES.items())], "", id="engine",
                    clearable=False, searchable=False)),
                _control("measured", dcc.Input(id="measured", type="text", value="", debounce=True, spellCheck=False,
                                               placeholder="ttft=40ms, tpot=9ms")),
            ]),
            html.Details([html.Summary("Parallelism"), html.Div([_integer(n) for n in DEGREES], className="row")]),
            html.Details([
                html.Summary("More"),
                _integer("context", placeholder="first step's"), _integer("images"),
                _control("mla", _radio("mla", {w: w.capitalize() for w in ("auto", "naive", "absorbed")}, "auto")),
                _control("accounting",
                         _radio("accounting", {"faithful": "Faithful", "survey": "Survey"}, "faithful")),
                _control("skew", dcc.Input(id="skew", type="number", value=0, min=0, max=10, step="any",
                                           debounce=True)),
                _control("offload", dcc.Input(id="offload", type="text", value="", debounce=True,
                                              placeholder="weights=0.5,kv=0.2", spellCheck=False)),
                _control("mtp", _radio("mtp", {0: "Off", 1: "On"}, 0)),
            ]),
        ],
        id="controls", **_named("What is asked"),
    )  # fmt: skip


def phases(shown: str, *, generates: bool) -> list[dict[str, str]]:
    """What there is to choose of phases; of a model that does not generate one alone, which stands for that `shown`."""
    choices = PHASES if generates else {shown: "One pass"}
    return [{"label": label, "value": name} for name, label in choices.items()]


def mistake(text: str) -> str | Component:
    """What is wrong with a control: of what is long its beginning and what was given, which open to all of it."""
    if len(text) <= _LONG:
        return text
    _, got, given = text.rpartition("; got ")
    beginning = shorten(text, _BEGINNING, placeholder=" \N{HORIZONTAL ELLIPSIS}")
    short = f"{beginning} got {given}" if got and len(given) <= _BEGINNING else beginning
    return html.Details([html.Summary(short, title=text), text])


def of_sweeps(state: State) -> Component:
    """What the sweeps show. It stands above them, and is hidden elsewhere."""
    choices = [{"label": label, "value": name} for name, label in _SWEEPS.items()]
    return html.Div(
        [
            _control("sweep", dcc.Dropdown(choices, state.sweep, id="sweep", clearable=False, searchable=False)),
            _control("curves", _radio("curves", {"devices": "device", "precisions": "precision"}, state.curves)),
            _control("quants", dcc.Input(id="quants", type="text", value="", debounce=True, spellCheck=False,
                                         placeholder="W16A16; W8A16; W4A16")),
        ],
        id="sweeping", className="asked",
    )  # fmt: skip


def of_trace() -> Component:
    """The trace that the timeline is of. It stands above it, and is hidden elsewhere."""
    return html.Div(
        [
            html.Div([
                drop("trace", "drop a trace here, or choose a file", most=LARGEST,
                     instead="llmviewer web --trace FILE reads a larger one where it is"),
                html.Div(id="timeline-error", className="error", role="alert"),
            ]),
            _integer("passes", placeholder="counted"), _integer("stage", placeholder="none"),
        ],
        id="tracing", className="asked",
    )  # fmt: skip


def pinned() -> Component:
    """The settings that are pinned, which buttons change."""
    return html.Div(
        [dcc.Input(id="pins", type="hidden", value=""), html.Div(id="error-pins", className="error", role="alert")]
    )


def _named(name: str) -> dict[str, Any]:
    """What a screen reader calls a component."""
    return {"aria-label": name}


def _control(name: str, *widgets: Any) -> Component:
    """A label, its explanation, the widgets, and a place for what is wrong with them."""
    word = CONTROLS[name]
    return html.Div(
        [
            html.Div([
                html.Label(word.label, htmlFor=name, title=word.about, id=f"label-{name}"),
                html.Details([
                    html.Summary("?", title=word.about, **_named(f"About {word.label}")), html.P(word.about),
                ], className="about"),
            ], className="head"),
            *widgets,
            html.Div(id=f"error-{name}", className="error", role="alert"),
        ],
        className=f"control {name}",
    )  # fmt: skip


def _scaled(name: str, value: int) -> Component:
    """A number, and a slider that doubles it."""
    end = SLIDERS[name]
    kind = KINDS[name]
    assert isinstance(kind, Number)
    each = 2 if end <= 10 else 4
    marks = {power: _short(2**power) for power in range(0, end + 1, each)}
    return _control(
        name,
        html.Div([
            dcc.Slider(0, end, 1, id=f"{name}-slider", value=log2(value), marks=marks, allow_direct_input=False,
                       updatemode="mouseup"),
            dcc.Input(id=name, type="number", value=value, min=kind.least, max=kind.most, step=1, debounce=True),
        ], className="scaled"),
    )  # fmt: skip


def _short(number: int) -> str:
    return f"{number // 1024}k" if number >= 1024 else str(number)


def _integer(name: str, placeholder: str = "") -> Component:
    """Without limits, beyond which a browser says of a number only that there is none, as of a field left empty."""
    kind = KINDS[name]
    assert isinstance(kind, Number)
    return _control(
        name,
        dcc.Input(id=name, type="number", value=kind.least or None, step="any", debounce=True, placeholder=placeholder),
    )


def _radio(name: str, choices: dict[Any, str], value: Any) -> Component:
    options = [{"label": label, "value": choice} for choice, label in choices.items()]
    return dcc.RadioItems(options, value, id=name, inline=True, className="choices")


def _part(letter: str) -> Component:
    name, shorts = PARTS[letter]
    options = [
        {"label": "as published", "value": USUAL},
        *({"label": _NAMES.get(short, short), "value": short} for short in shorts),
    ]
    return html.Div([
        html.Label(name, htmlFor=f"quant-{letter}", className="soft"),
        dcc.Dropdown(options, USUAL, id=f"quant-{letter}", clearable=False, searchable=False),
    ])  # fmt: skip


def drop(name: str, text: str, *, most: int, instead: str = "") -> Component:
    """Where a file is dropped or chosen. One of more than `most` bytes stays in the browser, which says so, and what to
    do `instead`.
    """
    limit: Any = {"data-most": str(most), "data-instead": instead}
    return html.Div(
        [dcc.Upload(text, id=name, max_size=most, className="drop"), html.Div(className="error", role="alert")], **limit
    )


def _numbers() -> Component:
    """Every number of the devices, to be changed in place."""
    columns = [
        {"field": "key", "headerName": "number", "width": 136, "filter": True, "tooltipField": "key"},
        {"field": "value", "headerName": "value", "editable": True, "width": 98, "cellClass": "editable"},
        {"field": "source", "headerName": "source", "width": 260, "tooltipField": "source"},
        {"field": "device", "headerName": "device", "width": 110},
    ]  # fmt: skip
    return html.Details([
        html.Summary("Numbers of the devices, what if"),
        html.P("Double-click a value. A quantity with its unit, or a factor such as 2x.", className="soft"),
        AgGrid(
            id="numbers", columnDefs=columns, rowData=[], className="ag-theme-quartz grid",
            defaultColDef={"sortable": True, "resizable": True}, style={"height": 260},
            dashGridOptions={"rowHeight": 28, "headerHeight": 30, "tooltipShowDelay": 300,
                             "stopEditingWhenCellsLoseFocus": True},
        ),
        html.Label("What-ifs", htmlFor="set"),
        dcc.Dropdown([], [], id="set", multi=True, placeholder="no what-ifs"),
        html.Div(id="error-set", className="error", role="alert"),
    ])  # fmt: skip
