"""Llama 4: a shared expert beside each routed one, experts in every layer or every second one.

Three layers of four rotate queries and keys and attend within chunks of attention_chunk_size tokens; the fourth knows
no positions and attends to all. Four patches of the tower for images make a token of the prompt. An image is put
into as many tiles of 336 x 336 as it takes, 16 at most, and read once more in one where that is not one.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.elementwise import Permute
from ..operators.masks import Chunked
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.fields import attention, check_width, decoder, grouped_heads
from .blocks.moe import dense, experts, flagged, ignore_router_fields, integers, language_model, windows_and_experts
from .blocks.parts import NormKind, heads_of, result
from .blocks.tiles import best_fit, picture_size
from .blocks.tower import Tower, joined, layer, patch_grid, patches_of, projector, sides, vision

_MOST_TILES = 16  # of an image, in the processor
_CHUNK = 8192  # where config.json says nothing, as transformers.Llama4TextConfig has it; null is no chunks


@architecture("llama4")
def build(config: Section, fmt: Format) -> Graph:
    """Llama 4: a ViT over up to 16 tiles and a thumbnail, before its language model."""
    text = language_model(config)
    graph = build_text(text, fmt)
    if config.get("vision_config") is None:
        return graph
    section = vision(config)
    tower = _tower(section)
    rows, columns = best_fit(picture_size(config), sides(section, "image_size", 448), most=_MOST_TILES)
    tower = replace(tower, tiles=rows * columns + (rows * columns > 1))
    parts, ratio = tower.parts(fmt), section.number("pixel_shuffle_ratio", 0.5)
    merged = round(1 / ratio) ** 2 if ratio > 0 else 0
    if not merged or tower.grid.patches % merged:
        must = f"must be a share that divides the {tower.grid.patches} patches"
        raise section.error("pixel_shuffle_ratio", f"{must}; got {ratio:g}")
    tokens, wide = tower.tiles * tower.grid.patches // merged, merged * tower.hidden
    inputs = (patches_of(tower, parts),)
    shuffle = Permute(name="pixel_shuffle", inputs=inputs, outputs=(parts.tensor("pixel_shuffle", wide),))
    inner = section.integer("projector_output_dim", 4096)
    check_width(section, "intermediate_size", wide, f"{merged} patches", 5632)
    check_width(section, "projector_input_dim", inner, "projector_output_dim", 4096)
    check_width(section, "vision_output_dim", inner, "projector_output_dim", 7680)
    widths = (inner, inner)
    adapter = projector(parts, shuffle.result, widths, "gelu", bias=False)
    act = parts.activate("projector_act_2", "gelu", result(adapter))
    last = parts.project("linear_3", act.result, text.integer("hidden_size"))
    blocks = tower.blocks(fmt, tower.stream)
    return joined(blocks, (shuffle, *adapter, act, last), graph, tokens=tokens)


@architecture("llama4_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """Llama 4's language model: chunked attention in three of four layers, experts beside a shared one."""
    ignore_router_fields(config, "attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor")
    inner = config.integer("intermediate_size")
    moe = experts(config, "num_local_experts", "num_experts_per_tok", inner=inner, shared=inner)
    networks: dict[bool, FeedForward] = {True: moe, False: dense(config, "intermediate_size_mlp")}
    mixers = {rotated: _mixer(config, rotated=rotated) for rotated in (True, False)}
    layers = windows_and_experts(mixers, networks, zip(_rotated(config), _sparse(config), strict=True))
    return decoder(config, layers).graph(fmt)


def _tower(section: Section) -> Tower:
    """Defaults are those of transformers.Llama4VisionConfig. The learned token stands last and is dropped."""
    section.ignore("projector_dropout", "multi_modal_projector_bias", "vision_feature_layer")
    section.ignore("vision_feature_select_strategy", "hidden_act")
    hidden, grid = section.integer("hidden_size", 768), patch_grid(section, image=448, patch=14)
    mlp = Mlp(inner=section.integer("intermediate_size", 5632), act="gelu", bias=True)
    heads = bidirectional(heads_of(section, hidden, "num_attention_heads"))
    return Tower(
        grid=grid,
        hidden=hidden,
        layers=[layer(heads, mlp, rotated=True)] * section.count("num_hidden_layers", 34),
        learned=1,
        positions=grid.patches + 1,
        pre_norm=True,
        post_norm=True,
    )


def _mixer(config: Section, *, rotated: bool) -> SelfAttention:
    heads = grouped_heads(config)
    if rotated and (chunk := _chunk(config)):
        heads = replace(heads, mask=Chunked(chunk))
    plain = attention(config, heads, rotary_dim=heads.head_dim if rotated else 0)
    if rotated and config.flag("use_qk_norm", default=True):
        return replace(plain, qk_norm=NormKind.UNIT)
    return plain


def _chunk(config: Section) -> int:
    """Positions that attend to each other; 0 where that is all of them."""
    if config.get("attention_chunk_size") is None:
        return 0 if "attention_chunk_size" in config else _CHUNK
    return config.integer("attention_chunk_size")


def _rotated(config: Section) -> list[bool]:
    """Whether each layer rotates its queries and keys."""
    layers, step = config.count("num_hidden_layers"), config.integer("no_rope_layer_interval", 4)
    default_flags = [(index + 1) % step != 0 for index in range(layers)]
    return flagged(config, "no_rope_layers") or default_flags  # 1 where a layer rotates, despite the name


def _sparse(config: Section) -> list[bool]:
    """Whether each layer has experts."""
    layers, step = config.count("num_hidden_layers"), config.integer("interleave_moe_layer_step", 1)
    if config.get("moe_layers") is None:
        return [(index + 1) % step == 0 for index in range(layers)]
    moe_layers = integers(config, "moe_layers")
    return [index in moe_layers for index in range(layers)]
