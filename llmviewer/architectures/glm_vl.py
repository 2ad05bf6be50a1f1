"""GLM-4.1V, 4.5V, 4.6V, 5.3-Flash and GLM-OCR: a vision tower for images of any size, a strided convolution and a
gated MLP that merge four patches into a token, before a GLM (arXiv:2507.01006).

image_size of the vision_config is that of the table of positions, from which those of an image are interpolated. An
image is as large as picture_size says, which no published config has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.moe import language_model
from .blocks.parts import HIDDEN, NormKind, heads_of
from .blocks.tiles import picture_size
from .blocks.tower import PatchGrid, Tower, joined, layer, patch_grid, sides, tied_of, tower_activation, vision
from .glm5_next import build as build_glm5_next_text
from .llama import FAMILIES

_BICUBIC: Final = 32  # OPs to weigh and add sixteen positions, and to add the result
_SPARSE_TEXT: Final = TEXT_CLASSES["Glm4vMoeTextConfig"] | {
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "attention_bias": True,
}
_TOWER: Final = {  # as transformers.Glm4vVisionConfig has it
    "depth": 24,
    "hidden_size": 1536,
    "num_heads": 12,
    "image_size": 336,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 4096,
    "intermediate_size": 13696,
}
_OCR_TOWER: Final = {  # as transformers.GlmOcrVisionConfig has it
    **_TOWER,
    "hidden_size": 1024,
    "num_heads": 16,
    "out_hidden_size": 1536,
    "intermediate_size": 4096,
}
_GLM5_PROJECTOR: Final = 10240
_IGNORED: Final = "image_start_token_id image_end_token_id video_start_token_id video_end_token_id"
_TEXT_IGNORED: Final = "image_token_id video_token_id"


@architecture("glm4v", "glm4v_moe", "glm46v", "glmga")
def build(config: Section, fmt: Format) -> Graph:
    """Fields of the language model stand in text_config, or in older files beside vision_config."""
    config.ignore(*_IGNORED.split(), "tie_word_embeddings")
    has_text_config = config.get("text_config") is not None
    text = language_model(config) if has_text_config else config
    text.ignore(*_IGNORED.split(), *_TEXT_IGNORED.split())
    kind = text.text("model_type", config.text("model_type"))
    tied = any(c.flag("tie_word_embeddings", default=False) for c in (config, text))
    sparse = kind.startswith("glm4v_moe")
    language = (_sparse if sparse else _dense)(text, fmt, tie_word_embeddings=tied)
    if config.get("vision_config") is None:
        return language
    section = filled(vision(config), _TOWER)
    side = section.integer("spatial_merge_size")
    tower = _tower(config, section, side)
    project = _projected(section, tower, fmt, side**2, section.integer("intermediate_size"))
    return joined(tower.blocks(fmt, tower.stream), project, language, tokens=tower.grid.patches // side**2)


@architecture("glm_ocr")
def build_ocr(config: Section, fmt: Format) -> Graph:
    """GLM-OCR: attention without biases; a tower without learned positions, with norms of queries and keys."""
    config.ignore(*_IGNORED.split())
    text = language_model(config)
    text.ignore(*_TEXT_IGNORED.split(), "attention_bias")
    tied = tied_of(config, text)
    language = FAMILIES["glm4"].graph(
        _filled_text(text, TEXT_CLASSES["GlmOcrTextConfig"], {"attention_bias": False, "tie_word_embeddings": tied}),
        fmt,
    )
    return _behind_ocr_tower(config, language, fmt)


@architecture("glm5_next")
def build_glm5_next(config: Section, fmt: Format) -> Graph:
    """GLM-5.3-Flash: the tower of GLM-OCR, whose projector has a width of its own. Files without a tower may have the
    fields of the language model beside the others.
    """
    config.ignore(*_IGNORED.split())
    if not config.has("text_config") and config.has("num_hidden_layers"):
        return build_glm5_next_text(config, fmt)
    text = language_model(config)
    text.ignore(*_TEXT_IGNORED.split())
    language = build_glm5_next_text(filled(text, instead={"tie_word_embeddings": tied_of(config, text)}), fmt)
    return _behind_ocr_tower(config, language, fmt, inner=_GLM5_PROJECTOR)


def _behind_ocr_tower(config: Section, language: Graph, fmt: Format, *, inner: int = 0) -> Graph:
    """`language` behind the tower, where the config has one; `inner` is the width that the class has in the projector,
    0 where that is `in_channels` times what it leaves.
    """
    if config.get("vision_config") is None:
        return language
    section = filled(vision(config), _OCR_TOWER)
    side = section.integer("spatial_merge_size")
    tower = _ocr_tower(config, section, side)
    if inner:
        section.ignore("swiglu_limit")
        wide = section.integer("projection_intermediate_size", inner)
    else:
        wide = section.integer("out_hidden_size") * section.integer("in_channels", 3)
    project = _projected(section, tower, fmt, side**2, wide)
    return joined(tower.blocks(fmt, tower.stream), project, language, tokens=tower.grid.patches // side**2)


@architecture("glm4v_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """GLM-4.1V's language model: a dense GLM-4."""
    return _dense(config, fmt)


