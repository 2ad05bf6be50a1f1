"""The controls of the page, one for each field of a state and its name for an id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import log2
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component
from dash_ag_grid import AgGrid

from llmviewer.errors import InputError
from llmviewer.expectation.engines import ENGINES
from llmviewer.hardware import Hardware
from llmviewer.layout import DEGREES
from llmviewer.precision import Format, Scheme, parse_scheme
from llmviewer.reports.techniques import describe
from llmviewer.techniques import techniques
from llmviewer.transforms.mixtures import MIXTURES
from llmviewer.transforms.quantize import as_typed, parse_quantization
from llmviewer.units import si

from .answers import hardware_catalogue, model_catalogue
from .state import KINDS, LARGEST_FILE, MINE, File, Fraction, Number, State, libraries
from .words import CONTROLS

SLIDERS: Final = {"batch": 10, "prompt": 17, "gen": 14}  # log2 of where they end
_FILE_TYPES: Final = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ3_M", "Q2_K")  # of llama.cpp's, those most used
PARTS: Final = {  # of a precision: the letter of each, and what it can be in short
    "W": ("weights", ("16", "fp8", "8", "4g128", "nf4", "nvfp4", "mxfp4", "3g128", "2g128", "1.58", *_FILE_TYPES)),
    "A": ("activations", ("16", "fp8", "8", "nvfp4", "4")),
    "KV": ("KV cache", ("16", "fp8", "8", "4")),
}
_NAMES: Final = {
    "16": "16 bits", "8": "int8", "4": "int4", "4g128": "int4, groups of 128", "3g128": "int3, groups of 128",
    "2g128": "int2, groups of 128", "1.58": "ternary (1.58 bits)",
    **{name: f"llama.cpp's {name}" for name in _FILE_TYPES},
}  # fmt: skip
_PRESETS: Final = (
    "W8A16", "W4A16g128", "W3A16g128", "W8A8", "fp8", "W4A8KV4", "W4A4KV4", "nvfp4", "mxfp4", "W1.58A8", "KV8",
    "Q4_K_M", "Q8_0",
)  # fmt: skip
_BETWEEN: Final = {"techniques": ";", "quants": ";", "pins": "|"}  # what stands between several, in one text
_SWEEPS: Final = {
    "batch": "Curves along the batch", "length": "Curves along the length",
    "figure-4": "Figure 4: roofline of operators", "figure-5": "Figure 5: rooflines by data type",
    "figure-6": "Figure 6: memory by precision", "figure-7": "Figure 7: decode time by precision",
    "figure-8": "Figure 8: prefill time by precision",
}  # fmt: skip
_FILES: Final = ("lengths",)  # techniques that read a file, which a page cannot
_EXAMPLES: Final = {  # of techniques that need to be told something
    "speculative": "draft=llama-3.2-1b,gamma=4,alpha=0.7", "window": "size=4096", "quantized": "scheme=awq",
    "structured-pruning": "ffn=0.75",
}  # fmt: skip
_USUAL: Final = "usual"  # a choice that leaves it to the model


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
            _control("phase", _radio("phase", {"decode": "Decode", "prefill": "Prefill"}, state.phase)),
            *(_scaled(name, getattr(state, name)) for name in SLIDERS),
            _control("quant", dcc.Input(id="quant", type="text", value="", debounce=True,
                                        placeholder="as published, or W4A16g128", spellCheck=False,
                                        list="known-precisions"),
                     html.Datalist([html.Option(value=text) for text in _PRESETS], id="known-precisions"),
                     html.Div([_part(letter) for letter in PARTS], className="parts")),
            _control("attention", _radio("attention", {"flash": "Flash", "eager": "Eager"}, "flash")),
            _control("techniques",
                     dcc.Dropdown(technique_options(), [], id="techniques-chosen", multi=True, maxHeight=420,
                                  placeholder=f"Search {len(techniques()) - len(_FILES)} of them"),
                     dcc.Input(id="techniques", type="text", value="", debounce=True, spellCheck=False,
                               placeholder="medusa:heads=4; sparsity")),
            html.Div(id="techniques-about", className="known"),
            html.Details([
                html.Summary("Kernels"),
                _control("library", dcc.Dropdown(
                    [{"label": name or "measured most", "value": name} for name in libraries()], "", id="library",
                    clearable=False, searchable=False)),
                _control("engine", dcc.Dropdown(
                    [{"label": "none: no gaps between launches", "value": ""},
                     *({"label": one.title, "value": name} for name, one in ENGINES.items())], "", id="engine",
                    clearable=False, searchable=False)),
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
        id="sweeping",
    )  # fmt: skip


def pinned() -> Component:
    """The settings that are pinned, which buttons change."""
    return html.Div(
        [dcc.Input(id="pins", type="hidden", value=""), html.Div(id="error-pins", className="error", role="alert")]
    )


def values(state: State) -> dict[str, Any]:
    """What each control shows in a state, by its id."""
    shown = {name: getattr(state, name) for name in CONTROLS}
    parts = precision_parts(state.quant)
    return {
        **shown,
        "on": list(state.on),
        "set": list(state.set),
        "context": state.context or None,
        "op": state.op or None,
        "attention": state.attention or ("eager" if state.accounting == "survey" else "flash"),
        "mtp": int(state.mtp),
        "techniques": "; ".join(state.techniques),
        "techniques-chosen": named(state.techniques),
        "quants": "; ".join(state.quants),
        "pins": "|".join(state.pins),
        **{f"{name}-slider": min(log2(shown[name]), end) for name, end in SLIDERS.items()},
        **{f"quant-{letter}": part for letter, part in parts.items()},
        "tab": state.tab,
    }


def read(name: str, value: Any, of: State) -> Any:
    """What a control that shows `value` says for the field of that name."""
    if name == "context":
        return value or 0
    if name == "mtp":
        return bool(value)
    if name == "attention":
        return "" if value == values(State(accounting=of.accounting))["attention"] else value
    if name in _BETWEEN:
        return [part.strip() for part in (value or "").split(_BETWEEN[name]) if part.strip()]
    if name in ("on", "set"):
        return value or []
    return "" if value is None and not isinstance(KINDS[name], Number | Fraction) else value


def precision_parts(quant: str) -> dict[str, str]:
    """What a precision is made of, as far as there are short names for it."""
    if not quant:
        return dict.fromkeys(PARTS, _USUAL)
    try:
        asked = parse_quantization(quant)
    except InputError:
        return dict.fromkeys(PARTS, _USUAL)
    scheme, mixture = asked.scheme, asked.mixture
    stored = zip(PARTS, (scheme.weight, scheme.activation, scheme.kv_cache), strict=True)
    parts = {
        letter: next((short for short, fmt in _formats(letter).items() if fmt == own), _USUAL) for letter, own in stored
    }
    return parts | {"W": mixture.name} if mixture and mixture.name in _FILE_TYPES else parts


@cache
def _formats(letter: str) -> dict[str, Format | None]:
    """What the short names of a part stand for."""
    schemes = {short: parse_scheme(f"{letter}{short}") for short in PARTS[letter][1] if short not in _FILE_TYPES}
    return {short: one.weight or one.activation or one.kv_cache for short, one in schemes.items()}


def precision_of(parts: dict[str, str]) -> str:
    """The notation for parts by their letters."""
    weight, activation, cache = (_formats(letter).get(parts.get(letter, _USUAL)) for letter in PARTS)
    return as_typed(Scheme(weight=weight, activation=activation, kv_cache=cache), MIXTURES.get(parts.get("W", _USUAL)))


def named(texts: Iterable[str]) -> list[str]:
    """The techniques that some texts are of."""
    return list(dict.fromkeys(text.partition(":")[0].strip() for text in texts))


def chosen(names: Sequence[str], texts: Sequence[str]) -> str:
    """The text of techniques by their names, those among `texts` as they are and others with what they need."""
    own = {text.partition(":")[0].strip(): text for text in texts}
    usual = {name: f"{name}:{_EXAMPLES[name]}" if name in _EXAMPLES else name for name in names}
    return "; ".join(own.get(name, usual[name]) for name in names)


def technique_options() -> list[dict[str, Any]]:
    """Techniques to choose from, found by their names and by what they do."""
    return [
        {
            "label": html.Span([name, html.Span(f" {about}", className="soft")], title=about),
            "value": name,
            "search": f"{name} {about}",
        }
        for name, kind in techniques().items()
        if name not in _FILES
        for about in [_unmarked(describe(kind)["summary"])]
    ]


def known_of(texts: Iterable[str]) -> list[Component]:
    """What there is to know of techniques: what they do, and their parameters."""
    known = techniques()
    return [
        html.Details([
            html.Summary(html.Code(name)), html.P(_unmarked(about["summary"])),
            html.Ul([
                html.Li([html.Code(one["name"]), f" {_unmarked(one['about'])}", *_limits(one)])
                for one in about["parameters"]
            ]),
        ])
        for name in named(texts) if name in known
        for about in [describe(known[name])]
    ]  # fmt: skip


def _unmarked(text: str) -> str:
    """Without the marks of code."""
    return text.replace("`", "")


def _limits(parameter: dict[str, Any]) -> list[str]:
    given = "must be given" if parameter["required"] else f"{parameter['default']} if not given"
    told = [given] if parameter["required"] or parameter["default"] not in (None, "") else []
    return [f" ({'; '.join(filter(None, (parameter['limits'], *told)))})"] if told or parameter["limits"] else []


def model_options(files: Iterable[File]) -> list[dict[str, str]]:
    """Models to choose from, the user's own first; found by their titles and by their names."""
    own = [{"label": f"{file.name} (yours)", "value": f"{MINE}{file.name}"} for file in files if file.is_model]
    return own + [
        {
            "label": f"{title} \N{MIDDLE DOT} {_billions(parameters)}",
            "value": name,
            "search": f"{name} {title}",
        }
        for name, (title, parameters) in model_catalogue().items()
    ]


