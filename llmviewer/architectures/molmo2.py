"""Molmo2: a vision tower encodes overlapping crops of an image and a thumbnail; attention pooling merges patches into
a token, before a language model of the form of Qwen3 (arXiv:2409.17146, section 2).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Permute
from ..operators.masks import PerQueryKeys
from ..precision import Format
from . import architecture
from .blocks.attention import scored
from .blocks.class_defaults import TEXT_CLASSES, TOWERS
from .blocks.decoder import Layer, Residual
from .blocks.encoder import holding
from .blocks.fields import attention, check_width, decoder, filled, gated_mlp
from .blocks.moe import integers, language_model
from .blocks.parts import HIDDEN, NormKind, Parts, activation, result, with_rows
from .blocks.tiles import best_fit, picture_size
from .blocks.tower import PatchGrid, Tower, image_rows, joined, layers_run, part, patch_grid, sides, vit

_IMAGES: Final = TOWERS["Molmo2VisionConfig"] | {"head_dim": 72}
_OLDER: Final = {  # names of fields in published files
    "image_default_input_size": "image_size",
    "image_patch_size": "patch_size",
    "image_num_pos": "num_position_embeddings",
}
_CROPS: Final = 8  # at most, in the processors of all published models
_OVERLAP: Final = 8  # patches of a row or column that two crops share
_POOLED: Final = 2  # patches to a side of a token
_IGNORED: Final = """
    image_start_token_id low_res_image_start_token_id image_end_token_id image_patch_id frame_start_token_id
    frame_end_token_id image_col_id use_frame_special_tokens
"""
_PARTS_IGNORED: Final = "model_type float32_attention residual_dropout pooling_attention_mask"


@architecture("molmo2_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """Tokens besides those of the vocabulary have a table of their own, and are never written."""
    config = filled(config, TEXT_CLASSES["Molmo2TextConfig"])
    config.ignore("rope_scaling_layers", "embedding_dropout", "residual_dropout", "use_qk_norm", "layer_norm_eps")
    norms_whole_width = config.choice("qk_norm_type", ("qwen3", "olmo"), "qwen3") == "olmo"
    bias = config.flag(config.first("attention_bias", "qkv_bias"), default=False)
    after = config.flag("norm_after", default=False)
    one = Layer(
        mixer=attention(
            config, share=1, bias=None, qkv_bias=bias, qk_norm=NormKind.RMS, qk_norm_whole=norms_whole_width
        ),
        feed_forward=gated_mlp(config),
        residual=Residual.INNER if after else Residual.PRE,
    )
    graph = decoder(config, one).graph(fmt)
    first, *others = graph.blocks
    shape = (config.integer("additional_vocab_size", 128, least=0), config.integer("hidden_size"))
    extended = first.map(lambda op: holding(op, Parts(format=fmt), {"additional_tokens.weight": shape}))
    return Graph((extended, *others))


@architecture("molmo2")
def build(config: Section, fmt: Format) -> Graph:
    """Molmo2: a ViT over overlapping crops, attention pooling of 2 x 2 patches, before a decoder like Qwen3."""
    text = build_text(language_model(config) if config.get("text_config") else Section({}, config.file), fmt)
    config.ignore(*_IGNORED.split())
    vision_key = config.first("vision_config", "vit_config")
    if config.get(vision_key) is None:
        return text
    adapter, vision_section = part(config, "adapter_config"), config.section(vision_key)
    for section in (adapter, vision_section):
        section.ignore(*_PARTS_IGNORED.split())
    named = vision_section.with_data({_OLDER.get(key, key): value for key, value in vision_section.data.items()})
    runs = _runs(adapter, section := filled(named, _IMAGES))
    check_width(adapter, "hidden_size", section.integer("hidden_size"), "the tower", 1152)
    check_width(adapter, "text_hidden_size", result(text.blocks[0].operators).width, "the language model", 3584)
    legacy = vision_key == "vit_config"  # its checkpoints have no layer after the last one that features are taken from
    tower, patch = _tower(section, max(runs) if legacy else None), sides(section, "patch_size")
    tower = replace(tower, run=max(runs))
    rows, columns = _crops(picture_size(config), tower.grid, patch)
    tower = replace(tower, tiles=rows * columns + 1)
    tokens = grid_tokens(tower.grid, 1, 1) + grid_tokens(tower.grid, rows, columns)
    parts = tower.parts(fmt)
    x = with_rows(parts.tensor(HIDDEN, len(runs) * tower.hidden), image_rows(tower.grid.patches, tower.tiles))
    project = pooled_patches(adapter, parts, x, tokens)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


def _runs(adapter: Section, section: Section) -> tuple[int, ...]:
    """Number of layers that run up to each layer whose features are used."""
    key = adapter.first("vision_feature_layer", "vit_layers")
    places = integers(adapter, key) or (24, 18)
    after = adapter.with_data({**adapter.data, key: [place + 1 if place >= 0 else place for place in places]})
    return layers_run(after, key, section.count("num_hidden_layers"), -1)


def _tower(section: Section, layers: int | None) -> Tower:
    grid = patch_grid(section)
    return vit(
        section,
        grid,
        "gelu_pytorch_tanh",
        layers=layers,
        kv_heads=section.integer("num_key_value_heads", section.integer("num_attention_heads")),
        qkv_bias=section.flag("attention_bias", default=True),
        patch_bias=True,
        positions=section.integer("num_position_embeddings", grid.patches),
    )


def _crops(size: tuple[int, int], crop: PatchGrid, patch: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of crops, each of which has patches of its own besides those that it shares."""
    stride = ((crop.height - _OVERLAP) * patch[0], (crop.width - _OVERLAP) * patch[1])
    return best_fit((size[0] - _OVERLAP * patch[0], size[1] - _OVERLAP * patch[1]), stride, most=_CROPS)


