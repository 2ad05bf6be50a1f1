"""Operators with a state: scans by their rule, in chunks or token by token, and convolutions before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...forms import Num
from ...operators.base import Operator
from ...operators.state_space import CausalConv, Scan
from ..families import Implementation
from ..profile import ANOTHER_KERNEL
from ._kernel import KernelSequence, LibraryKernel
from ._movers import mover, unmeasured
from ._work import LaunchWork

CHUNK: Final = 64  # tokens from which scans are computed in chunks: chunk_size of flash-linear-attention's kernels
_DELTA: Final = ("gdn", "kda")  # rules whose kernels for single tokens differ only in the width of the decay
# Operations of a rule whose own kernels were not measured: those of another rule with a state as wide stand in.
_OTHERS: Final = {"kda_step": "gated delta rule", "gdn_verify": "Kimi delta attention"} | dict.fromkeys(
    ("mamba2_step", "mamba2_verify"), "delta rules"
)


def phases(q_len: Num) -> dict[str, Num]:
    """Masks of the workloads in which a pass is a step of single tokens, a verification of a few, or a prefill."""
    is_below_chunk = np.less(q_len, CHUNK)
    return {
        "step": np.less_equal(q_len, 1),
        "verify": np.greater(q_len, 1) & is_below_chunk,
        "prefill": np.logical_not(is_below_chunk),
    }


def scan(op: Scan, place: int, work: LaunchWork) -> KernelSequence:
    """The scan of a rule that was measured."""
    kernels: list[LibraryKernel] = []
    others: dict[str, None] = {}
    for spans in work.groups:
        for phase, where in phases(spans.q_len).items():
            shapes: dict[str, Num] = {
                "batch": spans.batch,
                "q_len": spans.q_len,
                "k_heads": op.groups,
                "k_dim": op.depth,
                "v_heads": op.heads,
                "v_dim": op.outputs[0].width / op.heads,
                "chunk": op.chunk if phase == "prefill" else 1,
            }
            rule = op.rule if phase == "prefill" else "delta"
            implementation = Implementation(library=work.library, dtype="bf16", kernel=f"{rule}_scan_{phase}")
            kernels.append(LibraryKernel(family="scan", implementation=implementation, shapes=shapes, where=where))
            if (other := _OTHERS.get(f"{op.rule}_{phase}")) and np.any(where):
                others[f"as the kernel of {other}"] = None
    remark = ", ".join(others)
    stand_in_class = ANOTHER_KERNEL if remark else ""
    return KernelSequence(members=(place,), kernels=tuple(kernels), remark=remark, stand_in_class=stand_in_class)


def convolution(op: CausalConv, work: LaunchWork) -> Iterator[LibraryKernel]:
    """Yields the kernels of a causal convolution; the workload decides which of them runs."""
    tokens = sum((spans.batch * spans.q_len for spans in work.groups), start=np.zeros(1))
    for phase, where in phases(_longest(work)).items():
        yield mover(op, work, where=where, name=f"conv_{phase}", dtype="bf16", rows=tokens, cols=op.outputs[0].width)


def recurrence(op: Operator, work: LaunchWork) -> Iterator[LibraryKernel]:
    """Yields the kernels of an operator with a state whose rule was not measured; the workload decides which of them
    runs.
    """
    for phase, where in phases(_longest(work)).items():
        yield unmeasured(op, work, where=where, name=op.kind if phase == "prefill" else f"{op.kind} {phase}")


def _longest(work: LaunchWork) -> Num:
    """New tokens of the longest sequence."""
    return np.asarray(np.max(np.broadcast_arrays(*(spans.q_len for spans in work.groups)), axis=0))
