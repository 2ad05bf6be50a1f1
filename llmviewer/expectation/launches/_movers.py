"""Memory-bound operators, modelled by the bytes that they move."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ...forms import TOKENS, Num
from ...operators.attention import Softmax
from ...operators.base import Operator, Tensor
from ...operators.kinds import OperatorGroup, kind_of
from ..families import Implementation
from ._kernel import LibraryKernel
from ._work import LaunchWork

_FALLBACK_OPERATION: Final = "add"  # which only moves bytes
_CHUNK: Final = 64  # tokens from which scans are computed in chunks: chunk_size of flash-linear-attention's kernels


def unmeasured(op: Operator, work: LaunchWork) -> tuple[LibraryKernel, ...]:
    """The kernels of an operator of a kind that was not measured: an operation of its kind; of a recurrence one for
    single tokens, one for a few and one for prompts.
    """
    if kind_of(op.kind).group is not OperatorGroup.STATE:
        return (replace(mover(op, work, name=op.kind), memory_traffic_only=True),)
    longest = np.max(np.broadcast_arrays(*(spans.q_len for spans in work.groups)), axis=0)
    is_below_chunk = np.less(longest, _CHUNK)
    kinds = {
        "step": np.less_equal(longest, 1),
        "verify": np.greater(longest, 1) & is_below_chunk,
        "": np.logical_not(is_below_chunk),
    }
    names = ((f"{op.kind} {suffix}".strip(), where) for suffix, where in kinds.items())
    return tuple(replace(mover(op, work, where=where, name=name), memory_traffic_only=True) for name, where in names)


def mover(op: Operator, work: LaunchWork, *, where: Num = True, name: str = "") -> LibraryKernel:
    """Kernel of a memory-bound operator: operation `name`, the operation of its kind, or an addition."""
    softmax = isinstance(op, Softmax)
    name, dtype = ("softmax", "fp32") if softmax else (name or kind_of(op.kind).measured or _FALLBACK_OPERATION, "fp16")
    moved = work.nbytes
    shapes: dict[str, Num] = {"rows": np.maximum(np.divide(moved, _row_bytes(op)), 1), "bytes": moved}
    if isinstance(op, Softmax):
        queries = np.maximum(work.of(TOKENS), 1)
        shapes |= {"rows": queries * op.heads.num_heads, "cols": np.maximum(work.of(op.heads.mask.cells) / queries, 1)}
    implementation = Implementation(library=work.library, dtype=dtype, kernel=name)
    return LibraryKernel(family="elementwise", implementation=implementation, shapes=shapes, where=where)


def _row_bytes(op: Operator) -> float:
    """The bytes that one row moves. [B]"""

    def width(tensor: Tensor) -> float:
        return tensor.width * tensor.format.stored_bits / 8

    return max(sum(map(width, op.reads())) + sum(map(width, op.writes())), 1.0)
