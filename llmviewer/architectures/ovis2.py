"""Ovis2: a vision tower whose merged patches become probabilities over a visual vocabulary, which weight the rows of
an embedding table (arXiv:2405.20797).
"""

from __future__ import annotations

from math import ceil
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TOWERS
from .blocks.fields import check_width, filled
from .blocks.parts import NormKind, Parts
from .blocks.tower import Tower, joined, language, patch_grid, patches_of, vision, vit

_IMAGES: Final = TOWERS["Ovis2VisionConfig"] | {"vocab_size": 16384}
_SOFTMAX: Final = 5  # OPs of an element
_IGNORED: Final = "visual_indicator_token_ids vocab_size"


@architecture("ovis2")
def build(config: Section, fmt: Format) -> Graph:
    """Ovis2: a ViT whose features become probabilities over a visual vocabulary, before Qwen2."""
    text, width = language(filled(config, {"tie_word_embeddings": True}), fmt, "qwen2")
    if not config.flag("tie_word_embeddings", default=True):
        check_width(config, "vocab_size", text.blocks[0].operators[0].weights[0].shape[0], "the language model", 151643)
    config.ignore(*_IGNORED.split())
    if config.get("vision_config") is None:
        return text
    check_width(config, "hidden_size", width, "the language model", 1536)
    section = vision(config)
    section.ignore("tokenize_function")
    section = filled(section, _IMAGES)
    tower, side = _tower(section), section.integer("hidden_stride", 1)
    tokens = ceil(tower.grid.height / side) * ceil(tower.grid.width / side)
    parts = tower.parts(fmt)
    wide = parts.tensor("side_by_side", side**2 * tower.hidden)
    gather = Permute(name=wide.name, inputs=(patches_of(tower, parts),), outputs=(wide,))
    project = (gather, *_mixed_words(section, parts, wide, width))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


def _tower(section: Section) -> Tower:
    grid, bias = patch_grid(section), section.flag("qkv_bias", default=False)
    return vit(
        section,
        grid,
        "silu",
        gated=True,
        mlp_bias=section.flag("mlp_bias", default=False),
        qkv_bias=bias,
        o_bias=bias,
        norm=NormKind.RMS,
        patch_bias=True,
        positions=grid.patches,
        patch_norm=True,
        post_norm=True,
    )


def _mixed_words(section: Section, parts: Parts, x: Tensor, width: int) -> tuple[Operator, ...]:
    """Probabilities of words, and rows of their table by them. Some words stand around an image, and have none."""
    words = section.integer("vocab_size")
    named = words - section.integer("num_visual_indicator_tokens", 5)
    head = parts.project("visual_head", x, named)
    norm = parts.norm("visual_head_norm", head.result, kind=NormKind.LAYER)
    softmax = parts.elementwise("probabilities", norm.result, width=words, ops=_SOFTMAX * named / words)
    return (head, norm, softmax, parts.project("visual_table", softmax.result, width))
