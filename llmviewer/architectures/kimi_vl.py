"""Kimi K2.5: a tower for pictures of any size, four patches of which make a token of the prompt, before Kimi K2.

A picture is as large as `image_size` of the vision_config says, height and width in pixels, and _SIDE x _SIDE where
that says nothing, as no published config does.
"""

from __future__ import annotations

from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._encoder import both_ways
from ._feed_forward import Mlp
from ._moe import language_model
from ._parts import NormKind, heads_of
from ._tower import Tower, joined, layer, merger, picture, sides, vision
from .deepseek import build_v3

_SIDE: Final = 1008  # whole squares of patches, nearest to a thousand
_BICUBIC: Final = 32  # OPs to weigh and add sixteen positions, and to add the result
_COSTLESS: Final = """
    mm_hidden_size text_hidden_size projector_ln_eps pos_emb_type init_pos_emb_time video_attn_type
"""


@architecture("kimi_k25")
def build(config: Section, fmt: Format) -> Graph:
    text = language_model(config)
    config.costless("tie_word_embeddings")  # the text_config has its own
    text.choice("model_type", ("deepseek_v3", "kimi_k2"), "deepseek_v3")
    graph = build_v3(text, fmt)
    if config.get("vision_config") is None:
        return graph
    section = vision(config)
    section.costless(*_COSTLESS.split())
    for key, known in (
        ("merge_type", "sd2_tpool"),
        ("mm_projector_type", "patchmerger"),
        ("projector_hidden_act", "gelu"),
    ):
        section.choice(key, (known,), known)
    height, width = sides(section, "merge_kernel_size", 2)
    tower = _tower(section, merged=max(height, width))
    tokens = tower.picture.patches // (height * width)
    project = merger(tower.parts(fmt), tower, height * width, text.integer("hidden_size"), norm=NormKind.LAYER)
    return joined(tower.blocks(fmt, tower.stream), project, graph, tokens=tokens)


def _tower(section: Section, *, merged: int) -> Tower:
    hidden = section.integer("vt_hidden_size", 1152)
    mlp = Mlp(inner=section.integer("vt_intermediate_size", 4304), act="gelu_tanh", bias=True)
    heads = both_ways(heads_of(section, hidden, "vt_num_attention_heads"))
    return Tower(
        picture=picture(section, image=_SIDE, patch=14, multiple=merged),
        hidden=hidden,
        layers=[layer(heads, mlp, fused_qkv=True, rotated=True)] * section.integer("vt_num_hidden_layers", 27),
        patch_bias=True,
        positions=section.integer("init_pos_emb_height", 64) * section.integer("init_pos_emb_width", 64),
        position_ops=_BICUBIC,
        post_norm=True,
    )
