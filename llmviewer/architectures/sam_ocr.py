"""DeepSeek-OCR 2 and GOT-OCR 2.0, whose vision tower is that of Segment Anything. In the first, a small language model
processes the compressed patches followed by learned queries, which become tokens before a mixture of experts
(arXiv:2601.20552).

An image larger than a tile is read in tiles, and all of it in one that is larger; both have queries of their own.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from ..documents import Section
from ..forms import images
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Permute
from ..operators.masks import Tiled
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TEXT_CLASSES, TEXTS
from .blocks.decoder import Layer
from .blocks.encoder import holding, stack
from .blocks.fields import attention, decoder, filled, gated_mlp, grouped_heads
from .blocks.moe import (
    Kinds,
    dense,
    experts_beside_shared,
    ignore_router_fields,
    integers,
    language_model,
    sparse_layers,
)
from .blocks.parts import HIDDEN, Parts, result, with_rows
from .blocks.sam import neck, sam_tower
from .blocks.tiles import closest_grid, picture_size
from .blocks.tower import Tower, feature_block, image_rows, joined, language, part, repeated_tower, vision

_OVERVIEW_SIDE, _TILE = 1024, 768  # pixels to a side of what is read, by the processor's defaults
_QUERIES: Final = {_OVERVIEW_SIDE: 256, _TILE: 144}
_MIN_TILES, _MAX_TILES = 2, 6  # tiles, likewise


@architecture("deepseek_ocr2_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """Grouped queries in the place of DeepSeek-V2's latents."""
    ignore_router_fields(config, "use_mla", "lm_head", "rm_head", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
             "qk_rope_head_dim", "v_head_dim", "mlp_bias")  # fmt: skip
    moe = experts_beside_shared(config, "n_routed_experts", default=2)
    kinds = Kinds(mixer=attention(config, share=1), moe=moe, dense=dense(config))
    return decoder(config, kinds.layers(sparse_layers(config, default=1))).graph(fmt)


@architecture("deepseek_ocr2")
def build(config: Section, fmt: Format) -> Graph:
    """DeepSeek-OCR 2: Segment Anything's tower and learned queries in a small LM, before DeepSeek's decoder."""
    text = language_model(config)
    language, width = build_text(text, fmt), text.integer("hidden_size")
    if config.get("vision_config") is None:
        return language
    section, size = config.section("vision_config"), picture_size(config)
    section.ignore("model_type")
    rows, columns = closest_grid(size, (_TILE, _TILE), least=_MIN_TILES, most=_MAX_TILES)
    tiles = rows * columns if max(size) > _TILE else 0
    blocks, project = _vision_part(section, fmt, _OVERVIEW_SIDE, width)
    before: tuple[Block, ...] = ()
    features = [result(project)]
    if tiles:
        read, projector = _vision_part(section, fmt, _TILE, width, tiles=tiles)
        before = repeated_tower((*read, feature_block("projector", projector, tiles * _QUERIES[_TILE])), "tiles")
        features.insert(0, replace(result(projector), name=before[-1].output))
    tokens, parts = tiles * _QUERIES[_TILE] + _QUERIES[_OVERVIEW_SIDE] + 1, Parts(format=fmt)
    packed = with_rows(parts.tensor("pack", width), image_rows(tokens))
    separator = (parts.weight("separator", width),)
    pack = Permute(name=packed.name, inputs=tuple(features), outputs=(packed,), weights=separator)
    side_inputs = tuple(block.output for block in before[-1:])
    return joined((*before, *blocks), (*project, pack), language, tokens=tokens, side_inputs=side_inputs)


