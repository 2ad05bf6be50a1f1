"""Parameters of techniques: dataclass fields with a description, a unit and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, Final

from ..documents import MAX_EXACT_INTEGER
from ..errors import InputError, suggest
from ..parameters import Parameter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_ABOUT: Final = "about"
_FEW: Final = 8  # names that an error lists
_WORDS: Final = {"true": True, "yes": True, "false": False, "no": False}


def parameter(
    text: str,
    default: Any = MISSING,
    *,
    unit: str = "",
    least: float = -math.inf,
    most: float = math.inf,
    open: bool = False,  # noqa: A002
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with its declaration; required if it has no default."""
    metadata = {_ABOUT: Parameter(about=text, unit=unit, least=least, most=most, open=open, choices=choices)}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def about(parameter: Field[Any]) -> Parameter:
    """The declaration of a field."""
    declared: Parameter = parameter.metadata[_ABOUT]
    return declared


def check(technique: DataclassInstance, name: str) -> None:
    """Raises InputError if a parameter of the technique `name` is outside its limits."""
    for f in fields(technique):
        value = getattr(technique, f.name)
        if value is None or about(f).holds(value):
            continue
        if len(about(f).choices) > _FEW:
            near = suggest(str(value), about(f).choices)
            raise InputError(f"{name}: no {f.name} {_shown(value)}: {near} (`llmviewer techniques {name}` lists all)")
        raise InputError(f"{name}: {f.name} must be {about(f).limits}; got {_shown(value)}")


def read(kind: type[DataclassInstance], name: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Keyword arguments of `kind` from `given`, whose values are texts or values.

    Raises InputError for an unknown parameter, a missing one, or a value that does not parse.
    """
    known = {f.name: f for f in fields(kind)}
    for key in given:
        if key not in known:
            has = suggest(key, known) if known else "it has no parameters"
            raise InputError(f"{name}: no parameter {key!r}; {has}")
    for key, f in known.items():
        if f.default is MISSING and key not in given:
            limits = f", {about(f).limits}" if about(f).choices else ""
            raise InputError(f"{name}: {key} must be given: {about(f).about}{limits}")
    return {key: _value(value, known[key], f"{name}: {key}") for key, value in given.items()}


def _value(value: object, f: Field[Any], where: str) -> object:
    kind = str(f.type).removesuffix(" | None")
    text = str(value)
    if value is None or isinstance(value, list | Mapping):
        raise InputError(f"{where} must be one value; got {'nothing' if value is None else value}")
    if kind == "str":
        return text
    if kind == "bool":
        found = value if isinstance(value, bool) else _WORDS.get(text.lower())
        if found is None:
            raise InputError(f"{where} must be true or false; got {_shown(value)}")
        return found
    must = "a whole number" if kind == "int" else "a number"
    limits = f", {about(f).limits}" if about(f).limits else ""
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{where} must be {must}{limits}; got {_shown(value)}") from None
    if isinstance(value, bool) or not math.isfinite(number) or (kind == "int" and number != int(number)):
        raise InputError(f"{where} must be {must}{limits}; got {_shown(value)}")
    if kind == "int" and abs(number) > MAX_EXACT_INTEGER:
        raise InputError(
            f"{where} must be at most {MAX_EXACT_INTEGER}, the largest that is counted exactly; got {_shown(value)}"
        )
    return int(number) if kind == "int" else number


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value)
