"""y[m, n] = x[m, k] @ dequantized(w)[n, k].T: weights of 4 and 8 bits, activations and sums of 16 and 32.

int4   (code - zero) * scale, with an fp16 scale and a 4-bit zero point for each `group` of k (GPTQ, arXiv:2210.17323)
int8   code * scale, a scale for each group
mxfp4  e2m1 * 2 ** (e - 127), an exponent e for each 32 of k (OCP Microscaling Formats v1.0, sections 5.2 and 5.3.3)

y is computed transposed: the weights are then the left operand of the matrix unit, which takes it from the registers
that they are converted in, and few tokens fill its narrow side. Where tokens are few, instructions decide: a H200 has
time for 3 of a thread for each weight of 4 bits that it reads. So two weights are converted at a time, as the halves of
32 bits. Codes lie so that the same bits of all 16-bit words of a block of 128 are successive k (the lowest 4 bits are
the first quarter, and so on): a mask leaves two of them, in their place. Such blocks of all rows of w lie one after
the other, so that a tile is read in one piece: on an H200, 64 bytes here and there took a tenth longer.
An integer is a float without any instruction, near zero: where nothing but the mantissa and the last bit of the
exponent is set, floats are multiples of the least one. A fused multiply-add scales it and takes the zero point off,
exactly. Scales of integers multiply the sums of a group, not each weight.

Many tokens are bound by the matrix units, which wait while weights are converted. From `_DEQUANTIZED_FROM` tokens on, a
first launch writes the weights in 16 bits, rounded once, and the second is `gemm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import torch
import triton
import triton.language as tl

from llmviewer.records import frozen

from ..errors import InputError
from ..operators.base import Operator
from ..precision import NAMED, Format
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
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
    workload,
)
from .gemm import plan as gemm_plan
from .gemm import tiling as gemm_tiling
from .gemm import tolerance as gemm_tolerance

BLOCK_K = 128
_DEQUANTIZED_FROM = 512  # tokens; at 256 one launch is as fast (int4) or faster (int8, mxfp4) on an H100
MX_GROUP = 32
_KINDS = {"gemm_w4a16": "int4", "gemm_w8a16": "int8", "gemm_mxfp4": "mxfp4"}
_BITS = {"int4": 4, "int8": 8, "mxfp4": 4}
# Of a type: its least number, of which integers are multiples by their bits; what they are multiples of when converted;
# what makes up for the bias of its exponents, and the part of that which is left to the sums. So weights of mxfp4 are
# exact for scales from 2 ** -15 to 2 ** 9 in fp16, and from 2 ** -60 to 2 ** 65 in bf16.
FLOATS = {
    torch.float16: {"MIN_SUBNORMAL": 2.0**-24, "UNIT": 2.0**-9, "BIAS": 2.0**14, "BACK": 2.0**8},
    torch.bfloat16: {"MIN_SUBNORMAL": 2.0**-133, "UNIT": 2.0**-7, "BIAS": 2.0**126, "BACK": 2.0**64},
}


@triton.jit
def _halves(words, DTYPE: tl.constexpr):
    """The low and the high 16 bits of each word, read as floats: [n, 2 words]."""
    low = words.to(tl.uint16).to(DTYPE, bitcast=True)
    high = (words >> 16).to(tl.uint16).to(DTYPE, bitcast=True)
    return tl.join(low, high).reshape(words.shape[0], 2 * words.shape[1])


@triton.jit
def _concatenated(first, second):
    """Concatenates [n, k] and [n, k] to [n, 2 k]."""
    return tl.join(first, second).permute(0, 2, 1).reshape(first.shape[0], 2 * first.shape[1])


@triton.jit
def _integers(
    words, zero, PART: tl.constexpr, BITS: tl.constexpr, MIN_SUBNORMAL: tl.constexpr, UNIT: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """UNIT * (codes - zero)[n, 16 * BITS] of a half (int8) or quarter (int4) of a block, of codes whose bits are
    multiples of MIN_SUBNORMAL.
    """
    if BITS == 8:
        codes = _halves(words >> 8 * PART & 0x00FF00FF ^ 0x00800080, DTYPE) * (UNIT / MIN_SUBNORMAL) - zero
    else:
        shifted = words >> 8 if PART >= 2 else words
        if PART % 2 == 0:
            codes = _halves(shifted & 0x000F000F, DTYPE) * (UNIT / MIN_SUBNORMAL) - zero
        else:
            codes = _halves(shifted & 0x00F000F0, DTYPE) * (UNIT / MIN_SUBNORMAL / 16) - zero
    return codes


@triton.jit
def _integer_block(
    words, zero, BITS: tl.constexpr, MIN_SUBNORMAL: tl.constexpr, UNIT: tl.constexpr, DTYPE: tl.constexpr
):
    """UNIT * (codes - zero)[n, 128] of a block."""
    one, two = (
        _integers(words, zero, 0, BITS, MIN_SUBNORMAL, UNIT, DTYPE),
        _integers(words, zero, 1, BITS, MIN_SUBNORMAL, UNIT, DTYPE),
    )
    codes = _concatenated(one, two)
    if BITS == 4:
        three, four = (
            _integers(words, zero, 2, BITS, MIN_SUBNORMAL, UNIT, DTYPE),
            _integers(words, zero, 3, BITS, MIN_SUBNORMAL, UNIT, DTYPE),
        )
        codes = _concatenated(codes, _concatenated(three, four))
    return codes


@triton.jit
def _shift_left(words, LEFT: tl.constexpr):
    """Shifts words left by LEFT bits; right if LEFT is negative."""
    return words << LEFT if LEFT >= 0 else words >> -LEFT


@triton.jit
def _e2m1(words, exponents, QUARTER: tl.constexpr, FACTOR: tl.constexpr, DTYPE: tl.constexpr):
    """FACTOR / BIAS * weights[n, 32] of one quarter of a block, which has one exponent.

    Two bits of exponent and one of mantissa are put where those of DTYPE end: the same number but for its bias, zero
    and its one subnormal included. An exponent of 0 makes zeros.
    """
    top: tl.constexpr = 9 if tl.float16 == DTYPE else 6
    bits = _shift_left(words, 12 - 4 * QUARTER) & 0x80008000
    bits |= _shift_left(words, top - 4 * QUARTER) & ((7 << top) * 0x10001)
    scale = (_shift_left(exponents, 23 - 8 * QUARTER) & 0x7F800000).to(tl.float32, bitcast=True) * FACTOR
    # Nothing is added; but so it is compiled to one fused multiply-add of two numbers, not to two products.
    return _halves(bits, DTYPE) * scale.to(DTYPE)[:, None] + 0.0


@triton.jit
def _e2m1_block(words, exponents, FACTOR: tl.constexpr, DTYPE: tl.constexpr):
    """FACTOR / BIAS * weights[n, 128] of a block, whose quarters have an exponent each."""
    one, two = _e2m1(words, exponents, 0, FACTOR, DTYPE), _e2m1(words, exponents, 1, FACTOR, DTYPE)
    three, four = _e2m1(words, exponents, 2, FACTOR, DTYPE), _e2m1(words, exponents, 3, FACTOR, DTYPE)
    return _concatenated(_concatenated(one, two), _concatenated(three, four))


@triton.jit
def _weight_only(
    x_ptr, w_ptr, scale_ptr, zero_ptr, y_ptr, parts_ptr, count_ptr, m, n, k, depth,
    KIND: tl.constexpr, BLOCKS: tl.constexpr,
    MIN_SUBNORMAL: tl.constexpr, UNIT: tl.constexpr, BIAS: tl.constexpr, BACK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile of y; with split-K, its part over `depth` elements of k. A quantization group has BLOCKS blocks of k."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    BITS: tl.constexpr = 8 if KIND == "int8" else 4
    WORDS: tl.constexpr = BLOCK_K * BITS // 32
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    start = tl.program_id(1) * depth
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    column_index = columns % n
    x_at = x_ptr + (rows % m).to(tl.int64)[None, :] * k + start + tl.arange(0, BLOCK_K)[:, None]
    first = start // BLOCK_K
    w_at = w_ptr + (first.to(tl.int64) * n + column_index[:, None]) * WORDS + tl.arange(0, WORDS)[None, :]
    accumulator = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    if KIND == "mxfp4":
        FACTOR: tl.constexpr = BIAS / BACK
        for block in range(first, min(first + depth // BLOCK_K, k // BLOCK_K)):
            words = tl.load(w_at, eviction_policy="evict_first").to(tl.uint32, bitcast=True)
            e = tl.load(scale_ptr + block * n + column_index).to(tl.uint32, bitcast=True)
            accumulator += tl.dot(_e2m1_block(words, e, FACTOR, DTYPE), tl.load(x_at)) * BACK
            x_at += BLOCK_K
            w_at += n * WORDS
    else:
        last = k // BLOCK_K - 1
        scale = tl.load(scale_ptr + first // BLOCKS * n + column_index)
        for block in range(first, min(first + depth // BLOCK_K, k // BLOCK_K)):
            words = tl.load(w_at, eviction_policy="evict_first").to(tl.uint32, bitcast=True)
            if KIND == "int4":
                zeros = (
                    tl.load(zero_ptr + block // BLOCKS * (n // 8) + column_index // 8) >> (column_index % 8 * 4) & 15
                )
                zero = (zeros.to(tl.float32) * UNIT).to(DTYPE)[:, None]
                codes = _integer_block(words, zero, BITS, MIN_SUBNORMAL, UNIT, DTYPE)
            else:
                codes = _integer_block(words, 128 * UNIT, BITS, MIN_SUBNORMAL, UNIT, DTYPE)
            accumulator += tl.dot(codes, tl.load(x_at)) * scale.to(tl.float32)[:, None]
            # The scale of the next block is prefetched, so that no load is waited for.
            scale = tl.load(scale_ptr + min(block + 1, last) // BLOCKS * n + column_index)
            x_at += BLOCK_K
            w_at += n * WORDS
        accumulator *= 1 / UNIT
    offsets = rows.to(tl.int64)[None, :] * n + columns[:, None]
    mask = (rows[None, :] < m) & (columns[:, None] < n)
    store_or_reduce(accumulator, y_ptr, parts_ptr, count_ptr, tl.program_id(0), offsets, mask, m * n)


@triton.jit
def _dequantize(
    w_ptr, scale_ptr, zero_ptr, out_ptr, n, k,
    KIND: tl.constexpr, BLOCKS: tl.constexpr,
    MIN_SUBNORMAL: tl.constexpr, UNIT: tl.constexpr, BIAS: tl.constexpr, BACK: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ALONG_K: tl.constexpr,
):  # fmt: skip
    """Writes BLOCK_N rows of one block of k of the dequantized weights [n, k].

    Successive k of a half (int8) or quarter of a block are of successive words, so each is stored as it lies among
    threads. Programs that run together read w in one piece or, ALONG_K, write whole rows.
    """
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    BITS: tl.constexpr = 8 if KIND == "int8" else 4
    WORDS: tl.constexpr = BLOCK_K * BITS // 32
    block, rows = tl.program_id(0 if ALONG_K else 1), tl.program_id(1 if ALONG_K else 0)
    columns = rows * BLOCK_N + tl.arange(0, BLOCK_N)
    column_index = columns % n
    w_at = w_ptr + (block.to(tl.int64) * n + column_index[:, None]) * WORDS + tl.arange(0, WORDS)[None, :]
    words = tl.load(w_at, eviction_policy="evict_first").to(tl.uint32, bitcast=True)
    if KIND == "mxfp4":
        FACTOR: tl.constexpr = BIAS / BACK
        e = tl.load(scale_ptr + block * n + column_index).to(tl.uint32, bitcast=True)
    else:
        scale = tl.load(scale_ptr + block // BLOCKS * n + column_index).to(tl.float32) / UNIT
    if KIND == "int4":
        zeros = tl.load(zero_ptr + block // BLOCKS * (n // 8) + column_index // 8) >> (column_index % 8 * 4) & 15
        zero = (zeros.to(tl.float32) * UNIT).to(DTYPE)[:, None]
    out_at = out_ptr + columns.to(tl.int64)[:, None] * k + block * BLOCK_K + tl.arange(0, 2 * WORDS)[None, :]
    for part in tl.static_range(16 // BITS):
        if KIND == "mxfp4":
            weights = _e2m1(words, e, part, FACTOR, DTYPE).to(tl.float32) * BACK
        elif KIND == "int4":
            weights = _integers(words, zero, part, BITS, MIN_SUBNORMAL, UNIT, DTYPE).to(tl.float32) * scale[:, None]
        else:
            codes = _integers(words, 128 * UNIT, part, BITS, MIN_SUBNORMAL, UNIT, DTYPE)
            weights = codes.to(tl.float32) * scale[:, None]
        tl.store(out_at + part * 2 * WORDS, weights.to(DTYPE), (columns < n)[:, None])


@frozen(kw_only=True)
class DequantizedTiling(GemmTiling):
    """The tiling of `gemm` after a launch that writes the weights in 16 bits, `rows` of one block of k a program.

    along_k  programs that run together go along k, not along n
    """

    rows: int = 32
    along_k: bool = False


def tiling(target: Target, m: int, n: int, k: int, bits: int) -> GemmTiling:
    """The default tiling: fused for few tokens, dequantized for many."""
    if m >= _DEQUANTIZED_FROM:
        return DequantizedTiling(**asdict(gemm_tiling(target, m, n, k, 2)))
    return fused_tiling(target, m, n, k, bits)


def fused_tiling(target: Target, m: int, n: int, k: int, bits: int) -> GemmTiling:
    """The tiling of one launch, narrow in tokens because registers hold a group's sums besides the accumulator, and
    before Hopper both operands as well.
    """
    hopper = target.generation >= 90
    if m <= 64:
        block_m = max(pow2(m), 8)
        num_warps = 4 if hopper or block_m <= 32 else 8
        tile = GemmTiling(
            block_m=block_m, block_n=128, block_k=BLOCK_K, num_warps=num_warps, num_stages=3 if hopper else 5
        )
    else:
        tile = GemmTiling(block_m=128 if hopper else 64, block_n=128, block_k=BLOCK_K, num_warps=8, num_stages=3)
    return _with_split_k(target, tile, m, n, k, bits)


def _with_split_k(target: Target, tile: GemmTiling, m: int, n: int, k: int, bits: int) -> GemmTiling:
    """Adds split-K to `tile` for up to 4 programs per multiprocessor, so that one loads while another converts."""
    stage = tile.block_k * (tile.block_n * bits // 8 + tile.block_m * 2)
    max_stages = max((target.shared - stage) // stage, 1)  # beside what is exchanged for the product
    tile = replace(tile, num_stages=min(tile.num_stages, max_stages))
    resident = max(min(target.shared // (tile.num_stages * stage), 4), 1)
    return replace(tile, parts=choose_split_k(target, tile, m, n, k, resident))


def _tilings(bits: int) -> Callable[[Target, Case], tuple[GemmTiling, ...]]:
    """Alternative tilings: narrower tiles, other numbers of stages and other split-K factors."""

    def tilings(target: Target, case: Case) -> tuple[GemmTiling, ...]:
        m, n, k = case["M"], case["N"], case["K"]
        rule = tiling(target, m, n, k, bits)
        if isinstance(rule, DequantizedTiling):
            fused = fused_tiling(target, m, n, k, bits)
            return (
                replace(rule, along_k=True),
                replace(rule, rows=64),
                replace(rule, rows=64, along_k=True),
                fused,
                replace(fused, block_m=fused.block_m // 2, num_warps=fused.block_m // 16),
            )
        candidates = [replace(rule, num_stages=rule.num_stages - 1), replace(rule, num_stages=rule.num_stages + 1)]
        if m > 64:
            candidates.append(replace(rule, block_m=rule.block_m // 2, num_warps=rule.block_m // 16))
        else:
            candidates.append(replace(rule, block_n=64, num_warps=max(rule.num_warps // 2, rule.block_m // 16)))
        if rule.block_m == 8:  # from 16 on by asynchronous instructions of the matrix unit
            candidates.append(replace(rule, block_m=16))
        return alternatives(rule, [_with_split_k(target, tile, m, n, k, bits) for tile in candidates])

    return tilings


def plan(
    target: Target,
    x: torch.Tensor,
    w: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    kind: str,
    tile: GemmTiling | None = None,
) -> LaunchPlan:
    """x[m, k]; w[k / 128, n, 16 * bits] bytes; scale[k / group, n] and zero[k / group, n / 2], or e8m0
    scale[k / 128, n, 4].

    Raises InputError where k is no multiple of 128, or a group of int4 or int8 is none, or n none of 8 with int4.
    """
    (m, k), n = x.shape, w.shape[1]
    group = BLOCK_K if kind == "mxfp4" else k // scale.shape[0]
    if k % BLOCK_K or group % BLOCK_K:
        raise InputError(f"k and groups of int4 and int8 must be multiples of {BLOCK_K}; got k={k}, group={group}")
    if zero is not None and n % 8:
        raise InputError(f"n of int4 must be a multiple of 8; got {n}")
    tile = tile or tiling(target, m, n, k, _BITS[kind])
    # Words of 32 bits: one instruction is for two halves, and what is copied past registers has 4 bytes at least.
    weights = FLOATS[x.dtype] | {
        "w_ptr": w.view(torch.int32), "scale_ptr": scale.view(torch.int32) if kind == "mxfp4" else scale,
        "zero_ptr": None if zero is None else zero.view(torch.int32),
        "n": n, "k": k, "KIND": kind, "BLOCKS": group // BLOCK_K,
    }  # fmt: skip
    if isinstance(tile, DequantizedTiling):
        out = poisoned(n, k, dtype=x.dtype, device=x.device)
        dequantize = Launch(
            function=_dequantize,
            grid=(k // BLOCK_K, cdiv(n, tile.rows)) if tile.along_k else (cdiv(n, tile.rows), k // BLOCK_K),
            arguments=weights | {"out_ptr": out, "BLOCK_N": tile.rows, "BLOCK_K": BLOCK_K, "ALONG_K": tile.along_k},
        )
        product = gemm_plan(target, x, out, tile=tile)
        return LaunchPlan(launches=(dequantize, *product.launches), outputs=product.outputs)
    y = poisoned(m, n, dtype=x.dtype, device=x.device)
    depth = tile.depth(k)
    tiles, parts = num_tiles(tile, m, n), cdiv(k, depth)
    launch = Launch(
        function=_weight_only,
        grid=(tiles, parts),
        arguments=split_k_arguments(y, tiles, parts) | weights | {
            "x_ptr": x, "m": m, "depth": depth, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n,
            "BLOCK_K": BLOCK_K, "GROUP": GROUP_M,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,))


def codes(w: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes[n, k] from 0 of bytes[k / 128, n, 16 * bits], in the order of k."""
    words = w.view(torch.int16).int()  # 16 / bits codes each
    packed = torch.cat([words >> shift & 2**bits - 1 for shift in range(0, 16, bits)], dim=2)
    return packed.transpose(0, 1).reshape(w.shape[1], -1)


