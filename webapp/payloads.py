"""Checks of the component values that browsers send, before any callback receives them.

Values are short texts, numbers, lists of texts, and contents of files, which are parsed in memory. None is used as a
path, a module name or a repository name, and none is written to disk.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llmviewer.errors import InputError

from .fields import SLIDER_MAX_LOG2
from .state import FIELD_TYPES, MAX_FILES, MAX_READ_LINK_CHARACTERS, File, IntegerField, RealField

_MAX_TEXTS: Final = 64  # in a list, such as what-ifs
_MAX_TEXT_CHARACTERS: Final = 10_000  # of a control
_MAX_LABEL_CHARACTERS: Final = 80  # of an uploaded file in texts
_MAX_NAME_CHARACTERS: Final = 1000  # of an uploaded file, as a browser sends it
_MAX_PATTERN_COMPONENTS: Final = 64  # of a pattern-matching callback, such as pin buttons
_LISTS: Final = ("on", "set", "techniques-chosen")  # controls with several values
_FILES: Final = ("model-file", "on-file", "tasks-file", "trace")
_CELL: Final = ("device", "key", "value")  # in the table of device numbers


class MalformedError(InputError):
    """A request that the page itself never sends."""


def label(filename: str | None, otherwise: str = "file") -> str:
    """Short name of an uploaded file for texts, without folders and unprintable characters."""
    name = (filename or "").replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in name if c.isprintable())[:_MAX_LABEL_CHARACTERS] or otherwise


def decoded(contents: str, filename: str | None, max_bytes: int) -> bytes:
    """Decodes the base64 contents of an uploaded file.

    Raises InputError if they are damaged or larger than `max_bytes`.
    """
    data = contents.partition(",")[2]
    size = len(data) * 3 // 4
    if size > max_bytes + 2:  # padding
        raise InputError(f"{label(filename)}: must have at most {max_bytes:,} bytes; got {size:,}")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise InputError(f"{label(filename)}: was not transferred completely; upload it again") from None


def files_of(value: Any) -> tuple[File, ...]:
    """Parses the files that a browser stores, each as [name, text].

    Raises InputError if there are too many, or one is malformed, too large or has an invalid name.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_FILES:
        raise MalformedError(f"files must be a list of at most {MAX_FILES}; upload fewer")
    pairs = [one for one in value if isinstance(one, list) and list(map(type, one)) == [str, str]]
    if len(pairs) < len(value):
        raise MalformedError("files must be pairs of a name and a text")
    return tuple(File(name=name, text=text) for name, text in pairs)


def packed(files: Sequence[File]) -> list[list[str]]:
    """Inverse of files_of()."""
    return [[file.name, file.text] for file in files]


