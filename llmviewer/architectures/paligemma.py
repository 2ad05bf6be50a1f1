"""PaliGemma 1 and 2: a SigLIP tower, one linear, and Gemma or Gemma 2, whose prompt sees itself both ways
(arXiv:2407.07726, arXiv:2412.03555).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Attention
from ..operators.base import Operator
from ..operators.masks import Causal, Prefix
from ..precision import Format
from . import architecture
from ._tower import joined, language, patches_of, vision
from .siglip import siglip_tower


@architecture("paligemma")
def build(config: Section, fmt: Format) -> Graph:
    text, width = language(config, fmt, "gemma")
    config.costless("vocab_size", "hidden_size", "projection_dim", "_vocab_size")
    section = config.section("text_config")
    section.costless("num_image_tokens")
    if section.flag("use_bidirectional_attention", default=True):
        text = text.map(_prefix)
    if config.get("vision_config") is None:
        return text
    given = vision(config)
    given.costless("num_image_tokens", "num_positions", "projector_hidden_act")
    tower = siglip_tower(given)
    parts = tower.parts(fmt)
    project = (parts.project("linear_1", patches_of(tower, parts), width, bias=True),)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.picture.patches)


def _prefix(op: Operator) -> Operator:
    """`op` with a mask that lets a prompt see itself both ways, where it has one."""
    if not isinstance(op, Attention) or not isinstance(op.heads.mask, Causal):
        return op
    return replace(op, heads=replace(op.heads, mask=Prefix(op.heads.mask.window)))
