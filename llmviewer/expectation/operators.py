"""From the operators of an estimate to the kernels that run them, and what those are expected to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..hardware import Hardware
from ..operators.attention import FlashAttention
from ..operators.base import Operator, Tensor
from ..operators.linear import ExpertsLinear, Linear
from ..precision import Format
from ..roofline import OperatorEstimate
from ..workload import Spans, Workload
from .device import Device, of
from .families import FAMILIES, Stack
from .families._family import Array
from .profile import Entry
from .transfer import Expectation, expect

_KERNELS: Final[Mapping[str, str]] = {  # kinds of operators that move bytes, as measured tables call them
    "norm": "post_attention_layernorm",
    "add": "add",
    "activation": "mlp_act",
    "rope": "attn_rope",
    "embedding": "emb",
}


def expected(
    rows: Sequence[OperatorEstimate],
    profile: Sequence[Entry],
    *,
    workload: Workload,
    hardware: Hardware,
    library: str = "",
) -> tuple[Expectation, ...]:
    """What one launch of each operator is expected to take; where no kernel is known for it, its bound.

    library  whose kernels they are; those of the nearest relatives where it was not measured
    """
    device = of(hardware)
    return tuple(_expected(row, profile, workload, device, library) for row in rows)


def _expected(
    row: OperatorEstimate, profile: Sequence[Entry], workload: Workload, device: Device, library: str
) -> Expectation:
    bound = np.atleast_1d(np.asarray(row.time_s, dtype=float))
    found = _kernel(row, workload, library)
    if found is None:
        source = f"bound only: no kernel of {row.operator.kind} was measured by itself"
        return Expectation(bound=bound, expected=bound, low=bound, high=np.full_like(bound, np.inf), source=source)
    name, shapes, stack = found
    full = {key: np.broadcast_to(column, bound.shape) for key, column in shapes.items()}
    some = bound > 0
    kernel = expect(name, {key: column[some] for key, column in full.items()}, device, stack, profile)
    times = {field: bound.copy() for field in ("expected", "low", "high")}
    for field, values in times.items():
        values[some] = np.maximum(getattr(kernel, field), bound[some])
    return Expectation(bound=bound, source=kernel.source, **times)


def _kernel(row: OperatorEstimate, workload: Workload, library: str) -> tuple[str, dict[str, Array], Stack] | None:
    op = row.operator
    if isinstance(op, Linear) and not isinstance(op, ExpertsLinear) and len(op.weight.shape) == 2:
        n, k = op.weight.shape
        found = {"M": row.ops / (2.0 * n * k), "N": n, "K": k}
        stack = Stack(library=library, dtype=_product(op.inputs[0].format, op.weight.format))
        return "gemm", _columns("gemm", found), stack
    if isinstance(op, FlashAttention):
        part = row.block.stream.of(workload)
        assert isinstance(part, Workload)
        return _attention(op, part.groups[0], library) if len(part.groups) == 1 else None
    if row.operator.kind in _KERNELS:
        moved = np.asarray(row.bytes, dtype=float)
        found = {"rows": np.maximum(moved / _row_bytes(op), 1), "bytes": moved}
        stack = Stack(library=library, dtype="fp16", kernel=_KERNELS[op.kind])
        return "elementwise", _columns("elementwise", found), stack
    return None


def _attention(op: FlashAttention, spans: Spans, library: str) -> tuple[str, dict[str, Array], Stack]:
    heads, cache = op.heads, op.inputs[1].format
    once = np.max(spans.q_len) <= 1
    name = "attention_decode" if once else "attention_prefill"
    found = {
        "batch": spans.batch,
        "q_len": spans.q_len,
        "kv_len": spans.kv_len,
        "q_heads": heads.num_heads,
        "kv_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "v_head_dim": heads.out_dim,
        "window": getattr(heads.mask, "window", np.inf),
    }
    kv_dtype = "fp8" if cache.bits == 8 else "bf16"
    return name, _columns(name, found), Stack(library=library, dtype="bf16", kv_dtype=kv_dtype)


def _columns(name: str, found: Mapping[str, Any]) -> dict[str, Array]:
    """The columns of a family; those that are not found as they are where nothing repeats itself."""
    family = FAMILIES[name]
    wanted = {**dict.fromkeys(family.columns, 0.0), **family.optional}
    shapes = {key: np.atleast_1d(np.asarray(found.get(key, usual), dtype=float)) for key, usual in wanted.items()}
    return dict(zip(shapes, np.broadcast_arrays(*shapes.values()), strict=True))


def _product(x: Format, weight: Format) -> str:
    """The data type of a linear layer, as measured tables call it."""
    if x.bits >= 16 and weight.bits < 16:
        return "int4_wo" if weight.bits <= 4 else "int8_wo"
    if weight.bits == 8:
        return "fp8" if str(weight.compute).startswith("fp8") else "sq"
    if weight.bits == 4:
        return "nvfp4"
    return "fp32" if weight.bits > 16 else "bf16"


def _row_bytes(op: Operator) -> float:
    """What one row of it moves. [B]"""

    def width(tensor: Tensor) -> float:
        return tensor.width * tensor.format.stored_bits / 8

    return max(sum(map(width, op.reads())) + sum(map(width, op.writes())), 1.0)
