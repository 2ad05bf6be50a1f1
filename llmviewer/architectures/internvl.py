"""InternVL: a vision tower over tiles of 448 x 448 pixels; an MLP merges four patches into a token (arXiv:2404.16821,
arXiv:2504.10479).

An image is cut into as many tiles as fit its shape, 12 at most, and a small one of all of it is added where there are
several.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TOWERS
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional, holding
from .blocks.feed_forward import Mlp
from .blocks.fields import filled, require_false, require_true
from .blocks.parts import HIDDEN, NormKind, activation, heads_of
from .blocks.tiles import closest_grid, picture_size
from .blocks.tower import (
    Scaled,
    Tower,
    joined,
    language,
    layers_run,
    patch_grid,
    projector,
    sides,
    tower_activation,
    vision,
)

_NORMS: Final = {"layer_norm": NormKind.LAYER, "rms_norm": NormKind.RMS}
_MOST_TILES: Final = 12
_IMAGES: Final = TOWERS["InternVLVisionConfig"] | {"norm_type": "layer_norm"}
_FIRST_IMAGES: Final = TOWERS["InternVisionConfig"] | {"norm_type": "rms_norm", "use_qk_norm": True}
_NAMES: Final = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}  # there: in transformers
_IGNORED: Final = "layer_scale_init_value hidden_dropout_prob projection_dropout initializer_factor"
_FIRST_IGNORED: Final = """
    image_fold pad2square template system_message ps_version use_backbone_lora use_llm_lora output_attentions
"""
_FIRST_TOWER_IGNORED: Final = """
    drop_path_rate use_flash_attn capacity_factor eval_capacity_factor laux_allreduce moe_coeff_ratio moe_output_scale
    moe_intermediate_size noisy_gate_policy num_experts num_routed_experts num_shared_experts use_residual use_rts
    shared_expert_intermediate_size use_weighted_residual
"""


@architecture("internvl")
def build(config: Section, fmt: Format) -> Graph:
    """InternVL: an InternViT over tiles of 448 x 448 pixels, pixel shuffle and an MLP, before Qwen2 by default."""
    return _build(config, fmt, "qwen2", bias=False)


@architecture("qianfan_ocr")
def build_qianfan_ocr(config: Section, fmt: Format) -> Graph:
    """Biases of the tower's attention go without saying."""
    return _build(config, fmt, "qwen3", bias=True)


def _build(config: Section, fmt: Format, kind: str, *, bias: bool) -> Graph:
    text, width = language(config, fmt, kind)
    config.ignore("image_seq_length", "tie_word_embeddings")
    if config.get("vision_config") is None:
        return text
    section = filled(vision(config), {**_IMAGES, "attention_bias": bias})
    section.ignore("drop_path_rate")
    run = _run(config, "vision_feature_layer", section)
    config.choice("vision_feature_select_strategy", ("default",), "default")
    tower = _tower(section, run=run, tiles=_tiles(config, section, least=1, most=_MOST_TILES))
    act = activation(config, "projector_hidden_act", "gelu")
    blocks = tower.blocks(fmt, tower.stream)
    if section.flag("use_mask_token", default=False):  # which training alone reads
        blocks = (_masked(blocks[0], tower, fmt), *blocks[1:])
    return joined(blocks, _projected(config, tower, fmt, (width, width), act), text, tokens=_tokens(config, tower))


