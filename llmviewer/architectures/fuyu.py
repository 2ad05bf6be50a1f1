"""Fuyu: patches of a picture are projected to tokens of a Persimmon, without a tower.

Each row of patches ends with a token of text, which is not counted among those of the picture.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.decoder import Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, rotary_dim
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of
from .blocks.tiles import picture_size
from .blocks.tower import filled, joined, language

_MOST: Final = (1080, 1920)  # pixels to a side, to which the processor brings larger pictures
_COSTLESS: Final = "image_size num_attention_heads"


@architecture("fuyu")
def build(config: Section, fmt: Format) -> Graph:
    """Fields of the language model stand in text_config, or, in older files, beside those of pictures."""
    given = config.get("text_config") or {key: value for key, value in config.data.items() if key != "model_type"}
    text, width = language(
        filled(config, instead={"text_config": TEXT_CLASSES["FuyuConfig"] | given}), fmt, "persimmon"
    )
    config.costless(*_COSTLESS.split())
    patch, (tall, wide) = config.integer("patch_size", 30), picture_size(config)
    scale = min(1, _MOST[0] / tall, _MOST[1] / wide)
    tokens = ceil(int(tall * scale) / patch) * ceil(int(wide * scale) / patch)
    parts = Parts(format=fmt)
    pixels = parts.tensor(HIDDEN, config.integer("num_channels", 3) * patch**2)
    patches = parts.patches("patch_embed", pixels, parts.tensor("patch_embed", width), tokens)
    return joined((), (patches,), text, tokens=tokens)


@architecture("persimmon")
def build_persimmon(config: Section, fmt: Format) -> Graph:
    """Queries and keys with norms of each head, half of each rotated, squared ReLU, biases everywhere."""
    heads = heads_of(config)
    mixer = SelfAttention(
        heads=heads,
        rotary_dim=rotary_dim(config, heads.head_dim, default=0.5),
        fused_qkv=True,
        qkv_bias=True,
        o_bias=True,
        qk_norm=NormKind.LAYER if config.flag("qk_layernorm", default=True) else None,
    )
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "relu2"), bias=True)
    return decoder(config, Layer(mixer=mixer, feed_forward=mlp), norm=NormKind.LAYER).graph(fmt)
