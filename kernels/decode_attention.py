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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from llmviewer.records import frozen

from ..errors import InputError
from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator, Role, Tensor
from ..operators.masks import Causal
from ..precision import NAMED, Format
from ..workload import Sequences, Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .flash_attention import online_softmax, sink_score, sink_weights, softmax_with_sinks

_LOG2_E = log2(e)
_MIN_KEYS_PER_SPLIT = 256  # below, a split costs more through its partial result in memory than it gains
_MAX_SPLITS = 128
STARTUP_KEYS = 64  # start-up time of a program, in keys that could be read meanwhile
_SHARED_BYTES_PER_PROGRAM = 75 * 2**10  # for heads of 128 elements
_MERGE_ELEMENTS = 8192  # elements of partial results that fit in a program's registers
_MAX_FUSED_MERGE_ELEMENTS = 4 * _MERGE_ELEMENTS  # up to here, merging in one program is as fast as a launch
_NO_WINDOW = 2**30  # a window larger than any sequence
_PREFETCHED_KEYS = tl.constexpr(64)  # per program; 13 MB of 396 programs with heads of 128: 3 us of an H200


@triton.jit
def split_range(length, window, splits, BLOCK_N: tl.constexpr):
    """The first key of this program's split, and the one after its last."""
    begin = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - begin, splits), BLOCK_N) * BLOCK_N
    first = begin + tl.program_id(0) * share
    return first, tl.minimum(first + share, length)


@triton.jit
def cache_slots(table_ptr, sequence, pages, keys, PAGE: tl.constexpr):
    """Indices in the cache of keys of a sequence, in tokens; a cache has less than 2 ** 31.

    Key indices are unsigned, so that the division by a power of two is one shift.
    """
    keys = keys.to(tl.uint32)
    page = tl.load(table_ptr + sequence * pages + keys // PAGE)
    return (page * PAGE + (keys % PAGE).to(tl.int32)).to(tl.int64)


@triton.jit
def _prefetch(row_ptrs, valid, nbytes, SECTORS: tl.constexpr):
    """Has L2 read the `nbytes` from each valid pointer on, by up to SECTORS sectors of 32 bytes.

    L2 is what all multiprocessors read and write through, so it never holds anything old.
    """
    inside = 32 * tl.arange(0, SECTORS)[None, :]
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred valid;
            setp.ne.s32 valid, $2, 0;
            @valid prefetch.global.L2 [$1];
            mov.b32 $0, 0;
        }
        """,
        "=r,l,r",
        [row_ptrs[:, None] + inside, (valid[:, None] & (inside < nbytes)).to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def start_early(
    k_ptr, v_ptr, table_ptr, length_ptr, sequence, kv_head, kv_heads, row_bytes, window, splits, pages, cache_pages,
    BLOCK_N: tl.constexpr, PAGE: tl.constexpr, SECTORS: tl.constexpr,
):  # fmt: skip
    """Waits until the launch before has ended, and has L2 read the first keys and values of this split meanwhile.

    v_ptr  None where keys are values, too

    The launch before may yet write lengths and pages: whatever they are, prefetched rows are in the cache. Both are
    loaded around L1, so that it keeps nothing old.
    """
    gdc_launch_dependents()
    length = tl.load(length_ptr + sequence, cache_modifier=".cg")
    first, last = split_range(tl.minimum(length, pages * PAGE), window, splits, BLOCK_N)
    keys = first + tl.arange(0, _PREFETCHED_KEYS)
    valid = keys < last
    page = tl.load(table_ptr + sequence * pages + keys // PAGE, valid, 0, cache_modifier=".cg")
    page = tl.maximum(tl.minimum(page, cache_pages - 1), 0)
    offsets = ((page * PAGE + keys % PAGE).to(tl.int64) * kv_heads + kv_head) * row_bytes
    _prefetch(k_ptr.to(tl.pointer_type(tl.int8)) + offsets, valid, row_bytes, SECTORS)
    if v_ptr is not None:
        _prefetch(v_ptr.to(tl.pointer_type(tl.int8)) + offsets, valid, row_bytes, SECTORS)
    gdc_wait()


@triton.jit
def _load_rows(cache_ptr, offsets, columns, dim, PADDED: tl.constexpr):
    """Loads the columns of rows from offsets on; those from `dim` on, where PADDED, are 0."""
    pointers = cache_ptr + (offsets + columns[None, :])
    return tl.load(pointers, columns[None, :] < dim, 0) if PADDED else tl.load(pointers)


@triton.jit
def _even_and_odd(pairs, DTYPE: tl.constexpr, PTX: tl.constexpr):
    """The even and the odd elements of pairs of fp8 in 16 bits.

    In PTX, four bytes are sorted by one instruction and converted by two; the compiler takes thirteen.
    """
    if PTX:
        even, odd = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 sorted;
                .reg .b16 evens, odds;
                prmt.b32 sorted, $2, $2, 0x3120;
                mov.b32 {evens, odds}, sorted;
                cvt.rn.f16x2.e4m3x2 $0, evens;
                cvt.rn.f16x2.e4m3x2 $1, odds;
            }
            """,
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        even = pairs.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(DTYPE)
        odd = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(DTYPE)
    return even, odd


