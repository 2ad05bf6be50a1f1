"""The page as a Dash application and its callbacks.

The server stores nothing between requests. Each callback receives the values of the controls, the link of the last
valid state and the files that the browser stores.
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
from llmviewer.reports.side_by_side import comparison_page

from . import controls, edits, fields, options, page
from .cpu_limit import CHANGE_LIMIT_S, start_limit
from .delivery import deliver, load_on_demand
from .errors import error_line
from .fields import CONTROL_FIELDS
from .page_state import analysis_link, shown_state
from .payloads import files_of, packed
from .results import device, device_results, nearest_valid
from .security import guard
from .settings import Settings
from .state import MAX_FILES, File
from .state import State as PageState
from .tabs import TABS
from .tabs.components import register_clientside
from .tabs.timeline import TRACE
from .views import compare, overview

_DROPPED: Final = ("model", "on", "tasks")  # controls that take files
_CONTROL_IDS: Final = tuple(fields.control_values(PageState()))  # ids of the controls that show the state


def create(trace: Path | None = None, hosts: Sequence[str] = (), settings: Settings | None = None) -> Dash:
    """Creates the application.

    trace     profiler trace that the timeline tab shows until another one is uploaded
    hosts     names that requests may give as their host; any if empty
    settings  of the server; those of the environment if None
    """
    settings = settings or Settings.of_environment()
    app = Dash(
        __name__,
        requests_pathname_prefix=settings.prefix,
        routes_pathname_prefix="/",
        assets_folder=str(Path(__file__).with_name("assets")),
        title="llmviewer",
        update_title="",
        suppress_callback_exceptions=True,  # tabs add components later
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    load_on_demand(app)
    app.layout = page.layout()
    server: Flask = app.server
    server.config[TRACE] = trace
    for register in (_register_state, _register_results, _register_saving):
        register(app)
    for tab in TABS.values():
        tab.register(app)
    guard(app, hosts or settings.hosts, max_bytes=settings.max_request_bytes, limit_s=settings.cpu_limit_s)
    deliver(app, log=settings.log)
    return app


def _register_state(app: Dash) -> None:
    """Registers the callback from controls to the page state and its link."""

    @app.callback(
        output={
            "shown": {name: Output(name, "value") for name in _CONTROL_IDS},
            "errors": {name: Output(f"error-{name}", "children") for name in CONTROL_FIELDS},
            "options": {name: Output(name, "options") for name in ("model", "on", "tasks", "op", "set", "phase")},
            "idle": {name: Output(name, "disabled") for name in ("gen", "gen-slider")},
            "link": Output("link", "data"),
            "asked": Output("asked", "data"),
            "search": Output("url", "search"),
            "files": Output("files", "data"),
            "notices": Output("notices", "children"),
            "numbers": Output("numbers", "rowData"),
            "known": Output("techniques-about", "children"),
            "dropped": {name: Output(f"{name}-file", "contents") for name in _DROPPED},
            "implausible": Output("implausible", "children"),
        },
        inputs={
            "search": Input("url", "search"),
            "values": {name: Input(name, "value") for name in _CONTROL_IDS},
            "edited": Input("numbers", "cellValueChanged"),
            "dropped": {name: Input(f"{name}-file", "contents") for name in _DROPPED},
            "names": {name: State(f"{name}-file", "filename") for name in _DROPPED},
            "keep_clicks": Input("keep-device", "n_clicks"),
            "device_name": State("device-name", "value"),
            "link": State("link", "data"),
            "files": State("files", "data"),
        },
    )
    def change(  # noqa: PLR0917 - Dash gives what it names
        search: str | None, values: dict[str, Any], edited: Any, dropped: Any, names: Any, keep_clicks: Any,  # noqa: ARG001
        device_name: str | None, link: str | None, files: Any,
    ) -> dict[str, Any]:  # fmt: skip
        start_limit(CHANGE_LIMIT_S)
        trigger = {one.partition(".")[0] for one in ctx.triggered_prop_ids}
        browser_files = files_of(files)
        if link is None or trigger == {"url"}:
            read, notices = PageState.of_link(search or "", browser_files)
            if link is not None and read == shown_state(link, files):
                raise PreventUpdate  # written by the page itself
            now, correction_notices = nearest_valid(read)
            browser_files = tuple({one.name: one for one in (*browser_files, *now.files)}.values())[-MAX_FILES:]
            return _page_update(
                now,
                before=None,
                values={},
                derived_values={},
                errors={},
                browser_files=browser_files,
                notices=(*notices, *correction_notices),
            )
        before, files_before, sent_values = shown_state(link, files), browser_files, dict(values)
        errors: dict[str, str] = {}
        for name in _DROPPED:
            if f"{name}-file" in trigger and dropped[name]:
                browser_files, values[name], error = edits.with_dropped_files(
                    name, names[name], dropped[name], browser_files, before
                )
                errors |= {name: error} if error else {}
        if "keep-device" in trigger:
            try:
                browser_files, values["on"], values["set"] = edits.with_kept_device(
                    device_name or "", browser_files, before
                )
                trigger = {"on", "set"}
            except InputError as error:
                errors["set"] = error_line(error)
        edits.merge_controls(trigger, values, edited, before)
        now, edit_errors = edits.edited_state(before, values, trigger, browser_files)
        browser_files = () if browser_files == files_before else browser_files
        derived_values = {name: text for name, text in values.items() if text != sent_values[name]}
        return _page_update(
            now,
            before=before,
            values=sent_values,
            derived_values=derived_values,
            errors=errors | edit_errors,
            browser_files=browser_files,
            notices=(),
        )


def _page_update(
    now: PageState,
    *,
    before: PageState | None,
    values: Mapping[str, Any],
    derived_values: Mapping[str, Any],
    errors: Mapping[str, str],
    browser_files: tuple[File, ...],
    notices: tuple[str, ...],
) -> dict[str, Any]:
    """Outputs of a change of state; a control with an error keeps the value that the user entered.

    before          last valid state; None if a link was opened
    values          current values of the controls
    derived_values  values that follow from sliders and lists, by the controls that show them
    browser_files   files that the browser stores from now on; empty if unchanged
    """
    results = device_results(now)
    names, generates = overview.operator_titles(results, now.phase), results[0].analysis.model.generates
    now = now if now.op in names else replace(now, op="")
    control_values = fields.control_values(now)
    wrong = {*errors, *(f"{name}-{part}" for name in errors for part in ("slider", "chosen"))}
    written = {**control_values, **{name: derived_values.get(name, values.get(name)) for name in errors}}
    devices = before is None or (before.on, before.set) != (now.on, now.set) or "set" in errors
    same = () if before is None else [name for name, value in control_values.items() if values.get(name) == value]
    return {
        "shown": {
            **control_values,
            **dict.fromkeys(same, no_update),
            **{name: derived_values.get(name, no_update) for name in wrong & control_values.keys()},
        },
        "errors": {name: controls.error_text(errors.get(name, "")) for name in CONTROL_FIELDS},
        "options": {
            "model": options.model_options(browser_files) if before is None or browser_files else no_update,
            "on": options.device_options(browser_files) if before is None or browser_files else no_update,
            "tasks": options.task_options(browser_files) if before is None or browser_files else no_update,
            "op": options.operator_options(names, now.op),
            "set": list(dict.fromkeys((*now.set, *(before.set if before else ())))),  # or the page drops the value
            "phase": controls.phases(now.phase, generates=generates),
        },
        "idle": dict.fromkeys(("gen", "gen-slider"), not generates),
        "link": now.link,
        "asked": analysis_link(now) if before is None or analysis_link(now) != analysis_link(before) else no_update,
        "search": now.link,
        "files": packed(browser_files) if before is None or browser_files else no_update,
        "notices": [html.P(one, className="notice") for one in notices] if before is None else no_update,
        "implausible": options.implausible_numbers((name, device(now, name)) for name in now.on)
        if devices
        else no_update,
        "numbers": options.number_rows((name, device(now, name)) for name in now.on) if devices else no_update,
        "known": options.technique_details(fields.field_value("techniques", written["techniques"], now)),
        "dropped": dict.fromkeys(_DROPPED),
    }


def _register_results(app: Dash) -> None:
    """Registers the callbacks that show results and tabs."""

    @app.callback(Output("answer", "children"), Input("asked", "data"), State("files", "data"))
    def answer(link: str | None, files: Any) -> Any:
        if link is None:
            return no_update
        now = shown_state(link, files)
        return page.summary(device_results(now), now)

    @app.callback(
        Output("content", "children"), Input("asked", "data"), Input("tab", "value"), State("files", "data"),
    )  # fmt: skip
    def content(link: str | None, tab: str, files: Any) -> Any:
        if link is None:
            return no_update
        now = shown_state(link, files)
        return TABS.get(tab, TABS["overview"]).show(device_results(now), now)

    for name in ("model", "on"):
        listed = Output(name, "options", allow_duplicate=True)
        listing = (State(name, part) for part in ("options", "value", "id"))
        register_clientside(app, "foundOptions", listed, Input(name, "search_value"), *listing)


def _register_saving(app: Dash) -> None:
    """Registers the callback that saves results as files."""

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
        if render is None:  # no button was clicked
            raise PreventUpdate
        state = shown_state(link, files)
        results = device_results(state)
        model = results[0].analysis.model.name
        contents = {f"{model}-{one.analysis.hardware.name}.{form}": render(one.analysis) for one in results}
        if form == "html" and (settings := compare.compared_settings(results, state)[0])[1:]:
            pinned = [one for one in settings if one.pin >= 0]
            contents |= {f"{compare.LETTERS[one.pin]}.html": render(one.analysis) for one in pinned}
            contents["comparison.html"] = comparison_page(settings, results[0].phase_name(state.phase))
        if len(contents) == 1:
            ((filename, text),) = contents.items()
            return {"content": text, "filename": filename, "type": "text/plain"}
        return _zipped(f"{model}.zip", contents)


def _zipped(name: str, contents: Mapping[str, str]) -> dict[str, Any]:
    """Several files as a ZIP archive, for dcc.Download."""
    archive = io.BytesIO()
    # Reports contain plotly.js: the default level takes 2.4 times as long to save 14 %.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as files:
        for title, text in contents.items():
            files.writestr(title, text)
    content = base64.b64encode(archive.getvalue()).decode()
    return {"content": content, "filename": name, "type": "application/zip", "base64": True}
