"""The page as an application: what a callback is given, and what it changes.

The server keeps nothing of a request. What a callback needs it is given: the values of the controls, the link of what
was last answered, and the files that the browser holds.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dash import Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate
from flask import Flask

from llmviewer.errors import InputError
from llmviewer.reports.analysis import REPORT

from . import controls, edits, fields, options, page
from .answers import answers, device, fault, settled
from .asked import asked, kept
from .fields import FIELDS
from .payloads import files_of, packed
from .security import guard
from .state import MOST_FILES, File
from .state import State as PageState
from .tabs import TABS
from .tabs._parts import in_browser
from .tabs.timeline import TRACE
from .views import overview
from .work import MOST_OF_CHANGE_S, begin

_SHOWN: Final = tuple(fields.values(PageState()))  # ids of what shows a part of the state


def create(trace: Path | None = None, hosts: Sequence[str] = ()) -> Dash:
    """The page as an application of its own.

    trace  the file that it shows as a timeline until another is dropped in
    hosts  names that requests may give as their host; any if empty
    """
    app = Dash(
        __name__,
        assets_folder=str(Path(__file__).with_name("assets")),
        title="llmviewer",
        update_title="",
        suppress_callback_exceptions=True,  # tabs bring parts of the page with them
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = page.layout()
    server: Flask = app.server
    server.config[TRACE] = trace
    for register in (_asking, _answering, _saving):
        register(app)
    for tab in TABS.values():
        tab.register(app)
    guard(app, hosts)
    return app


def _asking(app: Dash) -> None:
    """What is asked, and the link that holds it, by what the controls say."""

    @app.callback(
        output={
            "shown": {name: Output(name, "value") for name in _SHOWN},
            "errors": {name: Output(f"error-{name}", "children") for name in FIELDS},
            "options": {name: Output(name, "options") for name in ("model", "on", "op", "set", "phase")},
            "idle": {name: Output(name, "disabled") for name in ("gen", "gen-slider")},
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
        begin(MOST_OF_CHANGE_S)
        trigger = {one.partition(".")[0] for one in ctx.triggered_prop_ids}
        held = files_of(files)
        if link is None or trigger == {"url"}:
            read, notices = PageState.of_link(search or "", held)
            if link is not None and read == asked(link, files):
                raise PreventUpdate  # the page itself has written it
            now, more = settled(read)
            held = tuple({one.name: one for one in (*held, *now.files)}.values())[-MOST_FILES:]
            return _shown(now, before=None, values={}, made={}, errors={}, held=held, notices=(*notices, *more))
        before, known, given = asked(link, files), held, dict(values)
        errors: dict[str, str] = {}
        for name in ("model", "on"):
            if f"{name}-file" in trigger and dropped[name]:
                try:
                    held, values[name] = edits.dropped(name, names[name], dropped[name], held, before)
                except InputError as error:
                    errors[name] = str(error)
                except Exception:  # noqa: BLE001 - the page stays
                    errors[name] = fault(f"a file for {name}")
        edits.combined(trigger, values, edited, before)
        now, wrong = edits.changed(before, values, trigger, held)
        held = () if held == known else held
        made = {name: text for name, text in values.items() if text != given[name]}
        return _shown(now, before=before, values=given, made=made, errors=errors | wrong, held=held, notices=())


def _shown(
    now: PageState,
    *,
    before: PageState | None,
    values: Mapping[str, Any],
    made: Mapping[str, Any],
    errors: Mapping[str, str],
    held: tuple[File, ...],
    notices: tuple[str, ...],
) -> dict[str, Any]:
    """All that changes on the page when the state does; a control with an error keeps what the user wrote.

    before  what was answered before; None where a link was opened
    values  what the controls show
    made    what sliders and lists say instead, in the controls that they are of
    held    all files that the browser is to hold, where they are others than before
    """
    found = answers(now)
    names, generates = overview.names(found, now.phase), found[0].analysis.model.generates
    now = now if now.op in names else replace(now, op="")
    wanted = fields.values(now)
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
        "errors": {name: controls.mistake(errors.get(name, "")) for name in FIELDS},
        "options": {
            "model": options.model_options(held) if before is None or held else no_update,
            "on": options.device_options(held) if before is None or held else no_update,
            "op": options.operator_options(names, now.op),
            "set": list(dict.fromkeys((*now.set, *(before.set if before else ())))),  # or the page drops the value
            "phase": controls.phases(now.phase, generates=generates),
        },
        "idle": dict.fromkeys(("gen", "gen-slider"), not generates),
        "link": now.link,
        "asked": kept(now) if before is None or kept(now) != kept(before) else no_update,
        "search": now.link,
        "files": packed(held) if before is None or held else no_update,
        "notices": [html.P(one, className="notice") for one in notices] if before is None else no_update,
        "numbers": options.number_rows((name, device(now, name)) for name in now.on) if devices else no_update,
        "known": options.known_of(fields.read("techniques", written["techniques"], now)),
        "dropped": {"model": None, "on": None},
    }


def _answering(app: Dash) -> None:
    """What is found, and the tab that shows it."""

    @app.callback(Output("answer", "children"), Input("asked", "data"), State("files", "data"))
    def answer(link: str | None, files: Any) -> Any:
        if link is None:
            return no_update
        now = asked(link, files)
        return page.answer(answers(now), now)

    @app.callback(
        Output("content", "children"), Input("asked", "data"), Input("tab", "value"), State("files", "data"),
    )  # fmt: skip
    def content(link: str | None, tab: str, files: Any) -> Any:
        if link is None:
            return no_update
        now = asked(link, files)
        return TABS.get(tab, TABS["overview"]).show(answers(now), now)

    for name in ("model", "on"):
        listed = Output(name, "options", allow_duplicate=True)
        in_browser(app, "ranked", listed, Input(name, "search_value"), State(name, "options"))


def _saving(app: Dash) -> None:
    """What is found, as files."""

    @app.callback(
        Output("download", "data"),
        *(Input(f"save-{form}", "n_clicks") for form in ("html", "csv", "json")),
        State("asked", "data"),
        State("files", "data"),
        prevent_initial_call=True,
    )
    def save(_html: Any, _csv: Any, _json: Any, link: str, files: Any) -> Any:
        form = str(ctx.triggered_id).removeprefix("save-")
        render = {"html": REPORT.html, "csv": REPORT.csv, "json": REPORT.json}.get(form)
        if render is None:  # nothing was clicked
            raise PreventUpdate
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
    # Each page has its own copy of plotly.js: by default they would take 2.4 times as long to save 14 %.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as files:
        for title, text in made.items():
            files.writestr(title, text)
    content = base64.b64encode(archive.getvalue()).decode()
    return {"content": content, "filename": name, "type": "application/zip", "base64": True}
