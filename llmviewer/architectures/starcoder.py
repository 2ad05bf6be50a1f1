"""StarCoder: one KV head and learned positions (1, arXiv:2305.06161); grouped queries, rotation and a window (2).

arXiv:2402.19173.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import decoder, grouped_heads, sliding_window
from ._parts import NormKind, activation, heads_of

_KV_HEADS = 2  # of StarCoder2-3B, whose sizes are the defaults of the class


@architecture("gpt_bigcode")
def build_bigcode(config: Section, fmt: Format) -> Graph:
    hidden = config.integer("n_embd")
    kv_heads = 1 if config.flag("multi_query", default=True) else None
    heads = heads_of(config, hidden, "n_head", num_kv_heads=kv_heads)
    attention = SelfAttention(heads=heads, fused_qkv=True, qkv_bias=True, o_bias=True)
    act = activation(config, "activation_function", "gelu_pytorch_tanh")
    mlp = Mlp(inner=config.integer("n_inner", 4 * hidden), act=act, bias=True)
    config.costless("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "runner_max_sequence_length")
    config.costless("inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_sequence_length")
    config.costless("max_batch_size", "pad_key_length")
    return decoder(
        config,
        [Layer(mixer=attention, feed_forward=mlp)] * config.integer("n_layer"),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        positions=config.integer("n_positions"),
    ).graph(fmt)


@architecture("starcoder2")
def build_starcoder2(config: Section, fmt: Format) -> Graph:
    bias = config.flag("use_bias", default=True)
    heads = grouped_heads(config, kv_heads=_KV_HEADS, window=sliding_window(config))
    attention = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias, o_bias=bias)
    act = activation(config, "hidden_act", "gelu_pytorch_tanh")
    layer = Layer(mixer=attention, feed_forward=Mlp(inner=config.integer("intermediate_size"), act=act, bias=bias))
    config.costless("activation_function", "mlp_type", "norm_type", "residual_dropout", "embedding_dropout")
    config.costless("scale_attention_softmax_in_fp32")
    layers = [layer] * config.integer("num_hidden_layers")
    return decoder(config, layers, norm=NormKind.LAYER, tied=True).graph(fmt)
