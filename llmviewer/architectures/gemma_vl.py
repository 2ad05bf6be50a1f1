"""Gemma 3 with vision: a SigLIP tower whose patches are pooled to 256 tokens an image (arXiv:2503.19786).

In the language model, attention among the tokens of an image is bidirectional.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Attention
from ..operators.base import Operator
from ..operators.masks import Causal, CausalWithImages, Prefix
from ..precision import Format
from . import architecture
from .blocks.parts import NormKind
from .blocks.tower import joined, language, patches_of, pooled, vision
from .siglip import siglip_tower

_TOKENS: Final = 256


@architecture("gemma3", "shieldgemma2")
def build(config: Section, fmt: Format) -> Graph:
    """Gemma 3 and ShieldGemma 2: a SigLIP tower whose patches are averaged to 256 tokens an image."""
    text, width = language(config, fmt, "gemma3_text")
    tokens = config.integer("mm_tokens_per_image", _TOKENS)
    if config.get("vision_config") is None:
        return text
    tower = siglip_tower(vision(config))
    side, grid = isqrt(tokens), tower.grid
    if side * side != tokens or grid.height != grid.width or grid.height % side:
        raise config.error(
            "mm_tokens_per_image",
            f"must be a square that divides the {grid.height} x {grid.width} patches; got {tokens}",
        )
    parts = tower.parts(fmt)
    pool = pooled(parts, patches_of(tower, parts), grid.patches // tokens)
    norm = parts.norm("soft_norm", pool.result, kind=NormKind.RMS)
    project = (pool, norm, parts.project("linear_1", norm.result, width))
    return joined(tower.blocks(fmt, tower.stream), project, text.map(partial(_around, tokens=tokens)), tokens=tokens)


def _around(op: Operator, *, tokens: int) -> Operator:
    """`op` with a mask that is bidirectional within an image, if it has a causal one."""
    if not isinstance(op, Attention) or not isinstance(op.heads.mask, Causal):
        return op
    return replace(op, heads=replace(op.heads, mask=CausalWithImages(op.heads.mask.window, tokens)))


@architecture("paligemma")
def build_paligemma(config: Section, fmt: Format) -> Graph:
    """PaliGemma 1 and 2: one linear, and Gemma or Gemma 2, whose prompt is bidirectional (arXiv:2407.07726,
    arXiv:2412.03555).
    """
    text, width = language(config, fmt, "gemma")
    config.ignore("vocab_size", "hidden_size", "projection_dim", "_vocab_size")
    section = config.section("text_config")
    section.ignore("num_image_tokens")
    if section.flag("use_bidirectional_attention", default=True):
        text = text.map(_prefix)
    if config.get("vision_config") is None:
        return text
    vision_section = vision(config)
    vision_section.ignore("num_image_tokens", "num_positions", "projector_hidden_act")
    tower = siglip_tower(vision_section)
    parts = tower.parts(fmt)
    project = (parts.project("linear_1", patches_of(tower, parts), width, bias=True),)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.grid.patches)


def _prefix(op: Operator) -> Operator:
    """`op` with a mask that is bidirectional within the prompt, if it has a causal one."""
    if not isinstance(op, Attention) or not isinstance(op.heads.mask, Causal):
        return op
    return replace(op, heads=replace(op.heads, mask=Prefix(op.heads.mask.window)))
