"""Falcon: few KV heads, attention and MLP in parallel after one norm (7B) or two (40B, 180B) (arXiv:2311.16867)."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Residual
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder
from .blocks.parts import NormKind, activation, heads_of


@architecture("falcon", "RefinedWeb", "RefinedWebModel")
def build(config: Section, fmt: Format) -> Graph:
    """Falcon: attention and MLP in parallel, multi-query (7B) or grouped-query (40B, 180B)."""
    hidden = config.integer("hidden_size")
    return decoder(
        config,
        [_layer(config, hidden)] * config.count(config.first("num_hidden_layers", "n_layer")),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
    ).graph(fmt)


def _layer(config: Section, hidden: int) -> Layer:
    new = config.flag("new_decoder_architecture", default=False)
    parallel = config.flag("parallel_attn", default=True) or new
    two_norms = new and config.integer("num_ln_in_parallel_attn", 2) == 2
    heads, alibi = _heads(config, hidden), config.flag("alibi", default=False)
    bias = config.flag("bias", default=False)
    rotary_dim = 0 if alibi else heads.head_dim
    mlp = Mlp(
        inner=config.integer("ffn_hidden_size", 4 * hidden), act=activation(config, "activation", "gelu"), bias=bias
    )
    return Layer(
        mixer=SelfAttention(
            heads=heads, rotary_dim=rotary_dim, alibi=alibi, fused_qkv=True, qkv_bias=bias, o_bias=bias
        ),
        feed_forward=mlp,
        residual=(Residual.PARALLEL_TWO if two_norms else Residual.PARALLEL) if parallel else Residual.PRE,
    )


def _heads(config: Section, hidden: int) -> Heads:
    key = config.first("num_attention_heads", "n_head")
    num_heads = config.integer(key)
    kv_heads = 1 if config.flag("multi_query", default=True) else num_heads
    if config.flag("new_decoder_architecture", default=False):
        kv_heads = config.integer(config.first("num_kv_heads", "n_head_kv"), num_heads)
    return heads_of(config, hidden, key, num_kv_heads=kv_heads)