def device_options(files: Iterable[File]) -> list[dict[str, str]]:
    own = [{"label": f"{file.name} (yours)", "value": f"{MINE}{file.name}"} for file in files if not file.is_model]
    return own + [
        {
            "label": f"{device.title} \N{MIDDLE DOT} {si(device.bandwidth())}B/s",
            "value": name,
            "search": f"{name} {device.title} {' '.join(device.aliases)}",
        }
        for name, device in hardware_catalogue().items()
    ]


def _billions(parameters: int) -> str:
    """As the field has it: 70.6B, 124M."""
    return si(parameters).replace(" ", "").replace("G", "B")


def number_rows(devices: Iterable[tuple[str, Hardware]]) -> list[dict[str, str]]:
    """Every number of some devices, as their files have it, with its source; first those that most depends on."""
    rows = [
        {
            "device": name,
            "key": fact.key,
            "value": fact.text,
            "source": fact.note if not fact.source else str(device.sources[fact.source]),
        }
        for name, device in devices
        for fact in device.facts
        if isinstance(fact.value, float)
    ]
    order = ("memory", "matrix", "vector", "scale_up", "scale_out", "host", "storage")
    rank = {section: place for place, section in enumerate(order)}
    return sorted(rows, key=lambda row: rank.get(row["key"].partition(".")[0], len(order)))


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
    kind = KINDS[name]
    assert isinstance(kind, Number)
    return _control(
        name,
        dcc.Input(
            id=name, type="number", value=kind.least or None, min=kind.least, max=kind.most, step=1, debounce=True,
            placeholder=placeholder,
        ),
    )  # fmt: skip


def _radio(name: str, choices: dict[Any, str], value: Any) -> Component:
    options = [{"label": label, "value": choice} for choice, label in choices.items()]
    return dcc.RadioItems(options, value, id=name, inline=True, className="choices")


def _part(letter: str) -> Component:
    name, shorts = PARTS[letter]
    options = [
        {"label": "as published", "value": _USUAL},
        *({"label": _NAMES.get(short, short), "value": short} for short in shorts),
    ]
    return html.Div([
        html.Label(name, htmlFor=f"quant-{letter}", className="soft"),
        dcc.Dropdown(options, _USUAL, id=f"quant-{letter}", clearable=False, searchable=False),
    ])  # fmt: skip


def drop(name: str, text: str, *, most: int) -> Component:
    """Where a file is dropped or chosen. One of more than `most` bytes stays in the browser, which says so."""
    limit: Any = {"data-most": str(most)}
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
