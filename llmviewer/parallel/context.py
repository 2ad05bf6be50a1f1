"""Context parallelism: tokens of the prompt and of the KV cache are divided among ranks.

Prefill: tokens are assigned to ranks round-robin, which balances causal attention (arXiv:2311.09431). Ranks all-gather
keys and values before attention (arXiv:2407.21783, section 3.3.2); ring attention sends as many bytes and holds fewer
(arXiv:2310.01889). Sliding windows need keys of all ranks too, as successive keys are on successive ranks. Latent
attention gathers latents, and every rank expands them.

Decode: the new token is on all ranks. Each attends to its part of the cache, and results are merged by the sums of
their softmax. States of fixed size are on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..forms import LOGITS, WITH_LOGITS, Form, replicas
from ..graph import Block, Transform
from ..operators.attention import QK, SV, Attention, FlashAttention, Indexer, Softmax
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.collectives import AllGather, Group
from ..operators.elementwise import Elementwise
from ..operators.linear import LatentExpansion
from ..operators.masks import ShardedKeys, ShardedQueries
from ..operators.recurrence import LongConv
from ..operators.state_space import LinearScan, Scan
from ..precision import FP32

_HEAD = LOGITS.features() | WITH_LOGITS.features()


def shared_context(group: Group, *, decode: bool) -> Transform:
    """The transform to one rank's part of a decode step or a prefill. Image encoders are replicated on all ranks."""
    shard = _decoded if decode else _prefilled

    def part(block: Block) -> Block:
        replicated = block.stream.name == "images"
        return block if replicated else replace(block, operators=tuple(shard(block, group)))

    return lambda graph: graph.map_blocks(part)


def _keys_and_values(op: Operator) -> tuple[Tensor, ...]:
    """Keys and values of an operator, or the latents that they are expanded from."""
    match op:
        case Indexer():
            return op.inputs[1:2]
        case Attention():
            return op.inputs[1:]
        case LatentExpansion():
            return op.inputs
    return ()


def _retained_rows(t: Tensor) -> Form:
    return t.rows if t.retained_rows is None else t.retained_rows


def _masked(op: Attention, mask: type[ShardedKeys], ranks: int) -> Attention:
    return replace(op, heads=replace(op.heads, mask=mask(op.heads.mask, ranks)))


# In a prefill.


def _prefilled(block: Block, group: Group) -> Iterator[Operator]:
    ranks = group.size
    expanded = {t.name for op in block.operators if isinstance(op, LatentExpansion) for t in op.outputs}
    to_gather: dict[str, Tensor] = {}
    for op in block.operators:
        for t in _keys_and_values(op):
            if t.name not in expanded:
                to_gather.setdefault(t.name, t)
    to_write = [t.name for op in block.operators for t in op.outputs]

    def rows(form: Form) -> Form:
        """Rows of new tokens are divided among ranks; rows of logits are not."""
        return form if form.features() <= _HEAD else form / ranks

    def shard(t: Tensor) -> Tensor:
        if t.role is Role.STATE:
            return t
        return replace(
            t,
            rows=rows(t.rows),
            retained_rows=_retained_rows(t) / ranks if t.role is Role.KV_CACHE else t.retained_rows,
        )

    def weight(w: Weight) -> Weight:
        return replace(w, rows=w.rows.on(replicas(1 / ranks))) if w.rows and not w.rows.features() <= _HEAD else w

    def placed(op: Operator) -> Operator:
        gathered = _keys_and_values(op)
        inputs = tuple((t if t.name in expanded else _gathered(t)) if t in gathered else shard(t) for t in op.inputs)
        if isinstance(op, LatentExpansion):
            return replace(op, inputs=inputs)
        op = replace(op.with_weights(weight), inputs=inputs, outputs=tuple(map(shard, op.outputs)))
        match op:
            case Attention():
                return _masked(op, ShardedQueries, ranks)
            case Scan():
                return replace(op, token_ops=op.token_ops / ranks, pair_ops=op.pair_ops / ranks)
            case LinearScan():
                return replace(op, ranks=ranks * op.ranks)
            case LongConv():
                return replace(op, channels=op.channels / ranks)
        return op

    for op in block.operators:
        if any(t.name in to_gather for t in _keys_and_values(op)):
            ready = [t for t in to_gather.values() if t.name not in to_write]
            yield AllGather(
                name=f"{ready[0].name}_all_gather",
                inputs=tuple(replace(shard(t), rows=_rows_to_gather(t) / ranks) for t in ready),
                outputs=tuple(replace(_gathered(t), rows=_rows_to_gather(t)) for t in ready),
                group=group,
            )
            for t in ready:
                del to_gather[t.name]
        yield placed(op)
        for t in op.outputs:
            to_write.remove(t.name)


def _gathered(t: Tensor) -> Tensor:
    """The gathered rows of all ranks, which are not stored in the cache."""
    return replace(t, name=f"{t.name}_all", retained_rows=Form() if t.role is Role.KV_CACHE else t.retained_rows)


def _rows_to_gather(t: Tensor) -> Form:
    """The rows to gather: those stored in the cache, else those read."""
    return t.retained_rows or t.rows


# In a decode step.


def _decoded(block: Block, group: Group) -> Iterator[Operator]:
    ranks = group.size

    def part(t: Tensor) -> Tensor:
        return replace(
            t,
            rows=t.rows / ranks,
            retained_rows=_retained_rows(t) / ranks if t.role is Role.KV_CACHE else t.retained_rows,
        )

    for op in block.operators:
        if isinstance(op, LatentExpansion):
            yield op.with_tensors(part)
            continue
        if not isinstance(op, Attention) or not op.heads.mask.is_cached:
            yield op
            continue
        sharded_inputs, out = _keys_and_values(op), op.outputs[0]
        local = replace(
            _masked(op, ShardedKeys, ranks), inputs=tuple(part(t) if t in sharded_inputs else t for t in op.inputs)
        )
        match local:
            case QK():
                yield replace(local, outputs=(part(out),))
            case Softmax():
                yield local.with_tensors(part)
            case SV() | FlashAttention():
                scores = map(part, local.inputs[:1]) if isinstance(local, SV) else local.inputs[:1]
                local = replace(local, inputs=(*scores, *local.inputs[1:]))
                yield from _merged(local, group)
            case _:  # indexers: each rank chooses its best keys, and the best of those are chosen
                best = replace(part(out), name=f"{out.name}_part")
                yield replace(local, outputs=(best,))
                yield AllGather(name=f"{out.name}_all_gather", inputs=(best,), outputs=(out,), group=group)


def _merged(op: Attention, group: Group) -> Iterator[Operator]:
    """Attention with a merge of the results of all ranks: they are gathered, scaled and summed."""
    out = op.outputs[0]
    part = replace(out, name=f"{out.name}_part", width=out.width + op.heads.num_heads, format=FP32)
    parts = replace(part, name=f"{out.name}_parts", width=group.size * part.width)
    yield replace(op, outputs=(part,))
    yield AllGather(name=f"{out.name}_gather", inputs=(part,), outputs=(parts,), group=group)
    yield Elementwise(name=f"{out.name}_merge", inputs=(parts,), outputs=(out,), ops_per_element=2 * group.size)
