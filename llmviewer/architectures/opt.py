"""OPT: LayerNorm, learned positions, biases, a ReLU MLP of two matrices (arXiv:2205.01068).

OPT-350m differs: norms after the additions, and embeddings narrower than the layers, projected in and out.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from . import architecture
from .blocks import HIDDEN, Parts, activation, heads_of

_POSITION_OFFSET = 2  # rows at the head of the position table that stand for padding


@architecture("opt")
def build(config: Section, fmt: Format) -> Graph:
    parts = Parts(format=fmt)
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    narrow = config.integer("word_embed_proj_dim", hidden)
    positions = config.integer("max_position_embeddings") + _POSITION_OFFSET
    x = parts.tensor(HIDDEN, hidden)
    before: list[Operator] = []
    if config.flag("do_layer_norm_before", default=True) and not config.flag("_remove_final_layer_norm", default=False):
        before.append(parts.layer_norm("final_norm", x))
    if narrow != hidden:
        out = before[-1].outputs[0] if before else x
        before.append(parts.linear("project_out", out, parts.tensor("project_out", narrow)))
    tied = config.flag("tie_word_embeddings", default=True)
    return Graph(
        (
            _embedding(parts, vocab, narrow, hidden, positions),
            _layer(config, parts, x),
            parts.head(x, *before, vocab_size=vocab, tied=tied),
        )
    )


def _embedding(parts: Parts, vocab: int, narrow: int, hidden: int, positions: int) -> Block:
    if narrow == hidden:
        return parts.embedding(vocab, hidden, positions=positions)
    block = parts.embedding(vocab, narrow)
    project = parts.linear("project_in", block.operators[0].outputs[0], parts.tensor("project_in", hidden))
    rows = parts.embedding(positions, hidden).operators[0]
    table = replace(rows.weights[0], name="embed_positions.weight")
    places = replace(rows, name="embed_positions", weights=(table,), outputs=(parts.tensor("embed_positions", hidden),))
    add = parts.add("position_add", project.outputs[0], places.outputs[0])
    return replace(block, operators=(*block.operators, project, places, add), output="position_add")


def _layer(config: Section, parts: Parts, x: Tensor) -> Block:
    before = config.flag("do_layer_norm_before", default=True)
    bias = config.flag("enable_bias", default=True)
    heads = heads_of(config, x.width, "num_attention_heads")
    operators: list[Operator] = []

    def sublayer(name: str, x: Tensor, run: tuple[Operator, ...], norm: Operator) -> Tensor:
        """X + run(norm(x)), or norm(x + run(x))."""
        operators.extend((norm, *run) if before else run)
        add = parts.add(f"{name}_add", x, run[-1].outputs[0])
        operators.append(add)
        if before:
            return add.outputs[0]
        operators.append(norm.with_tensors(lambda t: add.outputs[0] if t == norm.inputs[0] else t))
        return norm.outputs[0]

    norm = parts.layer_norm("attn_norm", x)
    start = norm.outputs[0] if before else x
    x = sublayer("attn", x, parts.attention(start, heads, qkv_bias=bias, o_bias=bias), norm)
    norm = parts.layer_norm("mlp_norm", x)
    start = norm.outputs[0] if before else x
    act = activation(config, "activation_function", "relu")
    x = sublayer("mlp", x, parts.mlp(start, inner=config.integer("ffn_dim"), act=act, bias=bias), norm)
    repeat = config.integer("num_hidden_layers")
    return Block(name="layer", operators=tuple(operators), input=HIDDEN, output=x.name, repeat=repeat, start=0)
