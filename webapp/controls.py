"""Controls of the page, one for each field of the state, whose name is the id of the control."""

from __future__ import annotations

from math import log2
from textwrap import shorten
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component
from dash_ag_grid import AgGrid

from llmviewer.expectation.engines import engine_names, find_engine
from llmviewer.parameters import DEGREES
from llmviewer.serving.policy import ORDERS
from llmviewer.serving.routers import ROUTERS

from .fields import AS_PUBLISHED, AT_CONTEXT, FILE_TYPES, FIRST, OPERANDS, SLIDER_MAX_LOG2
from .options import device_options, model_options, task_options, technique_options
from .results import model_catalogue
from .state import FIELD_TYPES, LOADS, MAX_FILE_BYTES, TRAFFIC, IntegerField, State, libraries
from .traffic import example_text
from .views.timeline import MAX_TRACE_BYTES
from .words import CONTROLS, ORDER_LABELS

_FORMAT_LABELS: Final = {
    "16": "16 bits", "8": "int8", "4": "int4", "4g128": "int4, groups of 128", "3g128": "int3, groups of 128",
    "2g128": "int2, groups of 128", "1.58": "ternary (1.58 bits)",
    **{name: f"{name} (llama.cpp)" for name in FILE_TYPES},
}  # fmt: skip
PHASES: Final = {"decode": "Decode", "prefill": "Prefill"}
STEPS: Final = {FIRST: "first", "mean": "mean", "last": "last", AT_CONTEXT: "at context"}
_PASTED_NAMES: Final = {"model": "config", "tasks": "my-task"}  # of files without a name
_PLANNED_DEVICES: Final = {"chosen": "chosen", "priced": "all with a price"}
_RECORDINGS: Final = {"ranks": "ranks of a run", "pair": "before, after"}
_MAX_ERROR_CHARACTERS: Final = 140  # about four lines; longer errors are folded
_FOLDED_ERROR_CHARACTERS: Final = 80
_PRESETS: Final = (
    "W8A16", "W4A16g128", "W3A16g128", "W8A8", "fp8", "W4A8KV4", "W4A4KV4", "nvfp4", "mxfp4", "W1.58A8", "KV8",
    "Q4_K_M", "Q8_0",
)  # fmt: skip
_SWEEPS: Final = {
    "batch": "Curves over batch size", "length": "Curves over prompt length",
    "figure-4": "Figure 4: roofline of operators", "figure-5": "Figure 5: rooflines by data type",
    "figure-6": "Figure 6: memory by precision", "figure-7": "Figure 7: decode time by precision",
    "figure-8": "Figure 8: prefill time by precision",
}  # fmt: skip


