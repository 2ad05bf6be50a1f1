"""LFM3-VL: LFM3 with a vision tower, most of whose layers are gated convolutions over the patches; four patches make a
token.

An image is as large as image_size of the vision_config says, and _SIDE x _SIDE where that says nothing, as in no
published config.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Mixer
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.fields import filled, grouped_heads
from .blocks.moe import listed
from .blocks.parts import NormKind, Parts, activation
from .blocks.tower import Tower, joined, language, patch_grid, patches_of, projector, tied_of, vision

_SIDE: Final = 1024
_TOWER: Final = {
    "hidden_size": 1024, "intermediate_size": 2560, "num_hidden_layers": 14, "num_attention_heads": 16,
    "num_key_value_heads": 8, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "conv_kernel_size": 3,
}  # fmt: skip
_IGNORED: Final = "image_token_id video_token_id vision_start_token_id vision_end_token_id"
_KINDS: Final = ("conv", "full_attention")


@frozen(kw_only=True)
class ImageConv:
    """A filter of each channel over squares of `side` x `side` patches between two gates, all three of one product."""

    side: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        before, after, inner = (parts.tensor(name, x.width) for name in ("gate_in", "gate_out", "conv_in"))
        in_proj = parts.linear("in_proj", x, before, after, inner)
        gated_in = parts.elementwise("gated_in", before, inner, ops=1)
        conv = Elementwise(
            name="conv",
            kind="conv",
            inputs=gated_in.outputs,
            outputs=(parts.tensor("conv", x.width),),
            weights=(parts.weight("conv.weight", x.width, 1, self.side, self.side),),
            ops_per_element=2 * self.side**2,
        )
        gated_out = parts.elementwise("gated_out", after, conv.result, ops=1)
        return (in_proj, gated_in, conv, gated_out, parts.project("out_proj", gated_out.result, x.width))


@architecture("lfm3_vl")
def build(config: Section, fmt: Format) -> Graph:
    """LFM3-VL: a tower of gated convolutions and attention, 2 x 2 patches a token, before LFM3."""
    config.ignore(*_IGNORED.split())
    tied = tied_of(filled(config, {"tie_word_embeddings": True}), config.section("text_config"))
    graph, width = language(filled(config, instead={"tie_word_embeddings": tied}), fmt, "lfm3")
    if config.get("vision_config") is None:
        return graph
    section = filled(vision(config), _TOWER)
    section.ignore("rope_parameters")
    merged = section.integer("spatial_merge_size")
    tower = _tower(section, merged)
    project = _projected(config, tower, tower.parts(fmt), merged**2, width)
    return joined(tower.blocks(fmt, tower.stream), project, graph, tokens=tower.grid.patches // merged**2)


def _tower(section: Section, merged: int) -> Tower:
    channels = "in_channels" if "in_channels" in section else "num_channels"
    frames = section.integer("temporal_patch_size")
    heads = bidirectional(grouped_heads(section))
    attention = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qk_norm=NormKind.RMS)
    mixers: dict[str, Mixer] = {
        "conv": ImageConv(side=section.integer("conv_kernel_size")),
        "full_attention": attention,
    }
    mlp = Mlp(inner=section.integer("intermediate_size"), act="silu", gated=True)
    count = section.count("num_hidden_layers")
    default_kinds = ["conv" if index < len(_KINDS) or index % 2 else "full_attention" for index in range(count)]
    kinds = listed(section, "layer_types", _KINDS) or default_kinds
    return Tower(
        grid=patch_grid(section, image=_SIDE, patch=16, channels=channels, frames=frames, multiple=merged),
        hidden=section.integer("hidden_size"),
        layers=[Layer(mixer=mixers[kind], feed_forward=mlp, name=kind.split("_")[0]) for kind in kinds],
        norm=NormKind.RMS,
        patch_norm=True,
    )


def _projected(config: Section, tower: Tower, parts: Parts, merged: int, width: int) -> tuple[Operator, ...]:
    """A norm of each patch, and two linears over those side by side."""
    norm = parts.norm("merge_norm", patches_of(tower, parts), kind=NormKind.LAYER)
    x = parts.tensor(norm.name, merged * tower.hidden)
    act = activation(config, "projector_hidden_act", "gelu")
    widths = (config.integer("projector_hidden_size", 4096), width)
    bias = config.flag("projector_bias", default=True)
    return (replace(norm, outputs=(x,)), *projector(parts, x, widths, act, bias=bias))
