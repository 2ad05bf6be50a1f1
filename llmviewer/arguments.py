"""Type checks of arguments of the Python interface, with errors that name the argument."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, wraps
from math import inf
from pathlib import Path
from types import NoneType
from typing import Any, Final, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints
from warnings import warn

import numpy as np

from .devices.hardware import Hardware
from .errors import InputError, suggest
from .expectation.profile import Profile
from .model import Model
from .options import PARAMETERS, SettingOptions
from .parallel.layout import Layout
from .parameters import declared
from .techniques import Technique
from .transforms.host import HostPlacement
from .transforms.offload import Offload

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {  # types of arguments that are no options, or of each of several
    "model": (str, Model), "models": (str, Model), "hardware": (str, Hardware),
    "prefill_hardware": (str, Hardware), "quants": (str,), "layouts": (str,), "without": (str,),
    "kernel": (str,),
}  # fmt: skip
_WORDS: Final[Mapping[object, str]] = {
    str: "text", Mapping: "a mapping", Path: "a path", int: "a whole number", float: "a number",
}  # fmt: skip
_MAX_SHOWN_CHARS: Final = 100  # characters of a value in an error
_E = TypeVar("_E", bound=StrEnum)
_O = TypeVar("_O", bound=Mapping[str, object])
_R = TypeVar("_R")
_P = ParamSpec("_P")


@cache
def _hints() -> dict[str, Any]:
    """Types of the options of a setting, by name."""
    named = (Hardware, HostPlacement, Layout, Mapping, Offload, Path, Profile, Technique)
    return get_type_hints(SettingOptions, localns={kind.__name__: kind for kind in named})


def renamed_arguments(**names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator for functions whose arguments are also accepted under their names of the last release.

    names  new names by old name

    The function raises TypeError for an argument under both names.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for old in names.keys() & kwargs:
                new = names[old]
                if new in kwargs:
                    raise TypeError(f"{old} is the old name of {new}; give one of them")
                warn(f"{function.__name__}({old}=) is now {new}=", DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def with_defaults(options: _O, kind: type[_O]) -> _O:
    """All options of `kind`: those given, after checks of their types, and the defaults of the others.

    Raises TypeError for an unknown name, and InputError for a value of another type.
    """
    check_options(options, kind)
    return cast("_O", {name: one.default for name, one in declared(kind).items()} | dict(options))


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
            check_lists(**{name: value})
        elif kind is float:
            check_numbers(**{name: value})
        elif kind is int and not (isinstance(value, int | np.integer) and not isinstance(value, bool)):
            raise InputError(f"{name} must be a whole number; got {_short_repr(value)}")
        elif kind is bool and not isinstance(value, bool | np.bool_):
            raise InputError(f"{name} must be true or false; got {_short_repr(value)}")
        elif kind not in (int, bool):
            check_types(**{name: value})


def _types(name: str) -> tuple[type, ...]:
    """Types of an argument, or of each value of a list."""
    if name not in PARAMETERS:
        return _TYPES[name]
    kind = _hints()[name]
    (kind,) = get_args(kind) if get_origin(kind) is Sequence else (kind,)
    return tuple(get_origin(each) or each for each in get_args(kind) or (kind,))


def check_types(**values: object) -> None:
    """Raises InputError if an argument has the wrong type."""
    for name, value in values.items():
        kinds = _types(name)
        if not isinstance(value, (*kinds, int) if float in kinds else kinds) or isinstance(value, bool):
            raise InputError(f"{name} must be {_type_names(name)}; got {_short_repr(value)}{_trace_hint(value)}")


def as_values(name: str, values: Any) -> tuple[Any, ...]:
    """`given`, one value or a list, as a tuple.

    Raises InputError if a value has the wrong type.
    """
    listed_values = tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else (values,)
    for value in listed_values:
        if not isinstance(value, _types(name)):
            raise InputError(
                f"{name} must be {_type_names(name)}, or a list of such; got {_short_repr(value)}{_trace_hint(value)}"
            )
    return listed_values


def as_list(values: Any) -> list[Any]:
    """Collects one value, or several, in a list, unchecked."""
    return list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [values]


def check_bound_only(bound: bool, *kernels: object) -> None:
    """Raises InputError if only lower bounds are wanted and kernels are given."""
    if bound and any(kernels):
        raise InputError("bound must be given without library, engine and profiles; leave them out")


def check_lists(**lists: object) -> None:
    """Raises InputError if an argument is no list of values of its type."""
    for name, values in lists.items():
        must = f"{name} must be a list of {_type_names(name)}"
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise InputError(f"{must}; got {_short_repr(values)}")
        for value in values:
            if not isinstance(value, _types(name)):
                raise InputError(f"{must}; got {_short_repr(value)} among them")


def enum_member(name: str, value: object, members: Iterable[_E]) -> _E:
    """The member with the value `value`.

    Raises InputError if there is none.
    """
    choices = tuple(members)
    for member in choices:
        if member == value:
            return member
    raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def as_numbers(values: Any) -> tuple[Any, ...]:
    """Collects one number, or several, in a tuple, unchecked."""
    return tuple(values) if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) else (values,)


def check_unique(name: str, values: Iterable[Any]) -> None:
    """Raises InputError if a value is given twice."""
    values_by_name: dict[str, list[Any]] = {}
    for value in values:
        value_name = getattr(value, "name", str(value))
        if value in values_by_name.setdefault(value_name, []):
            raise InputError(f"{name}: {value_name} is given twice; give each once")
        values_by_name[value_name].append(value)


def check_unique_names(named: Iterable[tuple[object, str]]) -> None:
    """Raises InputError if two arguments have the same name in the results.

    named  (argument, its name in the results)
    """
    owners: dict[str, str] = {}
    for value, name in named:
        owner = value if isinstance(value, str) else f"a {type(value).__name__}"
        if name in owners:
            raise InputError(f"{owners[name]} and {owner} are both called {name}; leave one out")
        owners[name] = owner


def check_numbers(**values: object) -> None:
    """Raises InputError if an argument is no number."""
    for name, value in values.items():
        if not _is_number(value):
            raise InputError(f"{name} must be a number; got {value!r}")


def check_positive(**values: Any) -> None:
    """Raises InputError if an argument is neither None nor a positive number."""
    for name, value in values.items():
        if value is not None and not (_is_number(value) and 0 < value < inf):
            text = f"{value:g}" if _is_number(value) else repr(value)
            raise InputError(f"{name} must be a positive number; got {text}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _short_repr(value: object) -> str:
    """A value in one line of limited length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]} ..."


def _trace_hint(value: object) -> str:
    """Hint at trace(), if the value is a torch module."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return ""
    return "; llmviewer.tracing.trace(module, name=...) makes a Model of a module on the meta device"


def _type_names(name: str) -> str:
    """The types of an argument in words."""
    kinds = (kind for kind in _types(name) if kind is not NoneType)
    return " or ".join(_WORDS.get(kind, f"{'an' if kind is Offload else 'a'} {kind.__name__}") for kind in kinds)
