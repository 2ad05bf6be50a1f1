"""y[m, n] = x[m, k] @ w[n, k].T in fp8, with a scale of x for each 128 of k and of w for each 128 x 128.

DeepSeek-V3's scheme (arXiv:2412.19437, section 3.3.2): products of 128 elements of k are summed by the matrix unit, and
added to the rest in fp32 registers with their scales, which also makes up for the few bits of Hopper's fp8 sums.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..errors import InputError
from ..operators.base import Operator
from ..precision import NAMED
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .gemm import (
    GROUP_M,
    GemmTiling,
    alternatives,
    choose_split_k,
    linear,
    load_rows,
    num_tiles,
    split_k_arguments,
    store_or_reduce,
    tile_of,
    workload,
)

BLOCK = 128


@triton.jit
def _block_scaled(
    x_rows, w_rows, y_ptr, parts_ptr, count_ptr, x_scale_ptr, w_scale_ptr, m, n, k, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    first = tl.program_id(1) * depth // BLOCK
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    x_scale_at = x_scale_ptr + tl.minimum(rows, m - 1)
    w_scale_at = w_scale_ptr + column * BLOCK_N // BLOCK * (k // BLOCK)  # a tile is within one block of n
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    last = k // BLOCK - 1
    x_scale, w_scale = tl.load(x_scale_at + first * m), tl.load(w_scale_at + first)
    for block in range(first, min(first + depth // BLOCK, last + 1)):
        x = load_rows(x_rows, row * BLOCK_M, m, block * BLOCK, k, BLOCK_M, BLOCK, DESCRIBED)
        w = load_rows(w_rows, column * BLOCK_N, n, block * BLOCK, k, BLOCK_N, BLOCK, DESCRIBED)
        accumulator += tl.dot(x, w.T) * (x_scale * w_scale)[:, None]
        # Scales of the next block are prefetched, so that no load is waited for.
        after = min(block + 1, last)
        x_scale, w_scale = tl.load(x_scale_at + after * m), tl.load(w_scale_at + after)
    offsets = rows.to(tl.int64)[:, None] * n + columns[None, :]
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    store_or_reduce(accumulator, y_ptr, parts_ptr, count_ptr, tl.program_id(0), offsets, mask, m * n)


def tiling(target: Target, m: int, n: int, k: int) -> GemmTiling:
    """The default tiling. Registers hold a product besides the accumulator, so tiles are half as large as in `gemm`."""
    if m <= 64:
        tile = GemmTiling(block_m=max(pow2(m), 16), block_n=64, block_k=BLOCK, num_warps=4, num_stages=5)
    else:
        tile = GemmTiling(block_m=128, block_n=128, block_k=BLOCK, num_warps=8, num_stages=4)
    return _with_stages(target, tile, m, n, k)


def _with_stages(target: Target, tile: GemmTiling, m: int, n: int, k: int) -> GemmTiling:
    """Sets the number of stages that fit in shared memory and the split-K factor of `tile`."""
    stages = target.stages(tile.num_stages, (tile.block_m + tile.block_n) * BLOCK)
    return replace(tile, num_stages=stages, parts=choose_split_k(target, tile, m, n, k))


def tilings(target: Target, case: Case) -> tuple[GemmTiling, ...]:
    """Alternative tilings: narrower tiles, other numbers of stages and other split-K factors."""
    m, n, k = case["M"], case["N"], case["K"]
    rule = tiling(target, m, n, k)
    candidates = [replace(rule, num_stages=rule.num_stages - 1), replace(rule, num_stages=rule.num_stages + 1)]
    if m <= 64:
        candidates += [replace(rule, block_n=32), replace(rule, block_n=128)]
    else:
        candidates += [replace(rule, block_m=64, num_warps=4), replace(rule, block_n=64, num_warps=4)]
    return alternatives(rule, [_with_stages(target, tile, m, n, k) for tile in candidates])


def plan(
    target: Target,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    tile: GemmTiling | None = None,
) -> LaunchPlan:
    """x[m, k], w[n, k]; x_scale[k / 128, m] so that rows of a tile lie together, w_scale[n / 128, k / 128]; y is fp16.

    Raises InputError where k is no multiple of 128.
    """
    (m, k), n = x.shape, w.shape[0]
    if k % BLOCK:
        raise InputError(f"k must be a multiple of {BLOCK}; got {k}")
    tile = tile or tiling(target, m, n, k)
    y = poisoned(m, n, dtype=torch.float16, device=x.device)
    depth = tile.depth(k)
    tiles, parts = num_tiles(tile, m, n), cdiv(k, depth)
    described = target.generation >= 90
    launch = Launch(
        function=_block_scaled,
        grid=(tiles, parts),
        arguments=split_k_arguments(y, tiles, parts) | {
            "x_rows": TensorDescriptor.from_tensor(x, [tile.block_m, BLOCK]) if described else x,
            "w_rows": TensorDescriptor.from_tensor(w, [tile.block_n, BLOCK]) if described else w,
            "x_scale_ptr": x_scale, "w_scale_ptr": w_scale, "m": m, "n": n, "k": k, "depth": depth,
            "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK": BLOCK, "GROUP": GROUP_M, "DESCRIBED": described,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,))


def reference(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The product x w^T [M, N] in fp32, of dequantized groups of x and blocks of w."""
    x_scales = x_scale.T.repeat_interleave(BLOCK, 1)
    w_scales = w_scale.repeat_interleave(BLOCK, 0)[: w.shape[0]].repeat_interleave(BLOCK, 1)
    return ((x.float() * x_scales) @ (w.float() * w_scales).T,)


def _make(case: Case, device: str, seed: int) -> Inputs:
    m, n, k, random = case["M"], case["N"], case["K"], Random(device, seed)
    return {
        "x": random.normal(m, k, dtype=case.torch_dtype),
        "w": random.normal(n, k, dtype=case.torch_dtype),
        "x_scale": random.uniform(k // BLOCK, m, low=0.5, high=2),
        "w_scale": random.uniform(cdiv(n, BLOCK), k // BLOCK, low=0.5, high=2) / k**0.5,
    }


def _operators(case: Case) -> tuple[Operator, ...]:
    fp8 = NAMED[case.dtype]
    x, w = (replace(fp8, group=group, scale_bits=32) for group in (BLOCK, BLOCK * BLOCK))
    return linear(case, x, w)


KERNELS = (
    Kernel(
        name="gemm_fp8_block", family="gemm",
        cases=(
            case("fp8_e4m3", M=1, N=128, K=256),
            case("fp8_e4m3", M=65, N=200, K=384),
            case("fp8_e4m3", M=20, N=72, K=1280),
        ),
        full_size=(
            case("fp8_e4m3", M=4096, N=4096, K=7168),
            case("fp8_e4m3", M=16, N=4096, K=7168),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (2**-9, 2**-9),
        operators=_operators, workload=workload, tilings=tilings,
    ),
)  # fmt: skip
