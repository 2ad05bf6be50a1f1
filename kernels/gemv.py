"""y[1, n] = x[1, k] @ w[n, k].T: the product of one token, which takes as long as reading w.

No matrix units: a program multiplies rows of w with x element by element and adds up along k once, at the end. Long
rows are split between programs where there are few of them, and added in a fixed order as in `gemm`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .base import Case, Inputs, Kernel, Launch, Plan, Random, Target, case, cdiv, poisoned
from .gemm import add_parts, linear, reference, tolerance, workload

_BLOCK_N, _BLOCK_K = 8, 512  # 8 KB of w a program and step; several programs a multiprocessor hide the latency
_RESIDENT = 8  # programs of 4 warps that a multiprocessor has room for at some 60 registers a thread


@triton.jit
def _gemv(x_ptr, w_ptr, y_ptr, n, k, depth, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.program_id(1) * depth
    ks = tl.arange(0, BLOCK_K)
    w_at = w_ptr + (rows % n).to(tl.int64)[:, None] * k + start + ks[None, :]
    sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for done in tl.range(0, min(depth, k - start), BLOCK_K):
        if EVEN:
            x = tl.load(x_ptr + start + done + ks)
            w = tl.load(w_at + done, eviction_policy="evict_first")  # read once, unlike x
        else:
            left = ks < k - start - done
            x = tl.load(x_ptr + start + done + ks, left, 0.0)
            w = tl.load(w_at + done, left[None, :], 0.0, eviction_policy="evict_first")
        sums += w.to(tl.float32) * x.to(tl.float32)[None, :]
    y = tl.sum(sums, 1).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + tl.program_id(1) * n + rows, y, rows < n)


def plan(target: Target, x: torch.Tensor, w: torch.Tensor) -> Plan:
    n, k = w.shape
    rows = cdiv(n, _BLOCK_N)
    parts = max(min(_RESIDENT * target.multiprocessors // rows, k // (2 * _BLOCK_K)), 1)
    depth = cdiv(cdiv(k, parts), _BLOCK_K) * _BLOCK_K
    parts = cdiv(k, depth)
    y = poisoned(1, n, dtype=x.dtype, device=x.device)
    out = y if parts == 1 else poisoned(parts, 1, n, dtype=torch.float32, device=x.device)
    launch = Launch(
        function=_gemv,
        grid=(rows, parts),
        arguments={
            "x_ptr": x, "w_ptr": w, "y_ptr": out, "n": n, "k": k, "depth": depth,
            "BLOCK_N": _BLOCK_N, "BLOCK_K": _BLOCK_K, "EVEN": k % _BLOCK_K == 0,
        },
    )  # fmt: skip
    return Plan(launches=(launch,) if parts == 1 else (launch, add_parts(out, y)), outputs=(y,))


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, k = Random(device, seed), case.torch_dtype, case["K"]
    return {
        "x": random.normal(1, k, dtype=dtype),
        "w": random.normal(case["N"], k, dtype=dtype, scale=k**-0.5),
    }


KERNELS = (
    Kernel(
        name="gemv",
        family="gemm",
        cases=(
            case("fp16", M=1, N=24, K=512),
            case("fp16", M=1, N=61, K=333),
            case("fp16", M=1, N=13, K=3000),
        ),
        full_size=(case("bf16", M=1, N=14336, K=4096), case("bf16", M=1, N=4096, K=14336)),
        make=_make,
        plan=plan,
        reference=reference,
        tolerance=tolerance,
        operators=lambda case: linear(case, case.format, case.format, case.dtype),
        workload=workload,
    ),
)
