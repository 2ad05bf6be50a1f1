"""LFM2-VL: a SigLIP 2 tower at the native aspect ratio of an image; an MLP merges four patches into a token of LFM2
(arXiv:2511.23404).

An image of more than 512 tokens is cut into tiles of 256, and read once more in one of at most as many. What is no
whole tile is padded to one in the tower.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TOWERS
from .blocks.fields import filled
from .blocks.parts import NormKind, Parts, activation, result
from .blocks.tiles import closest_grid, picture_size
from .blocks.tower import PatchGrid, Tower, joined, language, patches_of, projector, vision, vit
from .siglip import without_head

_IMAGES: Final = TOWERS["Siglip2VisionConfig"] | {"num_patches": 256}
_INTERPOLATION: Final = 8  # OPs to weigh and add four positions, and to add the result
_IGNORED: Final = """
    encoder_patch_size do_image_splitting use_thumbnail use_image_special_tokens max_num_patches vision_feature_layer
    vision_feature_select_strategy tie_embedding tie_word_embeddings
"""


@architecture("lfm2_vl")
def build(config: Section, fmt: Format) -> Graph:
    """LFM2-VL: a SigLIP 2 tower over tiles and a thumbnail, 2 x 2 patches a token, before LFM2."""
    tied = config.flag(config.first("tie_embedding", "tie_word_embeddings"), default=True)
    config.ignore(*_IGNORED.split())
    text, width = language(filled(config, instead={"tie_word_embeddings": tied}), fmt, "lfm2")
    if config.get("vision_config") is None:
        return text
    section = filled(vision(config), _IMAGES)
    without_head(section)
    patch, factor = section.integer("patch_size"), config.integer("downsample_factor", 2)
    tile = config.integer("tile_size", 512)
    resized_size = _resized(config, patch * factor)
    cut = _tiles(config, patch * factor, tile)
    tower = _tower(section, tile // patch, tiles=cut + 1 if cut else 1)
    tokens = cut * ceil(tile // patch / factor) ** 2 + resized_size
    project = _projected(config, tower, tower.parts(fmt), factor**2, width)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


def _tiles(config: Section, unit: int, tile: int) -> int:
    """Tiles that an image is cut into besides the whole; none where it is small."""
    size, max_tokens = picture_size(config), config.integer("max_image_tokens", 256)
    near = [max(unit // 2, round(side / unit) * unit) for side in size]
    min_tiles, top = config.count("min_tiles", 2), config.count("max_tiles", 10)
    if top == 1 or near[0] * near[1] <= max_tokens * unit**2 * config.number("max_pixels_tolerance", 2.0):
        return 0
    rows, columns = closest_grid(size, (tile, tile), least=min_tiles, most=top)
    return rows * columns


def _resized(config: Section, unit: int) -> int:
    """Tokens of an image that is brought to as many as may be, as smart_resize of transformers has it."""
    height, width = picture_size(config)
    min_tokens, max_tokens = config.integer("min_image_tokens", 64), config.integer("max_image_tokens", 256)
    rows, columns = (max(1, round(side / unit)) for side in (height, width))
    scale = sqrt(height * width) / unit
    if rows * columns > max_tokens:
        return max(1, floor(height / unit * sqrt(max_tokens) / scale)) * max(
            1, floor(width / unit * sqrt(max_tokens) / scale)
        )
    if rows * columns < min_tokens:
        return ceil(height / unit * sqrt(min_tokens) / scale) * ceil(width / unit * sqrt(min_tokens) / scale)
    return rows * columns


def _tower(section: Section, side: int, *, tiles: int) -> Tower:
    """SigLIP's, whose positions are interpolated from a table."""
    pixels = section.integer("num_channels", 3) * section.integer("patch_size") ** 2
    return vit(
        section,
        PatchGrid(height=side, width=side, pixels=pixels),
        "gelu_pytorch_tanh",
        patch_bias=True,
        positions=section.integer("num_patches"),
        position_ops=_INTERPOLATION,
        post_norm=True,
        tiles=tiles,
    )


def _projected(config: Section, tower: Tower, parts: Parts, merged: int, width: int) -> tuple[Operator, ...]:
    """Patches put side by side, normed together where the config says so, and two linears."""
    wide = parts.tensor("pixel_unshuffle", merged * tower.hidden)
    operators: tuple[Operator, ...] = (Permute(name=wide.name, inputs=(patches_of(tower, parts),), outputs=(wide,)),)
    if config.flag("projector_use_layernorm", default=True):
        operators = (*operators, parts.norm("merge_norm", wide, kind=NormKind.LAYER))
    widths = (config.integer("projector_hidden_size", 2560), width)
    act = activation(config, "projector_hidden_act", "gelu")
    return (
        *operators,
        *projector(parts, result(operators), widths, act, bias=config.flag("projector_bias", default=True)),
    )
