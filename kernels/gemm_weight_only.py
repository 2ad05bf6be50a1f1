"""y[m, n] = x[m, k] @ dequantized(w)[n, k].T: weights of 4 and 8 bits, activations and sums of 16 and 32.

int4   (code - zero) * scale, with an fp16 scale and a 4-bit zero point for each `group` of k (GPTQ, arXiv:2210.17323)
int8   code * scale, a scale for each group
mxfp4  e2m1 * 2 ** (e - 127), an exponent e for each 32 of k (OCP Microscaling Formats v1.0, sections 5.2 and 5.3.3)

y is computed transposed: the weights are then the left operand of the matrix unit, which Hopper's takes from the
registers that they are converted in, and few tokens fill its narrow side. Codes of 4 bits lie so that the low and the
high halves of the bytes of a block are the first and the second half of its k: a product of each needs no exchange
between threads. They become floats by their bits, without a conversion instruction: 0x6400 + code is 1024 + code in
fp16 (arXiv:2211.10017). Scales of integers multiply the sums of a group, not each weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import triton
import triton.language as tl

from ..errors import InputError
from ..operators.base import Operator
from ..precision import NAMED, Format
from .base import Case, Inputs, Kernel, Launch, Plan, Random, Target, case, cdiv, poisoned, pow2
from .gemm import GROUP_M, Tiling, add_parts, linear, splits, tile_of, tiles_of, tolerance, workload

BLOCK_K = 128
MX_GROUP = 32
_KINDS = {"gemm_w4a16": "int4", "gemm_w8a16": "int8", "gemm_mxfp4": "mxfp4"}


@triton.jit
def floats(codes, DTYPE: tl.constexpr):
    """OFFSET + codes of 4 bits, with OFFSET the float whose last bits they become: 1024 in fp16, 128 in bf16."""
    magic: tl.constexpr = 0x6400 if tl.float16 == DTYPE else 0x4300
    return (codes.to(tl.uint16) | magic).to(DTYPE, bitcast=True)


@triton.jit
def _e2m1(codes, exponents, DTYPE: tl.constexpr):
    """codes[n, k] of 4 bits times 2 ** (exponents[n, k // 32] - 127).

    Two bits of exponent and one of mantissa become those of a number y from 1/8 to 3/2, a quarter of what they stand
    for, which the scale makes up for; where the exponent is 0, that quarter is 2 y - 1/4. No number on the way is
    subnormal, so that units need not keep those.
    """
    groups: tl.constexpr = codes.shape[1] // exponents.shape[1]
    shift: tl.constexpr = 9 if tl.float16 == DTYPE else 6
    eighth: tl.constexpr = 0x3000 if tl.float16 == DTYPE else 0x3E00
    bits = codes.to(tl.uint16)
    y = ((bits & 7) << shift) | eighth
    less = (2 * y.to(DTYPE, bitcast=True) - 0.25).to(tl.uint16, bitcast=True)
    values = (tl.where((bits & 7) < 2, less, y) | ((bits & 8) << 12)).to(DTYPE, bitcast=True)
    scales = ((exponents.to(tl.uint32) + 2) << 23).to(tl.float32, bitcast=True).to(DTYPE)
    values = values.reshape(codes.shape[0], exponents.shape[1], groups) * scales[:, :, None]
    return values.reshape(codes.shape[0], codes.shape[1])


@triton.jit
def _weight_only(
    x_ptr, w_ptr, scale_ptr, zero_ptr, y_ptr, m, n, k, depth, group,
    KIND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile of y, or of the part of it that comes of `depth` elements of k, whole blocks."""
    HALF: tl.constexpr = BLOCK_K // 2
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    part = tl.program_id(1)
    start = part * depth
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (columns % n).to(tl.int64)
    width: tl.constexpr = BLOCK_K if KIND == "int8" else HALF  # what a block of k takes of a row of w, in bytes
    ks = tl.arange(0, width)
    x_at = x_ptr + (rows % m).to(tl.int64)[None, :] * k + start + ks[:, None]
    w_at = w_ptr + inside[:, None] * (k // BLOCK_K * width) + start // BLOCK_K * width + ks[None, :]
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for done in range(0, min(depth, k - start), BLOCK_K):
        w = tl.load(w_at, eviction_policy="evict_first")
        if KIND == "mxfp4":
            groups: tl.constexpr = HALF // 32
            e_at = scale_ptr + inside[:, None] * (k // 32) + (start + done) // 32 + tl.arange(0, groups)[None, :]
            low = _e2m1(w & 15, tl.load(e_at), DTYPE)
            sums = tl.dot(low, tl.load(x_at), sums)
            high = _e2m1(w >> 4, tl.load(e_at + groups), DTYPE)
            sums = tl.dot(high, tl.load(x_at + HALF), sums)
        else:
            g = (start + done) // group
            scale = tl.load(scale_ptr + g * n + inside).to(tl.float32)
            if KIND == "int4":
                zeros = tl.load(zero_ptr + g * (n // 2) + inside // 2) >> (inside % 2 * 4).to(tl.uint8)
                zero = floats(zeros & 15, DTYPE)[:, None]
                dot = tl.dot(floats(w & 15, DTYPE) - zero, tl.load(x_at))
                dot = tl.dot(floats(w >> 4, DTYPE) - zero, tl.load(x_at + HALF), dot)
            else:
                dot = tl.dot(w.to(DTYPE), tl.load(x_at))
            sums += dot * scale[:, None]
        x_at += BLOCK_K
        w_at += width
    y_at = y_ptr + (part * m + rows).to(tl.int64)[None, :] * n + columns[:, None]
    tl.store(y_at, sums.to(y_ptr.dtype.element_ty), (rows[None, :] < m) & (columns[:, None] < n))


def tiling(target: Target, m: int, n: int, k: int) -> Tiling:
    """Narrow in tokens: up to 128, as the sums of a group stand beside those of all."""
    if m <= 64:
        tile = Tiling(block_m=max(pow2(m), 16), block_n=128, block_k=BLOCK_K, num_warps=4, num_stages=5)
    else:
        tile = Tiling(block_m=128, block_n=128, block_k=BLOCK_K, num_warps=8, num_stages=3)
    return replace(tile, parts=splits(target, tile, m, n, k))


def plan(
    target: Target, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, kind: str
) -> Plan:
    """x[m, k]; w[n, k] of int8, or [n, k / 2] bytes; scale[k / group, n] and zero[k / group, n / 2], or e8m0
    scale[n, k / 32].

    Raises InputError where k is no multiple of 128, or a group of int4 or int8 is none.
    """
    (m, k), n = x.shape, w.shape[0]
    group = MX_GROUP if kind == "mxfp4" else k // scale.shape[0]
    if k % BLOCK_K or (kind != "mxfp4" and group % BLOCK_K):
        raise InputError(f"k and groups of int4 and int8 must be multiples of {BLOCK_K}; got k={k}, group={group}")
    tile = tiling(target, m, n, k)
    y = poisoned(m, n, dtype=x.dtype, device=x.device)
    depth = tile.depth(k)
    parts = cdiv(k, depth)
    out = y if parts == 1 else poisoned(parts, m, n, dtype=torch.float32, device=x.device)
    launch = Launch(
        function=_weight_only,
        grid=(tiles_of(tile, m, n), parts),
        arguments={
            "x_ptr": x, "w_ptr": w, "scale_ptr": scale, "zero_ptr": zero, "y_ptr": out, "m": m, "n": n, "k": k,
            "depth": depth, "group": group, "KIND": kind, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n,
            "BLOCK_K": BLOCK_K, "GROUP": GROUP_M,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return Plan(launches=(launch,) if parts == 1 else (launch, add_parts(out, y)), outputs=(y,))


def nibbles(w: torch.Tensor, block: int = BLOCK_K) -> torch.Tensor:
    """Codes[n, k] of bytes[n, k / 2]: of each block the low halves of its bytes, then the high ones."""
    blocks = w.view(w.shape[0], -1, block // 2)
    return torch.cat((blocks & 15, blocks >> 4), dim=2).view(w.shape[0], -1)


def reference(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, kind: str
) -> tuple[torch.Tensor, ...]:
    if kind == "mxfp4":
        magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=w.device)  # OCP MX v1.0, table 4
        codes = nibbles(w).int()
        values = magnitudes[codes & 7] * (1 - 2 * (codes >> 3))
        return (x.float() @ (values * torch.exp2(scale.float() - 127).repeat_interleave(MX_GROUP, 1)).T,)
    group = x.shape[1] // scale.shape[0]
    codes = w.float() if zero is None else nibbles(w).float()
    if zero is not None:
        zeros = torch.stack((zero & 15, zero >> 4), dim=2).view(zero.shape[0], -1)
        codes = codes - zeros.float().T.repeat_interleave(group, 1)
    return (x.float() @ (codes * scale.float().T.repeat_interleave(group, 1)).T,)


def _make(kind: str) -> Callable[[Case, str, int], Inputs]:
    def make(case: Case, device: str, seed: int) -> Inputs:
        m, n, k, random = case["M"], case["N"], case["K"], Random(device, seed)
        groups = k // case.get("group", k)
        found: Inputs = {"x": random.normal(m, k, dtype=case.torch_dtype), "zero": None, "kind": kind}
        if kind == "mxfp4":
            found["w"] = random.integers(n, k // 2, low=0, high=256, dtype=torch.uint8)
            found["scale"] = random.integers(n, k // MX_GROUP, low=119, high=124, dtype=torch.uint8)
        elif kind == "int4":
            found["w"] = random.integers(n, k // 2, low=0, high=256, dtype=torch.uint8)
            found["scale"] = (random.uniform(groups, n, low=0.1, high=0.3) / k**0.5).to(torch.float16)
            found["zero"] = random.integers(groups, n // 2, low=0, high=256, dtype=torch.uint8)
        else:
            found["w"] = random.integers(n, k, low=-127, high=128, dtype=torch.int8)
            found["scale"] = (random.uniform(groups, n, low=0.01, high=0.03) / k**0.5).to(torch.float16)
        return found

    return make


def stored(case: Case, kind: str) -> Format:
    """How the weights are stored: groups, scales and zero points as `make` has them."""
    if kind == "mxfp4":
        return NAMED[kind]
    zero_bits = 4 if kind == "int4" else 0
    return replace(NAMED[kind], group=case.get("group", case["K"]), scale_bits=16, zero_bits=zero_bits)


def _operators(kind: str) -> Callable[[Case], tuple[Operator, ...]]:
    def operators(case: Case) -> tuple[Operator, ...]:
        return linear(case, case.format, stored(case, kind), case.dtype)

    return operators


def _cases(name: str, dtype: str, *sizes: tuple[int, int, int]) -> tuple[Case, ...]:
    group = {"gemm_w4a16": {"group": 128}}.get(name, {})
    return tuple(case(dtype, M=m, N=n, K=k, **group) for m, n, k in sizes)


KERNELS = tuple(
    Kernel(
        name=name,
        family="gemm",
        cases=_cases(name, "fp16", (1, 64, 256), (17, 70, 384), (65, 130, 128), (3, 34, 1024)),
        full_size=_cases(name, "bf16", (1, 4096, 14336), (16, 14336, 4096), (4096, 4096, 4096))
        + _cases(name, "fp16", (16, 14336, 4096)),
        make=_make(kind),
        plan=plan,
        reference=reference,
        tolerance=tolerance,
        operators=_operators(kind),
        workload=workload,
    )
    for name, kind in _KINDS.items()
)
