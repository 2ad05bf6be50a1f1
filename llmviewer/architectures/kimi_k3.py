"""Kimi K3: a tower for pictures of any size, four patches of which make a token of the prompt, before a Kimi Linear
with attention residuals (arXiv:2607.24653).

A picture is as large as `image_size` of the vision_config says, height and width in pixels, and _SIDE x _SIDE where
that says nothing, as no published config does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator
from ..precision import Format
from . import architecture
from ._encoder import both_ways
from ._feed_forward import Mlp
from ._moe import language_model
from ._parts import HIDDEN, NormKind, Parts, activation, result
from ._tower import Tower, joined, layer, picture, projector, sides, vision
from .kimi_linear import build as build_text

_SIDE: Final = 1008  # whole squares of patches, nearest to a thousand
_BILINEAR: Final = 8  # OPs to weigh and add four positions, and to add the result
_KNOWN: Final = {
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmergerv2",
    "mlp_type": "mlp2",
    "norm_type": "rmsnorm",
    "pos_emb_interpolation_mode": "bilinear",
    "projector_hidden_act": "gelu",
}
_COSTLESS: Final = "text_hidden_size projector_ln_eps pos_emb_type init_pos_emb_time video_attn_type"


@architecture("kimi_k3")
def build(config: Section, fmt: Format) -> Graph:
    text = language_model(config)
    config.costless("tie_word_embeddings")  # the text_config has its own
    text.choice("model_type", ("kimi_linear",), "kimi_linear")
    graph = build_text(text, fmt)
    if config.get("vision_config") is None:
        return graph
    section = vision(config)
    section.costless(*_COSTLESS.split())
    for key, known in _KNOWN.items():
        section.choice(key, (known,), known)
    height, width = sides(section, "merge_kernel_size", 2)
    tower = _tower(section, merged=max(height, width))
    if section.integer("mm_hidden_size", tower.hidden) != tower.hidden:
        raise section.error("mm_hidden_size", f"must be the {tower.hidden} of vt_hidden_size")
    project = _projector(tower.parts(fmt), tower, height * width, text.integer("hidden_size"))
    return joined(tower.blocks(fmt, tower.stream), project, graph, tokens=tower.picture.patches // (height * width))


def _tower(section: Section, *, merged: int) -> Tower:
    hidden, count = section.integer("vt_hidden_size", 1024), section.integer("vt_num_attention_heads", 12)
    wide = section.integer("qkv_hidden_size", hidden)
    if wide % count:
        raise section.error("qkv_hidden_size", f"must be a multiple of the {count} heads; got {wide}")
    heads = both_ways(Heads(num_heads=count, num_kv_heads=count, head_dim=wide // count))
    act = activation(section, "activation_func", "gelu_pytorch_tanh")
    mlp = Mlp(inner=section.integer("vt_intermediate_size", 4096), act=act, bias=_bias(section, "linear_bias"))
    attention_bias = _bias(section, "attn_bias")
    layers = layer(heads, mlp, qkv_bias=attention_bias, o_bias=attention_bias, fused_qkv=True, rotated=True)
    return Tower(
        picture=picture(section, image=_SIDE, patch=14, multiple=merged),
        hidden=hidden,
        layers=[layers] * section.integer("vt_num_hidden_layers", 27),
        norm=NormKind.RMS,
        patch_bias=_bias(section, "patch_embed_proj_bias"),
        positions=section.integer("init_pos_emb_height", 64) * section.integer("init_pos_emb_width", 64),
        position_ops=_BILINEAR,
        post_norm=True,
    )


def _bias(section: Section, key: str) -> bool:
    return section.flag(key, default=False)


def _projector(parts: Parts, tower: Tower, merged: int, out: int) -> Sequence[Operator]:
    """`merged` patches side by side to one token of width `out`: two linears, and a norm after them."""
    x = parts.tensor(HIDDEN, merged * tower.hidden)
    made = projector(parts, x, (x.width, out), "gelu", bias=False)
    return (*made, parts.norm("projector_norm", result(made)))
