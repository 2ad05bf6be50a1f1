"""Defaults of classes in transformers for fields that configs leave out: language models and vision towers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from ...records import frozen

_SIZES: Final = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_ALIASES: Final = "~"  # keys of class_defaults.json: other names of fields
_TOWER_SECTIONS: Final = frozenset(("vision_config", "audio_config"))
_SECTIONS: Final = "="  # fields of sections that are left out


def _table(fields: tuple[str, ...], rows: Mapping[str, tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    """Fields of each row; those that are None are not there."""
    named = {name: zip(fields, row, strict=True) for name, row in rows.items()}
    return {name: {field: value for field, value in pairs if value is not None} for name, pairs in named.items()}


TEXTS: Final = _table(  # by the model_type of a text_config; without key-value heads there is one for each head
    ("vocab_size", *_SIZES, "num_key_value_heads"),
    {
        "llama": (32000, 4096, 11008, 32, 32, None),
        "mistral": (32000, 4096, 14336, 32, 32, 8),
        "qwen2": (151936, 4096, 22016, 32, 32, 32),
        "qwen3": (151936, 4096, 22016, 32, 32, 32),
        "gemma": (256000, 3072, 24576, 28, 16, 16),
        "gemma2": (256000, 2304, 9216, 26, 8, 4),
        "gemma3_text": (262208, 2304, 9216, 26, 8, 4),
        "cohere2": (256000, 8192, 22528, 40, 64, None),
        "granite": (32000, 4096, 11008, 32, 32, None),
        "phi3": (32064, 3072, 8192, 32, 32, None),
    },
)
TEXT_CLASSES: Final = _table(  # by class, where that is not the model_type's own
    ("vocab_size", *_SIZES, "num_key_value_heads", "head_dim"),
    {
        "Ernie4_5_VLMoeTextConfig": (103424, 2560, 12288, 28, 20, 4, None),
        "FuyuConfig": (262144, 4096, 16384, 36, 64, None, None),
        "Gemma3nTextConfig": (262400, 2048, 16384, 35, 8, 2, None),
        "Gemma4TextConfig": (262144, 2304, 9216, 30, 8, 4, 256),
        "Glm4vMoeTextConfig": (151424, 4096, 10944, 46, 96, 8, None),
        "Glm4vTextConfig": (151552, 4096, 13696, 40, 32, 2, None),
        "GlmOcrTextConfig": (59392, 1024, 4096, 16, 16, 8, None),
        "GotOcr2Config": (151860, 1024, 2816, 24, 16, 16, None),
        "MllamaTextConfig": (128256, 4096, 14336, 40, 32, 8, None),
        "Molmo2TextConfig": (151936, 4096, 12288, 36, 32, 8, 128),
        "PaddleOCRTextConfig": (103424, 1024, 3072, 18, 16, 2, 128),
        "Phi4MultimodalConfig": (200064, 3072, 8192, 32, 32, 8, None),
        "Qwen2_5OmniTextConfig": (152064, 3584, 18944, 28, 28, 4, None),
        "Qwen3OmniMoeTextConfig": (3584, 2048, 18944, 28, 28, 4, None),
        "T5GemmaModuleConfig": (256000, 2304, 9216, 26, 8, 4, 256),
        "VoxtralConfig": (131072, 3072, 8192, 30, 32, 8, 128),
    },
)
TOWERS: Final = _table(  # by class
    (*_SIZES, "image_size", "patch_size"),
    {
        "AyaVisionConfig": (1152, 4304, 26, 14, 384, 14),
        "Blip2VisionConfig": (1408, 6144, 39, 16, 224, 14),
        "CLIPVisionConfig": (768, 3072, 12, 12, 224, 32),
        "Idefics2VisionConfig": (768, 3072, 12, 12, 224, 32),
        "Idefics3VisionConfig": (1152, 3072, 12, 16, 224, 32),
        "InternVLVisionConfig": (1024, 4096, 24, 16, 448, 14),
        "InternVisionConfig": (3200, 12800, 48, 25, 224, 14),  # of the repositories of OpenGVLab
        "JanusVisionConfig": (1024, None, 24, 16, 384, 16),
        "MllamaVisionConfig": (1280, 5120, 32, None, 448, 14),
        "Molmo2VisionConfig": (1152, 4304, 25, 16, [378, 378], 14),
        "Ovis2VisionConfig": (1024, 2816, 24, 8, 224, 14),
        "PaddleOCRVisionConfig": (1152, 4304, 27, 16, 384, 14),
        "Phi4MultimodalVisionConfig": (1152, 4304, 27, 16, 448, 14),
        "PixtralVisionConfig": (1024, 4096, 24, 16, 1024, 16),
        "SamVisionConfig": (768, None, 12, 12, 1024, 16),
        "Siglip2VisionConfig": (768, 3072, 12, 12, None, 16),
        "SiglipVisionConfig": (768, 3072, 12, 12, 224, 16),
    },
)


@cache
def _lines() -> dict[str, str]:
    """The defaults of each model_type as JSON; most are never parsed."""
    lines = Path(__file__).with_name("class_defaults.json").read_text("utf-8").splitlines()[1:-1]
    named = (line.partition(": ") for line in lines)
    return {name.strip('"'): fields.rstrip(",") for name, _, fields in named}


@cache
def _fields_of(model_type: str, within: tuple[str, ...]) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = json.loads(_lines().get(model_type, "{}"))
    for key in within:
        fields = fields.get(key, {})
    return fields


@frozen
class ClassDefaults:
    """Defaults of a class of transformers, for a config or a section of one.

    model_type  of the config; "" if the class is known by `within` alone
    within      keys of the sections that lead from the config to this one
    """

    model_type: str
    within: tuple[str, ...] = ()

    def names(self, key: str) -> tuple[str, ...]:
        other: Mapping[str, str] = _fields_of(self.model_type, self.within).get(_ALIASES, {})
        canonical = other.get(key, key)
        return tuple(name for name in (canonical, *other) if name != key and other.get(name, name) == canonical)

    def value(self, key: str, keys: Collection[str]) -> Any:
        fields = _fields_of(self.model_type, self.within)
        default = fields.get(key)
        if not isinstance(default, Mapping):
            return default
        flat = (default.keys() - fields.keys()).intersection(keys)  # fields of the section stand beside it instead
        return None if flat else fields.get(_SECTIONS, {}).get(key)

    def towers(self, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Sections of towers that the class builds where they are absent or null in `config`."""
        sections: Mapping[str, dict[str, Any]] = _fields_of(self.model_type, self.within).get(_SECTIONS, {})
        return {key: sections[key] for key in sections if key in _TOWER_SECTIONS and config.get(key) is None}

    def inside(self, key: str, data: Mapping[str, Any]) -> ClassDefaults:
        model_type = data.get("model_type")
        if isinstance(model_type, str) and model_type in _lines():
            return ClassDefaults(model_type)
        return ClassDefaults(self.model_type, (*self.within, key))
