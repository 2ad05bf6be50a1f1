"""y = x / sqrt(mean(x^2) + epsilon) * weight; with a residual, x = x + residual first, which is written, too.

RMSNorm (arXiv:1910.07467, equation 4). A program takes a whole row, or a few where they are short, keeps it in
registers and reads it once. The mean, the root and both products are in fp32.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Add, Norm
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, Plan, Random, Target, case, cdiv, poisoned, pow2

_ELEMENTS = 4096  # of a program, where rows are shorter
_OPS = 4  # square, sum, scale, weight
_EPSILON = 1e-6


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, sum_ptr, y_ptr, m, n, epsilon,
    ADDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    there = (rows[:, None] < m) & (columns[None, :] < n)
    at = rows.to(tl.int64)[:, None] * n + columns[None, :]
    x = tl.load(x_ptr + at, there, 0.0).to(tl.float32)
    if ADDS:
        x += tl.load(residual_ptr + at, there, 0.0).to(tl.float32)
        tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), there)
    scale = 1 / tl.sqrt(tl.sum(x * x, 1) / n + epsilon)
    weight = tl.load(weight_ptr + columns, columns < n, 0.0).to(tl.float32)
    y = x * scale[:, None] * weight[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), there)


def plan(target: Target, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None) -> Plan:  # noqa: ARG001
    """x[m, n], weight[n] to y[m, n]; with residual[m, n] to y and the sum."""
    m, n = x.shape
    y = poisoned(m, n, dtype=x.dtype, device=x.device)
    sums = None if residual is None else poisoned(m, n, dtype=x.dtype, device=x.device)
    block_n = pow2(n)
    block_m = max(min(_ELEMENTS // block_n, pow2(m)), 1)
    launch = Launch(
        function=_rms_norm,
        grid=(cdiv(m, block_m),),
        arguments={
            "x_ptr": x, "residual_ptr": residual, "weight_ptr": weight, "sum_ptr": sums, "y_ptr": y, "m": m, "n": n,
            "epsilon": _EPSILON, "ADDS": residual is not None, "BLOCK_M": block_m, "BLOCK_N": block_n,
        },
        num_warps=max(min(block_m * block_n // 512, 16), 4),  # 16 elements a thread: two loads of 16 bytes
    )  # fmt: skip
    return Plan(launches=(launch,), outputs=(y,) if sums is None else (y, sums))


def reference(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    sums = x.float() if residual is None else x.float() + residual.float()
    y = sums * (sums.square().mean(1, keepdim=True) + _EPSILON).rsqrt() * weight.float()
    return (y,) if residual is None else (y, sums)


def _make(case: Case, device: str, seed: int) -> Inputs:
    m, n, random, dtype = case["M"], case["N"], Random(device, seed), case.torch_dtype
    found: Inputs = {"x": random.normal(m, n, dtype=dtype), "weight": random.normal(n, dtype=dtype)}
    return found | ({"residual": random.normal(m, n, dtype=dtype)} if case.get("residual") else {})


def _operators(case: Case) -> tuple[Operator, ...]:
    x, y = (Tensor(name=name, width=case["N"], format=case.format) for name in "xy")
    weight = Weight(name="weight", shape=(case["N"],), format=case.format)
    norm = Norm(name="norm", inputs=(x,), outputs=(y,), weights=(weight,), ops_per_element=_OPS)
    return with_residual(norm) if case.get("residual") else (norm,)


def with_residual(norm: Norm) -> tuple[Operator, ...]:
    """Before it the Add, whose sum is written, and stays on the chip for the Norm."""
    (x,) = norm.inputs
    operands = (x, replace(x, name="residual"))
    add = Add(name="add", inputs=operands, outputs=(replace(x, name="sum"),), ops_per_element=1)
    return (add, replace(norm, inputs=()))


KERNELS = (
    Kernel(
        name="rms_norm",
        family="norm",
        cases=(
            case("fp16", M=5, N=128),
            case("fp16", M=3, N=300, residual=1),
            case("fp32", M=2, N=5000, residual=1),
            case("fp16", M=1, N=4096),
        ),
        full_size=(
            case("bf16", M=8192, N=8192, residual=1),
            case("bf16", M=16, N=4096, residual=1),
            case("bf16", M=65536, N=128),
        ),
        make=_make,
        plan=plan,
        reference=reference,
        # Results go up to some 15, the sum of fp32 squares is off by a few of its last bits.
        tolerance=lambda case: (4 * EPSILON[case.dtype], EPSILON[case.dtype]),
        operators=_operators,
        workload=lambda case: Workload.prefill(batch=1, prompt=case["M"]),
    ),
)
