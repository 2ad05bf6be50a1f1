"""LLaVA-NeXT and LLaVA-OneVision: LLaVA whose tower reads a picture in tiles, and once more all of it in one
(arXiv:2401.13601, arXiv:2408.03326).

A picture is brought to that size of image_grid_pinpoints that keeps most of it. What was padded is left out, and a
learned token ends every row of patches. OneVision reads a picture this way where a prompt has no other.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.elementwise import Elementwise
from ..precision import Format
from . import architecture
from ._parts import result, with_rows
from ._tiles import best_resolution, picture_size
from ._tower import joined, language, of_pictures, sides
from .llava import WITHOUT_LEARNED, projected, seen_tower, selected

_GRIDS: Final = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_TILE: Final = 384  # of OneVision, whose grids are of up to
_TILES: Final = 6  # tiles to each side
_SHRUNK: Final = 1.1  # times as many patches to a side as there may be, from which they are interpolated
_BILINEAR: Final = 7  # OPs to weigh and add four neighbours
_COSTLESS: Final = """
    image_seq_length pad_token_id spatial_pool_stride use_image_newline_parameter video_seq_length video_token_index
    vocab_size
"""


@architecture("llava_next", "llava_next_video")
def build(config: Section, fmt: Format) -> Graph:
    """Frames of a film are pooled, by a mean or what else learns nothing; pictures are not."""
    config.choice("spatial_pool_mode", ("average", "max"), "average")
    return _build(config, fmt, "llama", _GRIDS, layer=-2, select=WITHOUT_LEARNED)


@architecture("llava_onevision")
def build_onevision(config: Section, fmt: Format) -> Graph:
    most = config.text("vision_aspect_ratio", "anyres_max_9")
    if not most.removeprefix("anyres_max_").isdecimal():
        raise config.error("vision_aspect_ratio", f"must be anyres_max_ and a number of tiles; got {most!r}")
    lengths = [_TILE * n for n in range(1, _TILES + 1)]
    grids = [[height, width] for height in lengths for width in lengths]
    return _build(config, fmt, "qwen2", grids, layer=-1, select="full", most=int(most.removeprefix("anyres_max_")))


def _build(
    config: Section, fmt: Format, kind: str, grids: list[list[int]], *, layer: int, select: str, most: int = 0
) -> Graph:
    """`grids` are sizes that a picture may be brought to where the config does not say, and `most` how many tiles may
    put all of their patches into the prompt; 0 is any number.
    """
    text, width = language(config, fmt, kind)
    config.costless(*_COSTLESS.split())
    if config.get("vision_config") is None:
        return text
    tower, taken = seen_tower(config, layer)
    height, across = _grid(config, grids)
    tower = replace(tower, tiles=height * across + 1)
    if selected(config, select) != WITHOUT_LEARNED and tower.learned:
        raise config.error("vision_feature_select_strategy", "must be default: tiles are put together without a class "
                           "token")  # fmt: skip
    rows, columns = _unpadded(picture_size(config), height * tower.picture.height, across * tower.picture.width)
    shrunk = sqrt(rows * columns / (most * tower.picture.patches)) if most else 0
    if shrunk > _SHRUNK:
        rows, columns = int(rows // shrunk), int(columns // shrunk)
    parts, tokens = tower.parts(fmt), tower.picture.patches + rows * (columns + 1)
    project = projected(config, tower, parts, width, taken)
    packed = with_rows(parts.tensor("pack", width), of_pictures(tokens))
    pack = Elementwise(
        name=packed.name,
        inputs=(result(project),),
        outputs=(packed,),
        weights=(parts.weight("newline.weight", width),),
        ops_per_element=_BILINEAR if shrunk > _SHRUNK else 0,
    )
    every = tower.picture.patches * tower.tiles
    return joined(tower.blocks(fmt, tower.stream), (*project, pack), text, tokens=tokens, projected=every)


def _grid(config: Section, grids: list[list[int]]) -> tuple[int, int]:
    """Tiles to each side of a picture."""
    given = config.get("image_grid_pinpoints")
    given = grids if given is None else given
    tall, wide = sides(config.section("vision_config"), "image_size", 336)
    pairs = [(g[0], g[1]) for g in given if isinstance(g, list) and len(g) == 2] if isinstance(given, list) else []
    whole = all(isinstance(n, int) and n > 0 for pair in pairs for n in pair)
    if not pairs or len(pairs) != len(given) or not whole or any(h % tall or w % wide for h, w in pairs):
        raise config.error("image_grid_pinpoints", f"must be heights and widths in tiles of {tall} x {wide}")
    height, width = best_resolution(picture_size(config), pairs)
    return height // tall, width // wide


def _unpadded(size: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the patches that a picture covers, whose shape is not that of the tiles."""
    height, width = size
    if width / height > columns / rows:
        return rows - 2 * ((rows - int(round(height * (columns / width), 7))) // 2), columns
    return rows, columns - 2 * ((columns - int(round(width * (rows / height), 7))) // 2)
