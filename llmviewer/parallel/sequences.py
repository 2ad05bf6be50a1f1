"""Attention divided by sequences where a model has fewer key heads than ranks (arXiv:2211.05102, section 3.3).

Tensor parallelism divides heads, so ranks that share a key head would each hold its keys and values of all sequences.
Here each holds those of its part of the sequences: an all-to-all of the queries gives it the heads of all such ranks
for these sequences, and one of the results gives it its own heads for all. New keys need no communication, as each rank
computes those of all sequences. Work is that of the rank with most sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..forms import WHOLE_PASS, batch_share
from ..graph import Block
from ..operators.attention import QK, SV, Attention, Heads, Softmax
from ..operators.base import Operator, Role, Tensor
from ..operators.collectives import AllToAll
from ..operators.masks import ShardedSequences
from .layout import Network


def shared_sequences(block: Block, placed: Block, network: Network) -> Block:
    """`placed`, the part of `block` on one rank, with sequences divided among ranks that have the same key head."""
    if block.stream != WHOLE_PASS:
        return placed
    ranks = {
        op.name: copies
        for op in block.operators
        if isinstance(op, QK | Softmax | SV) and op.heads.mask.is_cached
        and (copies := network.layout.tp // op.heads.num_kv_heads) > 1
    }  # fmt: skip
    local = {op.name: ranks[op.name] for op in placed.operators if op.name in ranks and _is_cut(op, block)}
    return replace(placed, operators=tuple(_operators(placed, local, network))) if local else placed


def _is_cut(op: Operator, block: Block) -> bool:
    """Whether heads of `op` are divided among ranks."""
    undivided = next(one for one in block.operators if one.name == op.name)
    return _heads(op).num_heads < _heads(undivided).num_heads


def _heads(op: Operator) -> Heads:
    assert isinstance(op, Attention)
    return op.heads


def _operators(block: Block, ranks: Mapping[str, int], network: Network) -> Iterator[Operator]:
    caches = {
        t.name: ranks[op.name]
        for op in block.operators
        if op.name in ranks
        for t in op.inputs
        if t.role is Role.KV_CACHE
    }

    def cached(t: Tensor) -> Tensor:
        return _part(t, caches[t.name]) if t.name in caches else t

    for op in block.operators:
        if op.name not in ranks:
            yield replace(op, outputs=tuple(map(cached, op.outputs)))
            continue
        share, heads = ranks[op.name], _heads(op)
        mask = ShardedSequences(heads.mask, share)
        local = replace(op, heads=replace(heads, num_heads=share * heads.num_heads, mask=mask))  # type: ignore[call-arg]
        group = network.members("tp", share, 1)
        first, out = _gathered_heads(op.inputs[0], share), _gathered_heads(op.outputs[0], share)
        rest = tuple(map(cached, op.inputs[1:]))
        match op:
            case QK():
                queries = replace(first, name=f"{first.name}_sequences")
                yield AllToAll(name=f"{first.name}_all_to_all", inputs=op.inputs[:1], outputs=(queries,), group=group)
                yield replace(local, inputs=(queries, *rest), outputs=(out,))
            case SV():
                results = replace(out, name=f"{out.name}_sequences")
                yield replace(local, inputs=(first, *rest), outputs=(results,))
                yield AllToAll(name=f"{out.name}_all_to_all", inputs=(results,), outputs=op.outputs, group=group)
            case _:
                yield replace(local, inputs=(first, *rest), outputs=(out, *op.outputs[1:]))


def _part(t: Tensor, ranks: int) -> Tensor:
    """A tensor of the sequences of one of `ranks`; each keeps an equal part of the cache, as servers balance it."""
    cache_rows = t.rows if t.retained_rows is None else t.retained_rows
    retained = cache_rows / ranks if t.role is Role.KV_CACHE else t.retained_rows
    return replace(t, rows=t.rows.on(batch_share(ranks)), retained_rows=retained)


def _gathered_heads(t: Tensor, ranks: int) -> Tensor:
    """A tensor with the heads of `ranks` ranks, of the sequences of one of them."""
    return replace(_part(t, ranks), width=ranks * t.width)