@triton.jit
def store_log_sum(weight_ptr, head, row_max, row_sum, mask, splits):
    """Stores the log2-sum-exp of a split's scores; -1e30 for a split without keys, which then has weight 0."""
    if weight_ptr is not None:
        weight = tl.where(row_sum > 0, row_max + tl.log2(tl.maximum(row_sum, 1e-30)), -1e30)
        tl.store(weight_ptr + head * splits + tl.program_id(0), weight, mask)


@triton.jit
def _merge_rows(parts_ptr, weight_ptr, o_ptr, rows, valid_rows, columns, dim, splits, BLOCK_S: tl.constexpr):
    """Stores the mean of each row's splits, weighted by 2 ** weight.

    Loads bypass L1 (.cg), which may hold older values than other programs have written.
    """
    split = tl.arange(0, BLOCK_S)[None, :]
    split_offsets = rows.to(tl.int64)[:, None] * splits + split
    mask = valid_rows[:, None] & (split < splits)
    weight = tl.load(weight_ptr + split_offsets, mask, -1e30, cache_modifier=".cg")
    inside = mask[:, :, None] & (columns < dim)[None, None, :]
    parts = tl.load(
        parts_ptr + split_offsets[:, :, None] * dim + columns[None, None, :], inside, 0.0, cache_modifier=".cg"
    )
    weight = tl.where(split < splits, tl.exp2(weight - tl.max(weight, 1)[:, None]), 0.0)
    out = tl.sum(parts * weight[:, :, None], 1) / tl.sum(weight, 1)[:, None]
    o_at = o_ptr + rows.to(tl.int64)[:, None] * dim + columns[None, :]
    tl.store(o_at, out.to(o_ptr.dtype.element_ty), valid_rows[:, None] & (columns < dim)[None, :])


@triton.jit
def _merge(
    parts_ptr, weight_ptr, o_ptr, rows, dim, splits,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0) + tl.arange(0, 1)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    _merge_rows(parts_ptr, weight_ptr, o_ptr, row, row < rows, columns, dim, splits, BLOCK_S)


