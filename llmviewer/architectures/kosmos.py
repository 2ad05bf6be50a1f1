"""Kosmos-2 and Kosmos-2.5: learned queries over the patches of a vision tower, before a decoder with sub-layer norms
(arXiv:2306.14824, arXiv:2309.11419; norms of arXiv:2210.06423).

Positions are computed sines. Kosmos-2.5 always reads max_num_patches patches, padded, with a table each of rows and of
columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, FeedForward, Layer, Mixer
from .blocks.feed_forward import Mlp
from .blocks.fields import filled, require_false
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of, with_rows
from .blocks.resampler import FEATURES, Looking
from .blocks.tower import PatchGrid, Tower, image_rows, joined, part, vit
from .clip import clip_tower

_TEXT: Final = {  # as transformers.Kosmos2TextConfig has it
    "vocab_size": 65037, "embed_dim": 2048, "layers": 24, "ffn_dim": 8192, "attention_heads": 32,
}  # fmt: skip
_TEXT_2_5: Final = {  # as transformers.Kosmos2_5TextConfig has it
    "vocab_size": 108481, "embed_dim": 1536, "layers": 24, "ffn_dim": 6144, "attention_heads": 16,
}  # fmt: skip
_IMAGES: Final = {  # as transformers.Kosmos2VisionConfig has it
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 224, "patch_size": 14,
}  # fmt: skip
_IMAGES_2_5: Final = {  # as transformers.Kosmos2_5VisionConfig has it
    "hidden_size": 1536, "patch_embed_hidden_size": 768, "intermediate_size": 3968, "head_dim": 64,
    "num_hidden_layers": 18, "num_attention_heads": 24, "max_num_patches": 4096,
}  # fmt: skip
_SEGMENTS: Final = 2  # rows of the table that marks tokens of images
_IGNORED: Final = "initializer_factor dropout_rate model_type layerdrop scale_embedding"


@frozen(kw_only=True)
class NormInside:
    """A branch with a norm before its last projection."""

    branch: Mixer | FeedForward
    name: str

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        *before, last = self.branch.operators(parts, x)
        norm = parts.norm(self.name, last.inputs[0])
        return (*before, norm, replace(last, inputs=norm.outputs))


@architecture("kosmos-2")
def build(config: Section, fmt: Format) -> Graph:
    """Kosmos-2: CLIP and a resampler of learned queries before a decoder with norms inside its branches."""
    section = filled(part(config, "text_config"), _TEXT)
    text = _text(section, fmt, inside=True)
    vision_section = part(config, "vision_config")
    vision_section.ignore(*_IGNORED.split())
    tower = clip_tower(filled(vision_section, _IMAGES))
    queries = config.integer("latent_query_num", 64)
    project = _projected(section, tower, queries, tower.parts(fmt))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=queries)


@architecture("kosmos-2.5")
def build_2_5(config: Section, fmt: Format) -> Graph:
    """Kosmos-2.5: only the feed-forward networks have an inner norm; a second table marks the tokens of images."""
    section = filled(part(config, "text_config"), _TEXT_2_5)
    embedding, *others = _text(section, fmt, inside=False).blocks
    parts, hidden = Parts(format=fmt), section.integer("embed_dim")
    tables = {"embed_tokens.weight": section.integer("vocab_size"), "segments.weight": _SEGMENTS}
    embed = parts.embed("embed_tokens", tables, hidden)
    text = Graph((replace(embedding, operators=(embed,)), *others))
    tower = _flat_tower(filled(part(config, "vision_config"), _IMAGES_2_5))
    first, *layers = tower.blocks(fmt, tower.stream)
    queries = config.integer("latent_query_num", 2048)
    project = _projected(section, tower, queries, replace(tower.parts(fmt), norm_kind=NormKind.LAYER))
    return joined((_with_columns(first), *layers), project, text, tokens=queries)


def _text(config: Section, fmt: Format, *, inside: bool) -> Graph:
    config.ignore(*_IGNORED.split())
    require_false(config, "add_cross_attention", "layers of cross-attention are not known for this architecture")
    hidden = config.integer("embed_dim")
    heads = heads_of(config, hidden, "attention_heads")
    attention = SelfAttention(heads=heads, qkv_bias=True, o_bias=True)
    act = activation(config, "activation_function", "gelu")
    mlp = Mlp(inner=config.integer("ffn_dim"), act=act, bias=True)
    layer = Layer(
        mixer=NormInside(branch=attention, name="attn_inner_norm") if inside else attention,
        feed_forward=NormInside(branch=mlp, name="mlp_inner_norm"),
    )
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[layer] * config.count("layers"),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=True),
    ).graph(fmt)


def _flat_tower(config: Section) -> Tower:
    """The tower of Pix2Struct over flattened patches, without biases in its layers (arXiv:2210.03347)."""
    config.ignore(*_IGNORED.split(), "patch_size", "num_channels")
    config = filled(config, instead={"hidden_act": config.text("dense_act_fn", "gelu_new")})
    count = config.integer("max_num_patches")
    return vit(
        config,
        PatchGrid(height=1, width=count, pixels=config.integer("patch_embed_hidden_size")),
        "gelu",
        gated=True,
        mlp_bias=False,
        qkv_bias=False,
        o_bias=False,
        norm=NormKind.RMS,
        patch_bias=True,
        positions=count,
        position_ops=2,
        post_norm=True,
    )


def _with_columns(embedding: Block) -> Block:
    """The embedding of patches with a table of columns beside that of rows."""
    *patches, add = embedding.operators
    columns = (replace(table, name="columns.weight") for table in add.weights)
    return replace(embedding, operators=(*patches, replace(add, weights=(*add.weights, *columns))))


def _projected(section: Section, tower: Tower, queries: int, parts: Parts) -> tuple[Operator, ...]:
    """`queries` learned queries, each of which attends to all patches, scaled to unit length, and to all queries."""
    width = section.integer("embed_dim")
    patches = with_rows(parts.tensor(HIDDEN, tower.hidden), image_rows(tower.tokens))
    unit = parts.norm("unit", patches, kind=NormKind.UNIT)
    dense = parts.linear("dense", unit.result, with_rows(parts.tensor(FEATURES, width), patches.rows), bias=True)
    embed = parts.embed("queries", {"queries.weight": queries}, width)
    heads = heads_of(section, width, "attention_heads")
    looking = Looking(heads=heads, features=tower.tokens, width=width, queries=queries, bias=True)
    return (unit, dense, embed, *looking.operators(parts, embed.result))
