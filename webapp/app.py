"""The page: controls on one side, what is found on the other, and the link that holds all of it.

The server keeps nothing of a request. What a callback needs it is given: the values of the controls, the link of what
was last answered, and the files that the browser holds.
"""

from __future__ import annotations

import base64
import binascii
import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from flask import Flask, Response

from llmviewer import __version__
from llmviewer.errors import InputError
from llmviewer.reports.data import render_csv, render_json
from llmviewer.reports.html import render_html
from llmviewer.reports.text import sentence
from llmviewer.units import counted

from . import controls, state
from .answers import Answer, answers, device, fault, hardware_file, model_file, settled, why_not
from .asked import asked, kept, packed, unpacked
from .tabs import TABS
from .tabs._parts import badge, in_browser, panel, table
from .views import overview
from .words import CONTROLS

_LARGEST_REQUEST: Final = 12_000_000  # of the files of a page, as the browser sends them [B]
_POLICY: Final = (  # nothing from another host; Dash and plotly need the rest
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'; form-action 'self'"
)
_WAITED_FOR: Final[Any] = {"content": "children"}  # not what tabs fill in by themselves
_FIELDS: Final = (*CONTROLS, "set")
_SHOWN: Final = tuple(controls.values(state.State()))  # ids of what shows a part of the state


