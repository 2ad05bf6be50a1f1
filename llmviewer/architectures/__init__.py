"""Hugging Face config -> Graph, one module per architecture. Modules register their builders by `@architecture`.

index.json has the module of each model type, so that an analysis imports only one of them; `python
tests/test_architecture_index.py` remakes it. A model type that it lacks is found by importing all modules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final, TypeAlias

from ..documents import Section
from ..errors import suggest
from ..graph import Graph
from ..plugins import load_plugins
from ..precision import Format
from ._names import OTHER_NAMES, draft_type

Builder: TypeAlias = Callable[[Section, Format], Graph]

INDEX: Final = Path(__file__).with_name("index.json")

_MODULES: Final = tuple(
    module.name for module in iter_modules(__path__) if not (module.ispkg or module.name.startswith("_"))
)
_BUILDERS: dict[str, Builder] = {}


def architecture(*model_types: str) -> Callable[[Builder], Builder]:
    """Registers a builder for values of `model_type` in config.json."""

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
    """The builder of the graph of a config; fields of the config are then found by all names that they have had.

    Raises InputError, with the nearest family, if there is no builder.
    """
    model_type = draft_type(config) or config.text("model_type")
    if model_type not in _BUILDERS and (module := _indexed().get(model_type)) in _MODULES:
        _load([module])
    if model_type not in _BUILDERS:
        _load(_MODULES)
        load_plugins()
    if model_type not in _BUILDERS:
        raise config.error("model_type", _unknown(config, model_type))
    config.set_aliases(OTHER_NAMES)
    return _BUILDERS[model_type]


def build(config: Section, fmt: Format) -> tuple[Graph, tuple[str, ...]]:
    """The graph of a config with the head of the class that it names, and notes about that."""
    from ._classes import as_named  # imports what builders import, and they this module

    return as_named(config, builder(config)(config, fmt), fmt)


def _unknown(config: Section, model_type: str) -> str:
    """The error for an unknown architecture: the nearest ones, and what else to do."""
    from difflib import get_close_matches

    from ._kinds import kind_of
    from ._nearest import class_name, nearest_family

    kind = kind_of(model_type, _BUILDERS)
    parts = [f"no architecture for {model_type!r}" + (f", {kind.what}" if kind else "")]
    if kind and kind.instead:
        return f"{parts[0]}; {kind.instead}"
    named, nearest = class_name(config.data), nearest_family(config.data)
    if nearest:
        family, shared = nearest
        parts.append(f"by its fields it is nearest to {family} ({', '.join(shared)})")
    if named in _BUILDERS:
        parts.append(f"by its class it is a {named}")
    elif spelt := get_close_matches(model_type, _BUILDERS):
        parts.append(f"it is spelt like {' or '.join(spelt)}")
    elif not nearest:
        parts.append(suggest(model_type, _BUILDERS))
    parts.append(
        "give package.module:callable to trace its module, or describe it in a YAML file (`llmviewer docs models`)"
    )
    if config.data.get("auto_map"):
        parts.append("the code that its auto_map names is never run")
    return "; ".join(parts)


def model_types() -> tuple[str, ...]:
    """All known model types."""
    _load(_MODULES)
    load_plugins()
    return tuple(sorted(_BUILDERS))


def types_of_class(config: Section) -> list[str]:
    """Model types by the name of the class in `architectures`: LlamaForCausalLM is llama."""
    from ._nearest import class_name

    named = class_name(config.data)
    return [kind for kind in model_types() if kind.replace("_", "").replace("-", "") == named]


def index_json() -> str:
    """Text of index.json as the modules register their builders, a model type a line."""
    _load(_MODULES)
    prefix = f"{__name__}."
    modules = {name: build.__module__ for name, build in sorted(_BUILDERS.items())}
    ours = {name: module.removeprefix(prefix) for name, module in modules.items() if module.startswith(prefix)}
    return json.dumps(ours, indent=2) + "\n"


@cache
def _indexed() -> dict[str, str]:
    """Modules by model type, as index.json has them."""
    modules: dict[str, str] = json.loads(INDEX.read_text(encoding="utf-8")) if INDEX.is_file() else {}
    return modules


def _load(modules: Iterable[str]) -> None:
    for module in modules:
        import_module(f"{__name__}.{module}")
