"""Edits of the page: from values of controls to a state that can be analyzed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.errors import InputError

from . import fields
from .cpu_limit import restart_limit
from .errors import error_line
from .fields import CONTROL_FIELDS
from .payloads import decoded, label
from .results import own_device_file, parse_hardware_file, parse_model_file, parse_task_file, problem_of
from .state import FILE_PREFIX, MAX_FILE_BYTES, MAX_FILES, FieldError, File, State
from .words import CONTROLS, control_label


def with_dropped_file(
    name: str, filename: str | None, contents: str, browser_files: tuple[File, ...], before: State
) -> tuple[tuple[File, ...], Any]:
    """Adds an uploaded file: all files, and the value of the control that then selects it.

    Raises InputError if the file is invalid.
    """
    title = label(filename)
    try:
        text = decoded(contents, filename, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{title}: is not a text file") from None
    if name == "model":
        file = parse_model_file(title, text, browser_files)
    else:
        file = parse_task_file(title, text) if name == "tasks" else parse_hardware_file(title, text)
    files = (*(one for one in browser_files if one.name != file.name), file)[-MAX_FILES:]
    file_name = f"{FILE_PREFIX}{file.name}"
    if name != "on":
        return files, file_name
    return files, [*(one for one in before.on if one != file_name), file_name]


def with_dropped_files(
    name: str, filenames: Any, contents: Any, browser_files: tuple[File, ...], before: State
) -> tuple[tuple[File, ...], Any, str]:
    """Adds uploaded files: all files, the value of the control that then selects them, and an error; "" if none.

    Of several models or tasks the last is selected; of several devices all are.
    """
    value: Any = list(before.on) if name == "on" else getattr(before, name)
    texts = contents if isinstance(contents, list) else [contents]
    titles = filenames if isinstance(filenames, list) else [filenames] * len(texts)
    problems = []
    for title, text in zip(titles, texts, strict=False):
        try:
            browser_files, value = with_dropped_file(
                name, title, text, browser_files, replace(before, on=tuple(value)) if name == "on" else before
            )
        except Exception as error:  # noqa: BLE001 - the page stays
            problems.append(error_line(error, f"a file for {name}"))
    return browser_files, value, "; ".join(problems)


def with_kept_device(
    name: str, browser_files: tuple[File, ...], before: State
) -> tuple[tuple[File, ...], list[str], list[str]]:
    """Keeps the first selected device, with its what-ifs, as one of the user's own called `name`.

    Returns all files, the selected devices, with the new one in place of the first, and the what-ifs of the others.

    Raises InputError if the name is taken or invalid.
    """
    source = before.on[0]
    file = own_device_file(before, source, name.strip().lower())
    files = (*(one for one in browser_files if one.name != file.name), file)[-MAX_FILES:]
    changes = [one for one in before.set if not one.startswith(f"{source}:")]
    return files, [*before.on[1:], f"{FILE_PREFIX}{file.name}"], changes


def merge_controls(trigger: set[str], values: dict[str, Any], edited: Any, before: State) -> None:
    """Writes edits of sliders, operand formats, techniques and device numbers into the values of their fields."""
    for name in fields.SLIDER_MAX_LOG2:
        if f"{name}-slider" in trigger and values[f"{name}-slider"] is not None:
            values[name] = round(2 ** values[f"{name}-slider"])
    formats = {letter: values[f"quant-{letter}"] for letter in fields.OPERANDS if f"quant-{letter}" in trigger}
    if formats:
        values["quant"] = fields.precision_text(formats, values["quant"] or "")
    if "techniques-chosen" in trigger:
        texts = fields.field_value("techniques", values["techniques"], before)
        values["techniques"] = fields.techniques_text(values["techniques-chosen"] or (), texts)
    if "numbers" in trigger:
        for cell in edited or ():
            row = cell["data"]
            key = f"{row['device']}:{row['key']}="
            other_edits = [one for one in values["set"] or () if not one.startswith(key)]
            values["set"] = other_edits + ([f"{key}{row['value'].strip()}"] if row["value"] else [])
    if "context" in trigger and values["context"]:
        values["step"] = fields.AT_CONTEXT
    elif "step" in trigger and values["step"] == fields.AT_CONTEXT:
        values["context"] = values["context"] or replace(before, step="last").kv_len
    elif "step" in trigger:
        values["context"] = None
    if "on" in trigger and not values["on"]:
        values["on"] = list(before.on)  # at least one device stays selected


def edited_state(
    before: State, values: Mapping[str, Any], trigger: set[str], files: tuple[File, ...]
) -> tuple[State, dict[str, str]]:
    """The state that the controls describe, without edits that cannot be analyzed, and their errors by control."""
    field_values = {name: fields.field_value(name, values[name], before) for name in CONTROL_FIELDS} | {
        "tab": values["tab"]
    }
    errors: dict[str, str] = {}
    while True:
        try:
            now = State.of(field_values, files)
            break
        except FieldError as error:
            errors[error.name] = f"{control_label(error.name)} {error.problem}"
            field_values[error.name] = getattr(before, error.name)
    edited_fields = {"set" if one == "numbers" else one.partition("-")[0] for one in trigger}
    edited_values = {name: getattr(now, name) for name in (*CONTROL_FIELDS, "tab") if name in edited_fields}
    edited_field = next((name for name in CONTROL_FIELDS if name in edited_fields), "model")
    invalid_value = errors.get(edited_field)  # the value is invalid by itself
    problem = ""
    for candidate in dict.fromkeys((now, replace(before, **edited_values).with_files(files))):
        restart_limit()
        candidate_problem = problem_of(candidate)
        if candidate_problem:
            problem = problem or candidate_problem
            errors[edited_field] = invalid_value or candidate_problem
            continue
        if problem:  # an earlier value causes the problem, not this edit
            if not invalid_value:
                errors.pop(edited_field)
            errors |= {name: problem for name in CONTROLS if getattr(candidate, name) != getattr(now, name)}
        return candidate, errors
    return before, errors
