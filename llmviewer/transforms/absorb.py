"""Absorbed latent attention: queries are projected into the latent space, and the cache is not expanded.

q . (W_k c) = (W_k^T q) . c, so one key of the latent's width serves all heads and is also the value (arXiv:2405.04434,
section 2.1.2). It takes more OPs per pair but no expansion, which pays in decode and not in prefill.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph import Block, Graph
from ..operators.attention import QK, SV, Heads, Softmax
from ..operators.base import Operator, Tensor, Weight
from ..operators.linear import LatentExpansion, Linear


def absorb(graph: Graph) -> Graph:
    """The graph with every expansion of a cached latent absorbed into queries and results."""
    return graph.map_blocks(_absorbed)


def _absorbed(block: Block) -> Block:
    operators: list[Operator] = []
    for op in block.operators:
        operators.append(op)
        match operators[-4:]:
            case [LatentExpansion() as expand, QK() as qk, Softmax() as softmax, SV() as sv]:
                operators[-4:] = _in_latent_space(expand, qk, softmax, sv)
    return replace(block, operators=tuple(operators))


def _in_latent_space(expand: Linear, qk: QK, softmax: Softmax, sv: SV) -> tuple[Operator, ...]:
    latent, (keys, values) = expand.inputs[0], expand.outputs
    query, *positions = (t for t in qk.inputs if t.name != keys.name)
    count, rank, mask = qk.heads.num_heads, latent.width, qk.heads.mask
    prefix = qk.name.removesuffix("qk_matmul")  # that of the attention layer, where a block has several
    latent = replace(latent, rows=mask.keys_read)
    heads = Heads(
        num_heads=count,
        num_kv_heads=1,
        head_dim=rank + sum(t.width for t in positions),
        value_dim=rank,
        mask=mask,
    )
    absorbed = replace(query, name=f"{prefix}q_latent", width=heads.q_width)  # and its rotated part
    summed = replace(sv.result, name=f"{prefix}latent", width=count * rank, format=query.format)
    return (
        _per_head(f"{prefix}q_absorb", expand, replace(query, width=keys.width), absorbed, keys.width),
        replace(qk, inputs=(absorbed, latent, *positions), heads=heads),
        replace(softmax, heads=heads),
        replace(sv, inputs=(sv.inputs[0], latent), outputs=(summed,), heads=heads),
        _per_head(f"{prefix}v_expand", expand, summed, sv.result, values.width),
    )


def _per_head(name: str, expand: Linear, x: Tensor, out: Tensor, width: int) -> Linear:
    """The product of each head with its `width` rows of the expansion matrix."""
    rank = expand.inputs[0].width
    part: Weight = replace(expand.weight, name=f"{name}.weight", shape=(width, rank))
    return Linear(name=name, inputs=(x,), outputs=(out,), weights=(part,))
