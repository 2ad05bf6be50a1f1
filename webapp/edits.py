"""What an edit of the page asks for: from what its controls say then to a state that has an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.errors import InputError

from . import fields
from .answers import hardware_file, model_file, why_not
from .fields import FIELDS
from .payloads import decoded, label
from .state import LARGEST_FILE, MINE, MOST_FILES, FieldError, File, State
from .words import CONTROLS
from .work import begin_again


def dropped(
    name: str, filename: str | None, contents: str, held: tuple[File, ...], before: State
) -> tuple[tuple[File, ...], Any]:
    """The files with one more, and what its control then says.

    Raises InputError where it is not one that can be used.
    """
    title = label(filename)
    try:
        text = decoded(contents, filename, LARGEST_FILE).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{title}: is not a text file") from None
    file = (model_file if name == "model" else hardware_file)(title, text)
    files = (*(one for one in held if one.name != file.name), file)[-MOST_FILES:]
    called = f"{MINE}{file.name}"
    if name == "model":
        return files, called
    return files, [*(one for one in before.on if one != called), called]


def combined(trigger: set[str], values: dict[str, Any], edited: Any, before: State) -> None:
    """Puts what a slider, a part of the precision or a number of a device says into the field that it is of."""
    for name in fields.SLIDERS:
        if f"{name}-slider" in trigger and values[f"{name}-slider"] is not None:
            values[name] = round(2 ** values[f"{name}-slider"])
    parts = {letter: values[f"quant-{letter}"] for letter in fields.PARTS if f"quant-{letter}" in trigger}
    if parts:
        values["quant"] = fields.precision_of(parts, values["quant"] or "")
    if "techniques-chosen" in trigger:
        texts = fields.read("techniques", values["techniques"], before)
        values["techniques"] = fields.chosen(values["techniques-chosen"] or (), texts)
    if "numbers" in trigger:
        for cell in edited or ():
            row = cell["data"]
            key = f"{row['device']}:{row['key']}="
            kept_ = [one for one in values["set"] or () if not one.startswith(key)]
            values["set"] = kept_ + ([f"{key}{row['value'].strip()}"] if row["value"] else [])
    if "on" in trigger and not values["on"]:
        values["on"] = list(before.on)  # one device at least


def changed(
    before: State, values: Mapping[str, Any], trigger: set[str], held: tuple[File, ...]
) -> tuple[State, dict[str, str]]:
    """The state that the controls ask for, as far as it has an answer, and by control what is wrong with the rest."""
    said = {name: fields.read(name, values[name], before) for name in FIELDS} | {"tab": values["tab"]}
    errors: dict[str, str] = {}
    while True:
        try:
            now = State.of(said, held)
            break
        except FieldError as error:
            errors[error.name] = str(error)
            said[error.name] = getattr(before, error.name)
    own = {"set" if one == "numbers" else one.partition("-")[0] for one in trigger}
    touched = {name: getattr(now, name) for name in (*FIELDS, "tab") if name in own}
    blamed = next((name for name in FIELDS if name in own), "model")
    unread = errors.get(blamed)  # what is wrong with it by itself
    problem = ""
    for near in dict.fromkeys((now, replace(before, **touched).having(held))):
        begin_again()
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