def _vision_part(
    section: Section, fmt: Format, side: int, width: int, *, tiles: int = 1
) -> tuple[tuple[Block, ...], tuple[Operator, ...]]:
    """Tower blocks for images of `side` x `side` pixels or their tiles, and the projector to the width of text."""
    tower = replace(sam_tower(filled(part(section, "sam_config"), instead={"image_size": side})), tiles=tiles)
    encoder = filled(part(section, "encoder_config"), TEXTS["qwen2"])
    hidden, queries, parts = encoder.integer("hidden_size"), _QUERIES[side], Parts(format=fmt)
    patches = ceil(tower.grid.height / 4) * ceil(tower.grid.width / 4)
    filters = _filters(part(section, "sam_config"), tower, fmt, hidden)
    stream = images(patches + queries, tiles)
    joins = _queried(parts, with_rows(parts.tensor(HIDDEN, hidden), image_rows(patches, tiles)), queries, tiles)
    blocks = (
        *tower.blocks(fmt, tower.stream),
        Block(name="neck", operators=filters, input=HIDDEN, output=result(filters).name, stream=images(patches, tiles)),
        Block(name="queries", operators=joins, input=HIDDEN, output=result(joins).name, stream=stream),
        *stack(parts, _layers(encoder, patches, queries), hidden, stream=stream),
    )
    every, query_rows = image_rows(patches + queries, tiles), image_rows(queries, tiles)
    norm = parts.norm("encoder_norm", with_rows(parts.tensor(HIDDEN, hidden), every))
    x, out = with_rows(norm.result, query_rows), with_rows(parts.tensor("linear", width), query_rows)
    return blocks, (norm, parts.linear("linear", x, out, bias=True))


def _filters(config: Section, tower: Tower, fmt: Format, hidden: int) -> tuple[Operator, ...]:
    widths = integers(config, "downsample_channels") or (512, 896)
    if widths[-1] != hidden:
        raise config.error(
            "downsample_channels", f"must end with the encoder's hidden_size, {hidden}; got {widths[-1]}"
        )
    return neck(config, tower, tower.parts(fmt), widths)


def _queried(parts: Parts, x: Tensor, queries: int, tiles: int) -> tuple[Operator, ...]:
    """Learned queries after x. Those for squares of another size are held beside them."""
    others = {f"queries_{side}.weight": (n, x.width) for side, n in _QUERIES.items() if n != queries}
    embed = holding(parts.embed("queries", {"queries.weight": queries}, x.width), parts, others)
    embed = embed.with_tensors(lambda t: with_rows(t, image_rows(queries, tiles)))
    out = parts.tensor("sequence", x.width)
    return (embed, Permute(name=out.name, inputs=(x, embed.result), outputs=(out,)))


def _layers(config: Section, patches: int, queries: int) -> list[Layer]:
    """Qwen2 layers; patches attend to all patches, queries to all patches and earlier queries."""
    pairs = patches * (patches + queries) + queries * (queries + 1) // 2
    heads = replace(grouped_heads(config), mask=Tiled(pairs))
    mixer = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=True)
    return [Layer(mixer=mixer, feed_forward=gated_mlp(config))] * config.count("num_hidden_layers")


@architecture("got_ocr2", "pp_chart2table")
def build_got(config: Section, fmt: Format) -> Graph:
    """GOT-OCR 2.0: before a Qwen2; filters make a token of 4 x 4 patches (arXiv:2409.01704)."""
    text_config = language_model(config) if config.get("text_config") is not None else Section({}, config.file)
    filled_config = filled(
        config,
        {"tie_word_embeddings": True},
        instead={"text_config": TEXT_CLASSES["GotOcr2Config"] | {**text_config.data}},
    )
    text, width = language(filled_config, fmt, "qwen2")
    config.ignore("image_seq_length")
    if config.get("vision_config") is None:
        return text
    section = vision(config)
    section.ignore("num_pos_feats")
    tower = sam_tower(section)
    parts = tower.parts(fmt)
    filters = neck(section, tower, parts, (2 * section.integer("output_channels", 256), width))
    project = (*filters, parts.project("linear", result(filters), width, bias=True))
    tokens = ceil(tower.grid.height / 4) * ceil(tower.grid.width / 4)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)
