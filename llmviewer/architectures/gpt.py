"""GPT-2 and GPT-J: LayerNorm, a GeLU MLP of two matrices; learned or rotary positions."""

from __future__ import annotations

from ..documents import Section
from ..graph import Block, Graph
from ..precision import Format
from . import architecture
from .blocks import HIDDEN, Parts, activation, heads_of


@architecture("gpt2")
def build_gpt2(config: Section, fmt: Format) -> Graph:
    """Learned positions, one projection for q, k and v, biases everywhere, tied head."""
    parts = Parts(format=fmt)
    hidden, vocab = config.integer("n_embd"), config.integer("vocab_size")
    heads = heads_of(config, hidden, "n_head")
    x = parts.tensor(HIDDEN, hidden)
    attn_norm = parts.layer_norm("attn_norm", x)
    attention = parts.attention(attn_norm.outputs[0], heads, fused_qkv=True, qkv_bias=True, o_bias=True)
    attn_add = parts.add("attn_add", x, attention[-1].outputs[0])
    mlp_norm = parts.layer_norm("mlp_norm", attn_add.outputs[0])
    mlp = parts.mlp(
        mlp_norm.outputs[0],
        inner=config.integer("n_inner", 4 * hidden),
        act=activation(config, "activation_function", "gelu_new"),
        bias=True,
    )
    mlp_add = parts.add("mlp_add", attn_add.outputs[0], mlp[-1].outputs[0])
    layer = Block(
        name="layer",
        operators=(attn_norm, *attention, attn_add, mlp_norm, *mlp, mlp_add),
        input=HIDDEN,
        output="mlp_add",
        repeat=config.integer("n_layer"),
        start=0,
    )
    embedding = parts.embedding(vocab, hidden, positions=config.integer("n_positions"))
    tied = config.flag("tie_word_embeddings", default=True)
    head = parts.head(x, parts.layer_norm("final_norm", x), vocab_size=vocab, tied=tied)
    return Graph((embedding, layer, head))


@architecture("gptj")
def build_gptj(config: Section, fmt: Format) -> Graph:
    """Attention and MLP side by side under one norm; part of each head is rotated; the head has a bias."""
    parts = Parts(format=fmt)
    hidden, vocab = config.integer("n_embd"), config.integer("vocab_size")
    heads = heads_of(config, hidden, "n_head")
    x = parts.tensor(HIDDEN, hidden)
    norm = parts.layer_norm("attn_norm", x)
    rotary_dim = config.integer("rotary_dim", heads.head_dim)
    if rotary_dim > heads.head_dim:
        raise config.error("rotary_dim", f"must be at most the {heads.head_dim} of a head; got {rotary_dim}")
    attention = parts.attention(norm.outputs[0], heads, rotary_dim=rotary_dim)
    mlp = parts.mlp(
        norm.outputs[0],
        inner=config.integer("n_inner", 4 * hidden),
        act=activation(config, "activation_function", "gelu_new"),
        bias=True,
    )
    add = parts.add("mlp_add", x, attention[-1].outputs[0], mlp[-1].outputs[0])
    layer = Block(
        name="layer",
        operators=(norm, *attention, *mlp, add),
        input=HIDDEN,
        output="mlp_add",
        repeat=config.integer("n_layer"),
        start=0,
    )
    tied = config.flag("tie_word_embeddings", default=False)
    head = parts.head(x, parts.layer_norm("final_norm", x), vocab_size=vocab, tied=tied, bias=True)
    return Graph((parts.embedding(vocab, hidden), layer, head))