@triton.jit
def _merge_last(
    parts_ptr, weight_ptr, o_ptr, done_ptr, dim, splits,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_S: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Merges the splits of a KV head's query heads in the last program to finish, ROWS heads at a time.

    Each program writes its partial result before it increments the counter, and only the last one reads the others',
    in the order of splits, so that results are deterministic. It resets the counter for the next launch.
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
    q_ptr, k_ptr, v_ptr, o_ptr, part_ptr, weight_ptr, done_ptr, sink_ptr, table_ptr, length_ptr, k_scale_ptr,
    v_scale_ptr, scale, window, heads, kv_heads, dim, pages, splits, cache_pages,
    GROUP: tl.constexpr, BLOCK_H: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_S: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr, PACKED: tl.constexpr, PTX: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Computes the partial result of one split of a sequence's keys for the query heads of a KV head.

    PACKED  keys in fp8 are read in pairs, as values are, and multiplied with the even and the odd elements of queries
    """
    FP8: tl.constexpr = k_scale_ptr is not None
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if EARLY:
        start_early(
            k_ptr, v_ptr, table_ptr, length_ptr, sequence, kv_head, kv_heads, dim if FP8 else 2 * dim, window, splits,
            pages, cache_pages, BLOCK_N, PAGE, (2 * DIM + 31) // 32,
        )  # fmt: skip
    first, last = split_range(tl.load(length_ptr + sequence), window, splits, BLOCK_N)
    group_head = tl.arange(0, BLOCK_H)
    columns = tl.arange(0, DIM)
    head = sequence * heads + kv_head * GROUP + group_head
    mask_q = (group_head[:, None] < GROUP) & (columns[None, :] < dim)
    q = tl.load(q_ptr + head[:, None] * dim + columns[None, :], mask_q, 0.0)
    if FP8:
        # fp8 becomes fp16 two at a time, and bf16 one by one, which takes longer than to read it.
        factor = scale * tl.load(k_scale_ptr)
        dim_pairs, pair = dim // 2, tl.arange(0, DIM // 2)
        if PACKED:
            mask_pair = (group_head[:, None] < GROUP) & (pair[None, :] < dim_pairs)
            q_at = q_ptr + head[:, None] * dim + 2 * pair[None, :]
            odd_q = (tl.load(q_at + 1, mask_pair, 0.0).to(tl.float32) * factor).to(tl.float16)
            q = tl.load(q_at, mask_pair, 0.0)
        q = (q.to(tl.float32) * factor).to(tl.float16)
        scale = 1.0
        out = tl.zeros((BLOCK_H, DIM // 2), dtype=tl.float32)  # of even columns
        odd = tl.zeros((BLOCK_H, DIM // 2), dtype=tl.float32)
    else:
        out = tl.zeros((BLOCK_H, DIM), dtype=tl.float32)
    row_max = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_H,), dtype=tl.float32)
    if sink_ptr is not None:  # of one split only
        sink = sink_score(sink_ptr, kv_head * GROUP + group_head, group_head < GROUP)
        row_max = tl.where(split == 0, sink, row_max)
        row_sum = tl.where(split == 0, row_sum + 1.0, row_sum)
    for key in range(first, last, BLOCK_N):
        keys = key + tl.arange(0, BLOCK_N)
        valid = keys < last
        # Past the end the last key is read again, with weight 0: masks of loads take more instructions.
        row = cache_slots(table_ptr, sequence, pages, tl.minimum(keys, last - 1), PAGE)[:, None]
        offsets = row * (kv_heads * dim) + kv_head * dim
        pairs = row * (kv_heads * (dim // 2)) + kv_head * (dim // 2)
        if PACKED:
            even_k, odd_k = _even_and_odd(_load_rows(k_ptr, pairs, pair, dim_pairs, PADDED), q.dtype, PTX)
            scores = tl.dot(odd_q, odd_k.T, tl.dot(q, even_k.T))
        else:
            scores = tl.dot(q, _load_rows(k_ptr, offsets, columns, dim, PADDED).to(q.dtype).T)
        weights, correction, row_max, row_sum = online_softmax(scores, valid[None, :], scale, row_max, row_sum)
        if FP8:
            even_v, odd_v = _even_and_odd(_load_rows(v_ptr, pairs, pair, dim_pairs, PADDED), q.dtype, PTX)
            out = tl.dot(weights.to(q.dtype), even_v, out * correction[:, None])
            odd = tl.dot(weights.to(q.dtype), odd_v, odd * correction[:, None])
        else:
            v = _load_rows(v_ptr, offsets, columns, dim, PADDED)
            out = tl.dot(weights.to(q.dtype), v, out * correction[:, None])
    if FP8:
        out = tl.join(out, odd).reshape(BLOCK_H, DIM) * tl.load(v_scale_ptr)
    out = out / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    offsets = part_ptr + (head * splits + split).to(tl.int64)[:, None] * dim + columns[None, :]
    tl.store(offsets, out.to(part_ptr.dtype.element_ty), mask_q)
    store_log_sum(weight_ptr, head, row_max, row_sum, group_head < GROUP, splits)
    if done_ptr is not None:
        _merge_last(part_ptr, weight_ptr, o_ptr, done_ptr, dim, splits, GROUP, DIM, BLOCK_S, ROWS)


@triton.jit
def _codes_to_floats(codes, DTYPE: tl.constexpr):
    """Converts 4-bit codes to offset + code by setting the last mantissa bits; offset: 1024 in fp16, 128 in bf16."""
    magic: tl.constexpr = 0x6400 if tl.float16 == DTYPE else 0x4300
    return (codes.to(tl.uint16) | magic).to(DTYPE, bitcast=True)


@triton.jit
def _dequantized(codes, pair_ptr, pair_offsets, valid, groups, GROUPS: tl.constexpr, DTYPE: tl.constexpr):
    """Dequantizes 4-bit codes[n, half]: times the scale plus the zero of each of GROUPS groups from pair_ptr[n] on."""
    group = tl.arange(0, GROUPS)
    pairs = tl.load(pair_ptr + pair_offsets[:, None] + group[None, :], valid[:, None] & (group[None, :] < groups), 0)
    scale = (pairs & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(DTYPE)
    zero = (pairs >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(DTYPE)
    values = _codes_to_floats(codes, DTYPE) - (1024.0 if tl.float16 == DTYPE else 128.0)
    values = values.reshape(codes.shape[0], GROUPS, codes.shape[1] // GROUPS)
    values = values * scale[:, :, None] + zero[:, :, None]
    return values.reshape(codes.shape[0], codes.shape[1])


@triton.jit
def _decode_int4(
    q_ptr, k_ptr, v_ptr, o_ptr, part_ptr, weight_ptr, done_ptr, sink_ptr, table_ptr, length_ptr, k_pair_ptr, v_pair_ptr,
    scale, window, heads, kv_heads, half, pages, groups, splits, cache_pages,
    GROUP: tl.constexpr, BLOCK_H: tl.constexpr, HALF: tl.constexpr, GROUPS: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_S: tl.constexpr, ROWS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`_decode` for a 4-bit cache. The halves of a head have half of `groups` each, or share a single group."""
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if EARLY:
        start_early(
            k_ptr, v_ptr, table_ptr, length_ptr, sequence, kv_head, kv_heads, half, window, splits, pages, cache_pages,
            BLOCK_N, PAGE, (HALF + 31) // 32,
        )  # fmt: skip
    first, last = split_range(tl.load(length_ptr + sequence), window, splits, BLOCK_N)
    group_head = tl.arange(0, BLOCK_H)
    columns = tl.arange(0, HALF)
    head = sequence * heads + kv_head * GROUP + group_head
    mask_q = (group_head[:, None] < GROUP) & (columns[None, :] < half)
    q_at = q_ptr + head[:, None] * (2 * half) + columns[None, :]
    q_low, q_high = tl.load(q_at, mask_q, 0.0), tl.load(q_at + half, mask_q, 0.0)
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    low = tl.zeros((BLOCK_H, HALF), dtype=tl.float32)
    high = tl.zeros((BLOCK_H, HALF), dtype=tl.float32)
    row_max = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_H,), dtype=tl.float32)
    if sink_ptr is not None:  # of one split only
        sink = sink_score(sink_ptr, kv_head * GROUP + group_head, group_head < GROUP)
        row_max = tl.where(split == 0, sink, row_max)
        row_sum = tl.where(split == 0, row_sum + 1.0, row_sum)
    second = groups // 2  # the first group of the second half
    groups_per_half = tl.maximum(second, 1)
    for key in range(first, last, BLOCK_N):
        keys = key + tl.arange(0, BLOCK_N)
        valid = keys < last
        token = cache_slots(table_ptr, sequence, pages, tl.minimum(keys, last - 1), PAGE) * kv_heads + kv_head
        offsets = token[:, None] * half + columns[None, :]
        mask = valid[:, None] & (columns[None, :] < half)
        pair = token * groups
        k = tl.load(k_ptr + offsets, mask, 0)
        k_low = _dequantized(k & 15, k_pair_ptr, pair, valid, groups_per_half, GROUPS, DTYPE)
        k_high = _dequantized(k >> 4, k_pair_ptr, pair + second, valid, groups_per_half, GROUPS, DTYPE)
        scores = tl.dot(q_high, k_high.T, tl.dot(q_low, k_low.T))
        weights, correction, row_max, row_sum = online_softmax(scores, valid[None, :], scale, row_max, row_sum)
        weights = weights.to(DTYPE)
        v = tl.load(v_ptr + offsets, mask, 0)
        v_low = _dequantized(v & 15, v_pair_ptr, pair, valid, groups_per_half, GROUPS, DTYPE)
        low = tl.dot(weights, v_low, low * correction[:, None])
        v_high = _dequantized(v >> 4, v_pair_ptr, pair + second, valid, groups_per_half, GROUPS, DTYPE)
        high = tl.dot(weights, v_high, high * correction[:, None])
    sums = tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    offsets = part_ptr + (head * splits + split).to(tl.int64)[:, None] * (2 * half) + columns[None, :]
    tl.store(offsets, (low / sums).to(part_ptr.dtype.element_ty), mask_q)
    tl.store(offsets + half, (high / sums).to(part_ptr.dtype.element_ty), mask_q)
    store_log_sum(weight_ptr, head, row_max, row_sum, group_head < GROUP, splits)
    if done_ptr is not None:
        _merge_last(part_ptr, weight_ptr, o_ptr, done_ptr, 2 * half, splits, GROUP, 2 * HALF, BLOCK_S, ROWS)


