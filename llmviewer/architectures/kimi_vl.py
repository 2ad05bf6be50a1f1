"""Kimi K2.5 and K3 with vision: towers for images of any size, four patches of which make a token of the prompt
(arXiv:2607.24653).

An image is as large as `image_size` of the vision_config says, height and width in pixels, and _SIDE x _SIDE where
that says nothing, as no published config does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator
from ..precision import Format
from . import Builder, architecture
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.moe import language_model
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of, result
from .blocks.tower import Tower, joined, layer, merger, patch_grid, projector, sides, vision
from .deepseek import build_v3
from .kimi_linear import build as build_linear

_SIDE: Final = 1008  # whole squares of patches, nearest to a thousand
_BICUBIC: Final = 32  # OPs to weigh and add sixteen positions, and to add the result
_BILINEAR: Final = 8  # the same of four
_SUPPORTED_VALUES: Final = {
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmerger",
    "projector_hidden_act": "gelu",
}
_K3_KNOWN: Final = _SUPPORTED_VALUES | {
    "mm_projector_type": "patchmergerv2",
    "mlp_type": "mlp2",
    "norm_type": "rmsnorm",
    "pos_emb_interpolation_mode": "bilinear",
}
_IGNORED: Final = "text_hidden_size projector_ln_eps pos_emb_type init_pos_emb_time video_attn_type"


@architecture("kimi_k25")
def build(config: Section, fmt: Format) -> Graph:
    """Kimi K2.5: a MoonViT at native resolution, 2 x 2 patches a token, before Kimi K2."""
    text, graph = _language(config, fmt, ("deepseek_v3", "kimi_k2"), build_v3)
    if config.get("vision_config") is None:
        return graph
    section = _check_supported(config, _SUPPORTED_VALUES)
    section.ignore("mm_hidden_size")
    (height, width), hidden = sides(section, "merge_kernel_size", 2), section.integer("vt_hidden_size", 1152)
    mlp = Mlp(inner=section.integer("vt_intermediate_size", 4304), act="gelu_tanh", bias=True)
    heads = bidirectional(heads_of(section, hidden, "vt_num_attention_heads"))
    one = layer(heads, mlp, fused_qkv=True, rotated=True)
    tower = _tower(section, hidden, one, merged=max(height, width), patch_bias=True, position_ops=_BICUBIC)
    project = merger(tower.parts(fmt), tower, height * width, text.integer("hidden_size"), norm=NormKind.LAYER)
    tokens = tower.grid.patches // (height * width)
    return joined(tower.blocks(fmt, tower.stream), project, graph, tokens=tokens)


@architecture("kimi_k3")
def build_k3(config: Section, fmt: Format) -> Graph:
    """Kimi K3: a MoonViT at native resolution, 2 x 2 patches a token, before a Kimi Linear."""
    text, graph = _language(config, fmt, ("kimi_linear",), build_linear)
    if config.get("vision_config") is None:
        return graph
    section = _check_supported(config, _K3_KNOWN)
    height, width = sides(section, "merge_kernel_size", 2)
    tower = _k3_tower(section, merged=max(height, width))
    if section.integer("mm_hidden_size", tower.hidden) != tower.hidden:
        raise section.error("mm_hidden_size", f"must be the {tower.hidden} of vt_hidden_size")
    project = _projector(tower.parts(fmt), tower, height * width, text.integer("hidden_size"))
    tokens = tower.grid.patches // (height * width)
    return joined(tower.blocks(fmt, tower.stream), project, graph, tokens=tokens)


def _language(config: Section, fmt: Format, kinds: tuple[str, ...], build: Builder) -> tuple[Section, Graph]:
    """The text_config, whose model_type is one of `kinds`, and its graph."""
    text = language_model(config)
    config.ignore("tie_word_embeddings")  # the text_config has its own
    text.choice("model_type", kinds, kinds[0])
    return text, build(text, fmt)


def _check_supported(config: Section, supported_values: dict[str, str]) -> Section:
    """The vision_config, whose fields have such values."""
    section = vision(config)
    section.ignore(*_IGNORED.split())
    for key, value in supported_values.items():
        section.choice(key, (value,), value)
    return section


def _tower(section: Section, hidden: int, one: Layer, *, merged: int, **options: Any) -> Tower:
    return Tower(
        grid=patch_grid(section, image=_SIDE, patch=14, multiple=merged),
        hidden=hidden,
        layers=[one] * section.count("vt_num_hidden_layers", 27),
        positions=section.integer("init_pos_emb_height", 64) * section.integer("init_pos_emb_width", 64),
        post_norm=True,
        **options,
    )


def _k3_tower(section: Section, *, merged: int) -> Tower:
    hidden, count = section.integer("vt_hidden_size", 1024), section.integer("vt_num_attention_heads", 12)
    wide = section.integer("qkv_hidden_size", hidden)
    if wide % count:
        raise section.error("qkv_hidden_size", f"must be a multiple of the {count} heads; got {wide}")
    heads = bidirectional(Heads(num_heads=count, num_kv_heads=count, head_dim=wide // count))
    linear, bias, patch = (
        section.flag(key, default=False) for key in ("linear_bias", "attn_bias", "patch_embed_proj_bias")
    )
    act = activation(section, "activation_func", "gelu_pytorch_tanh")
    mlp = Mlp(inner=section.integer("vt_intermediate_size", 4096), act=act, bias=linear)
    one = layer(heads, mlp, qkv_bias=bias, o_bias=bias, fused_qkv=True, rotated=True)
    return _tower(section, hidden, one, merged=merged, norm=NormKind.RMS, patch_bias=patch, position_ops=_BILINEAR)


def _projector(parts: Parts, tower: Tower, merged: int, out: int) -> Sequence[Operator]:
    """`merged` patches side by side to one token of width `out`: two linears, and a norm after them."""
    x = parts.tensor(HIDDEN, merged * tower.hidden)
    operators = projector(parts, x, (x.width, out), "gelu", bias=False)
    return (*operators, parts.norm("projector_norm", result(operators)))
