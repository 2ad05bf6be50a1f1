"""Parameters of techniques: dataclass fields with a description, a unit and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..documents import MAX_EXACT_INTEGER
from ..errors import InputError, suggest
from ..parameters import Parameter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_ABOUT: Final = "about"
_ALIASES: Final = "aliases"
_CONDITION: Final = "condition"
_MAX_LISTED_CHOICES: Final = 8  # in an error
_WORDS: Final = {"true": True, "yes": True, "false": False, "no": False}


class Condition(NamedTuple):
    """Values of a parameter."""

    name: str
    values: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.name}={' or '.join(map(str, self.values))}"


def parameter(
    text: str,
    default: Any = MISSING,
    *,
    unit: str = "",
    least: float = -math.inf,
    most: float = math.inf,
    open: bool = False,  # noqa: A002
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    condition: Condition | None = None,
) -> Any:
    """A dataclass field with its declaration; required if it has no default.

    aliases    names under which engines have the parameter
    condition  values of another parameter, with others of which this one has no effect
    """
    about = f"{text}, with {condition}" if condition else text
    declared = Parameter(about=about, unit=unit, least=least, most=most, open=open, choices=choices)
    metadata = {_ABOUT: declared, _ALIASES: aliases, _CONDITION: condition}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def declaration(parameter: Field[Any]) -> Parameter:
    """The declaration of a field."""
    declared: Parameter = parameter.metadata[_ABOUT]
    return declared


def check_parameters(technique: DataclassInstance, name: str) -> None:
    """Raises InputError if a parameter of the technique `name` is outside its limits."""
    for f in fields(technique):
        value = getattr(technique, f.name)
        if value is None or declaration(f).holds(value):
            continue
        if len(declaration(f).choices) > _MAX_LISTED_CHOICES:
            near = suggest(str(value), declaration(f).choices)
            raise InputError(
                f"{name}: no {f.name} {_value_text(value)}: {near} (`llmviewer techniques {name}` lists all)"
            )
        raise InputError(f"{name}: {f.name} must be {declaration(f).limits}; got {_value_text(value)}")


def parse_parameters(kind: type[DataclassInstance], name: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Parses `values`, texts or Python values by name, into keyword arguments of `kind`.

    Raises InputError for an unknown parameter, a missing one, or a value that does not parse.
    """
    parameters = {f.name: f for f in fields(kind)}
    values = _without_aliases(parameters, name, values)
    for key in values:
        if key not in parameters:
            hint = suggest(key, parameters) if parameters else "it has no parameters"
            raise InputError(f"{name}: no parameter {key!r}; {hint}")
    for key, f in parameters.items():
        if f.default is MISSING and key not in values:
            limits = f", {declaration(f).limits}" if declaration(f).choices else ""
            raise InputError(f"{name}: {key} must be given: {declaration(f).about}{limits}")
    return {key: _parsed_value(value, parameters[key], f"{name}: {key}") for key, value in values.items()}


def parameter_without_effect(technique: DataclassInstance) -> str:
    """The first parameter that is given and has no effect with the others, and what to do; "" if there is none."""
    for f in fields(technique):
        condition: Condition | None = f.metadata[_CONDITION]
        if condition is None or getattr(technique, f.name) == f.default:
            continue
        value = getattr(technique, condition.name)
        if value not in condition.values:
            return f"{f.name} has no effect with {condition.name}={value}; give {condition} or leave it out"
    return ""


def aliases(parameter: Field[Any]) -> tuple[str, ...]:
    """Names under which engines have a parameter."""
    names: tuple[str, ...] = parameter.metadata[_ALIASES]
    return names


def _without_aliases(
    parameters: Mapping[str, Field[Any]], name: str, values: Mapping[str, object]
) -> Mapping[str, object]:
    """`values` by the names of parameters.

    Raises InputError if one is given under two names.
    """
    names = {alias: f.name for f in parameters.values() for alias in aliases(f)}
    for alias, own_name in names.items():
        if alias in values and own_name in values:
            raise InputError(f"{name}: {alias} and {own_name} are the same; give one of them")
    return {names.get(key, key): value for key, value in values.items()}


def _parsed_value(value: object, f: Field[Any], where: str) -> object:
    kind = str(f.type).removesuffix(" | None")
    text = str(value)
    if value is None or isinstance(value, list | Mapping):
        raise InputError(f"{where} must be one value; got {'nothing' if value is None else value}")
    if kind == "str":
        return text
    if kind == "bool":
        truth_value = value if isinstance(value, bool) else _WORDS.get(text.lower())
        if truth_value is None:
            raise InputError(f"{where} must be true or false; got {_value_text(value)}")
        return truth_value
    must = "a whole number" if kind == "int" else "a number"
    limits = f", {declaration(f).limits}" if declaration(f).limits else ""
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{where} must be {must}{limits}; got {_value_text(value)}") from None
    if isinstance(value, bool) or not math.isfinite(number) or (kind == "int" and number != int(number)):
        raise InputError(f"{where} must be {must}{limits}; got {_value_text(value)}")
    if kind == "int" and abs(number) > MAX_EXACT_INTEGER:
        raise InputError(
            f"{where} must be at most {MAX_EXACT_INTEGER}, the largest integer that is exact; got {_value_text(value)}"
        )
    return int(number) if kind == "int" else number


def _value_text(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value)
