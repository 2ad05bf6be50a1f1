"""ChatGLM: the first, whose prompts attend in both directions (arXiv:2103.10360, arXiv:2210.02414), and ChatGLM2 and
3, GLM-4 under other field names, with a fused QKV projection (arXiv:2406.12793).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Prefix
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer
from .blocks.feed_forward import Mlp
from .blocks.parts import NormKind, heads_of

_HEAD_DIM = 128


@architecture("chatglm")
def build_chatglm(config: Section, fmt: Format) -> Graph:
    """ChatGLM2 and later, and the first, whose config has inner_hidden_size."""
    if "inner_hidden_size" in config:
        return _first(config, fmt)
    hidden = config.integer("hidden_size")
    shared = config.flag("multi_query_attention", default=False)
    kv_heads = config.integer("multi_query_group_num", 1) if shared else None
    head_dim = config.integer("kv_channels", _HEAD_DIM)
    heads = heads_of(config, hidden, "num_attention_heads", num_kv_heads=kv_heads, head_dim=head_dim)
    bias = config.flag("add_bias_linear", default=False)
    mixer = SelfAttention(
        heads=heads,
        rotary_dim=head_dim // 2,
        fused_qkv=True,
        qkv_bias=bias or config.flag("add_qkv_bias", default=False),
        o_bias=bias,
    )
    mlp = Mlp(inner=config.integer("ffn_hidden_size"), act="silu", gated=True, bias=bias, fused=True)
    config.ignore("multi_query_group_num", "original_rope", "rope_ratio", "layernorm_epsilon", "pre_seq_len")
    config.ignore("apply_query_key_layer_scaling", "fp32_residual_connection", "prefix_projection", "quantization_bit")
    config.ignore("interleaved_qkv", "classifier_dropout", "vocab_size", "use_flash_attn")
    return Decoder(
        vocab=config.integer("padded_vocab_size"),
        hidden=hidden,
        layers=[Layer(mixer=mixer, feed_forward=mlp)] * config.count("num_layers"),
        norm=NormKind.RMS if config.flag("rmsnorm", default=True) else NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=False),
        final_norm=config.flag("post_layer_norm", default=True),
    ).graph(fmt)


def _first(config: Section, fmt: Format) -> Graph:
    """ChatGLM-6B: biases everywhere, LayerNorms, an MLP without a gate and one matrix for embedding and head.

    Two halves of each head are rotated by two positions. The scaled residual of its norms costs one OP per element,
    which is not counted.
    """
    hidden = config.integer("hidden_size")
    heads = replace(heads_of(config, hidden), mask=Prefix())
    config.ignore("layernorm_epsilon", "max_sequence_length", "position_encoding_2d", "quantization_bit")
    config.ignore("pre_seq_len", "prefix_projection", "gmask_token_id", "mask_token_id", "inner_hidden_size")
    mixer = SelfAttention(heads=heads, rotary_dim=heads.head_dim, fused_qkv=True, qkv_bias=True, o_bias=True)
    mlp = Mlp(inner=config.integer("inner_hidden_size"), act="gelu_tanh", bias=True)
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[Layer(mixer=mixer, feed_forward=mlp)] * config.count("num_layers"),
        norm=NormKind.LAYER,
        tied=True,
    ).graph(fmt)
