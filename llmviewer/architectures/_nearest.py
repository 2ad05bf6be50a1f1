"""Nearest known family of a config with an unknown model_type, by the config's fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import fsum, log

from .._layout import data_dir
from ..documents import read_yaml

_MAX_FIELDS_NAMED = 4  # fields that are told
_SILENT_FIELDS = """
    architectures auto_map dtype ep_size model_type pretraining_tp quantization_config seq_aux torch_dtype use_cache
"""
_SILENT = frozenset(_SILENT_FIELDS.split())  # of how a model was made and is kept, not of what it is
_COMMON = log(2)  # weight of fields that half of all have, which tell nothing
_MISSING_FIELD_WEIGHT = 0.2  # what a field counts that the family has and the config has not
_SUFFIXES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "Model")


def nearest_family(config: Mapping[str, object]) -> tuple[str, tuple[str, ...]] | None:
    """(the shipped model_type with the most similar fields, the shared fields that few others have); None if no such
    field is shared.

    A field weighs more the fewer model types have it: all have vocab_size, but kv_lora_rank identifies a family.
    """
    kinds: dict[str, set[str]] = {}
    for path in data_dir("models").glob("*.yaml"):
        shipped = read_yaml(path).section("config").data
        kinds.setdefault(str(shipped["model_type"]), set()).update(_fields(shipped))
    having = Counter(field for fields in kinds.values() for field in fields)
    weights = {field: log(len(kinds) / number) for field, number in having.items()}
    config_fields = _fields(config) & weights.keys()
    if not any(weights[field] > _COMMON for field in config_fields):
        return None

    def likeness(kind: str) -> float:
        return _weight(config_fields & kinds[kind], weights) / (
            _weight(config_fields, weights) + _MISSING_FIELD_WEIGHT * _weight(kinds[kind] - config_fields, weights)
        )

    best = max(sorted(kinds), key=likeness)
    shared_fields = [field for field in config_fields & kinds[best] if weights[field] > _COMMON]
    return (
        (best, tuple(sorted(shared_fields, key=lambda field: (-weights[field], field))[:_MAX_FIELDS_NAMED]))
        if shared_fields
        else None
    )


def class_name(config: Mapping[str, object]) -> str:
    """Class of the model in `architectures`, spelt as a model type: LlamaForCausalLM is llama."""
    named = config.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else ""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.lower()


def _fields(config: Mapping[str, object]) -> set[str]:
    """The fields with a value of a config and of its text part."""
    text = config.get("text_config")
    inner = _fields(text) if isinstance(text, Mapping) else set()
    return {key for key, value in config.items() if value is not None} - _SILENT | inner


def _weight(fields: set[str], weights: Mapping[str, float]) -> float:
    return fsum(weights[field] for field in fields)  # exact, so that the order in a set makes no difference
