"""Mistral Small 3.1 and its variants, and LightOnOCR: Pixtral's tower, a patch merger and an MLP (arXiv:2410.07073).

An image is the largest that `image_size` of the vision_config allows; one that is smaller has fewer patches.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TOWERS
from .blocks.fields import filled
from .blocks.parts import NormKind, activation
from .blocks.tower import Tower, joined, language, patch_grid, patches_of, projector, vision, vit


@architecture("mistral3")
def build(config: Section, fmt: Format) -> Graph:
    """Mistral Small 3.1: a Pixtral tower and a learned 2 x 2 patch merger before Mistral."""
    return _build(config, fmt, "mistral")


@architecture("mistral_large4")
def build_large4(config: Section, fmt: Format) -> Graph:
    """Mistral Large 4: a Pixtral tower and a learned 2 x 2 patch merger before its language model."""
    return _build(config, fmt, "mistral_large4_text")


@architecture("lighton_ocr")
def build_lighton(config: Section, fmt: Format) -> Graph:
    """The language model is Qwen3, whose head is tied unless the config says otherwise."""
    return _build(filled(config, {"tie_word_embeddings": True}), fmt, "qwen3")


def _build(config: Section, fmt: Format, kind: str) -> Graph:
    text, width = language(config, fmt, kind)
    if config.get("vision_config") is None:
        return text
    if config.get("vision_feature_layer") not in (None, -1):
        raise config.error("vision_feature_layer", f"must be -1, the last; got {config.get('vision_feature_layer')!r}")
    merge = config.integer("spatial_merge_size", 2)
    tower = pixtral_tower(vision(config), multiple=merge)
    parts, tokens = tower.parts(fmt), tower.grid.patches // merge**2
    norm = parts.norm("merge_norm", patches_of(tower, parts))
    copies = parts.tensor("unfold", merge**2 * tower.hidden)
    unfold = Permute(name=copies.name, inputs=norm.outputs, outputs=(copies,))
    merged = parts.project("merging_layer", copies, tower.hidden)
    act = activation(config, "projector_hidden_act", "gelu")
    bias = config.flag("multimodal_projector_bias", default=False)
    project = (norm, unfold, merged, *projector(parts, merged.result, (width, width), act, bias=bias))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


def pixtral_tower(config: Section, *, multiple: int = 1) -> Tower:
    """Pixtral tower, without biases; `multiple` patches to a side are merged after it."""
    config = filled(config, TOWERS["PixtralVisionConfig"])
    grid, biases = patch_grid(config, multiple=multiple), dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), False)
    return vit(config, grid, "gelu", gated=True, rotated=True, **biases, norm=NormKind.RMS, pre_norm=True)