def create() -> Dash:
    """The page as an application of its own."""
    app = Dash(
        __name__,
        assets_folder=str(Path(__file__).with_name("assets")),
        title="llmviewer",
        update_title="",
        suppress_callback_exceptions=True,  # tabs bring parts of the page with them
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = _layout()
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = _LARGEST_REQUEST
    server.after_request(_guarded)
    _register(app)
    for tab in TABS:
        tab.register(app)
    return app


def _guarded(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _layout() -> Component:
    usual = state.State()
    return html.Div([
        dcc.Location(id="url", refresh=False),
        dcc.Store(id="link"), dcc.Store(id="asked"), dcc.Store(id="files", storage_type="session", data=[]),
        dcc.Download(id="download"),
        html.A("To the results", href="#results", className="skip"),
        html.Header([
            html.H1("llmviewer"),
            html.Span("what bounds a language model on a device, and what would change it", className="soft"),
            html.Div([
                html.Button("Copy link", id="copy", type="button", title="The link opens this page as it is"),
                html.Button("Report", id="save-html", type="button", title="Self-contained HTML, one file a device"),
                html.Button("CSV", id="save-csv", type="button", title="All operators of both phases"),
                html.Button("JSON", id="save-json", type="button", title="All that was found"),
            ], className="buttons"),
        ]),
        html.Div([
            html.Details([html.Summary("Settings"), controls.panel(usual)], open=True, id="settings"),
            html.Main([
                html.Div(id="notices", role="status"),
                html.Div(id="answer"),
                html.Nav(
                    dcc.RadioItems({tab.name: tab.label for tab in TABS}, usual.tab, id="tab", inline=True),
                    className="tabs", title="What of the answer is looked at",
                ),
                html.Div([
                    html.Label(CONTROLS["op"].label, htmlFor="op", title=CONTROLS["op"].about),
                    dcc.Dropdown([], None, id="op", placeholder="the one that takes longest", optionHeight=30),
                    html.Div(id="error-op", className="error", role="alert"),
                ], id="chosen"),
                controls.of_sweeps(usual),
                controls.pinned(),
                dcc.Loading(
                    html.Div(id="content"), delay_show=200, type="dot",
                    target_components=_WAITED_FOR,
                    overlay_style={"visibility": "visible", "opacity": 0.5},
                ),
            ], id="results"),
        ], className="page"),
        html.Footer([
            f"llmviewer {__version__}. All times are lower bounds unless they are called expected. ",
            "Nothing that you enter is kept by the server.",
        ], className="soft"),
    ])  # fmt: skip


def _register(app: Dash) -> None:
    @app.callback(
        output={
            "shown": {name: Output(name, "value") for name in _SHOWN},
            "errors": {name: Output(f"error-{name}", "children") for name in _FIELDS},
            "options": {name: Output(name, "options") for name in ("model", "on", "op", "set")},
            "link": Output("link", "data"),
            "asked": Output("asked", "data"),
            "search": Output("url", "search"),
            "files": Output("files", "data"),
            "notices": Output("notices", "children"),
            "numbers": Output("numbers", "rowData"),
            "known": Output("techniques-about", "children"),
            "dropped": {name: Output(f"{name}-file", "contents") for name in ("model", "on")},
        },
        inputs={
            "search": Input("url", "search"),
            "values": {name: Input(name, "value") for name in _SHOWN},
            "edited": Input("numbers", "cellValueChanged"),
            "dropped": {name: Input(f"{name}-file", "contents") for name in ("model", "on")},
            "names": {name: State(f"{name}-file", "filename") for name in ("model", "on")},
            "link": State("link", "data"),
            "files": State("files", "data"),
        },
    )
    def change(  # noqa: PLR0917 - Dash gives what it names
        search: str | None, values: dict[str, Any], edited: Any, dropped: Any, names: Any, link: str | None, files: Any
    ) -> dict[str, Any]:
        trigger = {one.partition(".")[0] for one in ctx.triggered_prop_ids}
        held = unpacked(files)
        if link is None or trigger == {"url"}:
            read, notices = state.State.of_link(search or "", held)
            if link is not None and read == asked(link, files):
                raise PreventUpdate  # the page itself has written it
            now, more = settled(read)
            held = tuple({one.name: one for one in (*held, *now.files)}.values())
            return _page(now, before=None, values={}, made={}, errors={}, held=held, notices=(*notices, *more))
        before, known, given = asked(link, files), held, dict(values)
        errors: dict[str, str] = {}
        for name in ("model", "on"):
            if f"{name}-file" in trigger and dropped[name]:
                try:
                    held, values[name] = _dropped(name, names[name], dropped[name], held, before)
                except InputError as error:
                    errors[name] = str(error)
                except Exception:  # noqa: BLE001 - the page stays
                    errors[name] = fault(f"a file for {name}")
        _combined(trigger, values, edited, before)
        now, wrong = _changed(before, values, trigger, held)
        held = () if held == known else held
        made = {name: text for name, text in values.items() if text != given[name]}
        return _page(now, before=before, values=given, made=made, errors=errors | wrong, held=held, notices=())

    @app.callback(Output("answer", "children"), Input("asked", "data"), State("files", "data"))
    def answer(link: str | None, files: Any) -> Any:
        if link is None:
            return no_update
        now = asked(link, files)
        return _answer(answers(now), now)

    @app.callback(
        Output("content", "children"), Input("asked", "data"), Input("tab", "value"), State("files", "data"),
    )  # fmt: skip
    def content(link: str | None, tab: str, files: Any) -> Any:
        if link is None:
            return no_update
        now = asked(link, files)
        shown = next((one for one in TABS if one.name == tab), TABS[0])
        return shown.show(answers(now), now)

    for name in ("model", "on"):
        listed = Output(name, "options", allow_duplicate=True)
        in_browser(app, "ranked", listed, Input(name, "search_value"), State(name, "options"))

    @app.callback(
        Output("download", "data"),
        *(Input(f"save-{form}", "n_clicks") for form in ("html", "csv", "json")),
        State("asked", "data"),
        State("files", "data"),
        prevent_initial_call=True,
    )
    def save(_html: Any, _csv: Any, _json: Any, link: str, files: Any) -> Any:
        form = str(ctx.triggered_id).removeprefix("save-")
        render = {"html": render_html, "csv": render_csv, "json": render_json}[form]
        found = [one.analysis for one in answers(asked(link, files))]
        model = found[0].model.name
        made = {f"{model}-{one.hardware.name}.{form}": render(one) for one in found}
        if len(made) == 1:
            return {
                "content": made.popitem()[1],
                "filename": f"{model}-{found[0].hardware.name}.{form}",
                "type": "text/plain",
            }
        return _zipped(f"{model}.zip", made)


def _zipped(name: str, made: Mapping[str, str]) -> dict[str, Any]:
    """Several files as one, for dcc.Download."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for title, text in made.items():
            files.writestr(title, text)
    content = base64.b64encode(archive.getvalue()).decode()
    return {"content": content, "filename": name, "type": "application/zip", "base64": True}


def _dropped(
    name: str, filename: str | None, contents: str, held: tuple[state.File, ...], before: state.State
) -> tuple[tuple[state.File, ...], Any]:
    """The files with one more, and what its control then says.

    Raises InputError where it is not one that can be used.
    """
    title = Path(filename or "file").name[:80]
    try:
        data = base64.b64decode(contents.partition(",")[2], validate=True)
        text = data[: state.LARGEST_FILE + 1].decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InputError(f"{title}: is not a text file") from None
    file = (model_file if name == "model" else hardware_file)(title, text)
    files = (*(one for one in held if one.name != file.name), file)
    called = f"{state.MINE}{file.name}"
    if name == "model":
        return files, called
    return files, [*(one for one in before.on if one != called), called]


def _combined(trigger: set[str], values: dict[str, Any], edited: Any, before: state.State) -> None:
    """Puts what a slider, a part of the precision or a number of a device says into the field that it is of."""
    for name in controls.SLIDERS:
        if f"{name}-slider" in trigger and values[f"{name}-slider"] is not None:
            values[name] = round(2 ** values[f"{name}-slider"])
    parts = {letter: values[f"quant-{letter}"] for letter in controls.PARTS}
    if any(f"quant-{letter}" in trigger for letter in parts):
        values["quant"] = controls.precision_of(parts)
    if "techniques-chosen" in trigger:
        texts = controls.read("techniques", values["techniques"], before)
        values["techniques"] = controls.chosen(values["techniques-chosen"] or (), texts)
    if "numbers" in trigger:
        for cell in edited or ():
            row = cell["data"]
            key = f"{row['device']}:{row['key']}="
            kept_ = [one for one in values["set"] or () if not one.startswith(key)]
            values["set"] = kept_ + ([f"{key}{row['value'].strip()}"] if row["value"] else [])
    if "on" in trigger and not values["on"]:
        values["on"] = list(before.on)  # one device at least


def _changed(
    before: state.State, values: Mapping[str, Any], trigger: set[str], held: tuple[state.File, ...]
) -> tuple[state.State, dict[str, str]]:
    """The state that the controls ask for, as far as it has an answer, and by control what is wrong with the rest."""
    said = {name: controls.read(name, values[name], before) for name in _FIELDS} | {"tab": values["tab"]}
    errors: dict[str, str] = {}
    while True:
        try:
            now = state.State.of(said, held)
            break
        except state.FieldError as error:
            errors[error.name] = str(error)
            said[error.name] = getattr(before, error.name)
    own = {"set" if one == "numbers" else one.partition("-")[0] for one in trigger}
    touched = {name: getattr(now, name) for name in (*_FIELDS, "tab") if name in own}
    blamed = next((name for name in _FIELDS if name in own), "model")
    unread = errors.get(blamed)  # what is wrong with it by itself
    problem = ""
    for near in (now, replace(before, **touched).having(held)):
        found = why_not(near)
        if found:
            problem = problem or found
            errors[blamed] = unread or found
            continue
        if problem:  # what was asked before is the matter, and not what was changed now
            if not unread:
                errors.pop(blamed)
            errors |= {name: problem for name in CONTROLS if getattr(near, name) != getattr(now, name)}
        return near, errors
    return before, errors


def _page(
    now: state.State,
    *,
    before: state.State | None,
    values: Mapping[str, Any],
    made: Mapping[str, Any],
    errors: Mapping[str, str],
    held: tuple[state.File, ...],
    notices: tuple[str, ...],
) -> dict[str, Any]:
    """All that changes on the page when the state does; a control with an error keeps what the user wrote.

    before  what was answered before; None where a link was opened
    values  what the controls show
    made    what sliders and lists say instead, in the controls that they are of
    held    all files that the browser is to hold, where they are others than before
    """
    found = answers(now)
    names = overview.names(found, now.phase)
    now = now if now.op in names else replace(now, op="")
    wanted = controls.values(now)
    wrong = {*errors, *(f"{name}-{part}" for name in errors for part in ("slider", "chosen"))}
    written = {**wanted, **{name: made.get(name, values.get(name)) for name in errors}}
    devices = before is None or (before.on, before.set) != (now.on, now.set) or "set" in errors
    same = () if before is None else [name for name, value in wanted.items() if values.get(name) == value]
    return {
        "shown": {
            **wanted,
            **dict.fromkeys(same, no_update),
            **{name: made.get(name, no_update) for name in wrong & wanted.keys()},
        },
        "errors": {name: errors.get(name, "") for name in _FIELDS},
        "options": {
            "model": controls.model_options(held) if before is None or held else no_update,
            "on": controls.device_options(held) if before is None or held else no_update,
            "op": names,
            "set": list(dict.fromkeys((*now.set, *(before.set if before else ())))),  # or the page drops the value
        },
        "link": now.link,
        "asked": kept(now) if before is None or kept(now) != kept(before) else no_update,
        "search": now.link,
        "files": packed(held) if before is None or held else no_update,
        "notices": [html.P(one, className="notice") for one in notices] if before is None else no_update,
        "numbers": controls.number_rows((name, device(now, name)) for name in now.on) if devices else no_update,
        "known": controls.known_of(controls.read("techniques", written["techniques"], now)),
        "dropped": {"model": None, "on": None},
    }


def _answer(found: tuple[Answer, ...], now: state.State) -> list[Component]:
    """The totals, and in a sentence what bounds the phase and what would help."""
    first = found[0]
    what, how = overview.asked(found)
    several = [html.P(f"On {first.name}, the first of {len(found)} devices:", className="soft")] * (len(found) > 1)
    cards = html.Dl(
        [
            html.Div([
                html.Dt(card.label),
                html.Dd([*([f"{card.sign}\N{NO-BREAK SPACE}"] if card.sign else []), html.Span(card.value)],
                        className="alarm" if card.alarm else ""),
                *([html.Dd(badge(card.bound))] if card.bound else []),
                *([html.Dd(f"expect {card.expected}", className="expected")] if card.expected else []),
                html.Dd(card.about),
            ], className="card")
            for card in overview.cards(first)
        ],
        className="cards",
    )  # fmt: skip
    said = [html.Li(sentence(note)) for note in first.analysis.notes]
    notes = html.Details([html.Summary(counted(len(said), "note")), html.Ul(said)])
    effects = [html.Li([html.Strong(f"{label} "), text]) for label, text in overview.effects(first)]
    return [
        html.H2([what, " ", html.Span(how, className="soft")]),
        cards if len(found) == 1 else panel(_totals(found, now.phase), className="totals"),
        panel(*several, html.P(overview.advice(first, now.phase), id="advice"),
              *([html.Ul(effects, className="said")] if effects else []), className="bounds"),
        html.P(overview.sources(found), className="soft"),
        *([notes] if said else []),
    ]  # fmt: skip


def _totals(found: tuple[Answer, ...], phase: str) -> Component:
    """A line for each device."""
    lines = [
        tuple(
            [
                html.Span(one.value, className="alarm") if one.alarm else one.value,
                *([html.Span(one.more, className="more")] if one.more else []),
            ]
            for one in line
        )
        for line in overview.totals(found, phase)
    ]
    return table(lines)