def e2m1_numbers(groups: torch.Tensor) -> torch.Tensor:
    """The numbers of codes of e2m1."""
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=groups.device)  # OCP MX v1.0, table 4
    return magnitudes[groups & 7] * (1 - 2 * (groups >> 3))


def reference(
    x: torch.Tensor,
    w: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    kind: str,
    tile: GemmTiling | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    """The product of x and the dequantized weights [M, N]; in fp32."""
    groups = codes(w, _BITS[kind])
    if kind == "mxfp4":
        values = e2m1_numbers(groups)
        exponents = scale.transpose(0, 1).reshape(w.shape[1], -1).float()
        return (x.float() @ (values * torch.exp2(exponents - 127).repeat_interleave(MX_GROUP, 1)).T,)
    group = x.shape[1] // scale.shape[0]
    if zero is None:
        values = (groups ^ 128) - 128.0
    else:
        zeros = torch.stack((zero & 15, zero >> 4), dim=2).view(zero.shape[0], -1)
        values = groups - zeros.float().T.repeat_interleave(group, 1)
    return (x.float() @ (values * scale.float().T.repeat_interleave(group, 1)).T,)


def _make(kind: str) -> Callable[[Case, str, int], Inputs]:
    def make(case: Case, device: str, seed: int) -> Inputs:
        m, n, k, random = case["M"], case["N"], case["K"], Random(device, seed)
        groups = k // case.get("group", k)
        inputs: Inputs = {"x": random.normal(m, k, dtype=case.torch_dtype), "zero": None, "kind": kind}
        if kind == "mxfp4":
            inputs["w"] = random.integers(k // BLOCK_K, n, BLOCK_K // 2, low=0, high=256, dtype=torch.uint8)
            inputs["scale"] = random.integers(k // BLOCK_K, n, 4, low=119, high=124, dtype=torch.uint8)
        elif kind == "int4":
            inputs["w"] = random.integers(k // BLOCK_K, n, BLOCK_K // 2, low=0, high=256, dtype=torch.uint8)
            inputs["scale"] = (random.uniform(groups, n, low=0.1, high=0.3) / k**0.5).to(torch.float16)
            inputs["zero"] = random.integers(groups, n // 2, low=0, high=256, dtype=torch.uint8)
        else:
            inputs["w"] = random.integers(k // BLOCK_K, n, BLOCK_K, low=-127, high=128, dtype=torch.int8)
            inputs["scale"] = (random.uniform(groups, n, low=0.01, high=0.03) / k**0.5).to(torch.float16)
        if case.get("dequantized"):
            inputs["tile"] = DequantizedTiling(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=3)
        return inputs

    return make


def stored(case: Case, kind: str) -> Format:
    """The storage format of the weights, with the groups, scales and zero points that `make` creates."""
    if kind == "mxfp4":
        return NAMED[kind]
    zero_bits = 4 if kind == "int4" else 0
    return replace(NAMED[kind], group=case.get("group", case["K"]), scale_bits=16, zero_bits=zero_bits)


def tolerance(case: Case) -> tuple[float, float]:
    """The tolerance of `gemm`, doubled where weights are rounded to 16 bits as well."""
    relative, absolute = gemm_tolerance(case)
    return (2 * relative, 2 * absolute) if case.get("dequantized") else (relative, absolute)


def _operators(kind: str) -> Callable[[Case], tuple[Operator, ...]]:
    def operators(case: Case) -> tuple[Operator, ...]:
        return linear(case, case.format, stored(case, kind), case.dtype)

    return operators


def _cases(name: str, dtype: str, *sizes: tuple[int, int, int], **options: int) -> tuple[Case, ...]:
    if name != "gemm_w4a16":
        return tuple(case(dtype, M=m, N=n, K=k, **options) for m, n, k in sizes)
    return tuple(case(dtype, M=m, N=cdiv(n, 8) * 8, K=k, group=128, **options) for m, n, k in sizes)


KERNELS = tuple(
    Kernel(
        name=name,
        family="gemm",
        cases=_cases(name, "fp16", (1, 64, 256), (17, 70, 384), (65, 130, 128), (3, 34, 1024))
        + _cases(name, "fp16", (20, 70, 256), dequantized=1),
        full_size=_cases(name, "bf16", (1, 4096, 14336), (16, 14336, 4096), (4096, 4096, 4096))
        + _cases(name, "fp16", (16, 14336, 4096)),
        make=_make(kind),
        plan=plan,
        reference=reference,
        tolerance=tolerance,
        operators=_operators(kind),
        workload=workload,
        tilings=_tilings(_BITS[kind]),
    )
    for name, kind in _KINDS.items()
)
