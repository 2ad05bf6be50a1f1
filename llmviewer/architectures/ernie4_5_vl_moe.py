"""ERNIE 4.5 VL: separate text and vision experts in each layer, and a shared expert for both; a vision tower for
images of any size, four patches of which make a token (arXiv:2509.09673).

The router of each kind chooses among the experts of its own; the tokens that begin and end an image go to those for
images. An image is as large as `image_size` of the vision_config says, as of Qwen2-VL; two video frames are
joined in one token, and an image stands for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import ONE, Stream, images, text_tokens
from ..graph import Graph
from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Permute
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import attention, decoder, filled
from .blocks.moe import dense, experts, ignore_router_fields, integers, language_model, sparse_layers
from .blocks.parts import HIDDEN, NormKind, Parts, heads_of, result
from .blocks.tower import Tower, joined, layer, patch_grid, projector, tower_activation, vision

_TEXT: Final = TEXT_CLASSES["Ernie4_5_VLMoeTextConfig"] | {
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_intermediate_size": [1536, 512],
}
_IMAGES: Final = {  # as transformers.Ernie4_5_VLMoeVisionConfig has it
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "depth": 32,
    "num_heads": 16,
    "image_size": 1008,
    "patch_size": 14,
}
_IGNORED: Final = """
    image_start_token_id image_end_token_id image_token_id video_start_token_id video_end_token_id video_token_id
"""
_MARKS: Final = 2  # tokens that begin and end an image


@frozen(kw_only=True)
class TwoKinds:
    """Experts for text, others for the `image_tokens` of each image, and a shared MLP for all tokens."""

    text: Experts
    images: Experts
    shared: Mlp
    image_tokens: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        written = _on_stream(self.text.operators(parts, x), text_tokens(self.image_tokens))
        others = _called("vision", self.images.operators(parts, x), x.name)
        image_experts = _on_stream(
            [op.with_weights(lambda w: replace(w, active=0)) for op in others], images(self.image_tokens)
        )
        shared = self.shared.operators(parts, x, prefix="shared_", act_name="shared_act")
        add = parts.add("shared_add", parts.tensor(result(written).name, x.width), result(shared))
        return (*written, *image_experts, *shared, add)


@architecture("ernie4_5_vl_moe")
def build(config: Section, fmt: Format) -> Graph:
    """ERNIE 4.5 VL: a ViT before layers with separate experts for text and image tokens and a shared one."""
    config.ignore(*_IGNORED.split())
    text_section = language_model(config)
    tied_flags = [
        c.flag("tie_word_embeddings", default=True) for c in (config, text_section) if "tie_word_embeddings" in c
    ]
    text = filled(text_section, _TEXT, instead={"tie_word_embeddings": any(tied_flags or [True])})
    text.ignore("model_type")
    section = filled(vision(config), _IMAGES)
    tower, side = _tower(section), section.integer("spatial_merge_size", 2)
    tokens = tower.grid.patches // side**2
    language = decoder(text, _layers(text, tokens + _MARKS)).graph(fmt)
    project = _projected(tower, tower.parts(fmt), side**2, section.integer("temporal_merge_size", 2), text)
    return joined(tower.blocks(fmt, tower.stream), project, language, tokens=tokens)


def _layers(config: Section, image_tokens: int) -> list[Layer]:
    ignore_router_fields(config, "moe_norm_min")
    if config.flag("use_bias", default=False):
        raise config.error("use_bias", "must be false; biases of ERNIE 4.5 are not modelled")
    inner, shared = integers(config, "moe_intermediate_size"), config.integer("moe_num_shared_experts")
    if len(inner) != 2:
        requirement = f"must be the widths of experts for text and for images; got {list(inner)}"
        raise config.error("moe_intermediate_size", requirement)
    text_experts, others = (
        replace(experts(config, "moe_num_experts", "moe_k", inner=width), router_bias=True) for width in inner
    )
    mixture = TwoKinds(
        text=text_experts,
        images=others,
        shared=Mlp(inner=shared * inner[0], act=text_experts.act, gated=True),
        image_tokens=image_tokens,
    )
    mixer = attention(config, share=1, bias=None)
    kinds = {
        True: Layer(mixer=mixer, feed_forward=mixture, name="moe"),
        False: Layer(mixer=mixer, feed_forward=dense(config), name="dense"),
    }
    return [kinds[sparse] for sparse in sparse_layers(config, 1)]


def _on_stream(operators: Sequence[Operator], stream: Stream) -> tuple[Operator, ...]:
    """The same of a part of the pass."""

    def tensor(t: Tensor) -> Tensor:
        return replace(t, rows=t.rows.on(stream))

    def weight(w: Weight) -> Weight:
        return replace(w, rows=(w.shape[0] * ONE if w.rows is None else w.rows).on(stream))

    return tuple(op.with_tensors(tensor).with_weights(weight) for op in operators)


def _tower(section: Section) -> Tower:
    hidden = section.integer("hidden_size")
    heads = bidirectional(heads_of(section, hidden, section.first("num_heads", "num_attention_heads")))
    mlp = Mlp(inner=section.integer("intermediate_size"), act=tower_activation(section, "quick_gelu"), bias=True)
    return Tower(
        grid=patch_grid(section, channels="in_channels", multiple=section.integer("spatial_merge_size", 2)),
        hidden=hidden,
        layers=[layer(heads, mlp, fused_qkv=True, rotated=True)]
        * section.count(section.first("depth", "num_hidden_layers")),
        post_norm=True,
    )


def _projected(tower: Tower, parts: Parts, merged: int, frames: int, text: Section) -> tuple[Operator, ...]:
    """Patches side by side through two linears and a norm, frames side by side through as many, a linear and a norm."""
    wide = parts.tensor(HIDDEN, merged * tower.hidden)
    widths = (wide.width, wide.width)
    spatial = _called("spatial", projector(parts, wide, widths, "gelu", bias=True), HIDDEN)
    spatial = (*spatial, parts.norm("spatial_norm", result(spatial), kind=NormKind.LAYER))
    joined_tensor = parts.tensor("frames", frames * wide.width)
    gather = Permute(name=joined_tensor.name, inputs=(result(spatial),), outputs=(joined_tensor,))
    temporal = _called("temporal", projector(parts, joined_tensor, widths, "gelu", bias=True), joined_tensor.name)
    temporal = (*temporal, parts.norm("temporal_norm", result(temporal), kind=NormKind.LAYER))
    linear = parts.project("linear", result(temporal), text.integer("hidden_size"), bias=True)
    return (*spatial, gather, *temporal, linear, parts.norm("after_norm", linear.result, kind=NormKind.RMS))


def _called(prefix: str, operators: Sequence[Operator], output_name: str) -> tuple[Operator, ...]:
    """Operators whose names begin with `prefix`, as do their tensors and weights, except the tensor `output_name`."""

    def tensor(t: Tensor) -> Tensor:
        return t if t.name == output_name else replace(t, name=f"{prefix}_{t.name}")

    def weight(w: Weight) -> Weight:
        return replace(w, name=f"{prefix}_{w.name}")

    return tuple(replace(op, name=f"{prefix}_{op.name}").with_tensors(tensor).with_weights(weight) for op in operators)
