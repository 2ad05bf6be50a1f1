"""Qwen3 and Hunyuan dense: LLaMA's layers with a norm of each query and key head (arXiv:2505.09388)."""

from __future__ import annotations

from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._fields import alternating, attention, decoder, gated_mlp, grouped_heads
from ._parts import NormKind

_HEAD_DIM = 128
_WINDOW = 4096
_FULL_LAYERS = 28  # layers before the first with a window, where a config that has windows does not say


@architecture("qwen3", "qwen3_vl_text")
def build(config: Section, fmt: Format) -> Graph:
    layer = _layer(config, head_dim=_HEAD_DIM)
    layers = [layer] * config.integer("num_hidden_layers")
    if config.flag("use_sliding_window", default=False):
        full = config.integer("max_window_layers", _FULL_LAYERS, least=0)
        local = _layer(config, head_dim=_HEAD_DIM, window=config.integer("sliding_window", _WINDOW))
        layers = alternating(local, layer, [index >= full for index in range(len(layers))])
    config.costless("layer_types")  # says the same
    return decoder(config, layers).graph(fmt)


@architecture("hunyuan_v1_dense")
def build_hunyuan(config: Section, fmt: Format) -> Graph:
    """The norms follow the rotation, which costs the same."""
    config.costless("use_qk_norm", "use_rotary_pos_emb", "org_vocab_size", "attention_head_dim", "norm_type", "use_cla")
    return decoder(config, _layer(config)).graph(fmt)


def _layer(config: Section, *, head_dim: int = 0, window: float = inf) -> Layer:
    mixer = attention(config, grouped_heads(config, head_dim=head_dim, window=window), qk_norm=NormKind.RMS)
    return Layer(mixer=mixer, feed_forward=gated_mlp(config))
