"""Techniques by name, such as speculative decoding: one file per technique or close family.

A technique transforms the graph, the passes and the memory; the engine has no case for any of them. Every module of
this package, and every plugin (plugins.py), registers its own with `technique`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Final, TypeVar

from ..errors import InputError, suggest
from ..parallel.layout import TWO_BATCHES
from ..plugins import load_plugins
from ..transforms.quantize import parse_quantization
from ._parameters import about, parameter, read
from ._schedule import Run, Schedule
from ._technique import Drafter, Finding, Kind, SettingView, Technique, Touches, altered

_MODULES: Final = tuple(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
_MUST: Final = "a technique must be NAME or NAME:key=value,key=value, such as speculative:draft=llama-68m,gamma=4"
_KINDS: dict[str, type[Technique]] = {}

_T = TypeVar("_T", bound=type[Technique])


def technique(name: str) -> Callable[[_T], _T]:
    """A decorator that registers a subclass of `Technique` under `name`.

    A class of the same module and name is replaced, so that a notebook cell can run again. Raises RuntimeError if
    another class has the name, or if `kind` or `touches` is not set.
    """

    def register(kind: _T) -> _T:
        if name in _KINDS and _path(_KINDS[name]) != _path(kind):
            raise RuntimeError(f"{name!r} is registered twice: {_path(_KINDS[name])} and {_path(kind)}")
        missing = [one for one in ("kind", "touches") if not hasattr(kind, one)]
        if missing:
            raise RuntimeError(f"{_path(kind)} must set {' and '.join(missing)}")
        kind.name = name
        _KINDS[name] = kind
        return kind

    return register


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
    name, given = _parts(text)
    known = techniques()
    if not name:
        raise InputError(f"{_MUST}; got {text!r}")
    if name not in known and _is_precision(name):
        raise InputError(f"no technique {name!r}: it is a precision; give it as --quant {name}")
    if name == TWO_BATCHES:
        raise InputError(f"no technique {name!r}: it is part of the layout; give it as --{name}, or in --layout")
    several = [part.strip() for part in name.split(",")]
    if len(several) > 1 and known.keys() >= set(several):
        raise InputError(
            f"a technique is given by itself: {' '.join(f'--with {one}' for one in several)}; got {text!r}"
        )
    if name not in known:
        raise InputError(f"no technique {name!r}: {suggest(name, known)} (`llmviewer techniques` lists all)")
    return known[name](**read(known[name], name, given))


def _is_precision(name: str) -> bool:
    try:
        parse_quantization(name)
    except InputError:
        return False
    return True


def _parts(text: str | Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    if isinstance(text, Mapping):
        items = [*text.items()]
        if len(items) != 1 or not isinstance(items[0][1] or {}, Mapping):
            raise InputError(f"{_MUST}, or one name and its parameters in YAML; got {dict(text)!r}")
        name, inner = items[0]
        return str(name), {str(key): value for key, value in (inner or {}).items()}  # type: ignore[attr-defined]
    if not isinstance(text, str):
        raise InputError(f"{_MUST}; got {text!r}")
    name, _, rest = text.partition(":")
    given: dict[str, object] = {}
    for part in rest.split(",") if rest.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise InputError(f"{_MUST}; got {part.strip()!r} in {text!r}")
        if key in given:
            raise InputError(f"{name.strip()}: {key} is given twice; got {text!r}")
        given[key] = value
    return name.strip(), given


def parse_techniques(asked: Sequence[str | Mapping[str, object] | Technique]) -> tuple[Technique, ...]:
    """The techniques in the order in which they apply, whatever the order of `asked`.

    Raises InputError if one does not parse or is given twice.
    """
    if isinstance(asked, str):
        raise InputError(f"techniques must be a list, such as [{asked!r}]; got {asked!r}")
    found = tuple(one if isinstance(one, Technique) else parse_technique(one) for one in asked)
    names = [one.name for one in found]
    if not all(names):
        raise InputError(f"{_path(type(found[names.index('')]))} has no name; put @technique('NAME') above its class")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"{twice} is given twice; give it once, with all its parameters")
    return tuple(sorted(found, key=lambda one: (one.order, one.name)))


__all__ = [
    "Drafter", "Finding", "Kind", "Run", "Schedule", "SettingView", "Technique", "Touches", "about", "altered",
    "parameter", "parse_technique", "parse_techniques", "technique", "techniques",
]  # fmt: skip
