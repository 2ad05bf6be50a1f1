"""Janus and DeepSeek-VL: a SigLIP tower and an MLP before a Llama (arXiv:2410.13848, arXiv:2403.05525).

Janus's image generation, a VQ-VAE and a head over its codes, is loaded and not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TOWERS
from .blocks.fields import filled, require_false
from .blocks.moe import integers
from .blocks.parts import HIDDEN
from .blocks.tower import (
    UNUSED,
    Tower,
    auxiliary_block,
    joined,
    language,
    linears,
    part,
    patch_grid,
    projector,
    tower_activation,
    unused_weights,
    vision,
    vit,
)
from .siglip import plain_tower, pooled_head

_TIED: Final = {"tie_word_embeddings": True}
_IGNORED: Final = "vision_use_head num_image_tokens hidden_dropout_rate projection_dropout"


@architecture("deepseek_vl")
def build_vl(config: Section, fmt: Format) -> Graph:
    """DeepSeek-VL 1.3B: a SigLIP tower and an MLP before a Llama."""
    text, width = language(filled(config, _TIED), fmt, "llama")
    if config.get("vision_config") is None:
        return text
    section = vision(config)
    tower = plain_tower(section)
    parts, unused = tower.parts(fmt), pooled_head(section, tower, fmt)
    project = projector(parts, parts.tensor(HIDDEN, tower.hidden), (width, width), "gelu", bias=True)
    held_head = (replace(block, name=f"unused_{block.name}", stream=UNUSED) for block in unused)
    return joined((*tower.blocks(fmt, tower.stream), *held_head), project, text, tokens=tower.grid.patches)


@architecture("janus")
def build(config: Section, fmt: Format) -> Graph:
    """Janus: a SigLIP tower and an MLP before a Llama; the image generator is counted as memory only."""
    text, _ = language(filled(config, _TIED), fmt, "llama")
    if config.get("vision_config") is None:
        return text
    section = vision(config)
    section.ignore(*_IGNORED.split())
    section = filled(section, TOWERS["JanusVisionConfig"])
    tower, widths = _tower(section), [section.integer("projection_dim", 2048)] * section.count("depth", 2)
    parts, act = tower.parts(fmt), tower_activation(section, "gelu")
    project = projector(parts, parts.tensor(HIDDEN, tower.hidden), widths, act, bias=True)
    vision_graph = joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.grid.patches)
    drawing = unused_weights("drawing", parts, dict(_drawing(part(config, "vq_config"))))
    return Graph((auxiliary_block(drawing, name="unused"), *vision_graph.blocks))


def _tower(section: Section) -> Tower:
    grid, inner = patch_grid(section), int(section.integer("hidden_size") * section.number("mlp_ratio", 4))
    require_false(section, "use_qk_norm", "no published model of this architecture has it")
    bias = section.flag("attention_bias", default=True)
    return vit(
        section, grid, "gelu", inner=inner, qkv_bias=bias, patch_bias=True, positions=grid.patches, post_norm=True
    )


def _drawing(config: Section) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Shapes of what draws: the code book twice, an MLP that brings words to the model, a head that picks them, and the
    VQ-VAE of filters (arXiv:2406.06525).
    """
    words, wide = config.integer("num_embeddings", 16384), config.integer("embed_dim", 8)
    latent, out = config.integer("latent_channels", 256), config.integer("projection_dim", 2048)
    yield from ((f"{name}.weight", (words, wide)) for name in ("code_book", "words"))
    shapes = {"aligner_1": (out, wide), "head_1": (out, config.integer("image_token_embed_dim", 2048))}
    shapes |= {f"aligner_{n}": (out, out) for n in range(2, config.count("num_hidden_layers", 2) + 1)}
    shapes |= {"head_2": (words, out), "quant": (wide, latent), "post_quant": (latent, wide)}
    yield from linears(shapes).items()
    levels = integers(config, "channel_multiplier") or (1, 1, 2, 2, 4)
    widths = [config.integer("base_channels", 128) * n for n in levels]
    blocks, double = config.count("num_res_blocks", 2), 1 + config.flag("double_latent", default=False)
    last = len(widths) - 1
    yield from _conv("encode_in", config.integer("in_channels", 3), widths[0])
    before = widths[0]
    for level, width in enumerate(widths):
        yield from _level(f"encode_{level}", before, width, blocks, attends=level == last, scales=level < last)
        before = width
    yield from _ends("encode", widths[-1], widths[-1], double * latent)
    yield from _conv("decode_in", latent, before)
    for level, width in reversed(tuple(enumerate(widths))):
        yield from _level(f"decode_{level}", before, width, blocks + 1, attends=level == last, scales=level > 0)
        before = width
    yield from _ends("decode", widths[-1], widths[0], config.integer("out_channels", 3))


def _level(
    name: str, before: int, width: int, blocks: int, *, attends: bool, scales: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Residual blocks of one resolution, attention after each at the last one, and what scales to the next."""
    for place in range(blocks):
        yield from _residual(f"{name}.{place}", before, width)
        before = width
        if attends:
            yield from _attention(f"{name}.{place}.attention", width)
    if scales:
        yield from _conv(f"{name}.scale", width, width)


def _ends(name: str, middle: int, width: int, out: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Two residual blocks with attention between them, a norm and a filter."""
    for place in range(2):
        yield from _residual(f"{name}_middle.{place}", middle, middle)
    yield from _attention(f"{name}_middle.attention", middle)
    yield from ((f"{name}_norm.{kind}", (width,)) for kind in ("weight", "bias"))
    yield from _conv(f"{name}_out", width, out)


def _residual(name: str, before: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{name}.norm_1.{kind}", (before,)) for kind in ("weight", "bias"))
    yield from _conv(f"{name}.conv_1", before, width)
    yield from ((f"{name}.norm_2.{kind}", (width,)) for kind in ("weight", "bias"))
    yield from _conv(f"{name}.conv_2", width, width)
    if before != width:
        yield from linears({f"{name}.shortcut": (width, before)}).items()


def _attention(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{name}.norm.{kind}", (width,)) for kind in ("weight", "bias"))
    yield from linears({f"{name}.{part}": (width, width) for part in ("q", "k", "v", "proj")}).items()


def _conv(name: str, before: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A filter of 3 x 3."""
    yield from linears({name: (width, before, 9)}).items()
