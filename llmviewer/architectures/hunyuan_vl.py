"""HunYuan-VL, HunyuanOCR and Hy4 with vision: a vision tower for images of any size, a convolution that merges four
patches into a token, and a learned token at the end of each row of tokens.

An image is as large as image_size of the vision_config says, and _SIDE x _SIDE where that says nothing, as in no
published config.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator
from ..operators.elementwise import Elementwise
from ..precision import Format
from . import architecture
from .blocks.fields import filled
from .blocks.moe import language_model
from .blocks.parts import NormKind, Parts, activation, result, with_rows
from .blocks.tower import Tower, image_rows, joined, language, patch_grid, patches_of, tied_of, vision, vit
from .llama import FAMILIES

_SIDE: Final = 1024
_BILINEAR: Final = 8  # OPs to weigh and add four positions, and to add the result
_MERGED: Final = 2  # times as wide as a patch is what HunYuan-VL's convolution makes, and twice that what follows
_IGNORED: Final = """
    interpolate_mode img_max_token_num min_image_size max_vit_seq_len temporal_patch_size attention_dropout rms_norm_eps
    add_patchemb_bias anyres_vit_max_image_size anyres_vit_two_views cat_extra_token resize_resolution
    use_lora num_key_value_heads anyres_pooling_size adaptor_patch_size video_max_image_size video_min_image_size
"""
_TOWER: Final = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
_HY4_TOWER: Final = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 40, "num_attention_heads": 16}
_MEDIA: Final = """
    image_start_token_id image_end_token_id image_newline_token_id im_start_id im_end_id im_newline_id image_token_id
    video_token_id video_start_token_id video_end_token_id text_start_id text_end_id org_vocab_size pad_id sep_token_id
    eod_token_id
"""


@architecture("hunyuan_vl_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """HunYuan's dense model, whose head is tied where nothing is said."""
    config.ignore(*_MEDIA.split())
    defaults = {"head_dim": config.get("attention_head_dim"), "tie_word_embeddings": True}
    return FAMILIES["hunyuan_v1_dense"].graph(filled(config, defaults), fmt)


@architecture("hunyuan_vl")
def build(config: Section, fmt: Format) -> Graph:
    """HunYuan-VL and HunyuanOCR: a native-resolution ViT, 2 x 2 patches a token, before HunYuan."""
    config.ignore(*_MEDIA.split())
    text_config = language_model(config) if config.get("text_config") is not None else config
    tied = tied_of(config, filled(text_config, {"tie_word_embeddings": True}))
    text = filled(text_config, instead={"tie_word_embeddings": tied})
    graph, width = build_text(text, fmt), text.integer("hidden_size")
    if config.get("vision_config") is None:
        return graph
    section = filled(vision(config), _TOWER)
    section.ignore("out_hidden_size")
    tower, side = _tower(section)
    if section.integer("text_hidden_size", width) != width:
        raise section.error("text_hidden_size", f"must be the {width} of the language model")
    rows, columns = tower.grid.height // side, tower.grid.width // side
    parts, inner = tower.parts(fmt), _MERGED * tower.hidden
    projector = _merged(section, tower, parts, side, inner=inner, out=_MERGED * inner)
    ended = _ended(parts, projector, rows * (columns + 1))
    down = parts.linear(
        "projector", ended.result, with_rows(parts.tensor("projector", width), ended.result.rows), bias=True
    )
    tokens = rows * (columns + 1) + 2  # one before, and one after all rows
    out = with_rows(parts.tensor("around", width), image_rows(tokens))
    learned = tuple(parts.weight(f"image_{name}", width) for name in ("begin", "end", "sep"))
    around = Elementwise(name=out.name, inputs=down.outputs, outputs=(out,), weights=learned, ops_per_element=0)
    norm = parts.norm("after_norm", around.result, kind=NormKind.RMS)
    project = (*projector, ended, down, around, norm)
    return joined(tower.blocks(fmt, tower.stream), project, graph, tokens=tokens, projected=rows * columns)


@architecture("hy_v4_vl")
def build_hy4(config: Section, fmt: Format) -> Graph:
    """Hy4 with vision: a native-resolution ViT, 2 x 2 patches a token, before Hy4."""
    config.ignore(*_MEDIA.split())
    graph, width = language(config, fmt, "hy_v4_vl_text")
    if config.get("vision_config") is None:
        return graph
    section = filled(vision(config), _HY4_TOWER)
    tower, side = _tower(section)
    if section.integer("out_hidden_size", width) != width:
        raise section.error("out_hidden_size", f"must be the {width} of the language model")
    rows, columns = tower.grid.height // side, tower.grid.width // side
    parts = tower.parts(fmt)
    projector = _merged(section, tower, parts, side, inner=side**2 * tower.hidden, out=width)
    tokens = rows * (columns + 1)
    project = (*projector, _ended(parts, projector, tokens))
    return joined(tower.blocks(fmt, tower.stream), project, graph, tokens=tokens, projected=rows * columns)


def _tower(section: Section) -> tuple[Tower, int]:
    """The tower, and how many patches to each side make a token."""
    section.ignore(*_IGNORED.split())
    side = section.integer("spatial_merge_size", 2)
    patch = section.integer("patch_size", 16)
    edge = section.integer("max_image_size", 2048) // patch
    tower = vit(
        section,
        patch_grid(section, image=_SIDE, patch=16, multiple=side),
        "gelu",
        patch_bias=True,
        positions=edge**2 + 1,
        position_ops=_BILINEAR,
    )
    return tower, side


def _merged(section: Section, tower: Tower, parts: Parts, side: int, *, inner: int, out: int) -> tuple[Operator, ...]:
    """A norm of each patch, a convolution over squares of them, and one of what that makes."""
    norm = parts.norm("before_norm", patches_of(tower, parts), kind=NormKind.RMS)
    x = parts.tensor(norm.name, side**2 * tower.hidden)
    conv = parts.project("merge_conv", x, inner, bias=True)
    act = parts.activate("merge_act", activation(section, "hidden_act", "gelu"), conv.result)
    return (replace(norm, outputs=(x,)), conv, act, parts.project("merge_out", act.result, out, bias=True))


def _ended(parts: Parts, operators: tuple[Operator, ...], tokens: int) -> Elementwise:
    """Rows of what is made, each with a learned token at its end."""
    out = with_rows(parts.tensor("rows", result(operators).width), image_rows(tokens))
    newline = (parts.weight("newline.weight", out.width),)
    return Elementwise(name=out.name, inputs=(result(operators),), outputs=(out,), weights=newline, ops_per_element=0)
