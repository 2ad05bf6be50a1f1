"""Qwen 1 (arXiv:2309.16609): biases on queries, keys and values only, and a gated MLP whose config gives the width of
gate and up together.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder


@architecture("qwen")
def build(config: Section, fmt: Format) -> Graph:
    """Qwen, the first generation: biases on QKV alone, a SwiGLU MLP of half the config's intermediate_size."""
    config.ignore(
        "attn_dropout_prob", "emb_dropout_prob", "bf16", "fp16", "fp32", "rotary_emb_base", "softmax_in_fp32",
        "use_dynamic_ntk", "use_flash_attn", "use_logn_attn", "use_cache_kernel", "use_cache_quantization",
        "onnx_safe", "seq_length",
    )  # fmt: skip
    number, bias = config.integer("num_attention_heads"), not config.flag("no_bias", default=True)
    inner = config.integer("intermediate_size")
    if inner % 2:
        raise config.error("intermediate_size", f"must be even, for gate and up; got {inner}")
    heads = Heads(num_heads=number, num_kv_heads=number, head_dim=config.integer("kv_channels", 128))
    share = config.number("rotary_pct", 1.0)
    if not 0 <= share <= 1:
        raise config.error("rotary_pct", f"must be a share from 0 to 1; got {share:g}")
    turned = int(heads.head_dim * share)
    mixer = SelfAttention(heads=heads, rotary_dim=turned, fused_qkv=True, qkv_bias=True, o_bias=bias)
    layer = Layer(mixer=mixer, feed_forward=Mlp(inner=inner // 2, act="silu", gated=True, bias=bias))
    return decoder(config, layer).graph(fmt)
