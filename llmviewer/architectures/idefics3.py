"""Idefics3 and SmolVLM: a SigLIP tower, squares of whose patches are put side by side and projected (arXiv:2408.12637,
arXiv:2504.05299).

A picture here is one tile; the processor makes several of a large picture, and one more of all of it.
"""

from __future__ import annotations

from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from ._tower import filled, joined, language, patches_of, vision
from .siglip import plain_tower

_PICTURES: Final = {  # as transformers.Idefics3VisionConfig has it
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}


@architecture("idefics3", "smolvlm")
def build(config: Section, fmt: Format) -> Graph:
    text, width = language(config, fmt, "llama")
    if config.get("vision_config") is None:
        return text
    side = config.integer("scale_factor", 2)
    section = vision(config)
    section.costless("max_image_size", "size", "use_base_siglip", "tie_word_embeddings")
    tower = plain_tower(filled(section, _PICTURES), multiple=side)
    parts, merged = tower.parts(fmt), side**2
    wide = parts.tensor("pixel_shuffle", merged * tower.hidden)
    shuffle = Permute(name=wide.name, inputs=(patches_of(tower, parts),), outputs=(wide,))
    project = (shuffle, parts.project("linear_1", wide, width))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.picture.patches // merged)