def checked(body: Any, callbacks: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuilds a request to update components from its callback and its checked values.

    Raises MalformedError if there is no such callback, or a value has another type or length than the page sends.
    """
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        raise MalformedError("a request must name its output")
    callback = callbacks.get(body["output"])
    if callback is None or "callback" not in callback:
        raise MalformedError("no such output; reload the page")
    values = [_values(callback[kind], body.get(kind, []), kind) for kind in ("inputs", "state")]
    inputs = [one for part in values[0] for one in (part if isinstance(part, list) else [part])]
    names = {f"{_key(one['id'])}.{one['property']}" for one in inputs}
    changed = body.get("changedPropIds", [])
    if not isinstance(changed, list) or not all(isinstance(one, str) and one in names for one in changed):
        raise MalformedError("changedPropIds must be inputs")
    outputs = [_output_spec(part) for part in body["output"].strip(".").split("...")]
    return {
        "output": body["output"],
        "outputs": outputs if body["output"].startswith("..") else outputs[0],
        "inputs": values[0],
        "state": values[1],
        "changedPropIds": changed,
    }


def _output_spec(part: str) -> dict[str, str]:
    name, _, prop = part.rpartition(".")
    return {"id": name, "property": prop}


def _key(name: Any) -> str:
    """Id of a component as text; ids of pattern-matching components are mappings."""
    return name if isinstance(name, str) else json.dumps(name, separators=(",", ":"), sort_keys=True)


def _values(specs: Sequence[Mapping[str, str]], values: Any, kind: str) -> list[Any]:
    if not isinstance(values, list) or len(values) != len(specs):
        raise MalformedError(f"{kind} must be a list of {len(specs)}")
    pairs = zip(specs, values, strict=True)
    return [_pattern(spec, one) if spec["id"].startswith("{") else _value(spec, one) for spec, one in pairs]


def _value(spec: Mapping[str, str], component: Any) -> dict[str, Any]:
    name, prop = spec["id"], spec["property"]
    if not isinstance(component, dict):
        raise MalformedError(f"{name} must have a value")
    check = _CHECKS[name, prop] if (name, prop) in _CHECKS else _CHECKS[prop]
    try:
        return {"id": name, "property": prop, "value": check(component.get("value"))}
    except MalformedError as error:
        raise MalformedError(f"{name}: {error}") from None


def _pattern(spec: Mapping[str, str], components: Any) -> list[dict[str, Any]]:
    """Values of the components of a pattern such as {"pin":["ALL"]}, whose ids hold an index."""
    (key,) = json.loads(spec["id"])
    if not isinstance(components, list) or len(components) > _MAX_PATTERN_COMPONENTS:
        raise MalformedError(f"{key} must be a list")
    entries = []
    for one in components:
        name = one.get("id") if isinstance(one, dict) else None
        index = name.get(key) if isinstance(name, dict) else None
        if type(index) is not int or not 0 <= index < _MAX_PATTERN_COMPONENTS:
            raise MalformedError(f"{key} must have an index")
        entries.append({**_value({"id": key, "property": spec["property"]}, one), "id": {key: index}})
    return entries


def _text(max_characters: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value is not None and (not isinstance(value, str) or len(value) > max_characters or not _is_unicode(value)):
            raise MalformedError(f"must be a text of at most {max_characters:,} characters")
        return value

    return check


def _each(check: Callable[[Any], Any], max_items: int) -> Callable[[Any], Any]:
    """Checks a value, or each of a list of such values."""

    def check_each(value: Any) -> Any:
        if not isinstance(value, list):
            return check(value)
        if len(value) > max_items:
            raise MalformedError(f"must be at most {max_items}; drop fewer")
        return [check(one) for one in value]

    return check_each


def _is_unicode(value: str) -> bool:
    """Whether a text is valid Unicode, without lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _MAX_TEXTS:
        raise MalformedError(f"must be a list of at most {_MAX_TEXTS} texts")
    return [_check_text(one) or "" for one in value]


def _number(value: Any) -> Any:
    """A number, or the text of an invalid entry, which the control reports."""
    return value if isinstance(value, int | float) else _check_text(value)


def _power(end: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        """Checks the position of a slider, log2 of its value."""
        if value is not None and (not isinstance(value, int | float) or not 0 <= value <= end):
            raise MalformedError(f"must be from 0 to {end}")
        return value

    return check


def _switch(value: Any) -> Any:
    if value not in (None, 0, 1):
        raise MalformedError("must be 0 or 1")
    return value


def _clicks(value: Any) -> Any:
    if value is not None and (type(value) is not int or not 0 <= value < math.inf):
        raise MalformedError("must be a number of clicks")
    return value


def _cells(value: Any) -> Any:
    """Checks edited cells, each with its row."""
    if value is None:
        return None
    cells = value if isinstance(value, list) and len(value) <= _MAX_TEXTS else [None]
    rows = [one["data"] for one in cells if isinstance(one, dict) and isinstance(one.get("data"), dict)]
    if len(rows) < len(cells):
        raise MalformedError("must be a list of cells")
    return [{"data": {key: _check_text(row.get(key)) or "" for key in _CELL}} for row in rows]


def _files(value: Any) -> Any:
    files_of(value)
    return value


_check_text: Final = _text(_MAX_TEXT_CHARACTERS)
_CHECKS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    "value": _check_text,
    "search": _text(MAX_READ_LINK_CHARACTERS),
    "data": _text(MAX_READ_LINK_CHARACTERS),
    "n_clicks": _clicks,
    "filename": _text(_MAX_NAME_CHARACTERS),
    "contents": _text(2**31),  # limited by the size of a request
    "cellValueChanged": _cells,
    ("files", "data"): _files,
    **{(name, "contents"): _each(_text(2**31), MAX_FILES) for name in _FILES},
    **{(name, "filename"): _each(_text(_MAX_NAME_CHARACTERS), MAX_FILES) for name in _FILES},
    ("mtp", "value"): _switch,
    **{(name, "value"): _number for name, kind in FIELD_TYPES.items() if isinstance(kind, IntegerField | RealField)},
    **{(f"{name}-slider", "value"): _power(end) for name, end in SLIDER_MAX_LOG2.items()},
    **{(name, "value"): _texts for name in _LISTS},
}
