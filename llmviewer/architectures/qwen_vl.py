"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and the vision tower of Qwen3.5: images of any size, four patches of which make a
token of the prompt (arXiv:2409.12191, arXiv:2502.13923, arXiv:2511.21631).

An image is as large as `image_size` of the vision_config says, height and width in pixels, and _SIDE x _SIDE where
that says nothing, as no published config does. A patch is cut through two video frames; an image stands for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Mask, Tiled
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TEXTS
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.moe import integers, language_model
from .blocks.parts import NormKind, heads_of, result
from .blocks.tower import (
    PatchGrid,
    Tower,
    feature_block,
    joined,
    layer,
    merger,
    patch_grid,
    tied_of,
    tower_activation,
    vision,
)
from .blocks.tower import (
    language as language_of,
)
from .cohere import build_compass as build_compass_text
from .llama import FAMILIES

_SIDE: Final = 1024  # pixels of an image to each side, down to whole windows or squares of patches
# Layers in which all patches attend to each other, in transformers.Qwen2_5_VLVisionConfig.
_WHOLE_LAYERS: Final = (7, 15, 23, 31)
_CLOVA_IGNORED: Final = """
    anyres freeze_before_sampler freeze_decoder freeze_encoder freeze_mm_projector image_token_id img_start_id
    video_token_id is_safetensor_save max_image_cnt max_num_grids mm_projector_type num_queries_vis_abstractor_image
    num_queries_vis_abstractor_video_fast num_queries_vis_abstractor_video_slow possible_resolutions proj_pos_emb
    proj_prenorm q_former_model_name_or_path text_model_name_or_path use_1x1_grid use_nth_layer vision_feature_layer
    vision_model_name_or_path unpad ignore_index decoder_max_length end_token_id image_start_id image_end_id
    video_start_id video_end_id first_last_frames_slows video_audio_start_id tokenizer
"""
_DEEP_LAYERS: Final = (8, 16, 24)  # whose result goes to the first layers of the language model
_INTERPOLATION: Final = 8  # OPs to weigh and add four positions, and to add the result


@architecture("qwen2_vl", "qwen2_5_vl")
def build_qwen2_vl(config: Section, fmt: Format) -> Graph:
    """The language model is Qwen2; its fields stand in text_config, or in older files beside vision_config."""
    text = _qwen2(config, fmt)
    if config.get("vision_config") is None:
        return text
    section = vision(config)
    if config.text("model_type") == "qwen2_5_vl":
        return behind_qwen2_5_tower(section, text, fmt)
    out = section.integer("hidden_size", 3584)
    return _merging(section, _qwen2_tower(section), text, fmt, out=out, norm=NormKind.LAYER)


@architecture("exaone4_5")
def build_exaone4_5(config: Section, fmt: Format) -> Graph:
    """The tower of Qwen2.5-VL, four of whose heads share a key, before an EXAONE 4."""
    text = filled(language_model(config), instead={"model_type": "exaone4"})
    language = FAMILIES["exaone4"].graph(filled(text, instead={"tie_word_embeddings": tied_of(config, text)}), fmt)
    if config.get("vision_config") is None:
        return language
    return behind_qwen2_5_tower(filled(vision(config), {"num_key_value_heads": 8}), language, fmt)


@architecture("hyperclovax_vision_v2", "vlm")
def build_hyperclovax_vision(config: Section, fmt: Format) -> Graph:
    """The tower of Qwen2.5-VL before a HyperCLOVA X, to which one more product brings its tokens; published files say
    "vlm".
    """
    config.ignore(*_CLOVA_IGNORED.split())
    text, width = language_of(filled(config, {"tie_word_embeddings": True}), fmt, "hyperclovax")
    if config.get("vision_config") is None:
        return text
    section = vision(config)
    tower, merged = _qwen2_5_tower(section, fused_qkv=True), section.integer("spatial_merge_size", 2) ** 2
    parts = tower.parts(fmt)
    merge = merger(parts, tower, merged, section.integer("out_hidden_size", 3584), norm=NormKind.RMS)
    project = (*merge, parts.project("projector", result(merge), width, bias=True))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.grid.patches // merged)


