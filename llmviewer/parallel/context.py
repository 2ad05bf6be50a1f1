"""Context parallelism: the tokens of a prompt, and of the cache, shared out among ranks (arXiv:2310.01889).

In a prefill every rank has as many of the new tokens as the others, early and late ones, so that all have as many
pairs; keys and values go round. In a decode step the new token is on all ranks and each attends to its part of the
cache: what they found is brought together with its softmax's sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..forms import LOGITS, WANTED, Form, replicas
from ..graph import Block, Transform
from ..operators.attention import QK, SV, Softmax
from ..operators.base import KEPT, Operator, Tensor, Weight
from ..operators.collectives import AllGather, Group
from ..operators.elementwise import Elementwise
from ..operators.masks import Part
from ..precision import FP32

_HEAD = LOGITS.features() | WANTED.features()


def shared_context(group: Group, *, decode: bool) -> Transform:
    """Each rank's part of a prefill, or of a decode step."""
    one = _decoded if decode else _prefilled
    return lambda graph: graph.map_blocks(lambda block: replace(block, operators=tuple(one(block, group))))


def _attention(op: Operator, ranks: int) -> Operator:
    if isinstance(op, QK | Softmax | SV):
        return replace(op, heads=replace(op.heads, mask=Part(op.heads.mask, ranks)))
    return op


def _prefilled(block: Block, group: Group) -> Iterator[Operator]:
    ranks = group.size

    def rows(form: Form) -> Form:
        """Those of new tokens are shared out; those of wanted logits are where they are."""
        return form if form.features() <= _HEAD else form / ranks

    def tensor(t: Tensor) -> Tensor:
        held = (t.rows if t.held is None else t.held) / ranks if t.role in KEPT else t.held
        return replace(t, rows=rows(t.rows), held=held)

    def weight(w: Weight) -> Weight:
        return replace(w, rows=w.rows.on(replicas(1 / ranks))) if w.rows and not w.rows.features() <= _HEAD else w

    for op in block.operators:
        if isinstance(op, QK | SV):
            kept = [t for t in op.inputs[1:] if t.role in KEPT]
            for t in kept:
                whole = replace(t, name=f"{t.name}_all")
                part = tensor(t)
                yield AllGather(name=f"{t.name}_ring", inputs=(part,), outputs=(whole,), group=group)
        yield _attention(op.with_weights(weight).with_tensors(tensor), ranks)


def _decoded(block: Block, group: Group) -> Iterator[Operator]:
    ranks = group.size

    def tensor(t: Tensor) -> Tensor:
        if t.role not in KEPT:
            return t
        held = (t.rows if t.held is None else t.held) / ranks
        return replace(t, rows=t.rows / ranks, held=held)

    for op in block.operators:
        placed = _attention(op, ranks)
        if placed is op:
            yield op
            continue
        placed = placed.with_tensors(tensor)
        if not isinstance(op, SV):
            yield placed
            continue
        out = op.outputs[0]
        part = replace(out, name=f"{out.name}_part", width=out.width + op.heads.num_heads, format=FP32)
        parts = replace(part, name=f"{out.name}_parts", width=ranks * part.width)
        yield replace(placed, outputs=(part,))
        yield AllGather(name=f"{out.name}_gather", inputs=(part,), outputs=(parts,), group=group)
        yield Elementwise(name=f"{out.name}_merge", inputs=(parts,), outputs=(out,), ops_per_element=2 * ranks)
