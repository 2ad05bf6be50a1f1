"""Payloads of browsers: values of components, checked before a callback sees them.

They are short texts, numbers, lists of texts, and contents of files, which are parsed in memory. Nothing that a browser
sends is a path, the name of a module or of a repository, and nothing of it is written to a disk.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llmviewer.errors import InputError

from .fields import SLIDERS
from .state import KINDS, LONGEST_READ_LINK, MOST_FILES, File, Fraction, Number

_MOST_TEXTS: Final = 64  # of a list, such as what-ifs
_LONGEST_TEXT: Final = 10_000  # of a control [characters]
_LONGEST_LABEL: Final = 80  # of a dropped file, where it is named [characters]
_LONGEST_NAME: Final = 1000  # of a dropped file, as a browser sends it [characters]
_MOST_PATTERNS: Final = 64  # components of a pattern, such as buttons that pin
_LISTS: Final = ("on", "set", "techniques-chosen")  # controls with several values
_CELL: Final = ("device", "key", "value")  # of a row of the numbers of devices


class MalformedError(InputError):
    """A request that the page itself does not make."""


def label(filename: str | None, otherwise: str = "file") -> str:
    """The short name of a dropped file in texts: without folders and what cannot be printed."""
    name = (filename or "").replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in name if c.isprintable())[:_LONGEST_LABEL] or otherwise


def decoded(contents: str, filename: str | None, most: int) -> bytes:
    """The contents of a dropped file, which a browser sends in base64.

    Raises InputError if they are damaged, or more than `most` bytes.
    """
    data = contents.partition(",")[2]
    size = len(data) * 3 // 4
    if size > most + 2:  # of padding
        raise InputError(f"{label(filename)}: must have at most {most:,} bytes; got {size:,}")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise InputError(f"{label(filename)}: did not arrive whole; drop it in again") from None


def files_of(value: Any) -> tuple[File, ...]:
    """The files that a browser holds, each as [name, text].

    Raises InputError if there are too many, or if one is not such a pair, is too large or has another name.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MOST_FILES:
        raise MalformedError(f"files must be a list of at most {MOST_FILES}; drop in fewer")
    pairs = [one for one in value if isinstance(one, list) and list(map(type, one)) == [str, str]]
    if len(pairs) < len(value):
        raise MalformedError("files must be pairs of a name and a text")
    return tuple(File(name=name, text=text) for name, text in pairs)


def packed(files: Sequence[File]) -> list[list[str]]:
    """The same as files_of() reads it."""
    return [[file.name, file.text] for file in files]


def checked(body: Any, callbacks: Mapping[str, Any]) -> dict[str, Any]:
    """A request to update components, rebuilt from the callback that it names and the values that it has for it.

    Raises MalformedError if there is no such callback, or a value is of another type or longer than the page sends.
    """
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        raise MalformedError("a request must name its output")
    known = callbacks.get(body["output"])
    if known is None or "callback" not in known:
        raise MalformedError("no such output; reload the page")
    given = [_values(known[kind], body.get(kind, []), kind) for kind in ("inputs", "state")]
    inputs = [one for part in given[0] for one in (part if isinstance(part, list) else [part])]
    names = {f"{_key(one['id'])}.{one['property']}" for one in inputs}
    changed = body.get("changedPropIds", [])
    if not isinstance(changed, list) or not all(isinstance(one, str) and one in names for one in changed):
        raise MalformedError("changedPropIds must be inputs")
    outputs = [_place(part) for part in body["output"].strip(".").split("...")]
    return {
        "output": body["output"],
        "outputs": outputs if body["output"].startswith("..") else outputs[0],
        "inputs": given[0],
        "state": given[1],
        "changedPropIds": changed,
    }


def _place(part: str) -> dict[str, str]:
    name, _, prop = part.rpartition(".")
    return {"id": name, "property": prop}


def _key(name: Any) -> str:
    """The identifier of a component as text; that of a pattern is a mapping."""
    return name if isinstance(name, str) else json.dumps(name, separators=(",", ":"), sort_keys=True)


def _values(known: Sequence[Mapping[str, str]], given: Any, kind: str) -> list[Any]:
    if not isinstance(given, list) or len(given) != len(known):
        raise MalformedError(f"{kind} must be a list of {len(known)}")
    pairs = zip(known, given, strict=True)
    return [_pattern(spec, one) if spec["id"].startswith("{") else _value(spec, one) for spec, one in pairs]


def _value(spec: Mapping[str, str], given: Any) -> dict[str, Any]:
    name, prop = spec["id"], spec["property"]
    if not isinstance(given, dict):
        raise MalformedError(f"{name} must have a value")
    check = _CHECKS[name, prop] if (name, prop) in _CHECKS else _CHECKS[prop]
    try:
        return {"id": name, "property": prop, "value": check(given.get("value"))}
    except MalformedError as error:
        raise MalformedError(f"{name}: {error}") from None


def _pattern(spec: Mapping[str, str], given: Any) -> list[dict[str, Any]]:
    """Values of the components of a pattern such as {"pin":["ALL"]}, each with a place as its key."""
    (key,) = json.loads(spec["id"])
    if not isinstance(given, list) or len(given) > _MOST_PATTERNS:
        raise MalformedError(f"{key} must be a list")
    found = []
    for one in given:
        name = one.get("id") if isinstance(one, dict) else None
        place = name.get(key) if isinstance(name, dict) else None
        if type(place) is not int or not 0 <= place < _MOST_PATTERNS:
            raise MalformedError(f"{key} must have a place")
        found.append({**_value({"id": key, "property": spec["property"]}, one), "id": {key: place}})
    return found


def _text(most: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value is not None and (not isinstance(value, str) or len(value) > most or not _is_unicode(value)):
            raise MalformedError(f"must be a text of at most {most:,} characters")
        return value

    return check


def _is_unicode(value: str) -> bool:
    """Whether all characters of a text exist: half of a surrogate pair is none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _MOST_TEXTS:
        raise MalformedError(f"must be a list of at most {_MOST_TEXTS} texts")
    return [_SHORT(one) or "" for one in value]


def _number(value: Any) -> Any:
    """A number, or a text, which says of a control why it is none."""
    return value if isinstance(value, int | float) else _SHORT(value)


def _power(end: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        """The position of a slider, log2 of its value."""
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
    """Edited cells, each with its row."""
    if value is None:
        return None
    cells = value if isinstance(value, list) and len(value) <= _MOST_TEXTS else [None]
    rows = [one["data"] for one in cells if isinstance(one, dict) and isinstance(one.get("data"), dict)]
    if len(rows) < len(cells):
        raise MalformedError("must be a list of cells")
    return [{"data": {key: _SHORT(row.get(key)) or "" for key in _CELL}} for row in rows]


def _files(value: Any) -> Any:
    files_of(value)
    return value


_SHORT: Final = _text(_LONGEST_TEXT)
_CHECKS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    "value": _SHORT,
    "search": _text(LONGEST_READ_LINK),
    "data": _text(LONGEST_READ_LINK),
    "n_clicks": _clicks,
    "filename": _text(_LONGEST_NAME),
    "contents": _text(2**31),  # as much as a request may have
    "cellValueChanged": _cells,
    ("files", "data"): _files,
    ("mtp", "value"): _switch,
    **{(name, "value"): _number for name, kind in KINDS.items() if isinstance(kind, Number | Fraction)},
    **{(f"{name}-slider", "value"): _power(end) for name, end in SLIDERS.items()},
    **{(name, "value"): _texts for name in _LISTS},
}
