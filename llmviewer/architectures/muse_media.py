"""Muse Glimmer and Muse Spark with vision: a tower for images of any size, most of whose layers have window attention;
four patches make a token.

An image is _SIDE x _SIDE where image_size of the vision_config says nothing, as in no published config. The audio
encoder is loaded and not run, as a request has no audio.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..operators.masks import Tiled
from ..precision import Format
from . import architecture
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.moe import counts, integers, listed
from .blocks.parts import NormKind, Parts, activation, heads_of, result
from .blocks.tower import (
    Tower,
    joined,
    language,
    layer,
    linears,
    patch_grid,
    patches_of,
    projector,
    unused_weights,
    vision,
)
from .qwen_vl import within

_MEDIA: Final = "image_token_id video_token_id audio_token_id tie_word_embeddings"
_SIDE: Final = 1008  # pixels; whole squares of patches, nearest to a thousand
_BILINEAR: Final = 8  # OPs to weigh and add four positions, and to add the result
_TOWER: Final = {
    "hidden_size": 1536, "num_hidden_layers": 50, "intermediate_size": 8960, "num_attention_heads": 16,
    "patch_size": 14, "merge_size": 2, "patch_temporal": 2, "pos_emb_height": 32, "pos_emb_width": 32,
}  # fmt: skip
_EVERY: Final = 4  # layers of the tower, of which the last one has no window
_SOUND: Final = {
    "patch_sizes": [16, 6, 5, 4], "hidden_sizes": [256, 512, 1024, 2048], "depths": [2, 2, 2, 2],
    "out_hidden_size": 8192,
}  # fmt: skip


@architecture("muse_glimmer", "muse_spark")
def build(config: Section, fmt: Format) -> Graph:
    """Muse Glimmer and Spark with vision: a mostly windowed ViT, 2 x 2 patches a token."""
    config.ignore(*_MEDIA.split())
    text, width = language(config, fmt, f"{config.text('model_type')}_text")
    if config.get("vision_config") is None:
        config.ignore("out_hidden_size", "projector_hidden_size", "projector_hidden_act")
        return text
    section = filled(vision(config), _TOWER)
    section.ignore("max_position_embeddings", "layer_norm_eps")
    side = section.integer("merge_size")
    tower = _tower(section, side)
    if config.integer("out_hidden_size", side**2 * tower.hidden) != side**2 * tower.hidden:
        raise config.error("out_hidden_size", f"must be the {side**2 * tower.hidden} of {side**2} patches")
    project = _projected(config, tower, tower.parts(fmt), side**2, width)
    tokens = tower.grid.patches // side**2
    seeing = joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)
    if config.get("audio_config") is None:
        return seeing
    return Graph((*_hearing(config.section("audio_config"), Parts(format=fmt)), *seeing.blocks))


def _tower(section: Section, side: int) -> Tower:
    """Layers whose patches attend to those of their window, but for every fourth and the last."""
    grid = patch_grid(section, image=_SIDE, frames=section.integer("patch_temporal"), multiple=side)
    heads, act = bidirectional(heads_of(section)), activation(section, "hidden_act", "gelu")
    mlp = Mlp(inner=section.integer("intermediate_size"), act=act, bias=True)
    local = replace(heads, mask=Tiled(within(grid, section.integer("pos_emb_height"))))
    near, far = (layer(each, mlp, rotated=True, name=name) for name, each in (("local", local), ("global", heads)))
    count = section.count("num_hidden_layers")
    layer_types = listed(section, "layer_types", ("window_attention", "full_attention"))
    full = [kind == "full_attention" for kind in layer_types] or [
        (index + 1) % _EVERY == 0 or index == count - 1 for index in range(count)
    ]
    return Tower(
        grid=grid,
        hidden=section.integer("hidden_size"),
        layers=[far if is_full else near for is_full in full],
        positions=section.integer("pos_emb_height") * section.integer("pos_emb_width"),
        position_ops=_BILINEAR,
        pre_norm=True,
        post_norm=True,
    )


def _projected(config: Section, tower: Tower, parts: Parts, merged: int, width: int) -> tuple[Operator, ...]:
    """Patches side by side, two linears with an activation after each, a third one, and a norm without weights."""
    wide = parts.tensor("pixel_shuffle", merged * tower.hidden)
    shuffled = Permute(name=wide.name, inputs=(patches_of(tower, parts),), outputs=(wide,))
    inner = config.integer("projector_hidden_size", 4096)
    act = activation(config, "projector_hidden_act", "gelu")
    operators = projector(parts, wide, (inner, inner, width), act, bias=False)
    return (shuffled, *operators, parts.norm("projector_norm", result(operators), kind=NormKind.UNIT))


def _hearing(vision_section: Section, parts: Parts) -> tuple[Block, ...]:
    """Convolutions by channel and MLPs over ever fewer and wider samples."""
    section = filled(vision_section, _SOUND)
    section.ignore("num_hidden_layers", "hidden_act", "sample_rate")
    widths = integers(section, "hidden_sizes")
    patches, depths = integers(section, "patch_sizes"), counts(section, "depths")
    taps, ratio, out = (
        section.integer("conv_kernel_size", 7),
        section.number("mlp_ratio", 4.0),
        section.integer("out_hidden_size"),
    )
    if not len(widths) == len(patches) == len(depths):
        raise section.error("hidden_sizes", "must have as many entries as patch_sizes and depths")
    blocks: list[Block] = []
    for stage, ((before, width), patch, depth) in enumerate(zip(pairwise((1, *widths)), patches, depths, strict=True)):
        inner = int(width * ratio)
        enter = {**linears({"patch": (width, before * patch)}), "norm.weight": (width,)}
        inside = {
            **linears({"conv": (width, 1, taps), "fc1": (inner, width), "fc2": (width, inner)}),
            "norm.weight": (width,),
        }
        blocks += [
            unused_weights(f"hearing_{stage}", parts, enter),
            unused_weights(f"hearing_{stage}_layer", parts, inside, depth),
        ]
    last = {"norm.weight": (widths[-1],), **linears({"proj": (out, widths[-1])}), "proj_norm.weight": (out,)}
    return (*blocks, unused_weights("hearing", parts, last))
