"""GOT-OCR 2.0: the tower of Segment Anything before a Qwen2; filters make a token of 4 x 4 patches
(arXiv:2409.01704).
"""

from __future__ import annotations

from math import ceil

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._class_defaults import TEXT_CLASSES
from ._moe import language_model
from ._parts import result
from ._sam import neck, sam_tower
from ._tower import filled, joined, language, vision


@architecture("got_ocr2")
def build(config: Section, fmt: Format) -> Graph:
    given = language_model(config) if config.get("text_config") is not None else Section({}, config.file)
    whole = filled(
        config, {"tie_word_embeddings": True}, instead={"text_config": TEXT_CLASSES["GotOcr2Config"] | {**given.data}}
    )
    text, width = language(whole, fmt, "qwen2")
    config.costless("image_seq_length")
    if config.get("vision_config") is None:
        return text
    section = vision(config)
    section.costless("num_pos_feats")
    tower = sam_tower(section)
    parts = tower.parts(fmt)
    filters = neck(section, tower, parts, (2 * section.integer("output_channels", 256), width))
    project = (*filters, parts.project("linear", result(filters), width, bias=True))
    tokens = ceil(tower.picture.height / 4) * ceil(tower.picture.width / 4)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)
