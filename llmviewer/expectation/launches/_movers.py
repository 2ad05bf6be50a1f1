"""Memory-bound operators, modelled by the bytes that they move."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ...forms import TOKENS, Num
from ...operators.attention import Softmax
from ...operators.base import Operator, Tensor
from ...operators.hyper_connections import StreamsIn
from ...operators.kinds import kind_of
from ..families import Implementation
from ._kernel import LibraryKernel
from ._work import LaunchWork

COPY: Final = "add"  # which only moves bytes


def unmeasured(op: Operator, work: LaunchWork, *, where: Num = True, name: str = "") -> LibraryKernel:
    """Kernel of an operator that was not measured: operation `name`, or its kind."""
    return replace(mover(op, work, where=where, name=name or op.kind), memory_traffic_only=True)


def hyper_connection(op: Operator, work: LaunchWork) -> LibraryKernel:
    """Residual streams mixed into the input of a layer, with the weights of each, or its result into them."""
    tokens = np.maximum(work.of(op.inputs[0].rows), 1)
    return mover(op, work, name="mhc_pre" if isinstance(op, StreamsIn) else "mhc_post", dtype="bf16", rows=tokens)


def mover(
    op: Operator,
    work: LaunchWork,
    *,
    where: Num = True,
    name: str = "",
    dtype: str = "fp16",
    rows: Num = 0,
    cols: Num = 1,
) -> LibraryKernel:
    """Kernel of a memory-bound operator: operation `name`, the operation of its kind, or an addition.

    rows, cols  of its tensors; 0 rows: as many as have the bytes of a row
    """
    softmax = isinstance(op, Softmax)
    name, dtype = ("softmax", "fp32") if softmax else (name or kind_of(op.kind).measured or COPY, dtype)
    moved = work.nbytes
    rows = rows if np.any(rows) else np.maximum(np.divide(moved, _row_bytes(op)), 1)
    shapes: dict[str, Num] = {"rows": rows, "bytes": moved, "cols": cols}
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
