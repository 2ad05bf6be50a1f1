"""LLaMA 1 to 3, Mistral and Qwen2: RMSNorm, rotary positions, grouped queries, a gated MLP (arXiv:2407.21783)."""

from __future__ import annotations

from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import decoder
from ._parts import activation, heads_of

_MISTRAL_WINDOW = 4096  # where config.json says nothing, as transformers.MistralConfig has it; null is no window


@architecture("llama", "mistral", "qwen2", "iquestcoder")
def build(config: Section, fmt: Format) -> Graph:
    windows = _windows(config)
    return decoder(config, [_layer(config, window, uniform=len(set(windows)) == 1) for window in windows]).graph(fmt)


def _layer(config: Section, window: float, *, uniform: bool) -> Layer:
    kv_heads = config.integer("num_key_value_heads", config.integer("num_attention_heads"))
    heads = heads_of(config, num_kv_heads=kv_heads, window=window)
    qwen = config.text("model_type") == "qwen2"  # biases on q, k and v, none on o
    bias = config.flag("attention_bias", default=False)
    mlp = Mlp(
        inner=config.integer("intermediate_size"),
        act=activation(config, "hidden_act", "silu"),
        gated=True,
        bias=config.flag("mlp_bias", default=False),
    )
    attention = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias or qwen, o_bias=bias)
    return Layer(mixer=attention, feed_forward=mlp, name="layer" if uniform else "local" if window < inf else "global")


def _windows(config: Section) -> list[float]:
    """How many keys each layer attends to."""
    layers, model_type = config.integer("num_hidden_layers"), config.text("model_type")
    if model_type == "mistral" and ("sliding_window" not in config or config.get("sliding_window") is not None):
        return [config.integer("sliding_window", _MISTRAL_WINDOW)] * layers
    if model_type == "qwen2":
        config.costless("layer_types")  # says the same
    if model_type == "qwen2" and config.flag("use_sliding_window", default=False):
        full = min(config.integer("max_window_layers", least=0), layers)
        return [inf] * full + [config.integer("sliding_window")] * (layers - full)
    return [inf] * layers
