"""models/index.json: facts of the shipped models for listings, as building their graphs takes seconds.

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
from .parsed_files import json_lines
from .records import frozen

PATH: Final = data_dir("models") / "index.json"


@frozen(kw_only=True)
class ModelFacts:
    """Facts of a model that listings show.

    attention_kinds  without windows
    precision        format of most weights, as published
    weight_bytes     as published [B]
    unsupported_quantization  reason why weight_bytes is unknown; "": known
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
    unsupported_quantization: str
    kv_bytes_per_token: float
    kv_bytes_per_token_beyond_windows: float
    image_tokens: int
    max_context: int
    source: str
    aliases: tuple[str, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ModelFacts:
        """The facts of a JSON object."""
        lists: dict[str, Any] = {key: tuple(document[key]) for key in ("attention_kinds", "aliases")}
        return cls(**{**document, **lists})

    def to_dict(self) -> dict[str, Any]:
        """JSON object of the facts, as `llmviewer models --format json` has it."""
        unlisted_fields = ("attention_kinds", "precision", "unsupported_quantization")
        document = {key: value for key, value in asdict(self).items() if key not in unlisted_fields}
        return document | {
            "weight_bytes": None if self.unsupported_quantization else self.weight_bytes,
            "max_context": self.max_context or None,
            "aliases": list(self.aliases),
        }


@cache
def index() -> Mapping[str, ModelFacts]:
    """Facts of shipped models by name, without those whose file has changed since the index was made."""
    if not PATH.is_file():
        return {}
    records = json.loads(PATH.read_text(encoding="utf-8"))
    sizes = _sizes()
    return {name: ModelFacts.of(records[name]["facts"]) for name in records if records[name]["size"] == sizes.get(name)}


def all_facts(build: Callable[[str], ModelFacts]) -> list[ModelFacts]:
    """Facts of all shipped models; `build` makes those that the index lacks."""
    return [index().get(name) or build(name) for name in sorted(_sizes())]


def to_json(models: Iterable[ModelFacts]) -> str:
    """The text of the file, a model a line."""
    sizes = _sizes()
    return json_lines({one.name: {"size": sizes[one.name], "facts": asdict(one)} for one in models})


def _sizes() -> dict[str, int]:
    """Sizes of the files, by the names of their models. [B]"""
    with os.scandir(PATH.parent) as files:
        return {one.name[:-5]: one.stat().st_size for one in files if one.name.endswith(".yaml")}
