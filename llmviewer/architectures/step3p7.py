"""Step 3.7: Step 3.5 with a vision tower, over a thumbnail of the image and over tiles of larger images.

Filters after the layers leave a token for 4 x 4 patches.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.convolution import Conv2d
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from .blocks.fields import filled
from .blocks.moe import language_model
from .blocks.parts import Parts, result, with_rows
from .blocks.tiles import picture_size
from .blocks.tower import (
    PatchGrid,
    feature_block,
    image_rows,
    joined,
    patches_of,
    repeated_tower,
    scaled_layer,
    tied_of,
    vision,
    vit,
)
from .step3p5 import build as build_text

_TOWER: Final = {  # as transformers.Step3p7VisionConfig has it
    "hidden_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 16, "num_channels": 3, "image_size": 728,
    "patch_size": 14, "mlp_ratio": 8960 / 1536,
}  # fmt: skip
_NAMES: Final = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
_INTERPOLATION: Final = 8  # OPs to weigh and add four positions, and to add the result
_TILE: Final = 504  # pixels to a side of a tile
_MOST_PIXELS: Final = 3024  # to a side of an image
_THIN: Final = 32  # pixels to a side of an image that becomes a square if it is also
_LENGTH_FACTOR: Final = 4  # times as long as that
_OBLONG: Final = 1.5  # times as long as wide, from which an image that a square holds has tiles
_REST: Final = 0.2  # of a tile, from which what is left of an image makes one more


@architecture("step3p7")
def build(config: Section, fmt: Format) -> Graph:
    """Fields of the language model stand in text_config, or in some files beside the others."""
    text = config
    if config.has("text_config") or not config.has("num_hidden_layers"):
        text = language_model(config)
        text = filled(text, instead={"tie_word_embeddings": tied_of(config, text)})
    graph = build_text(text, fmt)
    if config.get("vision_config") is None:
        return graph
    section = filled(_renamed(vision(config)), _TOWER)
    section.ignore("max_position_embeddings")
    bias = config.flag("projector_bias", default=False)
    width, patch = text.integer("hidden_size"), section.integer("patch_size")
    side = section.integer("image_size") // patch
    blocks, project, tokens = _tower_blocks(section, fmt, side, width, bias=bias)
    rows, columns = _tiles(picture_size(config), side * patch)
    if not rows * columns:
        return joined(blocks, project, graph, tokens=tokens)
    tile_blocks, tile_project, tile_tokens = _tower_blocks(
        section, fmt, _TILE // patch, width, bias=bias, tiles=rows * columns
    )
    of_tiles = rows * columns * tile_tokens
    tile_copies = repeated_tower((*tile_blocks, feature_block("projector", tile_project, of_tiles)), "tiles")
    parts = Parts(format=fmt)
    packed = with_rows(parts.tensor("pack", width), image_rows(tokens + of_tiles))
    tiles = with_rows(parts.tensor(tile_copies[-1].output, width), image_rows(of_tiles))
    pack = Permute(name=packed.name, inputs=(tiles, result(project)), outputs=(packed,))
    return joined(
        (*tile_copies, *blocks),
        (*project, pack),
        graph,
        tokens=tokens + of_tiles,
        projected=tokens,
        side_inputs=(tiles.name,),
    )


def _renamed(section: Section) -> Section:
    """The vision_config by the usual names."""
    return section.with_data({_NAMES.get(key, key): value for key, value in section.data.items()})


def _tower_blocks(
    section: Section, fmt: Format, side: int, width: int, *, bias: bool, tiles: int = 1
) -> tuple[tuple[Block, ...], tuple[Operator, ...], int]:
    """The tower over squares of `side` patches, two filters that each leave every second row and column and double the
    channels, a projection, and the tokens of each square.
    """
    hidden, grid = section.integer("hidden_size"), section.integer("image_size") // section.integer("patch_size")
    pixels = section.integer("num_channels") * section.integer("patch_size") ** 2
    plain = vit(
        section,
        PatchGrid(height=side, width=side, pixels=pixels),
        "quick_gelu",
        inner=int(hidden * section.number("mlp_ratio")),
        rotated=True,
        positions=grid**2,
        position_ops=1 if side == grid else _INTERPOLATION,
        pre_norm=True,
        tiles=tiles,
    )
    tower = replace(plain, layers=[scaled_layer(layer) for layer in plain.layers])
    parts, operators = tower.parts(fmt), tuple[Operator, ...]()
    x = patches_of(tower, parts)
    for index in (1, 2):
        side = ceil(side / 2)
        rows, out = image_rows(side**2, tiles), 2 * x.width
        weights = (
            parts.weight(f"downsample_{index}.weight", out, x.width, 9),
            parts.weight(f"downsample_{index}.bias", out),
        )
        left = with_rows(parts.tensor(f"downsample_{index}", out), rows)
        operators = (*operators, Conv2d(name=left.name, inputs=(with_rows(x, rows),), outputs=(left,), weights=weights))
        x = left
    project = parts.linear("linear_1", x, with_rows(parts.tensor("linear_1", width), x.rows), bias=bias)
    return tower.blocks(fmt, tower.stream), (*operators, project), side**2


def _tiles(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Rows and columns of tiles of an image, by the class's processor; 0 of one that a square of `side` holds."""
    if min(size) < _THIN and max(size) > _LENGTH_FACTOR * min(size):
        size = (max(size), max(size))
    if max(size) > _MOST_PIXELS:
        height, width = (int(length * _MOST_PIXELS / max(size)) for length in size)
        size = (height, width)
    shorter, longer = min(size), max(size)
    if longer <= side:
        window = shorter if longer > _OBLONG * shorter else 0
    else:
        window = min(shorter, _TILE) if longer > _LENGTH_FACTOR * shorter else _TILE
    if not window:
        return 0, 0
    rows, columns = (max(1, n // window + (n % window > _REST * window)) if n >= window else 1 for n in size)
    return rows, columns
