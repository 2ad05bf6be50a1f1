"""y[1, n] = x[1, k] @ w[n, k].T: the product of one token, which takes as long as reading w.

No matrix units: a program multiplies rows of w with x element by element and adds up along k once, at the end. Long
rows are split between programs where there are few of them, and added in a fixed order as in `gemm`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from llmviewer.records import frozen

from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned
from .gemm import linear, reference, split_k_arguments, store_or_reduce, tolerance, workload

_RESIDENT_PROGRAMS = 7  # programs of 4 warps that a multiprocessor has room for at 72 registers a thread
_WAVES = 4  # of resident programs: the last, which may be few, is then a small part of all


@frozen(kw_only=True)
class GemvTiling:
    """Tiling of a GEMV: a program takes `block_n` rows of w, `block_k` elements of each per iteration.

    Where block_k is 8 elements for each thread, x lies among threads as w does and needs no exchange.
    """

    block_n: int
    block_k: int
    num_warps: int = 4


_DEFAULT_TILING = GemvTiling(block_n=4, block_k=1024)
_ALTERNATIVE_TILINGS = (
    replace(_DEFAULT_TILING, block_n=2),
    replace(_DEFAULT_TILING, block_n=8),
    replace(_DEFAULT_TILING, block_n=8, block_k=512),
    replace(_DEFAULT_TILING, block_k=2048, num_warps=8),
)


@triton.jit
def _gemv(
    x_ptr, w_ptr, y_ptr, parts_ptr, count_ptr, n, k, depth,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.program_id(1) * depth
    ks = tl.arange(0, BLOCK_K)
    w_at = w_ptr + (rows % n).to(tl.int64)[:, None] * k + start + ks[None, :]
    accumulator = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for block_start in tl.range(0, min(depth, k - start), BLOCK_K):
        if EVEN:
            x = tl.load(x_ptr + start + block_start + ks)
            w = tl.load(w_at + block_start, eviction_policy="evict_first")  # read once, unlike x
        else:
            mask = ks < k - start - block_start
            x = tl.load(x_ptr + start + block_start + ks, mask, 0.0)
            w = tl.load(w_at + block_start, mask[None, :], 0.0, eviction_policy="evict_first")
        accumulator += w.to(tl.float32) * x.to(tl.float32)[None, :]
    store_or_reduce(tl.sum(accumulator, 1), y_ptr, parts_ptr, count_ptr, tl.program_id(0), rows, rows < n, n)


def plan(target: Target, x: torch.Tensor, w: torch.Tensor, tile: GemvTiling | None = None) -> LaunchPlan:
    """x[1, k], w[n, k] to y[1, n]."""
    (n, k), tile = w.shape, tile or _DEFAULT_TILING
    rows = cdiv(n, tile.block_n)
    parts = max(min(_WAVES * _RESIDENT_PROGRAMS * target.multiprocessors // rows, k // (4 * tile.block_k)), 1)
    depth = cdiv(cdiv(k, parts), tile.block_k) * tile.block_k
    parts = cdiv(k, depth)
    y = poisoned(1, n, dtype=x.dtype, device=x.device)
    launch = Launch(
        function=_gemv,
        grid=(rows, parts),
        arguments=split_k_arguments(y, rows, parts) | {
            "x_ptr": x, "w_ptr": w, "n": n, "k": k, "depth": depth,
            "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "EVEN": k % tile.block_k == 0,
        },
        num_warps=tile.num_warps,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,))


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, k = Random(device, seed), case.torch_dtype, case["K"]
    return {
        "x": random.normal(1, k, dtype=dtype),
        "w": random.normal(case["N"], k, dtype=dtype, scale=k**-0.5),
    }


KERNELS = (
    Kernel(
        name="gemv", family="gemm",
        cases=(
            case("fp16", M=1, N=24, K=512),
            case("fp16", M=1, N=61, K=333),
            case("fp16", M=1, N=13, K=9000),
        ),
        full_size=(case("bf16", M=1, N=14336, K=4096), case("bf16", M=1, N=4096, K=14336)),
        make=_make, plan=plan, reference=reference, tolerance=tolerance,
        operators=lambda case: linear(case, case.format, case.format, case.dtype),
        workload=workload,
        tilings=lambda target, case: _ALTERNATIVE_TILINGS,
    ),
)  # fmt: skip
