"""SigLIP: bidirectional towers for images and for texts (arXiv:2303.15343).

A learned query pools the patches. Of both together the prompt is the text, and images stand beside it; the products
of the results are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import SEQUENCES, WHOLE_PASS
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.masks import PoolingMask
from ..precision import Format
from . import architecture
from .blocks.attention import scored
from .blocks.class_defaults import TOWERS
from .blocks.encoder import Encoder, bidirectional, holding
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.parts import HIDDEN, Parts, heads_of, result, with_rows
from .blocks.tower import Tower, auxiliary_block, layer, patch_grid, tower_activation, vision, vit

_ACT: Final = "gelu_pytorch_tanh"
_IGNORED: Final = ("initializer_factor", "projection_dim")
_TEXTS: Final = {  # as transformers.SiglipTextConfig has it
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
}


@architecture("siglip")
def build(config: Section, fmt: Format) -> Graph:
    """SigLIP: an image tower and a text tower, both bidirectional."""
    config.ignore(*_IGNORED)
    text = config.section("text_config")
    text.ignore(*_IGNORED)
    section = vision(config)
    tower = plain_tower(section)
    images = [
        *tower.blocks(fmt, tower.stream),
        *(replace(b, stream=tower.stream) for b in pooled_head(section, tower, fmt)),
    ]
    *texts, head = _texts(text, fmt)
    scaled = holding(head.operators[0], tower.parts(fmt), {"logit_scale": (1,), "logit_bias": (1,)})
    return Graph((*(auxiliary_block(b, active=1) for b in images), *texts, replace(head, operators=(scaled,))))


@architecture("siglip_vision_model")
def build_vision(config: Section, fmt: Format) -> Graph:
    """SigLIP's image tower alone with its attention-pooling head (SiglipVisionModel)."""
    config.ignore(*_IGNORED)
    tower = plain_tower(config)
    return Graph((*tower.blocks(fmt, WHOLE_PASS), *pooled_head(config, tower, fmt)))


@architecture("siglip_text_model")
def build_texts(config: Section, fmt: Format) -> Graph:
    """SigLIP's text tower alone (SiglipTextModel)."""
    config.ignore(*_IGNORED)
    return Graph(tuple(_texts(config, fmt)))


def siglip_tower(config: Section) -> Tower:
    """Beside a language model.

    Raises InputError where it has a head that pools, which such models leave out.
    """
    without_head(config)
    return plain_tower(config)


def without_head(config: Section) -> None:
    """Raises InputError where a tower beside a language model has the head."""
    if config.flag("vision_use_head", default=True):
        raise config.error("vision_use_head", "must be false beside a language model; got true")


def plain_tower(config: Section, *, multiple: int = 1) -> Tower:
    """SigLIP tower without the pooling head; `multiple` patches to a side are merged after it."""
    config = filled(config, TOWERS["SiglipVisionConfig"])
    grid = patch_grid(config, multiple=multiple)
    return vit(config, grid, _ACT, patch_bias=True, positions=grid.patches, post_norm=True)


def _mlp(config: Section) -> Mlp:
    return Mlp(inner=config.integer("intermediate_size"), act=tower_activation(config, _ACT), bias=True)


def pooled_head(config: Section, tower: Tower, fmt: Format) -> list[Block]:
    """The head: attention of a learned query to all patches, a norm, an MLP added."""
    config = filled(config, TOWERS["SiglipVisionConfig"])
    if not config.flag("vision_use_head", default=True):
        return []
    parts, one = tower.parts(fmt), SEQUENCES
    x, heads = parts.tensor(HIDDEN, tower.hidden), replace(heads_of(config), mask=PoolingMask())
    q, k, v = (parts.tensor(f"{name}_proj", tower.hidden) for name in "qkv")
    probe = parts.embed("probe", {"probe.weight": 1}, tower.hidden).with_tensors(lambda t: with_rows(t, one))
    queries = parts.linear("q_proj", probe.result, with_rows(q, one), bias=True)
    kv = parts.linear("kv_proj", x, k, v, bias=True)
    attended = tuple(
        op.with_tensors(lambda t: with_rows(t, one) if t.name == "attention" else t)
        for op in scored(parts, heads, with_rows(q, one), (k,), v)
    )
    o_proj = parts.linear("o_proj", result(attended), with_rows(parts.tensor("o_proj", tower.hidden), one), bias=True)
    norm = parts.norm("mlp_norm", o_proj.result)
    mlp = tuple(op.with_tensors(lambda t: with_rows(t, one)) for op in _mlp(config).operators(parts, norm.result))
    add = parts.add("mlp_add", o_proj.result, result(mlp)).with_tensors(lambda t: with_rows(t, one))
    operators: tuple[Operator, ...] = (probe, queries, kv, *attended, o_proj, norm, *mlp, add)
    return [Block(name="head", operators=operators, input=HIDDEN, output=add.result.name)]


def _texts(config: Section, fmt: Format) -> list[Block]:
    config = filled(config, _TEXTS)
    hidden = config.integer("hidden_size")
    encoder = Encoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[layer(bidirectional(heads_of(config)), _mlp(config))] * config.count("num_hidden_layers"),
        positions=config.integer("max_position_embeddings"),
        final_norm=True,
    )
    parts = Parts(format=fmt, norm_kind=encoder.norm)
    x = with_rows(parts.tensor(HIDDEN, hidden), SEQUENCES)
    out = with_rows(parts.tensor("projection", config.integer("projection_size", hidden)), SEQUENCES)
    head = parts.linear("projection", x, out, bias=True)
    return [*encoder.graph(fmt).blocks, Block(name="head", operators=(head,), input=HIDDEN, output=out.name)]
