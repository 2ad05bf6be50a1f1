"""Lara 4 Mini: gated delta rule, sliding windows with positions and global attention without, in turn; experts and a
shared expert in all layers.
"""

from __future__ import annotations

from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Mixer
from .blocks.fields import decoder, filled, grouped_heads, require_false, sliding_window
from .blocks.moe import experts_beside_one, ignore_router_fields, listed
from .blocks.parts import NormKind
from .qwen3_next import delta

_PATTERN: Final = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
_WINDOW: Final = 512
_DELTA: Final = {
    "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip


@architecture("lara_mini")
def build(config: Section, fmt: Format) -> Graph:
    """Lara 4 Mini: gated delta rule, sliding-window and full attention in turn; experts beside a shared one."""
    ignore_router_fields(config)
    require_false(config, "attention_bias", "biases of this attention are not modelled")
    config = filled(config, _DELTA)
    plain = SelfAttention(heads=grouped_heads(config, kv_heads=4, head_dim=128), qk_norm=NormKind.RMS)
    mixers: dict[str, Mixer] = {
        "linear_attention": delta(config, fused=False),
        "sliding_attention": plain.within(sliding_window(config, _WINDOW)),
        "full_attention": plain,
    }
    moe = experts_beside_one(config, shared=512)
    layers = [Layer(mixer=mixers[kind], feed_forward=moe, name=kind.split("_")[0]) for kind in _kinds(config)]
    return decoder(config, layers, tied=True).graph(fmt)


def _kinds(config: Section) -> list[str]:
    """The kind of each layer: as listed, or in turn."""
    layers = config.count("num_hidden_layers")
    return listed(config, "layer_types", sorted(set(_PATTERN))) or [_PATTERN[i % len(_PATTERN)] for i in range(layers)]
