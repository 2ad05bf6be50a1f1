"""Phi-4-multimodal: Phi-4-mini with a SigLIP tower over tiles of 448 x 448 pixels and a thumbnail (arXiv:2503.01743).

Four patches are averaged to a token; a learned token ends every row, and another separates the tiles from the
thumbnail. Patches outside the image are dropped. The audio encoder is loaded and not run, as a request has no audio.
LoRA adapters for images and audio are files beside the checkpoint and not part of its class. In configs of the original
repository, phi4mm, the towers have the defaults of the class.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.elementwise import Elementwise
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TEXT_CLASSES, TOWERS
from .blocks.fields import filled
from .blocks.parts import Parts, with_rows
from .blocks.tiles import closest_grid, picture_size
from .blocks.tower import (
    UNUSED,
    Tower,
    image_rows,
    joined,
    layers_run,
    linears,
    part,
    patches_of,
    pooled,
    projector,
    unused_weights,
)
from .llama import FAMILIES
from .siglip import plain_tower, pooled_head

_SOUND: Final = {  # as transformers.Phi4MultimodalAudioConfig has it
    "hidden_size": 1024,
    "intermediate_size": 1536,
    "num_blocks": 24,
    "num_attention_heads": 16,
    "ext_pw_out_channel": 1024,
    "depthwise_separable_out_channel": 1024,
    "depthwise_multiplier": 1,
    "kernel_size": 3,
    "input_size": 80,
    "time_reduction": 8,
    "bias_max_distance": 1000,
    "bias_symmetric": False,
    "nemo_conv_channels": 1024,
    "downsample_rate": 1,
}
_TEXT_IGNORED: Final = "bos_token_id eos_token_id vision_config audio_config embd_layer audio_processor img_processor"
_TOWER_IGNORED: Final = "crop_size image_token_id"
_SOUND_IGNORED: Final = """
    activation audio_token_id chunk_size conv_activation conv_glu_type dropout_rate feature_layer left_chunk
    nemo_activation nemo_final_size model_type initializer_factor initializer_range
