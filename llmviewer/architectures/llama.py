"""LLaMA 1 to 3, Mistral, Qwen2 and 3: RMSNorm, rotary positions, grouped queries, a gated MLP (arXiv:2407.21783)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.decoder import Layer
from .blocks.fields import alternating, attention, decoder, gated_mlp, grouped_heads, sliding_layers, sliding_window
from .blocks.parts import NormKind

_MISTRAL_WINDOW = 4096  # where config.json says nothing, as transformers.MistralConfig has it; null is no window
_QWEN3_HEAD_DIM = 128
_QWEN_WINDOW = 4096
_FULL_LAYERS = 28  # layers before the first with a window, where a config that has windows does not say


@architecture("llama", "mistral", "qwen2", "iquestcoder")
def build(config: Section, fmt: Format) -> Graph:
    windows = _windows(config)
    return decoder(config, [_layer(config, window, uniform=len(set(windows)) == 1) for window in windows]).graph(fmt)


def _layer(config: Section, window: float, *, uniform: bool) -> Layer:
    mixer = attention(config, grouped_heads(config, window=window))
    if config.text("model_type") == "qwen2":
        mixer = replace(mixer, qkv_bias=True)  # biases on q, k and v, none on o
    name = "layer" if uniform else "local" if window < inf else "global"
    return Layer(mixer=mixer, feed_forward=gated_mlp(config), name=name)


def _windows(config: Section) -> list[float]:
    """How many keys each layer attends to."""
    layers, model_type = config.count("num_hidden_layers"), config.text("model_type")
    if model_type == "mistral" and ("sliding_window" not in config or config.get("sliding_window") is not None):
        return [config.integer("sliding_window", _MISTRAL_WINDOW)] * layers
    return _later_windows(config) if model_type == "qwen2" else [inf] * layers


def _later_windows(config: Section) -> list[float]:
    """Windows of the layers of Qwen2 and 3, by layer_types or from a layer on; inf: full attention. [tokens]"""
    layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window", default=False):
        config.costless("layer_types")
        return [inf] * layers
    full = config.integer("max_window_layers", _FULL_LAYERS, least=0)
    slides = [index >= full for index in range(layers)]
    if config.get("layer_types") is not None:
        slides = sliding_layers(config, pattern=1)
    window = sliding_window(config, _QWEN_WINDOW)
    return [window if slid else inf for slid in slides]


@architecture("qwen3", "qwen3_vl_text")
def build_qwen3(config: Section, fmt: Format) -> Graph:
    """A norm of each query and key head (arXiv:2505.09388)."""
    layer = _normed_layer(config, head_dim=_QWEN3_HEAD_DIM)
    windows = _later_windows(config)
    local = _normed_layer(config, head_dim=_QWEN3_HEAD_DIM, window=min(windows))
    return decoder(config, alternating(local, layer, [window < inf for window in windows])).graph(fmt)


@architecture("hunyuan_v1_dense")
def build_hunyuan(config: Section, fmt: Format) -> Graph:
    """The norms follow the rotation, which costs the same."""
    config.costless("use_qk_norm", "use_rotary_pos_emb", "org_vocab_size", "attention_head_dim", "norm_type", "use_cla")
    return decoder(config, _normed_layer(config)).graph(fmt)


def _normed_layer(config: Section, *, head_dim: int = 0, window: float = inf) -> Layer:
    mixer = attention(config, grouped_heads(config, head_dim=head_dim, window=window), qk_norm=NormKind.RMS)
    return Layer(mixer=mixer, feed_forward=gated_mlp(config))
