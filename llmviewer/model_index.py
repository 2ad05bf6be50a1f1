"""models/index.json: what lists say of the models that ship, whose graphs take seconds to build.

`python tests/test_model_index.py` remakes it from the models, which are the truth: the test compares all, and one whose
file has another size than the index knows is built instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, Final

from ._layout import data_dir
from .records import frozen

PATH: Final = data_dir("models") / "index.json"


@frozen(kw_only=True)
class ModelFacts:
    """What lists say of a model.

    attention_kinds  without windows
    precision        format of most weights, as published
    weight_bytes     as published [B]
    unknown          why their size may be another; "": it is known
    max_context      0: unknown
    kv_bytes_per_token                 growth of the cache within all windows [B]
    kv_bytes_per_token_beyond_windows  growth of the cache of a sequence that is longer than all windows [B]
    """

    name: str
    title: str
    model_type: str
    parameters: int
    active_parameters: int
    looked_up_parameters: int
    layers: int
    attention: str
    attention_kinds: tuple[str, ...]
    generates: bool
    dtype: str
    precision: str
    quantization: str
    weight_bytes: float
    unknown: str
    kv_bytes_per_token: float
    kv_bytes_per_token_beyond_windows: float
    image_tokens: int
    max_context: int
    source: str
    aliases: tuple[str, ...]

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> ModelFacts:
        """From JSON."""
        lists: dict[str, Any] = {key: tuple(said[key]) for key in ("attention_kinds", "aliases")}
        return cls(**{**said, **lists})

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        left_out = ("attention_kinds", "precision", "unknown")
        found = {key: value for key, value in asdict(self).items() if key not in left_out}
        return found | {
            "weight_bytes": None if self.unknown else self.weight_bytes,
            "max_context": self.max_context or None,
            "aliases": list(self.aliases),
        }


@cache
def index() -> Mapping[str, ModelFacts]:
    """Shipped models by name, except those that are not as they were when the index was made."""
    if not PATH.is_file():
        return {}
    found = json.loads(PATH.read_text(encoding="utf-8"))
    sizes = _sizes()
    return {name: ModelFacts.of(found[name]["facts"]) for name in found if found[name]["size"] == sizes.get(name)}


def every(build: Callable[[str], ModelFacts]) -> list[ModelFacts]:
    """All models that ship, those that the index does not know as `build` makes them."""
    return [index().get(name) or build(name) for name in sorted(_sizes())]


def to_json(models: Iterable[ModelFacts]) -> str:
    """The text of the file, a model a line."""
    sizes = _sizes()
    lines = (f"{json.dumps(one.name)}: {json.dumps({'size': sizes[one.name], 'facts': asdict(one)})}" for one in models)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _sizes() -> dict[str, int]:
    """Sizes of the files, by the names of their models. [B]"""
    with os.scandir(PATH.parent) as files:
        return {one.name[:-5]: one.stat().st_size for one in files if one.name.endswith(".yaml")}
