"""Falcon: few KV heads, attention and MLP side by side under one norm (7B) or two (40B, 180B) (arXiv:2311.16867)."""

from __future__ import annotations

from ..documents import Section
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..precision import Format
from . import architecture
from .blocks import HIDDEN, Parts, activation, heads_of


@architecture("falcon", "RefinedWeb", "RefinedWebModel")
def build(config: Section, fmt: Format) -> Graph:
    parts = Parts(format=fmt)
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    x = parts.tensor(HIDDEN, hidden)
    layer = Block(
        name="layer",
        operators=_layer(config, parts, x),
        input=HIDDEN,
        output="mlp_add",
        repeat=config.integer(config.first("num_hidden_layers", "n_layer")),
        start=0,
    )
    tied = config.flag("tie_word_embeddings", default=True)
    head = parts.head(x, parts.layer_norm("final_norm", x), vocab_size=vocab, tied=tied)
    return Graph((parts.embedding(vocab, hidden), layer, head))


def _heads(config: Section, hidden: int) -> Heads:
    key = config.first("num_attention_heads", "n_head")
    num_heads = config.integer(key)
    kv_heads = 1 if config.flag("multi_query", default=True) else num_heads
    if config.flag("new_decoder_architecture", default=False):
        kv_heads = config.integer(config.first("num_kv_heads", "n_head_kv"), num_heads)
    return heads_of(config, hidden, key, num_kv_heads=kv_heads)


def _layer(config: Section, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
    new = config.flag("new_decoder_architecture", default=False)
    parallel = config.flag("parallel_attn", default=True) or new
    two_norms = not parallel or (new and config.integer("num_ln_in_parallel_attn", 2) == 2)
    heads, alibi = _heads(config, x.width), config.flag("alibi", default=False)
    bias = config.flag("bias", default=False)
    attn_norm = parts.layer_norm("attn_norm", x)
    attention = parts.attention(
        attn_norm.outputs[0],
        heads,
        rotary_dim=0 if alibi else heads.head_dim,
        alibi=alibi,
        fused_qkv=True,
        qkv_bias=bias,
        o_bias=bias,
    )
    attn_out = attention[-1].outputs[0]
    attn_add = parts.add("attn_add", x, attn_out)
    residual = x if parallel else attn_add.outputs[0]
    mlp_norm = parts.layer_norm("mlp_norm", residual)
    mlp = parts.mlp(
        (mlp_norm if two_norms else attn_norm).outputs[0],
        inner=config.integer("ffn_hidden_size", 4 * x.width),
        act=activation(config, "activation", "gelu"),
        bias=bias,
    )
    mlp_out = mlp[-1].outputs[0]
    mlp_add = parts.add("mlp_add", residual, *((attn_out, mlp_out) if parallel else (mlp_out,)))
    between: tuple[Operator, ...] = () if parallel else (attn_add,)
    norms: tuple[Operator, ...] = (mlp_norm,) if two_norms else ()
    return (attn_norm, *attention, *between, *norms, *mlp, mlp_add)
