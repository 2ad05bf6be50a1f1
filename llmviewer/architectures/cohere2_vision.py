"""Command A Vision: a SigLIP tower, four of whose patches a gated MLP brings to a token of Command A
(arXiv:2504.00698). The tower's own head is held and not run.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator
from ..precision import Format
from . import architecture
from ._moe import language_model
from ._parts import HIDDEN, Parts
from ._tower import UNUSED, Tower, filled, joined, vision
from .cohere import build_cohere2
from .siglip import plain_tower, pooled_head

_SIDE = 2  # patches to each side of what becomes a token
_INNER = 36864


@architecture("cohere2_vision")
def build(config: Section, fmt: Format) -> Graph:
    config.costless("tie_word_embeddings", "image_token_id")  # the text_config has its own
    text = language_model(config)
    language = build_cohere2(filled(text, {"model_type": "cohere2"}), fmt)
    if config.get("vision_config") is None:
        return language
    section = vision(config)
    merged = config.integer("downsample_factor", _SIDE)
    tower = plain_tower(section, multiple=merged)
    inner, hidden = config.integer("alignment_intermediate_size", _INNER), text.integer("hidden_size")
    if inner % 2:
        raise config.error("alignment_intermediate_size", f"must be even, for its halves; got {inner}")
    project = _projected(tower, tower.parts(fmt), merged**2, inner, hidden)
    head = [replace(block, name="unused_head", stream=UNUSED) for block in pooled_head(section, tower, fmt)]
    blocks, tokens = (*tower.blocks(fmt, tower.stream), *head), tower.picture.patches // merged**2
    return joined(blocks, project, language, tokens=tokens)


def _projected(tower: Tower, parts: Parts, merged: int, inner: int, hidden: int) -> tuple[Operator, ...]:
    """linear(silu(gate) * up), where one product of `merged` patches side by side makes gate and up."""
    x = parts.tensor(HIDDEN, merged * tower.hidden)
    up, gate = (parts.tensor(name, inner // 2) for name in ("projector_up", "projector_gate"))
    act = parts.activate("projector_act", "silu", gate, up)
    return (
        parts.linear("linear_1", x, up, gate, bias=True),
        act,
        parts.project("linear_2", act.outputs[0], hidden, bias=True),
    )
