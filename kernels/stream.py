"""Copy and triad: the ceilings of memory bandwidth.

copy:  y = x
triad: y = a + s b
STREAM's names and definitions (J. D. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance
Computers", 1995): a copy moves two elements for each of y, a triad three.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned

_BLOCK = 8192  # elements of a program: 4 loads of 16 bytes a thread in flight in 16 bits, which hides the latency
_SCALE = 3.0


@triton.jit
def _copy(x_ptr, y_ptr, numel, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, offsets < numel), offsets < numel)


@triton.jit
def _triad(a_ptr, b_ptr, y_ptr, scale, numel, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + offsets, offsets < numel), tl.load(b_ptr + offsets, offsets < numel)
    y = a.to(tl.float32) + scale * b.to(tl.float32)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), offsets < numel)


def plan_copy(target: Target, x: torch.Tensor) -> LaunchPlan:  # noqa: ARG001
    """One launch of y = x."""
    y = poisoned(*x.shape, dtype=x.dtype, device=x.device)
    arguments = {"x_ptr": x, "y_ptr": y, "numel": x.numel(), "BLOCK": _BLOCK}
    return LaunchPlan(
        launches=(Launch(function=_copy, grid=(cdiv(x.numel(), _BLOCK),), arguments=arguments, num_warps=8),),
        outputs=(y,),
    )


def plan_triad(target: Target, a: torch.Tensor, b: torch.Tensor, scale: float) -> LaunchPlan:  # noqa: ARG001
    """One launch of y = a + scale b, the triad of the STREAM benchmark."""
    y = poisoned(*a.shape, dtype=a.dtype, device=a.device)
    arguments = {"a_ptr": a, "b_ptr": b, "y_ptr": y, "scale": scale, "numel": a.numel(), "BLOCK": _BLOCK}
    return LaunchPlan(
        launches=(Launch(function=_triad, grid=(cdiv(a.numel(), _BLOCK),), arguments=arguments, num_warps=8),),
        outputs=(y,),
    )


def _make(names: str) -> Callable[[Case, str, int], Inputs]:
    def make(case: Case, device: str, seed: int) -> Inputs:
        random = Random(device, seed)
        inputs: Inputs = {n: random.normal(case["rows"], case["width"], dtype=case.torch_dtype) for n in names}
        return inputs | ({"scale": _SCALE} if len(names) > 1 else {})

    return make


def _operators(names: str, ops: int) -> Callable[[Case], tuple[Operator, ...]]:
    def operators(case: Case) -> tuple[Operator, ...]:
        x, *others = (Tensor(name=n, width=case["width"], format=case.format) for n in (*names, "y"))
        name = "copy" if ops == 0 else "triad"
        return (Elementwise(name=name, inputs=(x, *others[:-1]), outputs=(others[-1],), ops_per_element=ops),)

    return operators


_CASES = (case("fp32", rows=3, width=1001), case("fp16", rows=1, width=_BLOCK), case("fp16", rows=7, width=1337))
_FULL = tuple(case(dtype, rows=16384, width=16384) for dtype in ("bf16", "fp32"))

KERNELS = (
    Kernel(
        name="copy", family="stream",
        cases=_CASES,
        full_size=_FULL,
        make=_make("x"),
        plan=plan_copy,
        reference=lambda x: (x.float(),),
        tolerance=lambda case: (0.0, 0.0),
        operators=_operators("x", 0),
        workload=lambda case: Workload.prefill(batch=1, prompt=case["rows"]),
    ),
    Kernel(
        name="triad", family="stream",
        cases=_CASES,
        full_size=_FULL,
        make=_make("ab"),
        plan=plan_triad,
        reference=lambda a, b, scale: (a.float() + scale * b.float(),),
        tolerance=lambda case: (EPSILON[case.dtype], EPSILON[case.dtype]),
        operators=_operators("ab", 2),
        workload=lambda case: Workload.prefill(batch=1, prompt=case["rows"]),
    ),
)  # fmt: skip