@architecture("internvl_chat")
def build_first(config: Section, fmt: Format) -> Graph:
    """The format of the original repositories: the language model in llm_config, the tower's fields by other names."""
    text, width = language(config, fmt, "llama", "llm_config")
    config.section("llm_config").ignore("attn_implementation", "layer_types", "moe_config")
    config.ignore(*_FIRST_IGNORED.split())
    if config.get("vision_config") is None:
        return text
    vision_section = vision(config)
    vision_section.ignore(*_FIRST_TOWER_IGNORED.split(), *_NAMES)
    require_false(vision_section, "use_moe", "no published tower of this architecture has experts")
    renamed = {new: vision_section.get(old) for old, new in _NAMES.items() if old in vision_section}
    section = filled(vision_section, _FIRST_IMAGES, instead=renamed)
    side = sides(section, "image_size")
    if config.get("force_image_size") is not None and sides(config, "force_image_size") != side:
        raise config.error("force_image_size", f"must be the image_size of the vision_config, {side[0]}")
    run = _run(config, "select_layer", section)
    tiles = 1
    if config.flag("dynamic_image_size", default=False):
        min_tiles, max_tiles = config.count("min_dynamic_patch", 1), config.count("max_dynamic_patch", 6)
        tiles = _tiles(
            config, section, least=min_tiles, most=max_tiles, thumbnail=config.flag("use_thumbnail", default=False)
        )
    else:
        config.ignore("min_dynamic_patch", "max_dynamic_patch", "use_thumbnail")
    tower = _tower(section, run=run, tiles=tiles, fused_qkv=True)
    project = _projected(config, tower, fmt, (width, width), "gelu")
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=_tokens(config, tower))


def _run(config: Section, key: str, section: Section) -> int:
    """Layers that are run."""
    runs = layers_run(config, key, section.count("num_hidden_layers"), -1)
    if len(runs) > 1:
        raise config.error(key, f"must be one layer; got {len(runs)}")
    return runs[0]


def _tiles(config: Section, section: Section, *, least: int, most: int, thumbnail: bool = True) -> int:
    """Tiles of an image; `thumbnail` adds one of all of it where there are several."""
    rows, columns = closest_grid(picture_size(config), sides(section, "image_size"), least=least, most=most)
    return rows * columns + (thumbnail and rows * columns > 1)


def _tower(section: Section, *, run: int, tiles: int, fused_qkv: bool = False) -> Tower:
    section.ignore(*_IGNORED.split())
    hidden, grid = section.integer("hidden_size"), patch_grid(section)
    attention = SelfAttention(
        heads=bidirectional(heads_of(section, hidden, "num_attention_heads")),
        fused_qkv=fused_qkv,
        qkv_bias=section.flag("attention_bias", default=False),
        o_bias=True,
        qk_norm=NormKind.RMS if section.flag("use_qk_norm", default=False) else None,
        qk_norm_whole=True,
    )
    mlp = Mlp(inner=section.integer("intermediate_size"), act=tower_activation(section, "gelu"), bias=True)
    require_true(section, "use_mean_pooling", "no published tower of this architecture has a last norm")
    placed = section.flag("use_absolute_position_embeddings", default=True)
    return Tower(
        grid=grid,
        hidden=hidden,
        layers=[Layer(mixer=Scaled(attention), feed_forward=Scaled(mlp))] * section.count("num_hidden_layers"),
        norm=_NORMS[section.choice("norm_type", _NORMS)],
        patch_bias=True,
        learned=1,
        positions=grid.patches + 1 if placed else 0,
        tiles=tiles,
        run=run,
    )


def _masked(first: Block, tower: Tower, fmt: Format) -> Block:
    """The first block with the token that stands for patches which are hidden."""
    patch = holding(first.operators[0], tower.parts(fmt), {"mask_token.weight": (1, tower.hidden)})
    return replace(first, operators=(patch, *first.operators[1:]))


def _merged(config: Section, tower: Tower) -> int:
    """Patches to each side of what becomes a token."""
    ratio, grid = config.number("downsample_ratio", 0.5), tower.grid
    side = round(1 / ratio) if ratio > 0 else 0
    if not side or grid.height % side or grid.width % side:
        raise config.error("downsample_ratio", f"must be one over a number that divides the {grid.height} x "
                           f"{grid.width} patches; got {ratio:g}")  # fmt: skip
    return side


def _tokens(config: Section, tower: Tower) -> int:
    return tower.grid.patches // _merged(config, tower) ** 2 * tower.tiles


def _projected(config: Section, tower: Tower, fmt: Format, widths: tuple[int, int], act: str) -> tuple[Operator, ...]:
    """Patches side by side, normed together, and two linears."""
    parts = tower.parts(fmt)
    wide = parts.tensor(HIDDEN, _merged(config, tower) ** 2 * tower.hidden)
    norm = parts.norm("merge_norm", wide, kind=NormKind.LAYER)
    return (norm, *projector(parts, norm.result, widths, act, bias=True))
