"""y = (x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias; with a residual, x = x + residual first, and written.

Layer normalization (arXiv:1607.06450). A program takes a whole row, or a few where they are short, keeps it in
registers and reads it once: the variance is that of differences from the mean, not one of squares, which cancel where
the mean is large. All of it is in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Norm
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, Plan, Random, Target, case, cdiv, poisoned, pow2
from .rms_norm import with_residual

_ELEMENTS = 4096  # of a program, where rows are shorter
_OPS = 6  # mean, subtract, square, sum, scale, weight; the bias is one more
_EPSILON = 1e-5


@triton.jit
def _layer_norm(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, sum_ptr, y_ptr, m, n, epsilon,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    real = columns < n
    there = (rows[:, None] < m) & real[None, :]
    at = rows.to(tl.int64)[:, None] * n + columns[None, :]
    x = tl.load(x_ptr + at, there, 0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + at, there, 0.0).to(tl.float32)
        tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), there)
    x = tl.where(real[None, :], x - (tl.sum(x, 1) / n)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(x * x, 1) / n + epsilon)
    y = x * scale[:, None] * tl.load(weight_ptr + columns, real, 0.0).to(tl.float32)[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, real, 0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), there)


def plan(
    target: Target,  # noqa: ARG001
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Plan:
    """x[m, n], weight[n], bias[n] to y[m, n]; with residual[m, n] to y and the sum."""
    m, n = x.shape
    y = poisoned(m, n, dtype=x.dtype, device=x.device)
    sums = None if residual is None else poisoned(m, n, dtype=x.dtype, device=x.device)
    block_n = pow2(n)
    block_m = max(min(_ELEMENTS // block_n, pow2(m)), 1)
    launch = Launch(
        function=_layer_norm,
        grid=(cdiv(m, block_m),),
        arguments={
            "x_ptr": x, "residual_ptr": residual, "weight_ptr": weight, "bias_ptr": bias, "sum_ptr": sums, "y_ptr": y,
            "m": m, "n": n, "epsilon": _EPSILON, "BLOCK_M": block_m, "BLOCK_N": block_n,
        },
        num_warps=max(min(block_m * block_n // 512, 16), 4),  # 16 elements a thread: two loads of 16 bytes
    )  # fmt: skip
    return Plan(launches=(launch,), outputs=(y,) if sums is None else (y, sums))


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    sums = x.float() if residual is None else x.float() + residual.float()
    differences = sums - sums.mean(1, keepdim=True)
    y = differences * (differences.square().mean(1, keepdim=True) + _EPSILON).rsqrt() * weight.float()
    y = y if bias is None else y + bias.float()
    return (y,) if residual is None else (y, sums)


def _make(case: Case, device: str, seed: int) -> Inputs:
    m, n, random, dtype = case["M"], case["N"], Random(device, seed), case.torch_dtype
    found: Inputs = {
        "x": random.normal(m, n, dtype=dtype) + case.get("mean"),
        "weight": random.normal(n, dtype=dtype),
    }
    if case.get("bias"):
        found["bias"] = random.normal(n, dtype=dtype)
    if case.get("residual"):
        found["residual"] = random.normal(m, n, dtype=dtype)
    return found


def _operators(case: Case) -> tuple[Operator, ...]:
    x, y = (Tensor(name=name, width=case["N"], format=case.format) for name in "xy")
    names = ("weight", "bias") if case.get("bias") else ("weight",)
    weights = tuple(Weight(name=name, shape=(case["N"],), format=case.format) for name in names)
    norm = Norm(name="norm", inputs=(x,), outputs=(y,), weights=weights, ops_per_element=_OPS + len(weights) - 1)
    return with_residual(norm) if case.get("residual") else (norm,)


KERNELS = (
    Kernel(
        name="layer_norm",
        family="norm",
        cases=(
            case("fp16", M=5, N=128, bias=1),
            case("fp16", M=3, N=300, residual=1),
            case("bf16", M=9, N=77, bias=1, residual=1),
            case("fp32", M=2, N=5000, bias=1, residual=1),
            case("fp32", M=3, N=700, mean=1000),  # squares of which lose all that a variance of 1 is made of
        ),
        full_size=(
            case("bf16", M=8192, N=8192, bias=1, residual=1),
            case("bf16", M=16, N=4096, bias=1, residual=1),
            case("bf16", M=65536, N=128, bias=1),
        ),
        make=_make,
        plan=plan,
        reference=reference,
        # Results go up to some 15. A mean, the reference's and the kernel's, is off by its last bits in fp32, a GPU's
        # quotient by two of them (PTX ISA, div.full), as then are all differences from it, which meet weights of up to
        # some 4.
        tolerance=lambda case: (
            4 * EPSILON[case.dtype],
            EPSILON[case.dtype] + 4 * 4 * (1 + case.get("mean")) * EPSILON["fp32"],
        ),
        operators=_operators,
        workload=lambda case: Workload.prefill(batch=1, prompt=case["M"]),
    ),
)
