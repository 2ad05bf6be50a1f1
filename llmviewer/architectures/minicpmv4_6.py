"""MiniCPM-V 4.6 and 4.7: SigLIP with window attention that merges squares of patches after some layers, a final
merger, and a Qwen3.5.

An image is read small as a whole, and where it is larger in slices besides.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Final, NamedTuple

from ..documents import Section
from ..forms import Stream, images
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..operators.masks import Tiled
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TOWERS
from .blocks.decoder import Layer
from .blocks.encoder import stack
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, heads_of, result, with_rows
from .blocks.tiles import nearest_slices, picture_size
from .blocks.tower import (
    UNUSED,
    PatchGrid,
    Tower,
    feature_block,
    image_rows,
    joined,
    language,
    merger,
    repeated_tower,
    sides,
    vision,
    vit,
)

_SIDE: Final = 448  # pixels to a side of a slice, or as many in another shape, by the processor's default
_SLICES: Final = 9  # at most, likewise
_MERGED: Final = 2  # patches to a side of a square that becomes one
_SQUARE: Final = _MERGED**2
_IGNORED: Final = """
    image_size image_start_id image_end_id slice_start_id slice_end_id newline_id patch_size drop_vision_last_layer
"""


class VisionPart(NamedTuple):
    """Tower blocks for images of a size or their tiles, the projector, and tokens per image or tile."""

    blocks: tuple[Block, ...]
    project: tuple[Operator, ...]
    tokens: int


@architecture("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")
def build(config: Section, fmt: Format) -> Graph:
    """MiniCPM-V 4.6, 4.7 and MiniCPM-OCR: a SigLIP tower that merges patches between layers, before Qwen3.5."""
    text, width = language(config, fmt, "qwen3_5_text")
    config.ignore(*_IGNORED.split())
    if config.get("vision_config") is None:
        return text
    inserted = {"insert_layer_id": config.integer("insert_layer_id", 6, least=0)}
    section = filled(vision(config), TOWERS["SiglipVisionConfig"], instead=inserted)
    for where, key in ((section, "window_kernel_size"), (config, "merge_kernel_size")):
        if sides(where, key, _MERGED) != (_MERGED, _MERGED):
            raise where.error(key, f"must be {_MERGED} x {_MERGED}, as all published models have it")
    if config.count("merger_times", 1) != 1:
        raise config.error("merger_times", "must be 1: no published model merges more often")
    merges = config.choice("downsample_mode", ("16x", "4x"), "16x") == "16x"
    unit, size = section.integer("patch_size") * (4 if merges else 2), picture_size(config)
    rows, columns = nearest_slices(size, _SIDE, most=_SLICES)
    overview = _vision_part(section, fmt, resized(size, unit), width, merges=merges)
    if rows * columns == 1:
        return joined(overview.blocks, overview.project, text, tokens=overview.tokens)
    slice_size = (nearest(size[0], rows) / rows, nearest(size[1], columns) / columns)
    each = _vision_part(section, fmt, resized(slice_size, unit), width, merges=merges, tiles=rows * columns)
    sliced = rows * columns * each.tokens
    slice_blocks = repeated_tower((*each.blocks, feature_block("projector", each.project, sliced)), "slices")
    tokens, parts = overview.tokens + sliced, Parts(format=fmt)
    packed = with_rows(parts.tensor("pack", width), image_rows(tokens))
    slices = with_rows(parts.tensor(slice_blocks[-1].output, width), image_rows(sliced))
    pack = Permute(name=packed.name, inputs=(result(overview.project), slices), outputs=(packed,))
    return joined(
        (*slice_blocks, *overview.blocks),
        (*overview.project, pack),
        text,
        tokens=tokens,
        projected=overview.tokens,
        side_inputs=(slice_blocks[-1].output,),
    )


def resized(size: tuple[float, float], unit: int) -> tuple[int, int]:
    """Height and width of an image that is brought to the pixels of a slice in its own shape, in whole units."""
    shape = size[1] / size[0]
    height = int(_SIDE / sqrt(shape))
    return nearest(height, unit), nearest(int(height * shape), unit)


def nearest(length: int, unit: int) -> int:
    """The multiple of `unit` that is nearest, one at least."""
    return max(round(length / unit) * unit, unit)


def _vision_part(
    section: Section, fmt: Format, size: tuple[int, int], width: int, *, merges: bool, tiles: int = 1
) -> VisionPart:
    """The tower and its projector. If it merges, later layers run on merged squares of patches."""
    patch, hidden = section.integer("patch_size"), section.integer("hidden_size")
    pixels = section.integer("num_channels", 3) * patch**2
    grid = PatchGrid(height=size[0] // patch, width=size[1] // patch, pixels=pixels)
    first, count = section.integer("insert_layer_id", least=0) + 1, section.count("num_hidden_layers")
    if first > count:
        raise section.error("insert_layer_id", f"must be one of the {count} layers; got {first - 1}")
    tower = vit(
        section,
        grid,
        "gelu_pytorch_tanh",
        layers=first,
        patch_bias=True,
        positions=(section.integer("image_size") // patch) ** 2,
        tiles=tiles,
    )
    parts, left = tower.parts(fmt), grid.patches // _SQUARE if merges else grid.patches
    merged = images(left, tiles)
    after = stack(parts, [replace(tower.layers[0], name="merged_layer")] * (count - first), hidden, stream=merged)
    norm = parts.norm("post_norm", parts.tensor(HIDDEN, hidden))
    last = Block(name="norm", operators=(norm,), input=HIDDEN, output=norm.name, stream=merged)
    squares = _squares(section, tower, parts, merged if merges else UNUSED)
    blocks = (*tower.blocks(fmt, tower.stream), *squares, *after, last)
    project = merger(parts, tower, _SQUARE, width, norm=NormKind.LAYER, norm_after=True)
    return VisionPart(blocks=blocks, project=project, tokens=left // _SQUARE)


def _squares(section: Section, tower: Tower, parts: Parts, stream: Stream) -> tuple[Block, ...]:
    """Attention within squares of patches, and an MLP of each, which is added to its mean; `stream` is what they leave,
    or UNUSED.
    """
    hidden, inner = tower.hidden, _SQUARE * section.integer("intermediate_size")
    heads = replace(heads_of(section), mask=Tiled(tower.grid.patches * _SQUARE))
    attention = SelfAttention(heads=heads, qkv_bias=True, o_bias=True)
    inside = stack(
        parts,
        [Layer(mixer=attention, feed_forward=None, name="squares")],
        hidden,
        stream=tower.stream if stream != UNUSED else UNUSED,
    )
    wide = parts.tensor(HIDDEN, _SQUARE * hidden)
    average = parts.elementwise("square_mean", wide, width=hidden, ops=_SQUARE)
    norm = parts.norm("square_norm", wide)
    up_proj = parts.project("square_linear_1", norm.result, inner, bias=True)
    act = parts.activate("square_act", "gelu_tanh", up_proj.result)
    down = parts.project("square_linear_2", act.result, hidden, bias=True)
    operators = (average, norm, up_proj, act, down, parts.add("square_add", average.result, down.result))
    merging = Block(name="merging", operators=operators, input=HIDDEN, output=result(operators).name, stream=stream)
    return (*inside, merging)
