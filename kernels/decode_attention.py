"""o[sequence, head] = softmax over keys of (q . k / sqrt(dim)) @ v, for one new token of each sequence.

FlashDecoding (T. Dao et al., "Flash-Decoding for long-context inference", 2023): reading the cache is what takes time,
and batch times KV heads are too few programs for a GPU, so the keys of a sequence are split between programs and their
results put together by the last of them to be done, which weighs them by their sums; where that is too much for one,
by a second launch. All query heads of a KV head are one program's: it reads keys and values once for them (GQA,
arXiv:2305.13245), as rows of one product, padded to the 16 of a matrix unit. The cache is in pages (PagedAttention,
arXiv:2309.06180, section 4.1):
16 bits
fp8     with a scale for all of it. Values are read in pairs of 16 bits, which shared memory turns into operands of a
        product by its own instructions, unlike single bytes
int4    code * scale + zero, both in fp16 for each `group` of a token's key or value of one head, whose codes are made
        when the token comes: no other token has to be known (QServe, arXiv:2405.04532, section 5.1, has one group for
        all of a head; KIVI, arXiv:2402.02750, section 3, does so with values, and takes keys by channel, which waits
        for a block of tokens). A byte has an element of the first half of a head and that of the second half beside
        it, so that a product of each half needs no exchange between threads.
"""

from __future__ import annotations

from dataclasses import replace
from math import e, log2, prod

import torch
import triton
import triton.language as tl

from llmviewer.records import frozen

from ..errors import InputError
from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator, Role, Tensor
from ..operators.masks import Causal
from ..precision import NAMED, Format
from ..workload import Sequences, Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .flash_attention import weigh

_LOG2_E = log2(e)
_LEAST = 256  # keys below which a split is not worth its pass through memory
_MOST_SPLITS = 128
START = 64  # keys that could be read while a program starts
_ROOM = 75 * 2**10  # bytes of shared memory that a program takes, of heads of 128 elements
_MERGED = 8192  # elements of parts that a program has registers for
_MOST_MERGED = 4 * _MERGED  # that one program takes no longer to merge than a second launch does
_UNBOUND = 2**30  # a window that no sequence fills


@triton.jit
def span(length, window, splits, BLOCK_N: tl.constexpr):
    """The first key that this program's split has, and the one after its last."""
    begin = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - begin, splits), BLOCK_N) * BLOCK_N
    first = begin + tl.program_id(0) * share
    return first, tl.minimum(first + share, length)


