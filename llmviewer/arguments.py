"""Type checks of arguments of the Python interface, with errors that name the argument."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from math import inf
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from .devices.hardware import Hardware
from .errors import InputError, suggest
from .expectation.profile import Profile
from .model import Model
from .options import PARAMETERS, SettingOptions
from .parallel.layout import Layout
from .techniques import Technique
from .transforms.offload import Offload

_KINDS: Final[Mapping[str, tuple[type, ...]]] = {  # types of arguments that are no options, or of each of several
    "model": (str, Model), "models": (str, Model), "hardware": (str, Hardware),
    "prefill_hardware": (str, Hardware), "quants": (str,), "layouts": (str,), "without": (str,),
    "kernel": (str,),
}  # fmt: skip
_WORDS: Final[Mapping[object, str]] = {str: "text", Mapping: "a mapping", Path: "a path"}
_LONG: Final = 100  # characters of a value in an error
_E = TypeVar("_E", bound=StrEnum)
_O = TypeVar("_O", bound=Mapping[str, object])


@cache
def _hints() -> dict[str, Any]:
    """Types of the options of a setting, by name."""
    named = {"Layout": Layout, "Mapping": Mapping, "Offload": Offload, "Path": Path, "Profile": Profile}
    return get_type_hints(SettingOptions, localns={**named, "Technique": Technique})


def with_defaults(options: _O, kind: type[_O]) -> _O:
    """All options of `kind`: those given, after checks of their types, and the defaults of the others.

    Raises TypeError for an unknown name, and InputError for a value of another type.
    """
    check_options(options, kind)
    return cast("_O", {name: PARAMETERS[name].default for name in kind.__annotations__} | dict(options))


def check_options(options: _O, kind: type[_O]) -> None:
    """Raises TypeError for an option that is not of `kind`, and InputError for a value of another type."""
    for name, value in options.items():
        if name not in kind.__annotations__:
            near = "which is not supported here" if name in PARAMETERS else suggest(name, kind.__annotations__)
            raise TypeError(f"unexpected keyword argument {name!r}; {near}")
        _check_option(name, value)


def _check_option(name: str, value: object) -> None:
    """Raises InputError if the option of a setting has the wrong type."""
    if name in PARAMETERS:
        kind = _hints()[name]
        if get_origin(kind) is Sequence:
            listed(**{name: value})
        elif kind is float:
            number(**{name: value})
        elif kind is int and not (isinstance(value, int | np.integer) and not isinstance(value, bool)):
            raise InputError(f"{name} must be a whole number; got {_shown(value)}")
        elif kind is bool and not isinstance(value, bool | np.bool_):
            raise InputError(f"{name} must be true or false; got {_shown(value)}")
        elif kind not in (int, bool):
            check(**{name: value})


def _kinds(name: str) -> tuple[type, ...]:
    """Types of an argument, or of each value of a list."""
    if name not in PARAMETERS:
        return _KINDS[name]
    kind = _hints()[name]
    (kind,) = get_args(kind) if get_origin(kind) is Sequence else (kind,)
    return tuple(get_origin(each) or each for each in get_args(kind) or (kind,))


def check(**given: object) -> None:
    """Raises InputError if an argument has the wrong type."""
    for name, value in given.items():
        if not isinstance(value, _kinds(name)):
            raise InputError(f"{name} must be {_said(name)}; got {_shown(value)}{_how(value)}")


def several(name: str, given: Any) -> tuple[Any, ...]:
    """`given`, one value or a list, as a tuple.

    Raises InputError if a value has the wrong type.
    """
    found = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for value in found:
        if not isinstance(value, _kinds(name)):
            raise InputError(f"{name} must be {_said(name)}, or a list of such; got {_shown(value)}{_how(value)}")
    return found


def bound_alone(bound: bool, *kernels: object) -> None:
    """Raises InputError if only lower bounds are wanted and kernels are given."""
    if bound and any(kernels):
        raise InputError("bound must be given without library, engine and profiles; leave them out")


def listed(**given: object) -> None:
    """Raises InputError if an argument is no list of values of its type."""
    for name, values in given.items():
        must = f"{name} must be a list of {_said(name)}"
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise InputError(f"{must}; got {_shown(values)}")
        for value in values:
            if not isinstance(value, _kinds(name)):
                raise InputError(f"{must}; got {_shown(value)} among them")


def among(name: str, value: object, members: Iterable[_E]) -> _E:
    """The one of `members` named `value`.

    Raises InputError if there is none.
    """
    known = tuple(members)
    for one in known:
        if one == value:
            return one
    raise InputError(f"{name} must be one of {', '.join(known)}; got {value!r}")


def counts(values: Any) -> tuple[Any, ...]:
    """One number, or several, as an unchecked tuple."""
    return tuple(values) if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) else (values,)


def each_once(name: str, values: Iterable[Any]) -> None:
    """Raises InputError if a value is given twice."""
    seen: dict[str, list[Any]] = {}
    for value in values:
        shown = getattr(value, "name", str(value))
        if value in seen.setdefault(shown, []):
            raise InputError(f"{name}: {shown} is given twice; give each once")
        seen[shown].append(value)


def told_apart(named: Iterable[tuple[object, str]]) -> None:
    """Raises InputError if two arguments have the same name in the results.

    named  (argument, its name in the results)
    """
    seen: dict[str, str] = {}
    for value, name in named:
        shown = value if isinstance(value, str) else f"a {type(value).__name__}"
        if name in seen:
            raise InputError(f"{seen[name]} and {shown} are both called {name}; leave one out")
        seen[name] = shown


def number(**given: object) -> None:
    """Raises InputError if an argument is no number."""
    for name, value in given.items():
        if not _is_number(value):
            raise InputError(f"{name} must be a number; got {value!r}")


def positive(**given: Any) -> None:
    """Raises InputError if an argument is neither None nor a positive number."""
    for name, value in given.items():
        if value is not None and not (_is_number(value) and 0 < value < inf):
            shown = f"{value:g}" if _is_number(value) else repr(value)
            raise InputError(f"{name} must be a positive number; got {shown}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """A value in one line of limited length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONG else f"{text[:_LONG]} ..."


def _how(value: object) -> str:
    """A hint on trace(), if the value is a torch module."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return ""
    return "; llmviewer.tracing.trace(module, name=...) makes a Model of a module on the meta device"


def _said(name: str) -> str:
    """The types of an argument in words."""
    kinds = (kind for kind in _kinds(name) if kind is not NoneType)
    return " or ".join(_WORDS.get(kind, f"{'an' if kind is Offload else 'a'} {kind.__name__}") for kind in kinds)
