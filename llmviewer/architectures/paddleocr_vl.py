"""PaddleOCR-VL: a SigLIP tower for images of any size before ERNIE 4.5, four patches a token (arXiv:2510.14528).

An image is as large as picture_size says, which no published config has, down to whole tokens. Positions are
interpolated from a learned grid, and patches are rotated by their place besides. The first configs have the fields of
the language model beside vision_config.
"""

from __future__ import annotations

from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TEXT_CLASSES, TOWERS
from .blocks.fields import filled
from .blocks.moe import language_model
from .blocks.parts import NormKind
from .blocks.tiles import picture_size
from .blocks.tower import Tower, joined, merger, patch_grid, sides, vision, vit
from .llama import FAMILIES

_IGNORED: Final = """
    image_token_id video_token_id vision_start_token_id vision_end_token_id compression_ratio ignored_index model_type
    max_sequence_length rope_is_neox_style use_3d_rope use_flash_attention weight_share_add_bias sliding_window
"""
_INTERPOLATION: Final = 8  # OPs to weigh and add four positions, and to add the result
_TIED: Final = "tie_word_embeddings"


@architecture("paddleocr_vl")
def build(config: Section, fmt: Format) -> Graph:
    """PaddleOCR-VL: a SigLIP tower at native resolution, 2 x 2 patches a token, before ERNIE 4.5."""
    text_config = language_model(config) if config.get("text_config") is not None else config
    for section in (config, text_config):
        section.ignore(*_IGNORED.split())
    tied = any(section.flag(_TIED, default=True) for section in (config, text_config))
    text = filled(text_config, TEXT_CLASSES["PaddleOCRTextConfig"], instead={_TIED: tied})
    language = FAMILIES["ernie4_5"].graph(text, fmt)
    if config.get("vision_config") is None:
        return language
    section = filled(vision(config), TOWERS["PaddleOCRVisionConfig"])
    section.ignore("model_type", "temporal_patch_size", "tokens_per_second")
    side = section.integer("spatial_merge_size", 2)
    tower = _tower(config, section, side)
    merge = merger(tower.parts(fmt), tower, side**2, text.integer("hidden_size"), norm=NormKind.LAYER)
    return joined(tower.blocks(fmt, tower.stream), merge, language, tokens=tower.grid.patches // side**2)


def _tower(config: Section, section: Section, side: int) -> Tower:
    grid = patch_grid(section)
    (height, width), (tall, wide) = picture_size(config), (patch * side for patch in sides(section, "patch_size"))
    if height < tall or width < wide:
        raise config.error("picture_size", f"must be at least a token, {tall} x {wide}; got {height} x {width}")
    size = [height // tall * tall, width // wide * wide]
    return vit(
        section,
        patch_grid(filled(section, instead={"image_size": size}), multiple=side),
        "gelu_pytorch_tanh",
        rotated=True,
        patch_bias=True,
        positions=grid.patches,
        position_ops=_INTERPOLATION,
        post_norm=True,
    )
