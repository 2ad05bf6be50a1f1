"""Techniques by name, such as speculative decoding: one file per technique or close family.

A technique transforms the graph, the passes and the memory; the engine has no case for any of them. Every module of
this package, and every plugin (plugins.py), registers its own with `technique`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Final, TypeVar
from warnings import warn

from ..errors import InputError, suggest
from ..parallel.layout import TWO_BATCHES
from ..plugins import load_plugins
from ..transforms.quantize import parse_quantization
from ._parameters import Condition, aliases, declaration, parameter, parameter_without_effect, parse_parameters
from ._schedule import Run, Schedule
from ._technique import Drafter, Finding, Kind, Requirement, SettingView, Technique, overrides

_MODULES: Final = tuple(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
_SYNTAX: Final = "a technique must be NAME or NAME:key=value,key=value, such as speculative:draft=llama-68m,gamma=4"
_KINDS: dict[str, type[Technique]] = {}
_RENAMED_HOOKS: Final = {
    "touches": "requires", "refuses": "incompatibility", "kept": "retained_cache", "beside": "auxiliary_graphs",
    "leaves": "acceptance_probabilities", "known": "cached_prefix_tokens", "in_common": "shared_prefix_tokens",
    "decode_alone": "separate_decode_graph", "predicts": "runs_mtp_layers", "scheduled": "simulatable",
}  # fmt: skip

_T = TypeVar("_T", bound=type[Technique])


def technique(name: str) -> Callable[[_T], _T]:
    """A decorator that registers a subclass of `Technique` under `name`.

    A class of the same module and name is replaced, so that a notebook cell can run again. Hooks under their names of
    the last release are renamed, with a DeprecationWarning. Raises RuntimeError if another class has the name, or if
    `kind` or `requires` is not set.
    """

    def register(kind: _T) -> _T:
        parameters = {field.name for field in fields(kind)}
        for old, new in _RENAMED_HOOKS.items():
            if old in vars(kind) and old not in parameters:
                warn(f"{_path(kind)}.{old} is now {new}", DeprecationWarning, stacklevel=2)
                setattr(kind, new, vars(kind)[old])
        if name in _KINDS and _path(_KINDS[name]) != _path(kind):
            raise RuntimeError(f"{name!r} is registered twice: {_path(_KINDS[name])} and {_path(kind)}")
        missing = [attribute for attribute in ("kind", "requires") if not hasattr(kind, attribute)]
        if missing:
            raise RuntimeError(f"{_path(kind)} must set {' and '.join(missing)}")
        kind.name = name
        _KINDS[name] = kind
        return kind

    return register


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        """Requirement under its name of the last release."""
        if name == "Touches":
            warn("llmviewer.techniques.Touches is now Requirement", DeprecationWarning, stacklevel=2)
            return Requirement
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _path(kind: type[Technique]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def techniques() -> Mapping[str, type[Technique]]:
    """All registered techniques by name, sorted by kind and name."""
    for module in _MODULES:
        import_module(f"{__name__}.{module}")
    load_plugins()
    order = list(Kind)
    return dict(sorted(_KINDS.items(), key=lambda item: (order.index(item[1].kind), item[0])))


def parse_technique(text: str | Mapping[str, object]) -> Technique:
    """The technique of "NAME", "NAME:key=value,key=value" or {NAME: {key: value}} (YAML).

    Raises InputError if the syntax, the name or a parameter is wrong; with the nearest names.
    """
    name, values = _split(text)
    registered = techniques()
    if not name:
        raise InputError(f"{_SYNTAX}; got {text!r}")
    if name not in registered and _is_precision(name):
        raise InputError(f"no technique {name!r}: it is a precision; give it as --quant {name}")
    if name == TWO_BATCHES:
        raise InputError(f"no technique {name!r}: it is part of the layout; give it as --{name}, or in --layout")
    names = [part.strip() for part in name.split(",")]
    if len(names) > 1 and registered.keys() >= set(names):
        raise InputError(f"a technique is given by itself: {' '.join(f'--with {one}' for one in names)}; got {text!r}")
    if name not in registered:
        raise InputError(f"no technique {name!r}: {suggest(name, registered)} (`llmviewer techniques` lists all)")
    return registered[name](**parse_parameters(registered[name], name, values))


def _is_precision(name: str) -> bool:
    try:
        parse_quantization(name)
    except InputError:
        return False
    return True


def _split(text: str | Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """The name and the parameters in a text, or in a mapping of a YAML file."""
    if isinstance(text, Mapping):
        items = [*text.items()]
        if len(items) != 1 or not isinstance(items[0][1] or {}, Mapping):
            raise InputError(f"{_SYNTAX}, or one name and its parameters in YAML; got {dict(text)!r}")
        name, inner = items[0]
        return str(name), {str(key): value for key, value in (inner or {}).items()}  # type: ignore[attr-defined]
    if not isinstance(text, str):
        raise InputError(f"{_SYNTAX}; got {text!r}")
    name, _, rest = text.partition(":")
    values: dict[str, object] = {}
    for part in rest.split(",") if rest.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise InputError(f"{_SYNTAX}; got {part.strip()!r} in {text!r}")
        if key in values:
            raise InputError(f"{name.strip()}: {key} is given twice; got {text!r}")
        values[key] = value
    return name.strip(), values


def parse_techniques(items: Sequence[str | Mapping[str, object] | Technique]) -> tuple[Technique, ...]:
    """The techniques in the order in which they apply, whatever the order of `items`.

    Raises InputError if one does not parse or is given twice.
    """
    if isinstance(items, str):
        raise InputError(f"techniques must be a list, such as [{items!r}]; got {items!r}")
    parsed = tuple(one if isinstance(one, Technique) else parse_technique(one) for one in items)
    names = [one.name for one in parsed]
    if not all(names):
        raise InputError(f"{_path(type(parsed[names.index('')]))} has no name; put @technique('NAME') above its class")
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate:
        raise InputError(f"{duplicate} is given twice; give it once, with all its parameters")
    return tuple(sorted(parsed, key=lambda one: (one.order, one.name)))


__all__ = [
    "Condition", "Drafter", "Finding", "Kind", "Requirement", "Run", "Schedule", "SettingView", "Technique", "aliases",
    "declaration", "overrides", "parameter", "parameter_without_effect", "parse_technique", "parse_techniques",
    "technique", "techniques",
]  # fmt: skip
