"""CLIP: an image tower and a text tower, projected to one width (arXiv:2103.00020).

Each encodes its input in one pass: the text tower is causal, and there is no KV cache. With both towers the prompt is
the text, with images beside it; the product of the two results is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import SEQUENCES, WHOLE_PASS
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.masks import UncachedCausal
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TOWERS
from .blocks.encoder import Encoder, Head, holding, task
from .blocks.feed_forward import Mlp
from .blocks.fields import filled, labels_of
from .blocks.parts import HIDDEN, Parts, heads_of, result, with_rows
from .blocks.tower import Tower, auxiliary_block, layer, patch_grid, tower_activation, tower_graph, vision, vit

_TASKS: Final = {"ModelWithProjection": "projected", "Model": "bare"}
_IGNORED: Final = ("initializer_factor", "logit_scale_init_value", "text_config_dict", "vision_config_dict")
_ACT: Final = "quick_gelu"
_WIDTH: Final = 512  # of both results, where a config does not say
_TEXTS: Final = {  # as transformers.CLIPTextConfig has it
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}


@architecture("clip", "metaclip_2")
def build(config: Section, fmt: Format) -> Graph:
    """CLIP and MetaCLIP 2: an image tower and a text tower, or an image classifier (CLIPForImageClassification)."""
    config.ignore(*_IGNORED)
    if "ForImageClassification" in str(config.data.get("architectures")):
        return _classifier(config, fmt)
    width = config.integer("projection_dim", _WIDTH)
    text = config.section("text_config")
    text.ignore(*_IGNORED, "projection_dim")
    tower = clip_tower(vision(config), post_norm=False)
    images = [*tower.blocks(fmt, tower.stream), replace(_pooled(tower, fmt, width), stream=tower.stream)]
    *texts, head = _texts(text, fmt, width)
    scaled = holding(head.operators[0], tower.parts(fmt), {"logit_scale": (1,)})
    last = replace(head, operators=(scaled, *head.operators[1:]))
    return Graph((*(auxiliary_block(b, active=1) for b in images), *texts, last))


def _classifier(config: Section, fmt: Format) -> Graph:
    """Classes of the mean of the patches; the norm of the class token is held."""
    config.ignore("architectures", "text_config", "projection_dim")
    tower = clip_tower(vision(config), post_norm=False)
    graph = tower_graph(tower, fmt, Head(mean=tower.grid.patches, classes=labels_of(config)))
    first, *others = graph.blocks
    norm = {f"post_norm.{part}": (tower.hidden,) for part in ("weight", "bias")}
    normed = holding(first.operators[0], tower.parts(fmt), norm)
    return Graph((replace(first, operators=(normed, *first.operators[1:])), *others))


@architecture("clip_vision_model", "metaclip_2_vision_model")
def build_vision(config: Section, fmt: Format) -> Graph:
    """CLIP's image tower alone, pooled and projected (CLIPVisionModelWithProjection)."""
    config.ignore(*_IGNORED)
    tower = clip_tower(config, post_norm=False)
    return Graph((*tower.blocks(fmt, WHOLE_PASS), _pooled(tower, fmt, _projection(config))))


@architecture("clip_text_model", "metaclip_2_text_model")
def build_texts(config: Section, fmt: Format) -> Graph:
    """CLIP's text tower alone, pooled and projected (CLIPTextModelWithProjection)."""
    config.ignore(*_IGNORED)
    return Graph(tuple(_texts(config, fmt, _projection(config))))


def clip_tower(config: Section, *, post_norm: bool = True) -> Tower:
    """`post_norm`, the norm of the class token, stands in a head where it is run."""
    config = filled(config, TOWERS["CLIPVisionConfig"])
    grid = patch_grid(config)
    return vit(config, grid, _ACT, learned=1, positions=grid.patches + 1, pre_norm=True, post_norm=post_norm)


def _projection(config: Section) -> int:
    """The width that the result is brought to by the class that the config names; 0 where it is not."""
    width = config.integer("projection_dim", _WIDTH)
    return width if task(config, _TASKS, "Model") == "projected" else 0


def _pooled(tower: Tower, fmt: Format, width: int) -> Block:
    """The norm and the projection of the class token."""
    parts = tower.parts(fmt)
    norm = parts.norm("post_norm", with_rows(parts.tensor(HIDDEN, tower.hidden), SEQUENCES))
    return _head(parts, (norm,), width)


def _texts(config: Section, fmt: Format, width: int) -> list[Block]:
    config = filled(config, _TEXTS)
    hidden, heads = config.integer("hidden_size"), replace(heads_of(config), mask=UncachedCausal())
    mlp = Mlp(inner=config.integer("intermediate_size"), act=tower_activation(config, _ACT), bias=True)
    encoder = Encoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[layer(heads, mlp)] * config.count("num_hidden_layers"),
        positions=config.integer("max_position_embeddings"),
    )
    parts = Parts(format=fmt, norm_kind=encoder.norm)
    norm = parts.norm("final_norm", parts.tensor(HIDDEN, hidden))
    return [*encoder.graph(fmt).blocks, _head(parts, (norm,), width)]


def _head(parts: Parts, before: tuple[Operator, ...], width: int) -> Block:
    """Projection of the pooled token of a sequence to `width`, after the operators `before`."""
    operators = before
    if width:
        x = with_rows(result(before), SEQUENCES)
        out = with_rows(parts.tensor("projection", width), SEQUENCES)
        operators = (*before, parts.linear("projection", x, out))
    return Block(name="head", operators=operators, input=HIDDEN, output=result(operators).name)