@frozen(kw_only=True)
class DecodeTiling:
    """Tiling of decode attention: keys per iteration, and programs (splits) per sequence.

    early   start while the launch before ends, and prefetch the first keys meanwhile
    packed  convert fp8 by PTX, keys in pairs as well
    """

    keys: int
    splits: int
    num_warps: int = 4
    num_stages: int = 5
    early: bool = False
    packed: bool = False


@frozen(kw_only=True)
class PartialResults:
    """Partial results of the splits of a sequence's keys.

    values  [rows, splits, dim] in fp32; the output [rows, dim] itself if there is one split
    weight  log2-sum-exp of the scores [rows, splits]; None if there is one split
    """

    values: torch.Tensor
    weight: torch.Tensor | None

    @classmethod
    def of(cls, o: torch.Tensor, splits: int) -> PartialResults:
        """Allocates partial results for an output o[.., dim]."""
        if splits == 1:
            return cls(values=o, weight=None)
        *rows, dim = o.shape
        values = poisoned(prod(rows), splits, dim, dtype=torch.float32, device=o.device)
        return cls(values=values, weight=poisoned(prod(rows), splits, dtype=torch.float32, device=o.device))

    def merge(self, o: torch.Tensor, *, early: bool) -> tuple[Launch, ...]:
        """The launch that merges them into o; none if there is one split."""
        if self.weight is None:
            return ()
        rows, splits, dim = self.values.shape
        block = min(pow2(dim), _MERGE_ELEMENTS // pow2(splits))
        arguments = {
            "parts_ptr": self.values, "weight_ptr": self.weight, "o_ptr": o, "rows": rows, "dim": dim,
            "splits": splits, "BLOCK_D": block, "BLOCK_S": pow2(splits), "EARLY": early,
        }  # fmt: skip
        return (Launch(function=_merge, grid=(rows, cdiv(dim, block)), arguments=arguments, early=early),)


def max_splits(longest: int) -> int:
    """The largest useful number of splits for `longest` keys."""
    return min(cdiv(longest, _MIN_KEYS_PER_SPLIT), _MAX_SPLITS)


def choose_splits(target: Target, programs: int, longest: int, *, resident: int, start: int = STARTUP_KEYS) -> int:
    """The number of splits that minimizes waves times work per program.

    programs  programs without splits
    resident  programs that a multiprocessor runs at a time
    start     cost of starting a program, in keys that could be read meanwhile
    """
    places = resident * target.multiprocessors
    return min(
        range(1, max_splits(longest) + 1),
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
    sinks: torch.Tensor | None = None,
    tile: DecodeTiling | None = None,
) -> LaunchPlan:
    """q[sequences, heads, dim]; k and v[pages, page, kv_heads, dim], of int4 [.., dim / 2] bytes and their scales and
    zeros [.., groups, 2]; table[sequences, pages], the page of each run of positions; lengths[sequences], `longest` at
    the most, as the shape of a launch must not depend on what is in memory; sinks[heads] as in `flash_attention`.

    Raises InputError where groups of int4 do not fit, or heads of fp8 are not even.
    """
    (sequences, heads, dim), (_, page, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    tile = tile or tiling(target, sequences * kv_heads, min(longest, window or longest), dim, k.dtype)
    o = poisoned(sequences, heads, dim, dtype=q.dtype, device=q.device)
    parts = PartialResults.of(o, tile.splits)
    row = pow2(tile.splits) * pow2(dim)
    early = tile.early and target.starts_early(q.device)
    separate_merge = parts.weight is None or row > _MERGE_ELEMENTS or group * row > _MAX_FUSED_MERGE_ELEMENTS
    done_counts = None if separate_merge else torch.zeros(sequences * kv_heads, dtype=torch.int32, device=q.device)
    common = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": o, "part_ptr": parts.values, "weight_ptr": parts.weight,
        "done_ptr": done_counts, "sink_ptr": sinks, "table_ptr": table, "length_ptr": lengths,
        "scale": dim**-0.5 * _LOG2_E, "window": window or _NO_WINDOW, "heads": heads, "kv_heads": kv_heads,
        "pages": table.shape[1], "GROUP": group, "BLOCK_H": max(pow2(group), 16), "BLOCK_N": tile.keys, "PAGE": page,
        "splits": tile.splits, "BLOCK_S": pow2(tile.splits), "ROWS": max(min(pow2(group), _MERGE_ELEMENTS // row), 1),
        "EARLY": early, "cache_pages": len(k),
    }  # fmt: skip
    if k_scale is not None and v_scale is not None and k.dtype == torch.uint8:
        half, groups = dim // 2, k_scale.shape[3]
        launch = Launch(
            function=_decode_int4,
            grid=(tile.splits, kv_heads, sequences),
            arguments=common | {
                "k_pair_ptr": k_scale.view(torch.int32), "v_pair_ptr": v_scale.view(torch.int32), "half": half,
                "groups": groups, "HALF": pow2(half), "GROUPS": _groups_per_half(dim, groups),
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            early=early,
        )  # fmt: skip
    else:
        if v_scale is not None:
            if dim % 2:
                raise InputError(f"heads in fp8 must have an even number of elements; got {dim}")
            common["v_ptr"] = v.view(torch.int16)
            if tile.packed:
                common["k_ptr"] = k.view(torch.int16)
        launch = Launch(
            function=_decode,
            grid=(tile.splits, kv_heads, sequences),
            arguments=common
            | {
                "k_scale_ptr": k_scale,
                "v_scale_ptr": v_scale,
                "dim": dim,
                "DIM": pow2(dim),
                "PADDED": dim != pow2(dim),
                "PACKED": tile.packed,
                "PTX": tile.packed and q.device.type != "cpu",
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            early=early,
        )
    return LaunchPlan(
        launches=(launch,) if done_counts is not None else (launch, *parts.merge(o, early=early)), outputs=(o,)
    )


def tiling(target: Target, programs: int, longest: int, dim: int, cache_dtype: torch.dtype) -> DecodeTiling:
    """The default tiling, for `programs` without splits that read `longest` keys each from a cache of `cache_dtype`.

    Of the stages, the pages, read first, take every other one: with 5, one block of keys is on the way while another is
    used. More fp8 keys at a time take fewer instructions each; with more of wide heads, a multiprocessor would have
    registers for one program less.
    """
    resident = 2 if dim > 128 else max(target.shared // _SHARED_BYTES_PER_PROGRAM, 1)
    splits = choose_splits(target, programs, longest, resident=resident)
    if cache_dtype.itemsize == 1 and cache_dtype.is_floating_point:
        if dim > 128:
            return DecodeTiling(keys=32, splits=splits)
        return DecodeTiling(keys=128, splits=splits, num_stages=5 if target.generation >= 90 else 3)
    return DecodeTiling(keys=64, splits=splits, num_stages=3 if dim > 128 else 5)


def tilings(
    target: Target, programs: int, longest: int, dim: int, cache_dtype: torch.dtype
) -> tuple[DecodeTiling, ...]:
    """Alternatives that `max_splits` and the generation allow, 6 at most: twice and half as many splits, blocks half or
    twice as large, a start before the launch before has ended, and for fp8 its conversion by PTX.
    """
    rule = tiling(target, programs, longest, dim, cache_dtype)
    splits = {2 * rule.splits, rule.splits // 2} - {0, rule.splits}
    alternatives = [replace(rule, splits=one) for one in sorted(splits) if one <= max_splits(longest)]
    if cache_dtype != torch.uint8:  # int4 has no registers for more
        larger_block = rule.keys == 32 or (rule.keys == 64 and dim <= 128)
        alternatives.append(
            replace(rule, keys=2 * rule.keys if larger_block else rule.keys // 2, num_stages=3 if larger_block else 5)
        )
    if target.sm >= 90:
        alternatives.append(replace(rule, early=True))
    if cache_dtype == torch.float8_e4m3fn:
        alternatives.append(replace(rule, packed=True))
        if target.sm >= 90:
            alternatives.append(replace(rule, packed=True, early=True))
    return tuple(alternatives)


def _groups_per_half(dim: int, groups: int) -> int:
    """Number of groups per half of a head, padded like its elements."""
    group, half = dim // groups, pow2(dim // 2)
    if dim % 2 or dim % groups or not (groups <= 2 or (groups % 2 == 0 and group == pow2(group))):
        raise InputError(f"groups of int4 must be a head, its halves, or powers of two in them; got {groups} of {dim}")
    return half // group if groups > 2 else 1


def unpack_int4(codes: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Dequantizes bytes[.., dim / 2] with scales and zeros[.., groups, 2] to keys or values[.., dim]."""
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
    sinks: torch.Tensor | None = None,
    tile: DecodeTiling | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    """Attention of each query over the paged cache of its sequence, with dequantized keys and values; in fp32."""
    if k_scale is not None and v_scale is not None and k.dtype == torch.uint8:
        k, v, k_scale, v_scale = unpack_int4(k, k_scale), unpack_int4(v, v_scale), None, None
    outputs = []
    for ours, pages, length in zip(q.float(), table.long(), lengths.tolist(), strict=True):
        keys, values = (x.float()[pages].flatten(0, 1)[:length].transpose(0, 1) for x in (k, v))
        keys, values = (x[:, -window:] if window else x for x in (keys, values))
        keys, values = (x.repeat_interleave(q.shape[1] // k.shape[2], 0) for x in (keys, values))
        scale = q.shape[2] ** -0.5 * (1 if k_scale is None else k_scale)
        weights = softmax_with_sinks((keys @ ours[:, :, None] * scale).transpose(1, 2), sinks)
        outputs.append((weights @ values)[:, 0] * (1 if v_scale is None else v_scale))
    return (torch.stack(outputs),)


def _lengths(case: Case) -> list[int]:
    return [case["kv"] - i * case.get("ragged") for i in range(case["B"])]


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, dim, page, batch = Random(device, seed), case.torch_dtype, case["dim"], case["page"], case["B"]
    pages = cdiv(case["kv"], page)
    slots = (batch * pages, page, case["kv_heads"])
    shuffled = random.uniform(batch * pages, low=0, high=1).argsort()
    inputs: Inputs = {
        "q": random.normal(batch, case["heads"], dim, dtype=dtype),
        "table": shuffled.to(torch.int32).view(batch, pages),
        "lengths": torch.tensor(_lengths(case), dtype=torch.int32).to(device),
        "longest": case["kv"],
        "window": case.get("window"),
    }
    if case.get("sinks"):
        inputs["sinks"] = random.normal(case["heads"], dtype=dtype)
    if case.get("kv_bits") == 4:
        for name in "kv":
            scale = random.uniform(*slots, dim // case["group"], 1, low=0.1, high=0.3)
            zero = -scale * random.uniform(*scale.shape, low=6, high=9)
            inputs[f"{name}_scale"] = torch.cat((scale, zero), dim=4).to(torch.float16)
            inputs[name] = random.integers(*slots, dim // 2, low=0, high=256, dtype=torch.uint8)
        return inputs
    cache_dtype = torch.float8_e4m3fn if case.get("kv_bits") == 8 else dtype
    inputs |= {name: random.normal(*slots, dim, dtype=cache_dtype) for name in "kv"}
    if case.get("kv_bits") == 8:
        inputs |= {name: random.uniform(1, low=0.5, high=1.5) for name in ("k_scale", "v_scale")}
    return inputs


def _cache_format(case: Case) -> Format:
    """The format of cached keys and values, with the scales and zeros of their groups."""
    if case.get("kv_bits") == 4:
        return replace(NAMED["int4"], group=case["group"], scale_bits=16, zero_bits=16)
    return NAMED["fp8_e4m3"] if case.get("kv_bits") == 8 else case.format


def _operators(case: Case) -> tuple[Operator, ...]:
    mask = Causal(case["window"]) if case.get("window") else Causal()
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=case["dim"], mask=mask)
    q, o = (Tensor(name=name, width=heads.q_width, format=case.format) for name in "qo")
    cache_format = _cache_format(case)
    k, v = (
        Tensor(name=name, width=heads.kv_width, format=cache_format, rows=mask.keys_read, role=Role.KV_CACHE)
        for name in "kv"
    )
    return (FlashAttention(name="attention", inputs=(q, k, v), outputs=(o,), weights=sink_weights(case), heads=heads),)


def _tilings(target: Target, case: Case) -> tuple[DecodeTiling, ...]:
    longest = min(case["kv"], case.get("window") or case["kv"])
    cache_dtype = {4: torch.uint8, 8: torch.float8_e4m3fn}.get(case.get("kv_bits"), case.torch_dtype)
    return tilings(target, case["B"] * case["kv_heads"], longest, case["dim"], cache_dtype)


KERNELS = (
    Kernel(
        name="decode_attention", family="attention",
        cases=(
            case("fp16", B=2, heads=4, kv_heads=4, dim=64, kv=128, page=16),
            case("fp16", B=3, heads=8, kv_heads=2, dim=40, kv=301, page=16, ragged=113),
            case("fp16", B=1, heads=6, kv_heads=1, dim=32, kv=1300, page=32),
            case("fp16", B=1, heads=2, kv_heads=1, dim=32, kv=700, page=16, window=300),
            case("fp16", B=2, heads=4, kv_heads=1, dim=64, kv=517, page=64, ragged=516),
            case("fp16", B=2, heads=6, kv_heads=2, dim=32, kv=700, page=16, window=300, ragged=650, sinks=1),
            case("fp16", B=1, heads=4, kv_heads=2, dim=64, kv=260, page=16, kv_bits=8),
            case("fp16", B=2, heads=4, kv_heads=2, dim=64, kv=304, page=16, kv_bits=4, group=64),
            case("fp16", B=1, heads=4, kv_heads=2, dim=64, kv=304, page=16, kv_bits=4, group=64, sinks=1),
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
            # Caches of 64 to 128 MiB: starting and merging count.
            case("bf16", B=16, heads=32, kv_heads=8, dim=128, kv=1024, page=64),
            case("bf16", B=1, heads=32, kv_heads=8, dim=128, kv=16384, page=64),
            case("bf16", B=8, heads=32, kv_heads=8, dim=128, kv=8192, page=64, kv_bits=8),
            case("bf16", B=64, heads=64, kv_heads=8, dim=64, kv=8192, page=64, window=128, sinks=1),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (2 * EPSILON[case.dtype], 2 * EPSILON[case.dtype]),
        operators=_operators,
        workload=lambda case: Workload(tuple(Sequences(batch=1, q_len=1, kv_len=kv_len) for kv_len in _lengths(case))),
        tilings=_tilings,
        min_sm=lambda case: 89 if case.get("kv_bits") == 8 else 80,
    ),
)  # fmt: skip
