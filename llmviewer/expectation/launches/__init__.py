"""Kernels that a library launches for the operators of an estimate.

Serving libraries merge products that read the same tensor into one matrix multiplication, and the experts of a layer
into one fused kernel. Work that no measured kernel does is modelled as the most similar kernel, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from ...forms import ONE, Form, total
from ...operators.attention import QK, SV, FlashAttention, Indexer, Softmax
from ...operators.base import Operator
from ...operators.block_sparse import BlockIndexer
from ...operators.collectives import Collective
from ...operators.elementwise import Quantize
from ...operators.hyper_connections import StreamsIn
from ...operators.kinds import OperatorGroup, kind_of
from ...operators.linear import ExpertsLinear
from ...operators.masks import Bidirectional, Causal, Cross
from ...operators.sampling import Sample
from ...operators.state_space import CausalConv, Scan
from ...parallel.overlap import Overlapped
from ...records import copied
from ...roofline import OperatorEstimate, Plan
from ...workload import Workload
from ..engines import PLAIN, LaunchRules
from ..profile import ANOTHER_KERNEL, ANOTHER_TYPE
from ._attention import attention, cache_write, indexer, scores
from ._collectives import STRAIGHT, collective, sending
from ._experts import experts, moe
from ._fused import fused_launch, fused_launches
from ._kernel import KernelSequence, LibraryKernel, Sending
from ._layers import attention_layer, attention_layers
from ._movers import hyper_connection, mover, unmeasured
from ._products import PREQUANTIZED_LIBRARIES, UNMERGED_LIBRARIES, gemm, products
from ._scans import convolution, recurrence, scan
from ._work import LaunchWork, stream_of
from .whole import AMOUNTS, WHOLE_PASS_LIBRARIES, by_amounts

__all__ = ["AMOUNTS", "STRAIGHT", "KernelSequence", "LibraryKernel", "Sending", "counted", "launches"]

_INDEXER: Final = "no indexer measured: as attention with half of a key as value, or memory traffic only"
_GREEDY: Final = "argmax"  # name of greedy sampling
_LEAST_CACHED: Final = 8  # bits of the narrowest measured cache
_WIDER_CACHE: Final = "as with an 8-bit cache, as no narrower one was measured"
_FP8_CACHE: Final = "as with an fp8 cache, as no int8 cache was measured"
_FP8_QUERIES: Final = "as with fp8 queries, as no other type of 8 bits or fewer was measured"


def counted(plan: Plan) -> Form:
    """Number of launches of a pass; an operator that only some tokens reach counts by its probability to run."""
    return total(row.block.repeat * ONE.on(stream_of(row)) for row in plan.operators)


def launches(
    rows: Sequence[OperatorEstimate],
    workload: Workload,
    *,
    library: str,
    half: str,
    rules: LaunchRules = PLAIN,
    known_launches: dict[object, KernelSequence] | None = None,
) -> tuple[KernelSequence, ...]:
    """Launches of `library` for the operators of an estimate. Every operator is a member of one launch.

    half            16-bit type that the device computes in
    rules           division of operators among launches by an engine on the device
    known_launches  launches of other graphs at the same workload, reused for operators that are the same objects
    """
    sequences: list[KernelSequence] = []
    known_launches = {} if known_launches is None else known_launches
    has_experts = any(isinstance(row.operator, ExpertsLinear) for row in rows)
    fusions = tuple(fusion for fusion in rules.fusions if has_experts or not fusion.experts_only)
    rules = replace(rules, fusions=fusions)
    for _, places in groupby(range(len(rows)), key=lambda place: id(rows[place].block)):
        works = {place: LaunchWork.of_row(rows[place], workload, library=library, half=half) for place in places}
        sequences.extend(_of_block(works, library, rules, known_launches))
    return tuple(sequences)


def _of_block(
    works: Mapping[int, LaunchWork],
    library: str,
    rules: LaunchRules,
    known_launches: dict[object, KernelSequence],
) -> Iterator[KernelSequence]:
    """The launches of a block.

    known_launches  launches of earlier blocks, reused for operators that are the same objects
    """
    by_amounts_only = library in WHOLE_PASS_LIBRARIES
    mergeable = {place: work for place, work in works.items() if not work.op.on_host}
    experts_of_layer = [] if by_amounts_only or library in UNMERGED_LIBRARIES else experts(mergeable)
    layers = [] if by_amounts_only else attention_layers(mergeable)
    others = {place: work for place, work in mergeable.items() if not any(place in members for members in layers)}
    joined = {
        place: members
        for members in (*experts_of_layer, *layers, *(() if by_amounts_only else products(others)))
        for place in members
    }
    fused = [members for members in fused_launches(works, rules.fusions) if joined.keys().isdisjoint(members)]
    joined |= {place: members for members in fused for place in members}
    for place, work in works.items():
        members = joined.get(place, (place,))
        if place != members[0]:
            continue
        same = tuple((id(works[m].row.operator), works[m].stream) for m in members)
        if same not in known_launches:
            launch = (
                moe(members, works)
                if members in experts_of_layer
                else fused_launch(members, works, rules.fusions)
                if members in fused
                else attention_layer(members, works)
                if members in layers
                else gemm(members, works, rules)
                if place in joined
                else _launch(place, work)
            )
            if rules.has_cache_writes and isinstance(work.op, FlashAttention) and place not in joined:
                launch = replace(launch, kernels=(*launch.kernels, *cache_write(work.op, works)))
            meanwhile = [works[m].row.operator for m in members]
            concurrent = [
                kernel for op in meanwhile if isinstance(op, Overlapped) for kernel in collective(op.then, work)[0]
            ]
            run_probability = works[
                members[-1]
            ].run_probability  # a conversion's is that of the product which it is part of
            known_launches[same] = replace(launch, concurrent=tuple(concurrent), run_probability=run_probability)
        yield copied(known_launches[same], members=members)


def _other_types(op: FlashAttention) -> str:
    """A remark where the types of attention are not those of measured kernels; "" if they are."""
    queries, cache = (t.format for t in op.inputs[:2])
    if queries.bits <= _LEAST_CACHED and (queries.bits < _LEAST_CACHED or queries.compute != "fp8"):
        return _FP8_QUERIES
    if cache.bits > _LEAST_CACHED:
        return ""
    return _WIDER_CACHE if cache.bits < _LEAST_CACHED else "" if cache.compute == "fp8" else _FP8_CACHE


def _launch(place: int, work: LaunchWork) -> KernelSequence:
    """The launch of an operator that has a kernel to itself."""
    op, members = work.op, (place,)
    if isinstance(op, Collective):
        kernels, remark = collective(op, work)
        return KernelSequence(
            members=members, kernels=kernels, sending=sending(op, work), remark=remark, partial=bool(kernels and remark)
        )  # fmt: skip
    if work.library in WHOLE_PASS_LIBRARIES or op.on_host:
        return by_amounts(place, work)
    if isinstance(op, FlashAttention):
        kernels = tuple(k for spans in work.groups for k in attention(op, work.part(spans), work))
        is_measured_mask = isinstance(op.heads.mask, Causal | Bidirectional | Cross)
        types = _other_types(op)
        remark = ", ".join(filter(None, ("" if is_measured_mask else "no kernel with this mask was measured", types)))
        stand_in_class = "" if not remark else ANOTHER_TYPE if is_measured_mask else ANOTHER_KERNEL
        return KernelSequence(members=members, kernels=kernels, remark=remark, stand_in_class=stand_in_class)
    if isinstance(op, Indexer | BlockIndexer):
        return KernelSequence(
            members=members, kernels=tuple(indexer(op, work)), remark=_INDEXER, stand_in_class=ANOTHER_KERNEL
        )
    if isinstance(op, Scan) and op.rule:
        return scan(op, place, work)
    return KernelSequence(members=members, kernels=tuple(_plain_kernels(op, work)))


def _plain_kernels(op: Operator, work: LaunchWork) -> Iterator[LibraryKernel]:
    """Yields the kernels of an operator that are its own, whatever is around it."""
    if isinstance(op, QK | SV):
        yield from (scores(op, work.part(spans), work) for spans in work.groups)
    elif isinstance(op, CausalConv):
        yield from convolution(op, work)
    elif isinstance(op, Quantize) and work.library in PREQUANTIZED_LIBRARIES:
        yield mover(op, work, name="quantize_static", dtype="fp8")
    elif op.kind == StreamsIn.kind:
        yield hyper_connection(op, work)
    elif isinstance(op, Softmax) or kind_of(op.kind).measured:
        yield mover(op, work)
    elif kind_of(op.kind).group is OperatorGroup.STATE:
        yield from recurrence(op, work)
    else:
        yield unmeasured(op, work, name=_GREEDY if isinstance(op, Sample) and op.greedy else "")
