"""LLaMA 1 to 3, Mistral and Qwen2: RMSNorm, rotary positions, grouped queries, a gated MLP (arXiv:2407.21783)."""

from __future__ import annotations

from math import inf

from ..documents import Section
from ..graph import Block, Graph
from ..precision import Format
from . import architecture
from .blocks import HIDDEN, Parts, activation, heads_of

_MISTRAL_WINDOW = 4096  # where config.json says nothing, as transformers.MistralConfig has it; null is no window


@architecture("llama", "mistral", "qwen2")
def build(config: Section, fmt: Format) -> Graph:
    parts = Parts(format=fmt)
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    layers = tuple(
        _layer(config, parts, name=name, start=start, repeat=repeat, window=window)
        for name, start, repeat, window in _windows(config)
    )
    x = parts.tensor(HIDDEN, hidden)
    tied = config.flag("tie_word_embeddings", default=False)
    head = parts.head(x, parts.rms_norm("final_norm", x), vocab_size=vocab, tied=tied)
    return Graph((parts.embedding(vocab, hidden), *layers, head))


def _layer(config: Section, parts: Parts, *, name: str, start: int, repeat: int, window: float) -> Block:
    hidden = config.integer("hidden_size")
    kv_heads = config.integer("num_key_value_heads", config.integer("num_attention_heads"))
    heads = heads_of(config, hidden, "num_attention_heads", num_kv_heads=kv_heads, window=window)
    qwen = config.text("model_type") == "qwen2"  # biases on q, k and v, none on o
    bias = config.flag("attention_bias", default=False)
    x = parts.tensor(HIDDEN, hidden)
    attn_norm = parts.rms_norm("attn_norm", x)
    attention = parts.attention(
        attn_norm.outputs[0], heads, rotary_dim=heads.head_dim, qkv_bias=bias or qwen, o_bias=bias
    )
    attn_add = parts.add("attn_add", x, attention[-1].outputs[0])
    mlp_norm = parts.rms_norm("mlp_norm", attn_add.outputs[0])
    mlp = parts.mlp(
        mlp_norm.outputs[0],
        inner=config.integer("intermediate_size"),
        act=activation(config, "hidden_act", "silu"),
        gated=True,
        bias=config.flag("mlp_bias", default=False),
    )
    mlp_add = parts.add("mlp_add", attn_add.outputs[0], mlp[-1].outputs[0])
    operators = (attn_norm, *attention, attn_add, mlp_norm, *mlp, mlp_add)
    return Block(name=name, operators=operators, input=HIDDEN, output="mlp_add", repeat=repeat, start=start)


def _windows(config: Section) -> list[tuple[str, int, int, float]]:
    """(block name, first layer, layers, window) of the runs of layers that attend alike."""
    layers, model_type = config.integer("num_hidden_layers"), config.text("model_type")
    if model_type == "mistral" and ("sliding_window" not in config or config.get("sliding_window") is not None):
        return [("layer", 0, layers, config.integer("sliding_window", _MISTRAL_WINDOW))]
    if model_type == "qwen2" and config.flag("use_sliding_window", default=False):
        full = min(config.integer("max_window_layers", least=0), layers)
        runs = [("full_layer", 0, full, inf), ("window_layer", full, layers - full, config.integer("sliding_window"))]
        return [run for run in runs if run[2]]
    return [("layer", 0, layers, inf)]
