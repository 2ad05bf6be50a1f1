"""LLaVA: a CLIP tower, an MLP of two layers and a language model (arXiv:2310.03744).

The features are those of the layer before the last, so the last one and its norm are held but not run. ViP-LLaVA takes
those of five layers, which a norm precedes the MLP of (arXiv:2312.00784).

LLaVA-NeXT and LLaVA-OneVision read an image in tiles, and once more all of it in one (arXiv:2401.13601,
arXiv:2408.03326). It is brought to that size of image_grid_pinpoints that keeps most of it. What was padded is left
out, and a learned token ends every row of patches. OneVision reads an image this way where a prompt has no other.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator
from ..operators.elementwise import Elementwise, Permute
from ..precision import Format
from . import architecture
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, activation, result, with_rows
from .blocks.tiles import best_resolution, picture_size
from .blocks.tower import (
    UNUSED,
    Tower,
    auxiliary_block,
    image_rows,
    joined,
    language,
    layers_run,
    projector,
    sides,
    vision,
)
from .clip import clip_tower
from .mistral3 import pixtral_tower
from .siglip import siglip_tower

_TOWERS: Final = {"clip_vision_model": clip_tower, "siglip_vision_model": siglip_tower, "pixtral": pixtral_tower}
_VIP_LAYERS: Final = [-2, -5, -8, -11, 6]  # as transformers.VipLlavaConfig has it
_WITHOUT_LEARNED: Final = "default"
_GRIDS: Final = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_TILE: Final = 384  # of OneVision, whose grids are of up to
_TILES: Final = 6  # tiles to each side
_SHRUNK: Final = 1.1  # times as many patches to a side as there may be, from which they are interpolated
_BILINEAR: Final = 7  # OPs to weigh and add four neighbours
_NEXT_IGNORED: Final = """
    image_seq_length pad_token_id spatial_pool_stride use_image_newline_parameter video_seq_length video_token_index
    vocab_size
