"""Idefics3 and SmolVLM: a SigLIP tower, squares of whose patches are put side by side and projected (arXiv:2408.12637,
arXiv:2504.05299).

The longer side of a picture is brought to four tiles, which are read one by one, and all of it once more in one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from ._class_defaults import TOWERS
from ._tiles import longest_side, picture_size
from ._tower import filled, joined, language, patches_of, sides, vision
from .siglip import plain_tower

_LONGEST: Final = 4  # tiles to the longer side, in the processors of all published models


@architecture("idefics3", "smolvlm")
def build(config: Section, fmt: Format) -> Graph:
    text, width = language(config, fmt, "llama")
    if config.get("vision_config") is None:
        return text
    side = config.integer("scale_factor", 2)
    section = vision(config)
    section.costless("max_image_size", "size", "use_base_siglip", "tie_word_embeddings")
    section = filled(section, TOWERS["Idefics3VisionConfig"])
    rows, columns = longest_side(picture_size(config), sides(section, "image_size"), _LONGEST)
    tower = replace(plain_tower(section, multiple=side), tiles=rows * columns + 1)
    parts, merged = tower.parts(fmt), side**2
    wide = parts.tensor("pixel_shuffle", merged * tower.hidden)
    shuffle = Permute(name=wide.name, inputs=(patches_of(tower, parts),), outputs=(wide,))
    project = (shuffle, parts.project("linear_1", wide, width))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.tiles * tower.picture.patches // merged)
