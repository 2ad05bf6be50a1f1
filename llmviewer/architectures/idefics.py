"""Idefics2: a SigLIP tower that reads images in their own shape, whose patches 64 learned queries attend to, before
Mistral (arXiv:2405.02246). Images are not cut into tiles, as the processor of transformers has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TOWERS
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.moe import language_model
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of
from .blocks.resampler import FEATURES, Looking, queried
from .blocks.tiles import longest_side, picture_size
from .blocks.tower import PatchGrid, Tower, joined, language, part, patches_of, sides, vision
from .siglip import plain_tower

_LONGEST, _SHORTEST = 980, 378  # pixels to a side, in the processor
_RESAMPLER: Final = {  # as transformers.Idefics2PerceiverConfig has it
    "hidden_size": 4096,
    "resampler_n_latents": 64,
    "resampler_depth": 3,
    "resampler_n_heads": 16,
    "resampler_head_dim": 96,
    "num_key_value_heads": 4,
}
_TILES: Final = 4  # tiles to the longer side, in the processors of all published models


@architecture("idefics2")
def build(config: Section, fmt: Format) -> Graph:
    """Idefics2: a SigLIP tower at native aspect ratio, resampled to 64 learned queries, before Mistral."""
    text, width = language(config, fmt, "mistral")
    if config.get("vision_config") is None:
        return text
    section = filled(vision(config), TOWERS["Idefics2VisionConfig"])
    tower = replace(plain_tower(section), grid=_patch_grid(config, section))
    inner = language_model(config).integer("intermediate_size", 14336)
    resampler = filled(part(config, "perceiver_config"), _RESAMPLER, instead={"hidden_size": width})
    queries = resampler.integer("resampler_n_latents")
    parts = Parts(format=fmt, norm_kind=NormKind.RMS)
    act = activation(language_model(config), "hidden_act", "silu")
    project = Block(
        name="connector",
        operators=_projected(parts, tower, inner, width, act),
        input=HIDDEN,
        output=FEATURES,
        stream=tower.stream,
    )
    layers = [_layer(resampler, tower.tokens, queries, width)] * resampler.count("resampler_depth")
    blocks = (*tower.blocks(fmt, tower.stream), project, *queried(parts, layers, queries, width, norm=False))
    norm = parts.norm("final_norm", parts.tensor(HIDDEN, width))
    return joined(blocks, (norm,), text, tokens=queries)


def _patch_grid(config: Section, section: Section) -> PatchGrid:
    """The image, brought to what the processor has room for."""
    height, width = picture_size(config)
    scale = min(1, _LONGEST / max(height, width))
    patch = section.integer("patch_size")
    tall, wide = (max(int(side * scale), _SHORTEST) // patch for side in (height, width))
    return PatchGrid(height=tall, width=wide, pixels=section.integer("num_channels", 3) * patch**2)


def _projected(parts: Parts, tower: Tower, inner: int, width: int, act: str) -> tuple[Operator, ...]:
    """A gated MLP from the width of the tower to that of the queries."""
    x = parts.tensor(HIDDEN, tower.hidden)
    gate, up_proj = (parts.project(f"{name}_proj", x, inner) for name in ("gate", "up"))
    mid = parts.activate("act", act, gate.result, up_proj.result)
    return (gate, up_proj, mid, parts.linear("down_proj", mid.result, parts.tensor(FEATURES, width)))


def _layer(config: Section, features: int, queries: int, width: int) -> Layer:
    heads = heads_of(
        config,
        width,
        "resampler_n_heads",
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=config.integer("resampler_head_dim"),
    )
    looking = Looking(heads=bidirectional(heads), features=features, width=width, queries=queries, normed=True)
    mlp = Mlp(inner=4 * width, act=activation(config, "hidden_act", "silu"), gated=True)
    return Layer(mixer=looking, feed_forward=mlp)


@architecture("idefics3", "smolvlm")
def build_idefics3(config: Section, fmt: Format) -> Graph:
    """Idefics 3, SmolVLM: squares of patches are concatenated and projected (arXiv:2408.12637, arXiv:2504.05299).

    The longer side of an image is brought to four tiles, which are read one by one, and all of it once more in one.
    """
    text, width = language(config, fmt, "llama")
    if config.get("vision_config") is None:
        return text
    side = config.integer("scale_factor", 2)
    section = vision(config)
    section.ignore("max_image_size", "size", "use_base_siglip", "tie_word_embeddings")
    section = filled(section, TOWERS["Idefics3VisionConfig"])
    rows, columns = longest_side(picture_size(config), sides(section, "image_size"), _TILES)
    tower = replace(plain_tower(section, multiple=side), tiles=rows * columns + 1)
    return behind_squares(tower, side, text, width, fmt)


def behind_squares(tower: Tower, side: int, text: Graph, width: int, fmt: Format) -> Graph:
    """`text` behind a tower, `side` x `side` patches of which are one token."""
    parts, merged = tower.parts(fmt), side**2
    wide = parts.tensor("pixel_shuffle", merged * tower.hidden)
    shuffle = Permute(name=wide.name, inputs=(patches_of(tower, parts),), outputs=(wide,))
    project = (shuffle, parts.project("linear_1", wide, width))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.tiles * tower.grid.patches // merged)