"""
_MOST_SQUARES: Final = 36  # of an image, in the processor
_POOLED: Final = 2  # patches to each side of what becomes a token


@architecture("phi4_multimodal", "phi4mm")
def build(config: Section, fmt: Format) -> Graph:
    """Phi-4-multimodal: a SigLIP tower over 448 x 448 crops and a thumbnail, before Phi-4-mini."""
    text = filled(config, TEXT_CLASSES["Phi4MultimodalConfig"])
    config.ignore(*_TEXT_IGNORED.split())
    language, width = FAMILIES["phi3"].graph(text, fmt), text.integer("hidden_size")
    section = filled(part(config, "vision_config"), TOWERS["Phi4MultimodalVisionConfig"])
    section.ignore(*_TOWER_IGNORED.split())
    runs = layers_run(section, "feature_layer", section.count("num_hidden_layers"), -2)
    tower = plain_tower(section, multiple=_POOLED)
    side = tower.grid.height // _POOLED
    if tower.grid.height != tower.grid.width or len(runs) > 1:
        raise section.error("image_size", "must be that of a square, whose features are those of one layer")
    squares, rows, columns = _cut(config, section, tower)
    tower, tokens = replace(tower, run=runs[0], tiles=squares + 1), rows * (columns + 1) + 1 + side * (side + 1)
    project = _projected(tower, tower.parts(fmt), width, tokens, side**2)
    head = (replace(b, name=f"unused_{b.name}", stream=UNUSED) for b in pooled_head(section, tower, fmt))
    blocks = (*tower.blocks(fmt, tower.stream), *head)
    seeing = joined(blocks, project, language, tokens=tokens)
    return Graph((*_hearing(part(config, "audio_config"), width, Parts(format=fmt)), *seeing.blocks))


def _cut(config: Section, section: Section, tower: Tower) -> tuple[int, int, int]:
    """Squares of an image, and rows and columns of the tokens that it fills in them."""
    height, width = picture_size(config)
    side, patch = section.integer("image_size"), section.integer("patch_size")
    down, across = ceil(height / side), ceil(width / side)
    if down * across > _MOST_SQUARES:
        down, across = closest_grid((height, width), (side, side), least=1, most=_MOST_SQUARES)
    scale = min(side * down / height, side * across / width)
    padding = (side * down - int(height * scale), side * across - int(width * scale))
    patches = (tower.grid.height * down, tower.grid.width * across)
    rows, columns = (ceil((n - floor(p / patch)) / _POOLED) for n, p in zip(patches, padding, strict=True))
    return down * across, rows, columns


def _projected(tower: Tower, parts: Parts, width: int, tokens: int, each: int) -> tuple[Operator, ...]:
    """The mean of every four patches, put in rows with what ends them, and two linears."""
    pool = pooled(parts, patches_of(tower, parts), _POOLED**2)
    pool = replace(pool, outputs=(with_rows(pool.result, image_rows(each, tower.tiles)),))
    packed = with_rows(parts.tensor("pack", tower.hidden), image_rows(tokens))
    learned = (parts.weight("newline.weight", tower.hidden), parts.weight("separator.weight", tower.hidden))
    pack = Elementwise(name=packed.name, inputs=pool.outputs, outputs=(packed,), weights=learned, ops_per_element=0)
    return (pool, pack, *projector(parts, packed, (width, width), "gelu", bias=True))


def _hearing(section: Section, width: int, parts: Parts) -> tuple[Block, Block]:
    """Weights of the audio encoder: Conformer layers (arXiv:2005.08100), and those around them."""
    config = filled(section, _SOUND)
    config.ignore(*_SOUND_IGNORED.split())
    hidden, inner, heads = (config.integer(k) for k in ("hidden_size", "intermediate_size", "num_attention_heads"))
    out, depthwise_channels = config.integer("ext_pw_out_channel"), config.integer("depthwise_separable_out_channel")
    wide, channels = hidden * config.integer("depthwise_multiplier"), config.integer("nemo_conv_channels")
    buckets = config.integer("bias_max_distance") * (2 - config.flag("bias_symmetric", default=False))
    halvings = config.integer("time_reduction").bit_length() - 1
    left = config.integer("input_size")
    for _ in range(halvings):
        left = (left - 1) // 2 + 1
    norm = (hidden,)
    layer = {
        **{
            f"{name}_norm.{part}": norm for name in ("attn", "conv", "in", "out", "last") for part in ("weight", "bias")
        },
        **linears({f"{name}_gate_up_proj": (2 * inner, hidden) for name in ("in", "out")}),
        **linears({f"{name}_down_proj": (hidden, inner) for name in ("in", "out")}),
        **linears({f"{name}_proj": (hidden, hidden) for name in "qkvo"}),
        **linears({"glu": (2 * out, hidden), "depthwise": (wide, 1, config.integer("kernel_size"))}),
        **linears({"pointwise": (depthwise_channels, wide), "conv_out": (out, hidden)}),
        "glu_up.bias": (out,),
        "glu_gate.bias": (out,),
    }
    read = hidden * config.integer("downsample_rate")
    other = {
        **linears({"halve_0": (channels, 1, 3, 3), "halved": (hidden, channels * left)}),
        **linears({f"halve_{n}": (channels, 1, 3, 3) for n in range(1, halvings)}),
        **linears({f"mix_{n}": (channels, channels) for n in range(1, halvings)}),
        **linears({f"{name}_1": (width, read) for name in ("speech", "vision_speech")}),
        **linears({f"{name}_2": (width, width) for name in ("speech", "vision_speech")}),
        "distances.weight": (buckets, heads),
    }
    return (
        unused_weights("hearing", parts, other),
        unused_weights("hearing_layer", parts, layer, config.count("num_blocks")),
    )