@triton.jit
def slots(table_ptr, sequence, pages, keys, real, PAGE: tl.constexpr):
    """Where in the cache these keys of a sequence are, in tokens, of which a cache has less than 2 ** 31.

    Unsigned, since the quotient of a power of two is then one shift.
    """
    keys = keys.to(tl.uint32)
    page = tl.load(table_ptr + sequence * pages + keys // PAGE, real, 0)
    return (page * PAGE + (keys % PAGE).to(tl.int32)).to(tl.int64)


@triton.jit
def _even_and_odd(pairs, DTYPE: tl.constexpr):
    """Elements of fp8, of pairs of them in 16 bits."""
    even = pairs.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    odd = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return even.to(DTYPE), odd.to(DTYPE)


@triton.jit
def put_weight(weight_ptr, head, most, total, there, splits):
    """log2 of the sum of a split's weights; one without keys has weight 0."""
    if weight_ptr is not None:
        weight = tl.where(total > 0, most + tl.log2(tl.maximum(total, 1e-30)), -1e30)
        tl.store(weight_ptr + head * splits + tl.program_id(0), weight, there)


@triton.jit
def _merge_rows(parts_ptr, weight_ptr, o_ptr, rows, real, columns, dim, splits, BLOCK_S: tl.constexpr):
    """The mean of each row's splits by 2 ** weight. What other programs wrote is read past L1, which may have older."""
    split = tl.arange(0, BLOCK_S)[None, :]
    at = rows.to(tl.int64)[:, None] * splits + split
    there = real[:, None] & (split < splits)
    weight = tl.load(weight_ptr + at, there, -1e30, cache_modifier=".cg")
    inside = there[:, :, None] & (columns < dim)[None, None, :]
    parts = tl.load(parts_ptr + at[:, :, None] * dim + columns[None, None, :], inside, 0.0, cache_modifier=".cg")
    weight = tl.where(split < splits, tl.exp2(weight - tl.max(weight, 1)[:, None]), 0.0)
    out = tl.sum(parts * weight[:, :, None], 1) / tl.sum(weight, 1)[:, None]
    o_at = o_ptr + rows.to(tl.int64)[:, None] * dim + columns[None, :]
    tl.store(o_at, out.to(o_ptr.dtype.element_ty), real[:, None] & (columns < dim)[None, :])


@triton.jit
def _merge(parts_ptr, weight_ptr, o_ptr, rows, dim, splits, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr):
    row = tl.program_id(0) + tl.arange(0, 1)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    _merge_rows(parts_ptr, weight_ptr, o_ptr, row, row < rows, columns, dim, splits, BLOCK_S)


@triton.jit
def _merge_last(
    parts_ptr, weight_ptr, o_ptr, done_ptr, dim, splits,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_S: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The last program of a KV head to be done merges the splits of its heads, ROWS heads at a time.

    Every thread's part is written before its program counts itself, and only the last to come reads those of others,
    in the order of splits, so that results repeat bit by bit. It leaves the count at 0 for the next launch.
    """
    group = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    tl.debug_barrier()
    if tl.atomic_add(done_ptr + group, 1, sem="acq_rel") == splits - 1:
        for first in range(0, GROUP, ROWS):
            row = first + tl.arange(0, ROWS)
            heads, columns = group * GROUP + row, tl.arange(0, DIM)
            _merge_rows(parts_ptr, weight_ptr, o_ptr, heads, row < GROUP, columns, dim, splits, BLOCK_S)
        tl.store(done_ptr + group, 0)


@triton.jit
def _decode(
    q_ptr, k_ptr, v_ptr, o_ptr, part_ptr, weight_ptr, done_ptr, table_ptr, length_ptr, k_scale_ptr, v_scale_ptr,
    scale, window, heads, kv_heads, dim, pages, splits,
    GROUP: tl.constexpr, BLOCK_H: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_S: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What one split of one sequence's keys gives the query heads of a KV head, and its weight."""
    FP8: tl.constexpr = k_scale_ptr is not None
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last = span(tl.load(length_ptr + sequence), window, splits, BLOCK_N)
    inside = tl.arange(0, BLOCK_H)
    columns = tl.arange(0, DIM)
    head = sequence * heads + kv_head * GROUP + inside
    there = (inside[:, None] < GROUP) & (columns[None, :] < dim)
    q = tl.load(q_ptr + head[:, None] * dim + columns[None, :], there, 0.0)
    if FP8:
        # fp8 becomes fp16 two at a time, and bf16 one by one, which takes longer than to read it.
        q = (q.to(tl.float32) * (scale * tl.load(k_scale_ptr))).to(tl.float16)
        scale = 1.0
        dim_pairs, pair = dim // 2, tl.arange(0, DIM // 2)
        out = tl.zeros((BLOCK_H, DIM // 2), dtype=tl.float32)  # of even columns
        odd = tl.zeros((BLOCK_H, DIM // 2), dtype=tl.float32)
    else:
        out = tl.zeros((BLOCK_H, DIM), dtype=tl.float32)
    most = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for key in range(first, last, BLOCK_N):
        keys = key + tl.arange(0, BLOCK_N)
        real = keys < last
        row = slots(table_ptr, sequence, pages, keys, real, PAGE)[:, None]
        at = row * (kv_heads * dim) + kv_head * dim + columns[None, :]
        mask = real[:, None] & (columns[None, :] < dim)
        k = tl.load(k_ptr + at, mask, 0.0).to(q.dtype)
        weights, old, most, total = weigh(tl.dot(q, k.T), real[None, :], scale, most, total)
        if FP8:
            at = row * (kv_heads * dim_pairs) + kv_head * dim_pairs + pair[None, :]
            v = tl.load(v_ptr + at, real[:, None] & (pair[None, :] < dim_pairs), 0)
            even_v, odd_v = _even_and_odd(v, q.dtype)
            out = tl.dot(weights.to(q.dtype), even_v, out * old[:, None])
            odd = tl.dot(weights.to(q.dtype), odd_v, odd * old[:, None])
        else:
            v = tl.load(v_ptr + at, mask, 0.0)
            out = tl.dot(weights.to(q.dtype), v, out * old[:, None])
    if FP8:
        out = tl.join(out, odd).reshape(BLOCK_H, DIM) * tl.load(v_scale_ptr)
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    at = part_ptr + (head * splits + split).to(tl.int64)[:, None] * dim + columns[None, :]
    tl.store(at, out.to(part_ptr.dtype.element_ty), there)
    put_weight(weight_ptr, head, most, total, inside < GROUP, splits)
    if done_ptr is not None:
        _merge_last(part_ptr, weight_ptr, o_ptr, done_ptr, dim, splits, GROUP, DIM, BLOCK_S, ROWS)


@triton.jit
def _floats(codes, DTYPE: tl.constexpr):
    """OFFSET + codes of 4 bits, with OFFSET the float whose last bits they become: 1024 in fp16, 128 in bf16."""
    magic: tl.constexpr = 0x6400 if tl.float16 == DTYPE else 0x4300
    return (codes.to(tl.uint16) | magic).to(DTYPE, bitcast=True)


@triton.jit
def _dequantized(codes, pair_ptr, at, real, groups, GROUPS: tl.constexpr, DTYPE: tl.constexpr):
    """codes[n, half] of 4 bits times the scales, plus the zeros, of GROUPS groups from pair_ptr[n] on."""
    group = tl.arange(0, GROUPS)
    pairs = tl.load(pair_ptr + at[:, None] + group[None, :], real[:, None] & (group[None, :] < groups), 0)
    scale = (pairs & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(DTYPE)
    zero = (pairs >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(DTYPE)
    values = _floats(codes, DTYPE) - (1024.0 if tl.float16 == DTYPE else 128.0)
    values = values.reshape(codes.shape[0], GROUPS, codes.shape[1] // GROUPS)
    values = values * scale[:, :, None] + zero[:, :, None]
    return values.reshape(codes.shape[0], codes.shape[1])


@triton.jit
def _decode_int4(
    q_ptr, k_ptr, v_ptr, o_ptr, part_ptr, weight_ptr, done_ptr, table_ptr, length_ptr, k_pair_ptr, v_pair_ptr,
    scale, window, heads, kv_heads, half, pages, groups, splits,
    GROUP: tl.constexpr, BLOCK_H: tl.constexpr, HALF: tl.constexpr, GROUPS: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_S: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`_decode` of a cache of 4 bits. `groups` of a head are shared by its halves, or one is both's."""
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last = span(tl.load(length_ptr + sequence), window, splits, BLOCK_N)
    inside = tl.arange(0, BLOCK_H)
    columns = tl.arange(0, HALF)
    head = sequence * heads + kv_head * GROUP + inside
    there = (inside[:, None] < GROUP) & (columns[None, :] < half)
    q_at = q_ptr + head[:, None] * (2 * half) + columns[None, :]
    q_low, q_high = tl.load(q_at, there, 0.0), tl.load(q_at + half, there, 0.0)
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    low = tl.zeros((BLOCK_H, HALF), dtype=tl.float32)
    high = tl.zeros((BLOCK_H, HALF), dtype=tl.float32)
    most = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    second = groups // 2  # the first group of the second half
    each = tl.maximum(second, 1)
    for key in range(first, last, BLOCK_N):
        keys = key + tl.arange(0, BLOCK_N)
        real = keys < last
        token = slots(table_ptr, sequence, pages, keys, real, PAGE) * kv_heads + kv_head
        at = token[:, None] * half + columns[None, :]
        mask = real[:, None] & (columns[None, :] < half)
        pair = token * groups
        k = tl.load(k_ptr + at, mask, 0)
        k_low = _dequantized(k & 15, k_pair_ptr, pair, real, each, GROUPS, DTYPE)
        k_high = _dequantized(k >> 4, k_pair_ptr, pair + second, real, each, GROUPS, DTYPE)
        scores = tl.dot(q_high, k_high.T, tl.dot(q_low, k_low.T))
        weights, old, most, total = weigh(scores, real[None, :], scale, most, total)
        weights = weights.to(DTYPE)
        v = tl.load(v_ptr + at, mask, 0)
        v_low = _dequantized(v & 15, v_pair_ptr, pair, real, each, GROUPS, DTYPE)
        low = tl.dot(weights, v_low, low * old[:, None])
        v_high = _dequantized(v >> 4, v_pair_ptr, pair + second, real, each, GROUPS, DTYPE)
        high = tl.dot(weights, v_high, high * old[:, None])
    sums = tl.where(total > 0, total, 1.0)[:, None]
    at = part_ptr + (head * splits + split).to(tl.int64)[:, None] * (2 * half) + columns[None, :]
    tl.store(at, (low / sums).to(part_ptr.dtype.element_ty), there)
    tl.store(at + half, (high / sums).to(part_ptr.dtype.element_ty), there)
    put_weight(weight_ptr, head, most, total, inside < GROUP, splits)
    if done_ptr is not None:
        _merge_last(part_ptr, weight_ptr, o_ptr, done_ptr, 2 * half, splits, GROUP, 2 * HALF, BLOCK_S, ROWS)


@frozen(kw_only=True)
class DecodeTiling:
    """Keys that a program takes at a time, and programs that share those of a sequence."""

    keys: int
    splits: int
    num_warps: int = 4
    num_stages: int = 5


@frozen(kw_only=True)
class PartialResults:
    """What programs that share the keys of a sequence leave for the whole.

    values  [rows, splits, dim] in fp32, of `splits` > 1; else the whole [rows, dim] itself
    weight  [rows, splits]; None of one split
    """

    values: torch.Tensor
    weight: torch.Tensor | None

    @classmethod
    def of(cls, o: torch.Tensor, splits: int) -> PartialResults:
        """Of o[.., dim]."""
        if splits == 1:
            return cls(values=o, weight=None)
        *rows, dim = o.shape
        values = poisoned(prod(rows), splits, dim, dtype=torch.float32, device=o.device)
        return cls(values=values, weight=poisoned(prod(rows), splits, dtype=torch.float32, device=o.device))

    def merge(self, o: torch.Tensor) -> tuple[Launch, ...]:
        """Their mean to o; no launch where there are none."""
        if self.weight is None:
            return ()
        rows, splits, dim = self.values.shape
        block = min(pow2(dim), _MERGED // pow2(splits))
        arguments = {
            "parts_ptr": self.values, "weight_ptr": self.weight, "o_ptr": o, "rows": rows, "dim": dim,
            "splits": splits, "BLOCK_D": block, "BLOCK_S": pow2(splits),
        }  # fmt: skip
        return (Launch(function=_merge, grid=(rows, cdiv(dim, block)), arguments=arguments),)


def most_splits(longest: int) -> int:
    return min(cdiv(longest, _LEAST), _MOST_SPLITS)


def splits_of(target: Target, programs: int, longest: int, *, resident: int, start: int = START) -> int:
    """So many that multiprocessors, which have `resident` programs at a time, are all at work to the end, and none has
    next to nothing to read beside what it takes to start one, in keys.
    """
    places = resident * target.multiprocessors
    return min(
        range(1, most_splits(longest) + 1),
        key=lambda splits: cdiv(programs * splits, places) * (longest / splits + start),
    )


def plan(
    target: Target,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    *,
    window: int = 0,
    tile: DecodeTiling | None = None,
) -> LaunchPlan:
    """q[sequences, heads, dim]; k and v[pages, page, kv_heads, dim], of int4 [.., dim / 2] bytes and their scales and
    zeros [.., groups, 2]; table[sequences, pages], the page of each run of positions; lengths[sequences], `longest` at
    the most, as the shape of a launch must not depend on what is in memory.

    Raises InputError where groups of int4 do not fit, or heads of fp8 are not even.
    """
    (sequences, heads, dim), (_, page, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    tile = tile or tiling(target, sequences * kv_heads, min(longest, window or longest), dim, k.dtype)
    o = poisoned(sequences, heads, dim, dtype=q.dtype, device=q.device)
    parts = PartialResults.of(o, tile.splits)
    row = pow2(tile.splits) * pow2(dim)
    apart = parts.weight is None or row > _MERGED or group * row > _MOST_MERGED
    done = None if apart else torch.zeros(sequences * kv_heads, dtype=torch.int32, device=q.device)
    common = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": o, "part_ptr": parts.values, "weight_ptr": parts.weight,
        "done_ptr": done, "table_ptr": table, "length_ptr": lengths, "scale": dim**-0.5 * _LOG2_E,
        "window": window or _UNBOUND, "heads": heads, "kv_heads": kv_heads, "pages": table.shape[1], "GROUP": group,
        "BLOCK_H": max(pow2(group), 16), "BLOCK_N": tile.keys, "PAGE": page, "splits": tile.splits,
        "BLOCK_S": pow2(tile.splits), "ROWS": max(min(pow2(group), _MERGED // row), 1),
    }  # fmt: skip
    if k_scale is not None and v_scale is not None and k.dtype == torch.uint8:
        half, groups = dim // 2, k_scale.shape[3]
        launch = Launch(
            function=_decode_int4,
            grid=(tile.splits, kv_heads, sequences),
            arguments=common | {
                "k_pair_ptr": k_scale.view(torch.int32), "v_pair_ptr": v_scale.view(torch.int32), "half": half,
                "groups": groups, "HALF": pow2(half), "GROUPS": _groups_of(dim, groups),
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )  # fmt: skip
    else:
        if v_scale is not None:
            if dim % 2:
                raise InputError(f"heads in fp8 must have an even number of elements; got {dim}")
            common["v_ptr"] = v.view(torch.int16)
        launch = Launch(
            function=_decode,
            grid=(tile.splits, kv_heads, sequences),
            arguments=common | {"k_scale_ptr": k_scale, "v_scale_ptr": v_scale, "dim": dim, "DIM": pow2(dim)},
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return LaunchPlan(launches=(launch,) if done is not None else (launch, *parts.merge(o)), outputs=(o,))


def tiling(target: Target, programs: int, longest: int, dim: int, kept: torch.dtype) -> DecodeTiling:
    """For `programs` before keys are split, which read `longest` keys each, `kept` as they are.

    Of the stages, the pages, read first, take every other one: with 5, one block of keys is on the way while another is
    used. More fp8 keys at a time take fewer instructions each; with more of wide heads, a multiprocessor would have
    registers for one program less.
    """
    resident = 2 if dim > 128 else max(target.shared // _ROOM, 1)
    splits = splits_of(target, programs, longest, resident=resident)
    if kept.itemsize == 1 and kept.is_floating_point:
        if dim > 128:
            return DecodeTiling(keys=32, splits=splits)
        return DecodeTiling(keys=128, splits=splits, num_stages=5 if target.generation >= 90 else 3)
    return DecodeTiling(keys=64, splits=splits, num_stages=3 if dim > 128 else 5)


def tilings(target: Target, programs: int, longest: int, dim: int, kept: torch.dtype) -> tuple[DecodeTiling, ...]:
    """Others: more and fewer splits, blocks half or twice as large, and of the largest one on the way at a time."""
    rule = tiling(target, programs, longest, dim, kept)
    splits = {2 * rule.splits, rule.splits + 1, rule.splits // 2} - {0, rule.splits}
    found = [replace(rule, splits=one) for one in sorted(splits) if one <= most_splits(longest)]
    if kept != torch.uint8:  # int4 has no registers for more
        more = rule.keys == 32 or (rule.keys == 64 and dim <= 128)
        found.append(replace(rule, keys=2 * rule.keys if more else rule.keys // 2, num_stages=3 if more else 5))
    if rule.keys == 128 and rule.num_stages > 3:
        found.append(replace(rule, num_stages=3))
    return tuple(found)


def _groups_of(dim: int, groups: int) -> int:
    """Groups that a half of a head has room for, padded as its elements are."""
    group, half = dim // groups, pow2(dim // 2)
    if dim % 2 or dim % groups or not (groups <= 2 or (groups % 2 == 0 and group == pow2(group))):
        raise InputError(f"groups of int4 must be a head, its halves, or powers of two in them; got {groups} of {dim}")
    return half // group if groups > 2 else 1


def unpacked(codes: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Keys or values[.., dim] of bytes[.., dim / 2] and scales and zeros[.., groups, 2]."""
    values = torch.cat((codes & 15, codes >> 4), dim=-1).float()
    scale, zero = pairs.float().repeat_interleave(values.shape[-1] // pairs.shape[-2], -2).unbind(-1)
    return values * scale + zero


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,  # noqa: ARG001
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    *,
    window: int = 0,
    tile: DecodeTiling | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    if k_scale is not None and v_scale is not None and k.dtype == torch.uint8:
        k, v, k_scale, v_scale = unpacked(k, k_scale), unpacked(v, v_scale), None, None
    found = []
    for ours, pages, length in zip(q.float(), table.long(), lengths.tolist(), strict=True):
        keys, values = (x.float()[pages].flatten(0, 1)[:length].transpose(0, 1) for x in (k, v))
        keys, values = (x[:, -window:] if window else x for x in (keys, values))
        keys, values = (x.repeat_interleave(q.shape[1] // k.shape[2], 0) for x in (keys, values))
        scale = q.shape[2] ** -0.5 * (1 if k_scale is None else k_scale)
        weights = (keys @ ours[:, :, None] * scale).softmax(1)
        found.append((weights.transpose(1, 2) @ values)[:, 0] * (1 if v_scale is None else v_scale))
    return (torch.stack(found),)


def _lengths(case: Case) -> list[int]:
    return [case["kv"] - i * case.get("ragged") for i in range(case["B"])]


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, dim, page, batch = Random(device, seed), case.torch_dtype, case["dim"], case["page"], case["B"]
    pages = cdiv(case["kv"], page)
    slots = (batch * pages, page, case["kv_heads"])
    shuffled = random.uniform(batch * pages, low=0, high=1).argsort()
    found: Inputs = {
        "q": random.normal(batch, case["heads"], dim, dtype=dtype),
        "table": shuffled.to(torch.int32).view(batch, pages),
        "lengths": torch.tensor(_lengths(case), dtype=torch.int32).to(device),
        "longest": case["kv"],
        "window": case.get("window"),
    }
    if case.get("kv_bits") == 4:
        for name in "kv":
            scale = random.uniform(*slots, dim // case["group"], 1, low=0.1, high=0.3)
            zero = -scale * random.uniform(*scale.shape, low=6, high=9)
            found[f"{name}_scale"] = torch.cat((scale, zero), dim=4).to(torch.float16)
            found[name] = random.integers(*slots, dim // 2, low=0, high=256, dtype=torch.uint8)
        return found
    kept = torch.float8_e4m3fn if case.get("kv_bits") == 8 else dtype
    found |= {name: random.normal(*slots, dim, dtype=kept) for name in "kv"}
    if case.get("kv_bits") == 8:
        found |= {name: random.uniform(1, low=0.5, high=1.5) for name in ("k_scale", "v_scale")}
    return found


def _kept_format(case: Case) -> Format:
    """How keys and values are stored, with the scales and zeros of their groups."""
    if case.get("kv_bits") == 4:
        return replace(NAMED["int4"], group=case["group"], scale_bits=16, zero_bits=16)
    return NAMED["fp8_e4m3"] if case.get("kv_bits") == 8 else case.format


def _operators(case: Case) -> tuple[Operator, ...]:
    mask = Causal(case["window"]) if case.get("window") else Causal()
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=case["dim"], mask=mask)
    q, o = (Tensor(name=name, width=heads.q_width, format=case.format) for name in "qo")
    kept = _kept_format(case)
    k, v = (
        Tensor(name=name, width=heads.kv_width, format=kept, rows=mask.keys_read, role=Role.KV_CACHE) for name in "kv"
    )
    return (FlashAttention(name="attention", inputs=(q, k, v), outputs=(o,), heads=heads),)


def _tilings(target: Target, case: Case) -> tuple[DecodeTiling, ...]:
    longest = min(case["kv"], case.get("window") or case["kv"])
    kept = {4: torch.uint8, 8: torch.float8_e4m3fn}.get(case.get("kv_bits"), case.torch_dtype)
    return tilings(target, case["B"] * case["kv_heads"], longest, case["dim"], kept)


KERNELS = (
    Kernel(
        name="decode_attention", family="attention",
        cases=(
            case("fp16", B=2, heads=4, kv_heads=4, dim=64, kv=128, page=16),
            case("fp16", B=3, heads=8, kv_heads=2, dim=40, kv=301, page=16, ragged=113),
            case("fp16", B=1, heads=6, kv_heads=1, dim=32, kv=1300, page=32),
            case("fp16", B=1, heads=2, kv_heads=1, dim=32, kv=700, page=16, window=300),
            case("fp16", B=2, heads=4, kv_heads=1, dim=64, kv=517, page=64, ragged=516),
            case("fp16", B=1, heads=4, kv_heads=2, dim=64, kv=260, page=16, kv_bits=8),
            case("fp16", B=2, heads=4, kv_heads=2, dim=64, kv=304, page=16, kv_bits=4, group=64),
            case("fp16", B=2, heads=3, kv_heads=1, dim=80, kv=333, page=16, kv_bits=4, group=40, ragged=200),
            case("fp16", B=1, heads=2, kv_heads=2, dim=96, kv=560, page=16, kv_bits=4, group=16),
        ),
        full_size=(
            case("bf16", B=16, heads=32, kv_heads=8, dim=128, kv=8192, page=16),
            case("bf16", B=1, heads=32, kv_heads=8, dim=128, kv=32768, page=64),
            case("bf16", B=64, heads=32, kv_heads=32, dim=128, kv=2048, page=16),
            case("bf16", B=16, heads=64, kv_heads=8, dim=128, kv=8192, page=64, kv_bits=8),
            case("bf16", B=16, heads=64, kv_heads=8, dim=128, kv=8192, page=64, kv_bits=4, group=64),
            case("fp16", B=16, heads=32, kv_heads=32, dim=128, kv=8192, page=64, kv_bits=4, group=128),
            case("bf16", B=16, heads=32, kv_heads=8, dim=256, kv=8192, page=64, kv_bits=8),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (2 * EPSILON[case.dtype], 2 * EPSILON[case.dtype]),
        operators=_operators,
        workload=lambda case: Workload(tuple(Sequences(batch=1, q_len=1, kv_len=kv_len) for kv_len in _lengths(case))),
        tilings=_tilings,
        least_sm=lambda case: 89 if case.get("kv_bits") == 8 else 80,
    ),
)  # fmt: skip