@architecture("glm4v_moe_text")
def build_sparse_text(config: Section, fmt: Format) -> Graph:
    """GLM-4.5V's language model: GLM-4.5 with routed experts."""
    return _sparse(config, fmt)


def _dense(text: Section, fmt: Format, **instead: Any) -> Graph:
    """Queries, keys and values have biases, whatever a config says."""
    text.ignore("attention_bias")
    return FAMILIES["glm4"].graph(
        _filled_text(text, TEXT_CLASSES["Glm4vTextConfig"], {"attention_bias": True, **instead}), fmt
    )


def _sparse(text: Section, fmt: Format, **instead: Any) -> Graph:
    return FAMILIES["glm4_moe"].graph(_filled_text(text, _SPARSE_TEXT, instead), fmt)


def _filled_text(text: Section, defaults: Mapping[str, Any], instead: Mapping[str, Any]) -> Section:
    """`text` with what its class has; heads share the width where nothing is said of them."""
    text = filled(text, defaults)
    shared = text.integer("hidden_size") // text.integer("num_attention_heads")
    return filled(text, {"head_dim": shared}, instead=instead)


def _patch_grid(config: Section, section: Section, side: int) -> PatchGrid:
    """The image, down to whole tokens."""
    (height, width), (tall, wide) = picture_size(config), (patch * side for patch in sides(section, "patch_size"))
    if height < tall or width < wide:
        raise config.error("picture_size", f"must be at least a token, {tall} x {wide}; got {height} x {width}")
    size = [height // tall * tall, width // wide * wide]
    return patch_grid(
        filled(section, instead={"image_size": size}),
        channels="in_channels",
        frames=section.integer("temporal_patch_size"),
        multiple=side,
    )


def _tower(config: Section, section: Section, side: int) -> Tower:
    section.ignore("rope_parameters")
    mlp = Mlp(inner=section.integer("out_hidden_size"), act=tower_activation(section, "silu"), gated=True)
    bias = section.flag("attention_bias", default=False)
    one = layer(_heads(section), mlp, qkv_bias=bias, o_bias=False, fused_qkv=True, rotated=True)
    return Tower(
        grid=_patch_grid(config, section, side),
        hidden=section.integer("hidden_size"),
        layers=[one] * section.count(section.first("depth", "num_hidden_layers")),
        norm=NormKind.RMS,
        patch_bias=True,
        positions=patch_grid(section, channels="in_channels").patches,
        position_ops=_BICUBIC,
        patch_norm=True,
        post_norm=True,
    )


def _ocr_tower(config: Section, section: Section, side: int) -> Tower:
    section.ignore("rope_parameters", "image_size")
    bias, heads = section.flag("attention_bias", default=True), _heads(section)
    mlp = Mlp(inner=section.integer("intermediate_size"), act=tower_activation(section, "silu"), gated=True, bias=bias)
    attention = SelfAttention(
        heads=heads, rotary_dim=heads.head_dim, fused_qkv=True, qkv_bias=bias, o_bias=bias, qk_norm=NormKind.RMS
    )
    return Tower(
        grid=_patch_grid(config, section, side),
        hidden=section.integer("hidden_size"),
        layers=[Layer(mixer=attention, feed_forward=mlp)] * section.count(section.first("depth", "num_hidden_layers")),
        norm=NormKind.RMS,
        patch_bias=True,
        post_norm=True,
    )


def _heads(section: Section) -> Heads:
    hidden = section.integer("hidden_size")
    return bidirectional(heads_of(section, hidden, section.first("num_heads", "num_attention_heads")))


def _projected(section: Section, tower: Tower, fmt: Format, merged: int, inner: int) -> tuple[Operator, ...]:
    """The convolution over squares of patches, which lie side by side; linear, norm, activation; a gated MLP."""
    parts, out = tower.parts(fmt), section.integer("out_hidden_size")
    down = parts.project("downsample", parts.tensor(HIDDEN, merged * tower.hidden), out, bias=True)
    first = parts.project("linear_1", down.result, out)
    norm = parts.norm("projector_norm", first.result, kind=NormKind.LAYER)
    act = parts.activate("projector_act", "gelu", norm.result)
    mlp = Mlp(inner=inner, act=tower_activation(section, "silu"), gated=True)
    return (down, first, norm, act, *mlp.operators(parts, act.result))
