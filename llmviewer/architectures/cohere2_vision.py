"""Command A Vision and Aya Vision: a SigLIP tower and a gated MLP that merges four patches into a token
(arXiv:2504.00698, arXiv:2505.08751).

An image is cut into 12 tiles at most, and read once more in one where there are several. The tower's own head is held
and not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TOWERS
from .blocks.fields import filled
from .blocks.moe import language_model
from .blocks.parts import HIDDEN, NormKind, Parts
from .blocks.tiles import best_fit, closest_grid, picture_size
from .blocks.tower import UNUSED, Tower, joined, layers_run, sides, tied_of, vision
from .blocks.tower import language as language_of
from .llama import FAMILIES
from .siglip import plain_tower, pooled_head

_SIDE = 2  # patches to each side of what becomes a token
_INNER = 36864
_TILE = 224  # pixels to each side, as transformers.SiglipVisionConfig has it
_MOST_TILES = 12  # of an image, in the processors
_AYA_IMAGES = TOWERS["AyaVisionConfig"] | {"vision_use_head": False}


@architecture("cohere2_vision")
def build(config: Section, fmt: Format) -> Graph:
    """Command A Vision: a SigLIP tower over up to 12 tiles and a thumbnail, before Command A (cohere2)."""
    config.ignore("image_token_id")
    text = filled(language_model(config), {"tie_word_embeddings": True})
    text = filled(text, instead={"tie_word_embeddings": tied_of(config, text)})
    language = FAMILIES["cohere2"].graph(filled(text, {"model_type": "cohere2"}), fmt)
    if config.get("vision_config") is None:
        return language
    section = vision(config)
    merged = config.integer("downsample_factor", _SIDE)
    tower = plain_tower(section, multiple=merged)
    rows, columns = best_fit(picture_size(config), sides(section, "image_size", _TILE), most=_MOST_TILES)
    tower = replace(tower, tiles=rows * columns + (rows * columns > 1))
    inner, hidden = config.integer("alignment_intermediate_size", _INNER), text.integer("hidden_size")
    parts = tower.parts(fmt)
    project = _projected(parts.tensor(HIDDEN, merged**2 * tower.hidden), parts, _even(config, inner), hidden)
    return _vision_graph(section, tower, fmt, project, language=language, merged=merged**2)


@architecture("aya_vision")
def build_aya(config: Section, fmt: Format) -> Graph:
    """Aya Vision: a SigLIP tower over up to 12 tiles and a thumbnail, before Command R (cohere2)."""
    language, hidden = language_of(config, fmt, "cohere2")
    config.ignore("adapter_layer_norm_eps")
    if config.get("vision_config") is None:
        return language
    config.choice("vision_feature_select_strategy", ("full",), "full")
    section = filled(vision(config), _AYA_IMAGES)
    merged = config.integer("downsample_factor", _SIDE)
    tower = plain_tower(section, multiple=merged)
    runs = layers_run(config, "vision_feature_layer", len(tower.layers), -1)
    if len(runs) > 1:
        raise config.error("vision_feature_layer", f"must be one layer; got {len(runs)}")
    rows, columns = closest_grid(picture_size(config), sides(section, "image_size"), least=1, most=_MOST_TILES)
    tower = replace(tower, run=runs[0], tiles=rows * columns + (rows * columns > 1))
    inner, parts = config.integer("alignment_intermediate_size", hidden), tower.parts(fmt)
    norm = parts.norm("merge_norm", parts.tensor(HIDDEN, merged**2 * tower.hidden), kind=NormKind.LAYER)
    project = _projected(norm.result, parts, _even(config, inner), hidden)
    return _vision_graph(section, tower, fmt, (norm, *project), language=language, merged=merged**2)


def _vision_graph(
    section: Section, tower: Tower, fmt: Format, project: Sequence[Operator], *, language: Graph, merged: int
) -> Graph:
    """The language model behind a tower, `merged` of whose patches are a token."""
    head = [replace(block, name="unused_head", stream=UNUSED) for block in pooled_head(section, tower, fmt)]
    tokens = tower.tiles * tower.grid.patches // merged
    return joined((*tower.blocks(fmt, tower.stream), *head), project, language, tokens=tokens)


def _even(config: Section, inner: int) -> int:
    if inner % 2:
        raise config.error("alignment_intermediate_size", f"must be even, for its halves; got {inner}")
    return inner


def _projected(x: Tensor, parts: Parts, inner: int, hidden: int) -> tuple[Operator, ...]:
    """linear(silu(gate) * up), where one product of patches side by side makes gate and up."""
    up_proj, gate = (parts.tensor(name, inner // 2) for name in ("projector_up", "projector_gate"))
    act = parts.activate("projector_act", "silu", gate, up_proj)
    return (
        parts.linear("linear_1", x, up_proj, gate, bias=True),
        act,
        parts.project("linear_2", act.result, hidden, bias=True),
    )
