"""BLOOM: ALiBi positions, LayerNorm after the embedding too, one projection for q, k and v (arXiv:2211.05100)."""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Block, Graph
from ..precision import Format
from . import architecture
from .blocks import HIDDEN, Parts, heads_of


@architecture("bloom")
def build(config: Section, fmt: Format) -> Graph:
    parts = Parts(format=fmt)
    hidden = config.integer(config.first("hidden_size", "n_embed"))
    vocab = config.integer("vocab_size")
    heads = heads_of(config, hidden, config.first("n_head", "num_attention_heads"))
    x = parts.tensor(HIDDEN, hidden)
    attn_norm = parts.layer_norm("attn_norm", x)
    attention = parts.attention(attn_norm.outputs[0], heads, fused_qkv=True, alibi=True, qkv_bias=True, o_bias=True)
    attn_add = parts.add("attn_add", x, attention[-1].outputs[0])
    mlp_norm = parts.layer_norm("mlp_norm", attn_add.outputs[0])
    mlp = parts.mlp(mlp_norm.outputs[0], inner=4 * hidden, act="gelu_tanh", bias=True)
    mlp_add = parts.add("mlp_add", attn_add.outputs[0], mlp[-1].outputs[0])
    layer = Block(
        name="layer",
        operators=(attn_norm, *attention, attn_add, mlp_norm, *mlp, mlp_add),
        input=HIDDEN,
        output="mlp_add",
        repeat=config.integer(config.first("n_layer", "num_hidden_layers")),
        start=0,
    )
    embedding = parts.embedding(vocab, hidden)
    embed_norm = parts.layer_norm("embed_norm", embedding.operators[0].outputs[0])
    embedding = replace(embedding, operators=(*embedding.operators, embed_norm), output="embed_norm")
    tied = config.flag("tie_word_embeddings", default=True)
    head = parts.head(x, parts.layer_norm("final_norm", x), vocab_size=vocab, tied=tied)
    return Graph((embedding, layer, head))