"""


@architecture("llava")
def build(config: Section, fmt: Format) -> Graph:
    """LLaVA: a CLIP tower and a two-layer MLP before a Llama by default."""
    text, width = language(config, fmt, "llama")
    config.ignore("image_seq_length", "pad_token_id", "projector_hidden_size")
    if config.get("vision_config") is None:
        return text
    tower, feature_layers = _tower(config)
    tokens = tower.grid.patches if _selected(config) == _WITHOUT_LEARNED else tower.tokens
    project = _projected(config, tower, tower.parts(fmt), width, feature_layers)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


@architecture("vipllava")
def build_vip(config: Section, fmt: Format) -> Graph:
    """ViP-LLaVA: features of five CLIP layers, a norm and an MLP before a Llama by default."""
    text, width = language(config, fmt, "llama")
    config.ignore("image_seq_length", "projector_layernorm_eps")
    if config.get("vision_config") is None:
        return text
    config = filled(config, {"vision_feature_layer": _VIP_LAYERS})
    tower, feature_layers = _tower(config)
    parts = tower.parts(fmt)
    gathered, *linears = _projected(config, tower, parts, width, feature_layers)
    norm = parts.norm("merge_norm", gathered.result, kind=NormKind.LAYER)
    first = replace(linears[0], inputs=norm.outputs)
    project = (gathered, norm, first, *linears[1:])
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.grid.patches)


@architecture("video_llava")
def build_video(config: Section, fmt: Format) -> Graph:
    """A tower more, for films, is held and not run (arXiv:2311.10122)."""
    config.ignore("image_seq_length", "video_seq_length")
    graph = build(config, fmt)
    if config.get("vision_config") is None:
        return graph
    tower, _ = _tower(config)
    films = (
        auxiliary_block(replace(b, stream=UNUSED), name="film") for b in replace(tower, run=None).blocks(fmt, UNUSED)
    )
    return Graph((*films, *graph.blocks))


def _selected(config: Section, default: str = _WITHOUT_LEARNED) -> str:
    """Tokens of the tower that become features: all, or all but the class token."""
    return config.choice("vision_feature_select_strategy", (_WITHOUT_LEARNED, "full"), default)


def _tower(config: Section, layer: int = -2) -> tuple[Tower, int]:
    """The tower, of which all after the last layer that features are taken from is held and not run, and how many
    layers they are taken from; `layer` where the config does not say which.
    """
    section = vision(config)
    default_type = "siglip_vision_model" if config.text("model_type") == "llava_onevision" else "clip_vision_model"
    tower = _TOWERS[section.choice("model_type", _TOWERS, default_type)](section)
    feature_layers = layers_run(config, "vision_feature_layer", len(tower.layers), layer)
    return replace(tower, run=max(feature_layers)), len(feature_layers)


def _projected(config: Section, tower: Tower, parts: Parts, width: int, feature_layers: int) -> tuple[Operator, ...]:
    """Two linears of the features of `feature_layers` layers side by side."""
    act = activation(config, "projector_hidden_act", "gelu")
    bias = config.flag("multimodal_projector_bias", default=True)
    x = parts.tensor(HIDDEN, feature_layers * tower.hidden)
    gathered: tuple[Operator, ...] = ()
    if feature_layers > 1:
        gathered = (Permute(name="features", inputs=(x,), outputs=(parts.tensor("features", x.width),)),)
        x = result(gathered)
    return (*gathered, *projector(parts, x, (width, width), act, bias=bias))


@architecture("llava_next", "llava_next_video")
def build_next(config: Section, fmt: Format) -> Graph:
    """Frames of a video are pooled, by a mean or what else learns nothing; images are not."""
    config.choice("spatial_pool_mode", ("average", "max"), "average")
    return _tiled(config, fmt, "llama", _GRIDS, layer=-2, select=_WITHOUT_LEARNED)


@architecture("llava_onevision")
def build_onevision(config: Section, fmt: Format) -> Graph:
    """LLaVA-OneVision: a SigLIP tower over tiles and the whole image, before Qwen2 by default."""
    aspect_ratio = config.text("vision_aspect_ratio", "anyres_max_9")
    if not aspect_ratio.removeprefix("anyres_max_").isdecimal():
        raise config.error("vision_aspect_ratio", f"must be anyres_max_ and a number of tiles; got {aspect_ratio!r}")
    lengths = [_TILE * n for n in range(1, _TILES + 1)]
    grids = [[height, width] for height in lengths for width in lengths]
    return _tiled(
        config, fmt, "qwen2", grids, layer=-1, select="full", most=int(aspect_ratio.removeprefix("anyres_max_"))
    )


def _tiled(
    config: Section, fmt: Format, kind: str, grids: list[list[int]], *, layer: int, select: str, most: int = 0
) -> Graph:
    """`grids` are sizes that an image may be brought to where the config does not say, and `most` how many tiles may
    put all of their patches into the prompt; 0 is any number.
    """
    text, width = language(config, fmt, kind)
    config.ignore(*_NEXT_IGNORED.split())
    if config.get("vision_config") is None:
        return text
    tower, feature_layers = _tower(config, layer)
    height, across = _grid(config, grids)
    tower = replace(tower, tiles=height * across + 1)
    if _selected(config, select) != _WITHOUT_LEARNED and tower.learned:
        raise config.error("vision_feature_select_strategy", "must be default: tiles are put together without a class "
                           "token")  # fmt: skip
    rows, columns = _unpadded(picture_size(config), height * tower.grid.height, across * tower.grid.width)
    shrunk = sqrt(rows * columns / (most * tower.grid.patches)) if most else 0
    if shrunk > _SHRUNK:
        rows, columns = int(rows // shrunk), int(columns // shrunk)
    parts, tokens = tower.parts(fmt), tower.grid.patches + rows * (columns + 1)
    project = _projected(config, tower, parts, width, feature_layers)
    packed = with_rows(parts.tensor("pack", width), image_rows(tokens))
    pack = Elementwise(
        name=packed.name,
        inputs=(result(project),),
        outputs=(packed,),
        weights=(parts.weight("newline.weight", width),),
        ops_per_element=_BILINEAR if shrunk > _SHRUNK else 0,
    )
    every = tower.grid.patches * tower.tiles
    return joined(tower.blocks(fmt, tower.stream), (*project, pack), text, tokens=tokens, projected=every)


def _grid(config: Section, grids: list[list[int]]) -> tuple[int, int]:
    """Tiles to each side of an image."""
    pinpoints = config.get("image_grid_pinpoints")
    pinpoints = grids if pinpoints is None else pinpoints
    tall, wide = sides(config.section("vision_config"), "image_size", 336)
    pairs = (
        [(g[0], g[1]) for g in pinpoints if isinstance(g, list) and len(g) == 2] if isinstance(pinpoints, list) else []
    )
    all_positive = all(isinstance(n, int) and n > 0 for pair in pairs for n in pair)
    if not pairs or len(pairs) != len(pinpoints) or not all_positive or any(h % tall or w % wide for h, w in pairs):
        raise config.error("image_grid_pinpoints", f"must be heights and widths in tiles of {tall} x {wide}")
    height, width = best_resolution(picture_size(config), pairs)
    return height // tall, width // wide


def _unpadded(size: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the patches that an image covers, whose shape is not that of the tiles."""
    height, width = size
    if width / height > columns / rows:
        return rows - 2 * ((rows - int(round(height * (columns / width), 7))) // 2), columns
    return rows, columns - 2 * ((columns - int(round(width * (rows / height), 7))) // 2)
