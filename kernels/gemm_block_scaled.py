"""y[m, n] = x[m, k] @ w[n, k].T, of which the matrix units multiply each group of k by a scale of x and one of w.

nvfp4         e2m1 with an e4m3 scale for each 16 of k, and one fp32 scale for all (NVIDIA Blackwell, 2024)
mxfp8         e4m3 with an exponent for each 32 of k (OCP Microscaling Formats v1.0, section 5.2)
mxfp4_mxfp8   w in e2m1, x in mxfp8

Scales lie as the matrix units of Blackwell read them (PTX ISA, tcgen05.mma, scale factor layouts): in blocks of 128
rows and 4 groups, 32 rows of 4 x 4 bytes of which the first is for rows 0, 32, 64 and 96, so that they go from memory
to the units past registers (Triton's tutorial 10). Older GPUs do not multiply by scales. Where there are fewer tiles
than multiprocessors k is split between programs, as in `gemm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..errors import InputError
from ..operators.base import Operator
from ..precision import NAMED
from ..records import frozen
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned
from .gemm import (
    GROUP_M,
    GemmTiling,
    alternatives,
    choose_split_k,
    linear,
    num_tiles,
    split_k_arguments,
    store_or_reduce,
    tile_of,
    tolerance,
    workload,
)
from .gemm_weight_only import e2m1_numbers

_ROWS, _GROUPS = 128, 4  # of a block of scales


@frozen
class _Operands:
    """Formats of x and w, as `tl.dot_scaled` names them and as the engine does; elements of k that share a scale."""

    x: str
    w: str
    x_format: str
    w_format: str
    group: int


_OPERANDS = {
    "gemm_nvfp4": _Operands("e2m1", "e2m1", "nvfp4", "nvfp4", 16),
    "gemm_mxfp8": _Operands("e4m3", "e4m3", "mxfp8", "mxfp8", 32),
    "gemm_mxfp4_mxfp8": _Operands("e4m3", "e2m1", "mxfp8", "mxfp4", 32),
}


@triton.jit
def _scales_of(desc, rows, groups, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Scales [ROWS, GROUPS] from block `rows` of rows and block `groups` of groups on."""
    blocks = desc.load([0, rows, groups, 0, 0]).reshape(ROWS // 128, GROUPS // 4, 32, 4, 4)
    return blocks.trans(0, 3, 2, 1, 4).reshape(ROWS, GROUPS)


@triton.jit
def _scaled_products(
    x_desc, w_desc, x_scale_desc, w_scale_desc, scale_ptr, y_ptr, parts_ptr, count_ptr, m, n, k, depth,
    X: tl.constexpr, W: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SPECIALIZED: tl.constexpr,
):  # fmt: skip
    """A tile of y; with split-K, its part over `depth` elements of k. SCALED: elements of k that share a scale.

    SPECIALIZED: warps of their own load, and others start the products.
    """
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    X_BLOCK: tl.constexpr = x_desc.block_shape[1]
    W_BLOCK: tl.constexpr = w_desc.block_shape[1]
    GROUPS: tl.constexpr = BLOCK_K // SCALED
    first = tl.program_id(1) * depth // BLOCK_K
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    end = min(first + depth // BLOCK_K, tl.cdiv(k, BLOCK_K))
    for block in tl.range(first, end, warp_specialize=SPECIALIZED):
        x = x_desc.load([row * BLOCK_M, block * X_BLOCK])
        w = w_desc.load([column * BLOCK_N, block * W_BLOCK])
        x_scale = _scales_of(x_scale_desc, row * (BLOCK_M // 128), block * (GROUPS // 4), BLOCK_M, GROUPS)
        w_scale = _scales_of(w_scale_desc, column * (BLOCK_N // 128), block * (GROUPS // 4), BLOCK_N, GROUPS)
        accumulator = tl.dot_scaled(x, x_scale, X, w.T, w_scale, W, accumulator)
    if scale_ptr is not None:
        accumulator *= tl.load(scale_ptr)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    offsets = rows.to(tl.int64)[:, None] * n + columns[None, :]
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    store_or_reduce(accumulator, y_ptr, parts_ptr, count_ptr, tl.program_id(0), offsets, mask, m * n)


def tiling(target: Target, m: int, n: int, k: int, operands: _Operands) -> GemmTiling:
    """The default tiling: the widest tiles with at least one for each multiprocessor, with specialized warps; split-K
    where there are fewer. A block of k is 128 bytes of x.
    """
    depth = 256 if operands.x == "e2m1" else 128
    wide = GemmTiling(block_m=128, block_n=256, block_k=depth, num_warps=8, num_stages=4, specialized=True)
    fills_all = m > _ROWS and num_tiles(wide, m, n) >= target.multiprocessors
    return _fitted(target, wide if fills_all else replace(wide, block_n=128, num_stages=6), m, n, k)


def _fitted(target: Target, tile: GemmTiling, m: int, n: int, k: int) -> GemmTiling:
    """Sets the number of stages that fit in shared memory and the split-K factor of `tile`, with which warps are alike.

    A row of a stage is 128 bytes of codes, of which those of 4 bits beside others of 8 take 8, and 16 scales at most.
    """
    stages = target.stages(tile.num_stages, (tile.block_m + tile.block_n) * (128 + 16))
    parts = choose_split_k(target, tile, m, n, k)
    return replace(tile, num_stages=stages, parts=parts, specialized=tile.specialized and parts == 1)


def tilings(name: str) -> Callable[[Target, Case], tuple[GemmTiling, ...]]:
    """Alternative tilings of a kernel: the other width of tiles, other warps, fewer stages, other split-K factors."""

    def of_case(target: Target, case: Case) -> tuple[GemmTiling, ...]:
        m, n, k = case["M"], case["N"], case["K"]
        rule = tiling(target, m, n, k, _OPERANDS[name])
        candidates = [
            replace(rule, block_n=384 - rule.block_n, specialized=True),
            replace(rule, specialized=not rule.specialized),
            replace(rule, num_stages=rule.num_stages - 1),
        ]
        fitted = [_fitted(target, tile, m, n, k) for tile in candidates]
        # Adding the parts of wide tiles spills registers.
        return alternatives(rule, [tile for tile in fitted if tile.parts == 1 or tile.block_n == _ROWS])

    return of_case


def plan(
    target: Target,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    scale: torch.Tensor | None,
    name: str,
    dtype: torch.dtype,
    tile: GemmTiling | None = None,
) -> LaunchPlan:
    """x[m, k] and w[n, k] in e4m3, or [.., k / 2] in bytes of two e2m1, the first the lower; x_scale and w_scale as
    `in_blocks` makes them; `scale` for all of y[m, n], which has the type `dtype`.

    Raises InputError where k is no multiple of 128, as blocks of scales are at most.
    """
    operands, m, n = _OPERANDS[name], x.shape[0], w.shape[0]
    codes = {"e2m1": 2, "e4m3": 1}  # in a byte
    k = x.shape[1] * codes[operands.x]
    if k % 128:
        raise InputError(f"k must be a multiple of 128; got {k}")
    tile = tile or tiling(target, m, n, k, operands)
    y = poisoned(m, n, dtype=dtype, device=x.device)
    depth, groups = tile.depth(k), tile.block_k // operands.group
    tiles, parts = num_tiles(tile, m, n), cdiv(k, depth)
    blocks = groups // _GROUPS
    launch = Launch(
        function=_scaled_products,
        grid=(tiles, parts),
        arguments=split_k_arguments(y, tiles, parts) | {
            "x_desc": TensorDescriptor.from_tensor(x, [tile.block_m, tile.block_k // codes[operands.x]]),
            "w_desc": TensorDescriptor.from_tensor(w, [tile.block_n, tile.block_k // codes[operands.w]]),
            "x_scale_desc": TensorDescriptor.from_tensor(x_scale, [1, tile.block_m // _ROWS, blocks, 2, 256]),
            "w_scale_desc": TensorDescriptor.from_tensor(w_scale, [1, tile.block_n // _ROWS, blocks, 2, 256]),
            "scale_ptr": scale, "m": m, "n": n, "k": k, "depth": depth, "X": operands.x, "W": operands.w,
            "SCALED": operands.group, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k,
            "GROUP": GROUP_M, "SPECIALIZED": tile.specialized,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,))


def in_blocks(scales: torch.Tensor) -> torch.Tensor:
    """Scales[rows, groups] in the order of the matrix units, [1, rows / 128, groups / 4, 2, 256], rows filled up."""
    rows, groups = scales.shape
    padded = torch.zeros(cdiv(rows, _ROWS) * _ROWS, groups, dtype=scales.dtype, device=scales.device)
    padded[:rows] = scales
    blocks = padded.view(-1, 4, 32, groups // _GROUPS, _GROUPS).permute(0, 3, 2, 1, 4)
    return blocks.reshape(1, -1, groups // _GROUPS, 2, 256)


def _numbers(codes: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """The numbers [rows, k] in fp32 of codes and of scales in blocks."""
    if codes.dtype == torch.uint8:
        nibbles = torch.stack((codes & 15, codes >> 4), 2).flatten(1).long()
        numbers = e2m1_numbers(nibbles)
    else:
        numbers = codes.float()
    in_rows = (
        scales.view(*scales.shape[1:3], 32, 4, _GROUPS).permute(0, 3, 2, 1, 4).reshape(-1, numbers.shape[1] // group)
    )
    factors = in_rows.float() if scales.dtype == torch.float8_e4m3fn else torch.exp2(in_rows.float() - 127)
    return numbers * factors[: len(numbers)].repeat_interleave(group, 1)


def reference(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    scale: torch.Tensor | None,
    name: str,
    dtype: torch.dtype,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    """The product x w^T [M, N] in fp32, of dequantized groups of both."""
    group = _OPERANDS[name].group
    y = _numbers(x, x_scale, group) @ _numbers(w, w_scale, group).T
    return (y if scale is None else y * scale,)


def _make(name: str) -> Callable[[Case, str, int], Inputs]:
    operands = _OPERANDS[name]

    def make(case: Case, device: str, seed: int) -> Inputs:
        k, random = case["K"], Random(device, seed)

        def codes(rows: int, kind: str) -> torch.Tensor:
            if kind == "e2m1":
                return random.integers(rows, k // 2, low=0, high=256, dtype=torch.uint8)
            return random.normal(rows, k, dtype=torch.float8_e4m3fn)

        def scales(rows: int, kind: str) -> torch.Tensor:
            shape = (rows, k // operands.group)
            if operands.group == 16:
                return in_blocks(random.uniform(*shape, low=0.5, high=2).to(torch.float8_e4m3fn))
            # Products of e2m1 are some 3 times, sums of k products k ** 0.5 times as large as numbers of e4m3.
            exponent = 127 - k.bit_length() // 4 - (kind == "e2m1")
            return in_blocks(random.integers(*shape, low=exponent - 1, high=exponent + 2, dtype=torch.uint8))

        scale = None
        if operands.group == 16:
            scale = random.uniform(1, low=1, high=1.1) / (9 * k**0.5)
        return {
            "x": codes(case["M"], operands.x), "w": codes(case["N"], operands.w),
            "x_scale": scales(case["M"], operands.x), "w_scale": scales(case["N"], operands.w),
            "scale": scale, "name": name, "dtype": case.torch_dtype,
        }  # fmt: skip

    return make


def _operators(name: str) -> Callable[[Case], tuple[Operator, ...]]:
    operands = _OPERANDS[name]

    def operators(case: Case) -> tuple[Operator, ...]:
        return linear(case, NAMED[operands.x_format], NAMED[operands.w_format], case.dtype)

    return operators


KERNELS = tuple(
    Kernel(
        name=name, family="gemm_block_scaled",
        cases=(
            case("fp16", M=130, N=200, K=384),
            case("fp16", M=3, N=136, K=2048),
        ),
        full_size=(
            case("bf16", M=8192, N=8192, K=8192),
            case("bf16", M=16, N=14336, K=4096),
            case("bf16", M=128, N=4096, K=4096),
        ),
        make=_make(name), plan=plan, reference=reference, tolerance=tolerance, operators=_operators(name),
        workload=workload, min_sm=lambda case: 100, tilings=tilings(name),
    )
    for name in _OPERANDS
)  # fmt: skip
