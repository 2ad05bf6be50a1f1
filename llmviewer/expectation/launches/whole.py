"""Operators of engines of which only whole passes were measured: each is a launch, by its amounts of work."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...forms import Num
from ...operators.attention import Attention
from ...operators.base import Operator
from ...operators.fused import parts_of
from ...operators.linear import Linear
from ...operators.transfer import Transfer
from ...precision import HALF
from ..families import Implementation
from ._kernel import KernelSequence, LibraryKernel
from ._work import LaunchWork

WHOLE_PASS_LIBRARIES: Final = ("llama.cpp", "mlx")  # libraries of such engines
AMOUNTS: Final = "amounts"  # the family of these kernels
PRODUCT, HALF_PRODUCT, ATTENTION, OTHER = "product", "product of 16 bits", "attention", "other"
CROSSING: Final = "crossing"  # of activations between device and host
ON_HOST: Final = "host"  # library of launches on the host


def by_amounts(place: int, work: LaunchWork) -> KernelSequence:
    """The launch of an operator. Shapes of its kernel:

    weights, cache, moved  bytes of weights, KV cache and activations
    ops                    OPs, of the unit and data type that `implementation.dtype` names
    rows                   rows of the activations that each weight is multiplied with
    tokens                 new tokens of the pass
    link_s                 time over links at their full rate [s]
    """
    row, run_probability = work.row, work.run_probability
    weights: Num = row.weight_bytes / run_probability
    linear = _linear(work.op)
    kind, rows = OTHER, np.zeros(1)
    if isinstance(work.op, Transfer):
        kind = CROSSING
    elif linear:
        kind = PRODUCT if linear.weight.format.bits < HALF.bits else HALF_PRODUCT
        elements = np.maximum(weights * 8 / linear.weight.format.stored_bits, 1)
        rows = work.ops / (2 * elements)
    elif isinstance(work.op, Attention):
        kind = ATTENTION
    shapes = {
        "weights": weights,
        "cache": row.kv_bytes / run_probability,
        "moved": row.activation_bytes / run_probability,
        "ops": work.ops,
        "link_s": row.time_s / run_probability if kind == CROSSING else np.zeros(1),
        "rows": rows,
        "tokens": sum((spans.batch * spans.q_len for spans in work.groups), start=np.zeros(1)),
    }
    library = ON_HOST if work.op.on_host else work.library
    implementation = Implementation(library=library, dtype=row.operand_unit.dtype, kernel=kind)
    return KernelSequence(
        members=(place,), kernels=(LibraryKernel(family=AMOUNTS, implementation=implementation, shapes=shapes),)
    )


def _linear(op: Operator) -> Linear | None:
    """The first product with weights in a launch; None if there is none."""
    return next((part for part in parts_of(op) if isinstance(part, Linear)), None)