def panel(state: State) -> Component:
    """All controls, with the values of a state; the link of the page sets others."""
    return html.Form(
        [
            _control("model", dcc.Dropdown(model_options(()), state.model, id="model", clearable=False, maxHeight=420,
                                           placeholder=f"Search {len(model_catalogue())} models"),
                     drop("model-file", "or drop config.json files here", max_bytes=MAX_FILE_BYTES, multiple=True),
                     _paste("model", "config.json or YAML", hint='{"model_type": "llama", ...}')),
            _control("on", dcc.Dropdown(device_options(()), list(state.on), id="on", multi=True, maxHeight=420,
                                        closeOnSelect=False),
                     drop("on-file", "or drop device YAML files here", max_bytes=MAX_FILE_BYTES, multiple=True),
                     _numbers()),
            _control("phase", _radio("phase", PHASES, state.phase)),
            *(_scaled(name, getattr(state, name)) for name in ("batch", "prompt", "gen")),
            _control("quant", dcc.Input(id="quant", type="text", value="", debounce=True,
                                        placeholder="as published, or W4A16g128", spellCheck=False,
                                        list="known-precisions"),
                     html.Datalist([html.Option(value=text) for text in _PRESETS], id="known-precisions"),
                     html.Div([_operand_control(letter) for letter in OPERANDS], className="parts")),
            _control("attention", _radio("attention", {"flash": "Flash", "eager": "Eager"}, "flash")),
            _control("techniques",
                     dcc.Dropdown(technique_options(), [], id="techniques-chosen", multi=True, maxHeight=420,
                                  placeholder=f"Search {len(technique_options())} techniques"),
                     dcc.Input(id="techniques", type="text", value="", debounce=True, spellCheck=False,
                               placeholder="medusa:heads=4; sparsity")),
            html.Div(id="techniques-about", className="known"),
            html.Details([
                html.Summary("Kernels and measurements"),
                _control("library", dcc.Dropdown(
                    [{"label": name or "most measured", "value": name} for name in libraries()], "", id="library",
                    clearable=False, searchable=False)),
                _control("engine", dcc.Dropdown(
                    [{"label": "none (no gaps between launches)", "value": ""},
                     *({"label": find_engine(name).title, "value": name} for name in engine_names())], "", id="engine",
                    clearable=False, searchable=False)),
                html.Div([
                    _control("memory_fraction",
                             dcc.Input(id="memory_fraction", type="number", value=None, min=0.01, max=1, step="any",
                                       debounce=True, placeholder="the engine's")),
                    *(_integer(name, placeholder="the engine's") for name in
                      ("max_num_seqs", "max_num_batched_tokens", "max_model_len")),
                ], className="row"),
                _control("measured", dcc.Input(id="measured", type="text", value="", debounce=True, spellCheck=False,
                                               placeholder="ttft=40ms, tpot=9ms")),
            ]),
            html.Details([html.Summary("Parallelism"), html.Div([_integer(n) for n in DEGREES], className="row")]),
            html.Details([
                html.Summary("More"),
                _integer("images"),
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
        id="controls", **_aria_label("Settings"),
    )  # fmt: skip


def phases(phase: str, *, generates: bool) -> list[dict[str, str]]:
    """Options of the phase control; a single one, with the value of the current phase, if nothing is generated."""
    choices = PHASES if generates else {phase: "One pass"}
    return [{"label": label, "value": name} for name, label in choices.items()]


def error_text(text: str) -> str | Component:
    """Error of a control; a long one is folded to its beginning and the given value."""
    if len(text) <= _MAX_ERROR_CHARACTERS:
        return text
    _, got, given_value = text.rpartition("; got ")
    beginning = shorten(text, _FOLDED_ERROR_CHARACTERS, placeholder=" \N{HORIZONTAL ELLIPSIS}")
    summary = f"{beginning} got {given_value}" if got and len(given_value) <= _FOLDED_ERROR_CHARACTERS else beginning
    return html.Details([html.Summary(summary, title=text), text])


def sweep_controls(state: State) -> Component:
    """Controls above the sweeps; hidden on other tabs."""
    choices = [{"label": label, "value": name} for name, label in _SWEEPS.items()]
    return html.Div(
        [
            _control("sweep", dcc.Dropdown(choices, state.sweep, id="sweep", clearable=False, searchable=False)),
            _control("curves", _radio("curves", {"devices": "device", "precisions": "precision"}, state.curves)),
        ],
        id="sweeping", className="asked",
    )  # fmt: skip


def precision_controls() -> Component:
    """List of precisions that figures show beside the current one; hidden on tabs that have none."""
    field = dcc.Input(id="quants", type="text", value="", debounce=True, spellCheck=False,
                      placeholder="W8A8; W4A16g128")  # fmt: skip
    return html.Div(_control("quants", field), id="several-precisions")


def step_controls() -> Component:
    """Switch of the decode step that everything below shows; hidden where nothing shows one."""
    return html.Div([_control("step", _radio("step", STEPS, FIRST)), _integer("context")], id="stepped")


def serving_controls(state: State) -> Component:
    """Targets and traffic above the serving curves; hidden on other tabs."""
    percentiles = {name: name for name in ("p50", "p90", "p99")}
    return html.Div(
        [
            html.Div([
                *(_scaled(name, getattr(state, name)) for name in ("ttft", "tpot")),
                _control("within", _radio("within", percentiles, state.within)),
            ], className="asked"),
            html.Div([
                _control("traffic", _radio("traffic", {name: name for name in TRAFFIC}, state.traffic)),
                _integer("session_turns"),
                _control("think_time", dcc.Input(id="think_time", type="text", value="", debounce=True,
                                                 placeholder="0", spellCheck=False)),
                _integer("system_prompt", placeholder="0"),
                _control("tasks", dcc.Dropdown(task_options(()), state.tasks, id="tasks", clearable=False,
                                               searchable=False),
                         drop("tasks-file", "or drop a YAML file here", max_bytes=MAX_FILE_BYTES, multiple=True),
                         _paste("tasks", "YAML", example_text())),
                _control("load", _radio("load", {name: name for name in LOADS}, state.load)),
                _control("rates", dcc.Input(id="rates", type="text", value=state.rates, debounce=True,
                                            spellCheck=False)),
                _integer("prefill_replicas", placeholder="0"),
                _integer("replicas"),
                _control("router", dcc.Dropdown([{"label": name, "value": name} for name in ROUTERS], state.router,
                                                id="router", clearable=False, searchable=False)),
                _control("tenants", dcc.Input(id="tenants", type="text", value="", debounce=True, placeholder="1,2",
                                              spellCheck=False)),
                _control("order", dcc.Dropdown([{"label": ORDER_LABELS[name], "value": name} for name in ORDERS],
                                               state.order, id="order", clearable=False, searchable=False)),
            ], className="asked narrow"),
            html.Div([
                _control("plan_rate", dcc.Input(id="plan_rate", type="number", value=state.plan_rate, step="any",
                                                debounce=True)),
                _integer("plan_most"),
                _control("plan_on", _radio("plan_on", _PLANNED_DEVICES, state.plan_on)),
                html.Div([
                    html.Button("Plan servers", id="plan-start", type="button",
                                title="Devices, precision and layout that serve this rate within the targets"),
                    *progress("plan", "Searches"),
                ], className="pins"),
            ], className="asked narrow planning"),
        ],
        id="serving-controls",
    )  # fmt: skip


def progress(name: str, label: str) -> list[Component]:
    """Progress of long work that page.js asks for in pieces, and the button that stops it."""
    return [
        html.Progress(id=f"{name}-bar", value="0", max="1", **_aria_label(label)),
        html.Span(id=f"{name}-progress", className="soft", role="status"),
        html.Button("Stop", id=f"{name}-stop", type="button", className="quiet stop", disabled=True),
    ]


def trace_controls(state: State) -> Component:
    """Upload of a trace above the timeline; hidden on other tabs."""
    return html.Div(
        [
            html.Div([
                drop("trace", "drop traces here, or metrics of a server; or choose files", max_bytes=MAX_TRACE_BYTES,
                     multiple=True, instead="open larger traces with llmviewer web --trace FILE"),
                html.Div(id="timeline-error", className="error", role="alert"),
            ]),
            html.Div([
                _integer("passes", placeholder="auto"),
                html.Div(id="timeline-passes-error", className="error", role="alert"),
            ]),
            _integer("stage", placeholder="none"),
            _control("recordings", _radio("recordings", _RECORDINGS, state.recordings)),
        ],
        id="tracing", className="asked",
    )  # fmt: skip


def pin_controls() -> Component:
    """Hidden control of the pinned settings, which buttons change."""
    return html.Div(
        [dcc.Input(id="pins", type="hidden", value=""), html.Div(id="error-pins", className="error", role="alert")]
    )


def _aria_label(name: str) -> dict[str, Any]:
    """Name of a component for screen readers."""
    return {"aria-label": name}


def _control(name: str, *widgets: Any) -> Component:
    """A label with help, the widgets, and a place for errors."""
    word = CONTROLS[name]
    return html.Div(
        [
            html.Div([
                html.Label(word.label, htmlFor=name, title=word.about, id=f"label-{name}"),
                html.Details([
                    html.Summary("?", title=word.about, **_aria_label(f"About {word.label}")), html.P(word.about),
                ], className="about"),
            ], className="head"),
            *widgets,
            html.Div(id=f"error-{name}", className="error", role="alert"),
        ],
        className=f"control {name}",
    )  # fmt: skip


def _scaled(name: str, value: int) -> Component:
    """A number with a slider of powers of two."""
    end = SLIDER_MAX_LOG2[name]
    kind = FIELD_TYPES[name]
    assert isinstance(kind, IntegerField)
    step = 2 if end <= 10 else 4
    marks = {power: _tick_label(2**power) for power in range(0, end + 1, step)}
    return _control(
        name,
        html.Div([
            dcc.Slider(0, end, 1, id=f"{name}-slider", value=log2(value), marks=marks, allow_direct_input=False,
                       updatemode="mouseup"),
            dcc.Input(id=name, type="number", value=value, min=kind.minimum, max=kind.maximum, step=1, debounce=True),
        ], className="scaled"),
    )  # fmt: skip


def _tick_label(number: int) -> str:
    return f"{number // 1024}k" if number >= 1024 else str(number)


def _integer(name: str, placeholder: str = "") -> Component:
    """A whole number. The input has no limits: browsers send None beyond them, as for an empty field."""
    kind = FIELD_TYPES[name]
    assert isinstance(kind, IntegerField)
    return _control(
        name,
        dcc.Input(
            id=name, type="number", value=kind.minimum or None, step="any", debounce=True, placeholder=placeholder
        ),
    )


def _radio(name: str, choices: dict[Any, str], value: Any) -> Component:
    options = [{"label": label, "value": choice} for choice, label in choices.items()]
    return dcc.RadioItems(options, value, id=name, inline=True, className="choices")


def _operand_control(letter: str) -> Component:
    """List of the formats of an operand: weights, activations or KV cache."""
    name, shorts = OPERANDS[letter]
    options = [
        {"label": "as published", "value": AS_PUBLISHED},
        *({"label": _FORMAT_LABELS.get(short, short), "value": short} for short in shorts),
    ]
    return html.Div([
        html.Label(name, htmlFor=f"quant-{letter}", className="soft"),
        dcc.Dropdown(options, AS_PUBLISHED, id=f"quant-{letter}", clearable=False, searchable=False),
    ])  # fmt: skip


def _paste(name: str, kind: str, text: str = "", hint: str = "") -> Component:
    """Field for the text of a file, which the browser then treats as a dropped one; `text` to begin with."""
    source: Any = {"data-for": name}
    rows = max(5, text.count("\n"))
    return html.Details([
        html.Summary(f"or {'edit its' if text else 'paste a'} {kind}"),
        dcc.Textarea(id=f"{name}-paste", value=text or None, placeholder=hint, rows=rows, spellCheck=False,
                     title=f"Text of a {kind}"),
        html.Div([
            html.Label("Name", htmlFor=f"{name}-paste-name", className="soft"),
            dcc.Input(id=f"{name}-paste-name", type="text", placeholder=_PASTED_NAMES[name], maxLength=40,
                      spellCheck=False),
            html.Button("Use", type="button", className="paste", title=f"Use this {CONTROLS[name].label.lower()}",
                        **source),
        ], className="pins"),
    ], className="pasting")  # fmt: skip


def drop(name: str, text: str, *, max_bytes: int, instead: str = "", multiple: bool = False) -> Component:
    """Upload of one file or `multiple`. The browser refuses files larger than `max_bytes`, with the hint `instead`."""
    limit: Any = {"data-most": str(max_bytes), "data-instead": instead}
    return html.Div(
        [
            dcc.Upload(text, id=name, max_size=max_bytes, className="drop", multiple=multiple),
            html.Div(className="error", role="alert"),
        ],
        **limit,
    )


def _numbers() -> Component:
    """Editable table of all numbers of the devices."""
    columns = [
        {"field": "key", "headerName": "number", "width": 136, "filter": True, "tooltipField": "key"},
        {"field": "value", "headerName": "value", "editable": True, "width": 98, "cellClass": "editable"},
        {"field": "source", "headerName": "source", "width": 260, "tooltipField": "source"},
        {"field": "device", "headerName": "device", "width": 110},
    ]  # fmt: skip
    return html.Details([
        html.Summary("Device numbers and what-ifs"),
        html.P("Double-click a value to change it: a quantity with unit, or a factor such as 2x. Keep the first device "
               "with its changes as one of your own:", className="soft"),
        html.Div([
            html.Label("Name", htmlFor="device-name", className="soft"),
            dcc.Input(id="device-name", type="text", placeholder="my-device", maxLength=40, spellCheck=False),
            html.Button("Keep", id="keep-device", type="button", title="Keep as a device of your own"),
        ], className="pins"),
        AgGrid(
            id="numbers", columnDefs=columns, rowData=[], className="ag-theme-quartz grid",
            defaultColDef={"sortable": True, "resizable": True}, style={"height": 260},
            dashGridOptions={"rowHeight": 28, "headerHeight": 30, "tooltipShowDelay": 300,
                             "stopEditingWhenCellsLoseFocus": True},
        ),
        html.Label("What-ifs", htmlFor="set"),
        dcc.Dropdown([], [], id="set", multi=True, placeholder="no what-ifs"),
        html.Div(id="error-set", className="error", role="alert"),
        html.Div(id="implausible", role="status"),
    ])  # fmt: skip