def grid_tokens(crop: PatchGrid, rows: int, columns: int) -> int:
    """Tokens of adjacent crops after pooling squares of patches."""
    tall, wide = rows * (crop.height - _OVERLAP) + _OVERLAP, columns * (crop.width - _OVERLAP) + _OVERLAP
    return ceil(tall / _POOLED) * ceil(wide / _POOLED)


def pooled_patches(config: Section, parts: Parts, x: Tensor, tokens: int) -> tuple[Operator, ...]:
    """The mean of four patches of x looks at them; a gated MLP follows, which leaves what is as wide as text."""
    config = filled(config, {"hidden_size": 1152, "num_attention_heads": 16, "head_dim": 72})
    count, each, bias = config.integer("num_attention_heads"), _POOLED**2, config.flag("attention_bias", default=True)
    heads = Heads(
        num_heads=count,
        num_kv_heads=config.integer("num_key_value_heads", count),
        head_dim=config.integer("head_dim"),
        mask=PerQueryKeys(each),
    )
    rows = image_rows(each * tokens)
    patches = with_rows(parts.tensor("pool_patches", x.width), rows)
    gather = Permute(name=patches.name, inputs=(x,), outputs=(patches,))
    average = parts.elementwise("pool_mean", patches, ops=each)
    q = parts.project("pool_q_proj", average.result, heads.q_width, bias=bias)
    k, v = (
        parts.linear(name, patches, with_rows(parts.tensor(name, heads.kv_width), rows), bias=bias)
        for name in ("pool_k_proj", "pool_v_proj")
    )
    attended = scored(parts, heads, q.result, k.outputs, v.result)
    o_proj = parts.project("pool_o_proj", result(attended), config.integer("hidden_size"), bias=bias)
    inner, act = config.integer("intermediate_size", 18944), activation(config, "hidden_act", "silu")
    biased = config.flag("mlp_bias", default=False)
    gate, up_proj = (parts.project(f"pool_{name}_proj", o_proj.result, inner, bias=biased) for name in ("gate", "up"))
    mid = parts.activate("pool_act", act, *gate.outputs, *up_proj.outputs)
    down = parts.project("pool_down_proj", mid.result, config.integer("text_hidden_size", 3584))
    return (gather, average, q, k, v, *attended, o_proj, gate, up_proj, mid, down)
