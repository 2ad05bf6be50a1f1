"""Hugging Face config -> Graph, one module an architecture. A module registers itself; nothing lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final, TypeAlias

from ..documents import Section
from ..errors import InputError, suggest
from ..graph import Graph
from ..precision import Format

Builder: TypeAlias = Callable[[Section, Format], Graph]

_MODULES: Final = tuple(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
_BUILDERS: dict[str, Builder] = {}


def architecture(*model_types: str) -> Callable[[Builder], Builder]:
    """Registers a builder for what config.json calls `model_type`."""

    def register(build: Builder) -> Builder:
        for model_type in model_types:
            if model_type in _BUILDERS:
                raise RuntimeError(
                    f"{model_type!r} is registered twice: {_BUILDERS[model_type].__module__} and {build.__module__}"
                )
            _BUILDERS[model_type] = build
        return build

    return register


def builder(config: Section) -> Builder:
    """What builds the graph of a config.

    Raises InputError, naming the nearest model types there are, where nothing does.
    """
    model_type = config.text("model_type")
    _load(module for module in _MODULES if _mentions(module, model_type))
    if model_type not in _BUILDERS:
        _load(_MODULES)
    if model_type not in _BUILDERS:
        raise InputError(
            f"{config.file}: {config.at}model_type: no architecture for {model_type!r}; "
            f"{suggest(model_type, _BUILDERS)}"
        )
    return _BUILDERS[model_type]


def model_types() -> tuple[str, ...]:
    """All that can be built."""
    _load(_MODULES)
    return tuple(sorted(_BUILDERS))


def _mentions(module: str, model_type: str) -> bool:
    """Whether a module registers it, as its text has it: to import them all takes longer than the analysis."""
    text = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    return re.search(rf'@architecture\([^)]*"{re.escape(model_type)}"', text) is not None


def _load(modules: Iterable[str]) -> None:
    for module in modules:
        import_module(f"{__name__}.{module}")
