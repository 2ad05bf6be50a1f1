"""SmolLM3: LLaMA's layers, every fourth of them without positions (Hugging Face, 2025; arXiv:2501.18795)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._fields import attention, decoder, gated_mlp, grouped_heads, sliding_window

_KV_HEADS = 4


@architecture("smollm3")
def build(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config, kv_heads=_KV_HEADS)
    mixer = attention(config, heads)
    rotated = Layer(mixer=mixer, feed_forward=gated_mlp(config), name="rope")
    window = sliding_window(config) if config.flag("use_sliding_window", default=False) else inf
    unrotated = replace(mixer, rotary_dim=0, heads=replace(heads, mask=Causal(window)))
    other = replace(rotated, mixer=unrotated, name="nope")
    config.costless("layer_types")  # says the same
    return decoder(config, [rotated if turns else other for turns in rotated_layers(config)], tied=True).graph(fmt)


def rotated_layers(config: Section) -> list[bool]:
    """Whether each layer has positions: `no_rope_layers` holds 1 where it does."""
    layers = config.integer("num_hidden_layers")
    interval = config.integer("no_rope_layer_interval", 4)
    given = config.get("no_rope_layers")
    if given is None:
        return [(index + 1) % interval != 0 for index in range(layers)]
    if not isinstance(given, list) or len(given) != layers or not all(item in (0, 1) for item in given):
        raise config.error("no_rope_layers", f"must be a list of {layers} times 0 or 1")
    return [bool(item) for item in given]