def behind_qwen2_5_tower(section: Section, language: Graph, fmt: Format, *, fused_qkv: bool = True) -> Graph:
    """`language` behind the tower that `section` describes."""
    tower = _qwen2_5_tower(section, fused_qkv=fused_qkv)
    out = section.integer("out_hidden_size", 3584)
    return _merging(section, tower, language, fmt, out=out, norm=NormKind.RMS)


def _merging(section: Section, tower: Tower, language: Graph, fmt: Format, *, out: int, norm: NormKind) -> Graph:
    merged = section.integer("spatial_merge_size", 2) ** 2
    merge = merger(tower.parts(fmt), tower, merged, out, norm=norm)
    return joined(tower.blocks(fmt, tower.stream), merge, language, tokens=tower.grid.patches // merged)


@architecture("qwen2_vl_text", "qwen2_5_vl_text")
def build_qwen2_text(config: Section, fmt: Format) -> Graph:
    """Language model of Qwen2-VL and Qwen2.5-VL alone: a Qwen2."""
    return as_qwen2(config, config, fmt)


@architecture("qwen3_vl", "qwen3_vl_moe")
def build_qwen3_vl(config: Section, fmt: Format) -> Graph:
    """DeepStack: features of some layers of the tower are added after the first layers of the language model."""
    sparse = config.text("model_type") == "qwen3_vl_moe"
    text = language_model(config)
    language = FAMILIES["qwen3_moe" if sparse else "qwen3"].graph(
        filled(text, instead={"tie_word_embeddings": tied_of(config, text)}), fmt
    )
    return seeing(config, language, fmt, deep=_DEEP_LAYERS)


@architecture("cohere_compass")
def build_compass(config: Section, fmt: Format) -> Graph:
    """North Micro Vision: the tower of Qwen3-VL before a Cohere."""
    text = language_model(config)
    language = build_compass_text(
        filled(text, TEXTS["cohere2"], instead={"tie_word_embeddings": tied_of(config, text)}), fmt
    )
    return seeing(config, language, fmt, deep=_DEEP_LAYERS)


def seeing(config: Section, language: Graph, fmt: Format, *, deep: Sequence[int] = ()) -> Graph:
    """`language` behind the tower of Qwen3-VL, where the config has one; `deep` are the layers whose result goes to the
    language model too, where the config does not say.
    """
    if config.get("vision_config") is None:
        return language
    section = vision(config)
    tower = _qwen3_tower(section)
    parts, merged = tower.parts(fmt), section.integer("spatial_merge_size", 2) ** 2
    out, tokens = section.integer("out_hidden_size", 3584), tower.grid.patches // merged
    deep = integers(section, "deepstack_visual_indexes") if "deepstack_visual_indexes" in section else deep
    merge = merger(parts, tower, merged, out, norm=NormKind.LAYER)
    blocks = tower.blocks(fmt, tower.stream)
    left = blocks[-1].output
    after = merger(parts, tower, merged, out, norm=NormKind.LAYER, norm_after=True, left=left)
    feature_blocks = [feature_block(f"deepstack_{place}", after, tokens, side_input=left) for place in range(len(deep))]
    return joined(blocks, merge, language, tokens=tokens, deep=feature_blocks)


def _qwen2(config: Section, fmt: Format) -> Graph:
    if config.get("text_config") is not None:
        return as_qwen2(config, language_model(config), fmt)
    config.ignore("image_token_id", "video_token_id", "vision_token_id", "vision_start_token_id", "vision_end_token_id")
    return as_qwen2(config, config, fmt)


def as_qwen2(config: Section, text: Section, fmt: Format) -> Graph:
    """Qwen2 decoder of the fields in `text`, with embeddings tied where `config` or `text` says so."""
    tied = tied_of(config, text)
    text.ignore("layer_types", "model_type")
    return FAMILIES["qwen2"].graph(filled(text, instead={"tie_word_embeddings": tied}), fmt)


def _patch_grid(section: Section, patch: int, *, unit: int) -> PatchGrid:
    """The image, whose sides are multiples of `unit` pixels where the config does not say them."""
    section.ignore("spatial_patch_size", "in_chans", "tokens_per_second")
    return patch_grid(
        section,
        image=_SIDE // unit * unit,
        patch=patch,
        channels=section.first("in_channels", "in_chans"),
        frames=section.integer("temporal_patch_size", 2),
        multiple=section.integer("spatial_merge_size", 2),
    )


def _qwen2_tower(section: Section) -> Tower:
    hidden = section.integer("embed_dim", 1280)
    inner = int(hidden * section.number("mlp_ratio", 4))
    mlp = Mlp(inner=inner, act=tower_activation(section, "quick_gelu"), bias=True)
    return Tower(
        grid=_patch_grid(section, 14, unit=28),
        hidden=hidden,
        layers=[_layer(section, hidden, mlp)] * section.count("depth", 32),
    )


def _qwen2_5_tower(section: Section, *, fused_qkv: bool) -> Tower:
    """Qwen2.5-VL tower: in most layers patches attend within windows (arXiv:2502.13923, section 2.1.1)."""
    hidden = section.integer("hidden_size", 3584)
    mlp = Mlp(
        inner=section.integer("intermediate_size", 3420), act=tower_activation(section, "silu"), gated=True, bias=True
    )
    window, (patch, _) = section.integer("window_size", 112), (section.integer("patch_size", 14), 0)
    grid = _patch_grid(section, patch, unit=window)
    merge = section.integer("spatial_merge_size", 2)
    local = Tiled(within(grid, window // merge // patch * merge))
    full = integers(section, "fullatt_block_indexes") if "fullatt_block_indexes" in section else _WHOLE_LAYERS
    kinds = {
        True: _layer(section, hidden, mlp, name="global", fused_qkv=fused_qkv),
        False: _layer(section, hidden, mlp, mask=local, name="local", fused_qkv=fused_qkv),
    }
    return Tower(
        grid=grid,
        hidden=hidden,
        norm=NormKind.RMS,
        layers=[kinds[place in full] for place in range(section.count("depth", 32))],
    )


def within(grid: PatchGrid, side: int) -> int:
    """(patch, patch) pairs that share a window of `side` x `side` patches; the last of a row or column may be less."""

    def squares(length: int) -> int:
        return length // side * side**2 + (length % side) ** 2

    return squares(grid.height) * squares(grid.width)


def _qwen3_tower(section: Section) -> Tower:
    """Positions are interpolated from a learned grid, and patches are rotated by their place besides."""
    hidden = section.integer("hidden_size", 1152)
    mlp = Mlp(
        inner=section.integer("intermediate_size", 4304),
        act=tower_activation(section, "gelu_pytorch_tanh"),
        bias=True,
    )
    return Tower(
        grid=_patch_grid(section, 16, unit=32),
        hidden=hidden,
        patch_bias=True,
        positions=section.integer("num_position_embeddings", 2304),
        position_ops=_INTERPOLATION,
        layers=[_layer(section, hidden, mlp)] * section.count("depth", 27),
    )


def _layer(
    section: Section, hidden: int, mlp: Mlp, *, mask: Mask | None = None, name: str = "layer", fused_qkv: bool = True
) -> Layer:
    count = section.first("num_heads", "num_attention_heads")
    kv_heads = section.integer("num_key_value_heads", section.integer(count))
    heads = bidirectional(heads_of(section, hidden, count, num_kv_heads=kv_heads))
    heads = replace(heads, mask=mask) if mask else heads
    return layer(heads, mlp, fused_qkv=fused_qkv, rotated=True, name=name)
