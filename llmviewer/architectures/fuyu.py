"""Fuyu: image patches are projected to tokens of a Persimmon, without a vision tower.

Each row of patches ends with a token of text, which is not counted among those of the image.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.fields import filled
from .blocks.parts import HIDDEN, Parts
from .blocks.tiles import picture_size
from .blocks.tower import joined, language

_MAX_IMAGE_SIZE: Final = (1080, 1920)  # pixels to a side, to which the processor brings larger images
_IGNORED: Final = "image_size num_attention_heads"


@architecture("fuyu")
def build(config: Section, fmt: Format) -> Graph:
    """Fields of the language model stand in text_config, or, in older files, beside those of images."""
    text_config = config.get("text_config") or {key: value for key, value in config.data.items() if key != "model_type"}
    text, width = language(
        filled(config, instead={"text_config": TEXT_CLASSES["FuyuConfig"] | text_config}), fmt, "persimmon"
    )
    config.ignore(*_IGNORED.split())
    patch, (tall, wide) = config.integer("patch_size", 30), picture_size(config)
    scale = min(1, _MAX_IMAGE_SIZE[0] / tall, _MAX_IMAGE_SIZE[1] / wide)
    tokens = ceil(int(tall * scale) / patch) * ceil(int(wide * scale) / patch)
    parts = Parts(format=fmt)
    pixels = parts.tensor(HIDDEN, config.integer("num_channels", 3) * patch**2)
    patches = parts.patches("patch_embed", pixels, parts.tensor("patch_embed", width), tokens)
    return joined((), (patches,), text, tokens=tokens)
