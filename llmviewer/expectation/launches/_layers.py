"""Sparse attention of a layer, which was measured as one: projections, choice of keys, attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ...forms import Num
from ...operators.attention import FlashAttention, Indexer
from ...operators.block_sparse import BlockIndexer, BlockScorer
from ...operators.collectives import Collective
from ...operators.compression import Compress
from ...operators.elementwise import Add, Norm, Quantize
from ...operators.hyper_connections import StreamsIn
from ...operators.linear import Linear
from ..families import Implementation
from ._kernel import KernelSequence, LibraryKernel
from ._products import product
from ._work import LaunchWork

_LIBRARIES: Final = ("vllm", "sglang", "trtllm")  # whose layers were measured
_MAX_STEP_QUERIES: Final = 16  # new tokens of a sequence up to which decode kernels run, as for drafts
# Kinds whose prefill was measured without the host's launches, which prompts in engines do not wait for.
_PREFILLS: Final = ("dsv4_csa", "dsv4_hca")


def attention_layers(works: Mapping[int, LaunchWork]) -> list[tuple[int, ...]]:
    """The operators of sparse attention of a block, in one group if there is any: from its first projection, or the
    conversion before it, to its last, without communication.
    """
    centres = [place for place, work in works.items() if isinstance(work.op, FlashAttention)]
    if len(centres) != 1 or works[centres[0]].library not in _LIBRARIES or not (kind := _kind(works)):
        return []
    centre, places = centres[0], list(works)
    position = places.index(centre)
    before = [place for place in places[:position] if _is_boundary(works[place])]
    first = before[-1] if before else places[0] - 1
    after = next((place for place in places[position:] if _is_end(works[place])), places[-1] + 1)
    members = [p for p in places if first < p < after and not isinstance(works[p].op, Collective)]
    while members and not isinstance(works[members[0]].op, Linear | Quantize):  # the norm of the layer's input
        members.pop(0)
    work = works[centre]
    measured = len(work.groups) == 1 and _is_measured(kind, work.groups[0].q_len)
    alike = all(works[p].stream == work.stream for p in members)
    return [tuple(members)] if members and measured and alike else []


def _is_boundary(work: LaunchWork) -> bool:
    return isinstance(work.op, Add | StreamsIn)


def _is_end(work: LaunchWork) -> bool:
    return isinstance(work.op, Add | Collective | Norm) or work.op.kind == StreamsIn.kind


def _is_measured(kind: str, q_len: Num) -> bool:
    return kind in _PREFILLS or bool(np.all(np.less_equal(q_len, _MAX_STEP_QUERIES)))


def _kind(works: Mapping[int, LaunchWork]) -> str:
    """The family of sparse attention, as tables of measurements call it; "" for other attention."""
    indexes, compresses, blocks, scores = (
        any(isinstance(work.op, kind) for work in works.values())
        for kind in (Indexer, Compress, BlockIndexer, BlockScorer)
    )
    if compresses:
        return "dsv4_csa" if indexes else "dsv4_hca"
    return "dsa" if indexes else "msa" if blocks and not scores else ""  # scores of blocks have launches of their own


def attention_layer(members: tuple[int, ...], works: Mapping[int, LaunchWork]) -> KernelSequence:
    """The launch of a group of attention_layers()."""
    centre = next(works[m] for m in members if isinstance(works[m].op, FlashAttention))
    first = next(op for m in members if isinstance(op := works[m].op, Linear))
    assert isinstance(centre.op, FlashAttention)
    (spans,) = centre.groups
    kind = _kind(works)
    cache = "fp8" if centre.op.inputs[1].format.bits <= 8 or kind in _PREFILLS else "bf16"
    shapes: dict[str, Num] = {
        "batch": spans.batch,
        "q_len": spans.q_len,
        "kv_len": spans.kv_len,
        "heads": centre.op.heads.num_heads,
        "bytes": sum((works[m].nbytes for m in members), start=np.zeros(1)),
        "ops": np.maximum(sum((works[m].ops for m in members), start=np.zeros(1)), 1),
    }
    is_step = np.less_equal(spans.q_len, _MAX_STEP_QUERIES)
    return KernelSequence(
        members=members,
        kernels=tuple(
            LibraryKernel(
                family="attention_layer",
                implementation=Implementation(
                    library=centre.library,
                    dtype=product(first, centre.half),
                    kv_dtype=cache,
                    kernel=f"{kind}_{phase}",
                ),
                shapes=shapes,
                where=where,
            )
            for phase, where in (("decode", is_step), ("prefill", np.logical_not(is_step)))
        ),
    )
