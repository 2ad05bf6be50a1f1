"""y[m, n] = (x[m, k] @ w[n, k].T) * x_scale * w_scale: matrix products in 16 bits, fp8 and int8.

Programs take tiles of y in groups of rows, so that those at work at the same time share what they read in L2 (Triton's
tutorial 03). Large products are persistent: one program a multiprocessor goes from tile to tile, and the loads of the
next overlap the stores of the last (tutorial 09); operands come through tensor descriptors, which are TMA from sm_90
on, and may be loaded by warps that do nothing else. Where there are fewer tiles than multiprocessors, as in decoding, k
is split between programs, too; the last one of a tile adds the partial sums of all in a fixed order, not as they come,
so results repeat bit by bit (Stream-K, arXiv:2301.03598, section 3.2, calls it fixed split). Where a last round of
tiles would leave multiprocessors idle, its blocks of k may be divided equally (Stream-K beside whole tiles).
fp8 has a scale for each whole operand; int8 one for each row of x and of w (LLM.int8(), arXiv:2208.07339, section 2.2).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from llmviewer.records import frozen

from ..operators.base import Operator, Tensor, Weight
from ..operators.linear import Linear
from ..precision import NAMED, Format
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2, scratch

GROUP_M = 8  # rows of tiles that run together and share columns of w in L2
_MAX_SPLIT_K = 16
_MIN_BLOCKS_PER_SPLIT = 4  # below, a part costs more through its partial sums in memory than it gains
_MAX_STREAM_ROUNDS = 4  # of tiles: an idle last round costs many little
_HOPPER_SPLIT = 0.75  # programs per multiprocessor: 64 tiles of 64 x 64 run at 0.81 of their speed in two parts each
# Tiles on Hopper: rows, columns, bytes of a block of k, warps, stages, and the time of a round of them on the 132
# multiprocessors of an H100, in bf16 with k = 4096. [us] The first two are of many rounds (700 and 550 TOP/s), the
# others of one (reports/measurements/h100/tilings.jsonl): larger products do not take them.
_HOPPER_TILES = (
    (128, 256, 128, 8, 4, 50.6),
    (128, 128, 128, 8, 6, 32.0),
    (64, 128, 256, 4, 4, 18.9),
    (64, 64, 256, 4, 4, 17.2),
)


@triton.jit
def tile_of(index, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of the tile of a program. Programs go down GROUP rows of tiles, then to the next column."""
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = index // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    inside = index % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def load_rows(source, first, last, start, k, ROWS: tl.constexpr, DEPTH: tl.constexpr, DESCRIBED: tl.constexpr):
    """Loads a tile [ROWS, DEPTH] of a matrix from row `first` and column `start` on.

    Elements past k are zero. Rows from `last` on have arbitrary values, whose products must not be stored. GPUs without
    TMA load by pointers, because a descriptor becomes loads that are not pipelined with the products.
    """
    if DESCRIBED:
        tile = source.load([first, start])
    else:
        rows, ks = tl.minimum(first + tl.arange(0, ROWS), last - 1), start + tl.arange(0, DEPTH)
        tile = tl.load(source + rows.to(tl.int64)[:, None] * k + ks[None, :], ks[None, :] < k, 0.0)
    return tile


@triton.jit
def _scaled(sums, x_scale_ptr, w_scale_ptr, rows, columns, m, n, SCALES: tl.constexpr):
    """Scales the accumulator, in fp32. SCALES is 1 for a scale per operand, 2 for a scale per row of each operand."""
    sums = sums.to(tl.float32)
    if SCALES == 1:
        sums *= tl.load(x_scale_ptr) * tl.load(w_scale_ptr)
    if SCALES == 2:
        sums *= tl.load(x_scale_ptr + rows, rows < m, 0.0)[:, None]
        sums *= tl.load(w_scale_ptr + columns, columns < n, 0.0)[None, :]
    return sums


@triton.jit
def store_or_reduce(accumulator, y_ptr, parts_ptr, count_ptr, tile, offsets, mask, numel):
    """Stores the accumulator at y[offsets]; with split-K, reduces the parts in the last program of the tile.

    Each program writes its part before it increments count[tile], and only the last one reads the others', bypassing L1
    (.cg), which may hold older values. It asks for several parts before it adds them, as each takes L2's latency, and
    resets the count for the next launch.
    """
    if parts_ptr is None:
        tl.store(y_ptr + offsets, accumulator.to(y_ptr.dtype.element_ty), mask)
    else:
        parts = tl.num_programs(1)
        tl.store(parts_ptr + tl.program_id(1).to(tl.int64) * numel + offsets, accumulator, mask)
        tl.debug_barrier()
        # Of these numbers, more sums would take registers that leave a multiprocessor fewer programs.
        AHEAD: tl.constexpr = 4 if accumulator.numel <= 2048 else 2 if accumulator.numel <= 4096 else 1
        if tl.atomic_add(count_ptr + tile, 1, sem="acq_rel") == parts - 1:
            accumulator = tl.zeros_like(accumulator)
            for first in range(0, parts, AHEAD):
                for part in tl.static_range(AHEAD):
                    ready = mask & (first + part < parts)
                    accumulator += tl.load(parts_ptr + offsets, ready, 0.0, cache_modifier=".cg")
                    parts_ptr += numel
            tl.store(y_ptr + offsets, accumulator.to(y_ptr.dtype.element_ty), mask)
            tl.store(count_ptr + tile, 0)


@triton.jit
def _tiled(
    x_ptr, w_ptr, y_ptr, parts_ptr, count_ptr, x_scale_ptr, w_scale_ptr, m, n, k, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr, SCALES: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """A tile of y; with split-K, its part over `depth` elements of k. EVEN: k is a multiple of BLOCK_K."""
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    start = tl.program_id(1) * depth
    # Rows past the end read the first rows again, so that the loop needs no mask; their products are not stored.
    x_at = x_ptr + (rows % m).to(tl.int64)[:, None] * k + start + ks[None, :]
    w_at = w_ptr + (columns % n).to(tl.int64)[None, :] * k + start + ks[:, None]
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
    for block_start in range(0, min(depth, k - start), BLOCK_K):
        if EVEN:
            x, w = tl.load(x_at), tl.load(w_at)
        else:
            remaining = k - start - block_start
            x, w = tl.load(x_at, ks[None, :] < remaining, 0.0), tl.load(w_at, ks[:, None] < remaining, 0.0)
        accumulator = tl.dot(x, w, accumulator, out_dtype=SUM)
        x_at += BLOCK_K
        w_at += BLOCK_K
    y = _scaled(accumulator, x_scale_ptr, w_scale_ptr, rows, columns, m, n, SCALES)
    offsets = rows.to(tl.int64)[:, None] * n + columns[None, :]
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    store_or_reduce(y, y_ptr, parts_ptr, count_ptr, tl.program_id(0), offsets, mask, m * n)


@triton.jit
def _persistent(
    x_desc, w_desc, y_desc, x_scale_ptr, w_scale_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, SPECIALIZED: tl.constexpr, SCALES: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Every PROGRAMS-th tile of y. A tile is stored in halves, which halves the shared memory of the epilogue."""
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True, warp_specialize=SPECIALIZED):
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
        for block in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row * BLOCK_M, block * BLOCK_K])
            w = w_desc.load([column * BLOCK_N, block * BLOCK_K])
            accumulator = tl.dot(x, w.T, accumulator, out_dtype=SUM)
        rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
        y = _scaled(accumulator, x_scale_ptr, w_scale_ptr, rows, columns, m, n, SCALES).to(y_desc.dtype)
        left, right = y.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
        y_desc.store([row * BLOCK_M, column * BLOCK_N], left)
        y_desc.store([row * BLOCK_M, column * BLOCK_N + BLOCK_N // 2], right)


@triton.jit
def _specialized(
    x_ptr, w_ptr, y_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Warp-specialized `_persistent`: four warps load, and four per half of a tile's rows multiply and store.

    The compiler specializes on Hopper if a program has 4 warps, which become 12, if the loops are not flattened, and if
    the kernel creates its descriptors, whose blocks the compiler halves.
    """
    x_desc = tl.make_tensor_descriptor(x_ptr, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
    w_desc = tl.make_tensor_descriptor(w_ptr, [n, k], [k, 1], [BLOCK_N, BLOCK_K])
    y_desc = tl.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, warp_specialize=True):
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row * BLOCK_M, block * BLOCK_K])
            w = w_desc.load([column * BLOCK_N, block * BLOCK_K])
            accumulator = tl.dot(x, w.T, accumulator)
        y_desc.store([row * BLOCK_M, column * BLOCK_N], accumulator.to(y_desc.dtype))


@triton.jit
def _stream_k(
    x_desc, w_desc, y_ptr, parts_ptr, count_ptr, m, n, k, whole_tiles, share,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Every PROGRAMS-th of the first `whole_tiles` of y, and before them an equal `share` of blocks of k of all others,
    which are fewer than programs: parts of one tile or two. The last program of a tile adds its parts, in order.
    """
    program, blocks = tl.program_id(0), tl.cdiv(k, BLOCK_K)
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    position = program * share
    end = min(position + share, (tiles - whole_tiles) * blocks)
    inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    for turn in range(2 + whole_tiles // PROGRAMS):
        divided, is_whole = position // blocks, turn >= 2
        start = tl.where(is_whole, 0, position % blocks)
        stop = tl.where(is_whole, blocks, min(blocks, start + max(end - position, 0)))
        tile = tl.where(is_whole, program + (turn - 2) * PROGRAMS, whole_tiles + divided)
        position += tl.where(is_whole, 0, stop - start)
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(start, stop):
            x = x_desc.load([row * BLOCK_M, block * BLOCK_K])
            w = w_desc.load([column * BLOCK_N, block * BLOCK_K])
            accumulator = tl.dot(x, w.T, accumulator)
        is_last = stop - start == blocks
        if (start < stop) & (stop - start < blocks):  # as in `store_or_reduce`
            first = divided * blocks // share
            parts = ((divided + 1) * blocks - 1) // share - first + 1
            parts_at = parts_ptr + (divided + first).to(tl.int64) * BLOCK_M * BLOCK_N + inside
            tl.store(parts_at + (program - first) * BLOCK_M * BLOCK_N, accumulator)
            tl.debug_barrier()
            is_last = tl.atomic_add(count_ptr + divided, 1, sem="acq_rel") == parts - 1
            if is_last:
                accumulator = tl.zeros_like(accumulator)
                for part in range(parts):
                    accumulator += tl.load(parts_at + part * BLOCK_M * BLOCK_N, cache_modifier=".cg")
                tl.store(count_ptr + divided, 0)
        if is_last:
            rows, columns = row * BLOCK_M + tl.arange(0, BLOCK_M), column * BLOCK_N + tl.arange(0, BLOCK_N)
            y_at = y_ptr + (rows.to(tl.int64)[:, None] * n + columns[None, :])
            tl.store(y_at, accumulator.to(y_ptr.dtype.element_ty), (rows[:, None] < m) & (columns[None, :] < n))


def split_k_arguments(y: torch.Tensor, tiles: int, parts: int) -> dict[str, torch.Tensor | None]:
    """Arguments of `store_or_reduce`: y and, with split-K, memory for the parts and a counter per tile."""
    if parts == 1:
        return {"y_ptr": y, "parts_ptr": None, "count_ptr": None}
    sums = poisoned(parts, *y.shape, dtype=torch.float32, device=y.device)
    return {"y_ptr": y, "parts_ptr": sums, "count_ptr": torch.zeros(tiles, dtype=torch.int32, device=y.device)}


@frozen(kw_only=True)
class GemmTiling:
    """Tiling of a product. `parts` is the split-K factor; a persistent kernel may be warp-specialized, or divide the
    tiles of its last round equally (`stream_k`).
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    parts: int = 1
    persistent: bool = False
    specialized: bool = False
    stream_k: bool = False

    def depth(self, k: int) -> int:
        """Elements of k per split-K part, a multiple of block_k."""
        return cdiv(cdiv(k, self.parts), self.block_k) * self.block_k


def tiling(target: Target, m: int, n: int, k: int, itemsize: int) -> GemmTiling:
    """The default tiling: of few tokens, narrow; on Hopper, the tiles whose rounds on all multiprocessors take least;
    elsewhere the largest with at least one per multiprocessor. Split-K where tiles are fewer still.

    From Hopper on, as many stages as fit in shared memory (Blackwell's specialized warps use some of it), because
    multiplying a block of k takes about as long as loading it.
    """
    deep = 128 // itemsize
    if m <= 64:  # bound by reading w: deep blocks keep enough loads in flight
        tile = GemmTiling(block_m=max(pow2(m), 16), block_n=64, block_k=2 * deep, num_warps=4, num_stages=4)
    elif target.generation == 90:
        tile = _fastest_rounds(target, m, n, itemsize)
    elif target.generation > 90:
        wide = GemmTiling(block_m=128, block_n=256, block_k=deep, num_warps=8, num_stages=3)
        tile = wide if num_tiles(wide, m, n) >= target.multiprocessors else replace(wide, block_n=128, num_stages=6)
    else:
        wide = GemmTiling(block_m=128, block_n=256, block_k=deep // 2, num_warps=8, num_stages=4)
        tile = wide if num_tiles(wide, m, n) >= target.multiprocessors else replace(wide, block_n=128, num_warps=4)
    return _with_split_k(target, tile, m, n, k, itemsize)


def _fastest_rounds(target: Target, m: int, n: int, itemsize: int) -> GemmTiling:
    """The tiles of Hopper with the least product of rounds on all multiprocessors and time of a tile."""
    by_time = []
    for block_m, block_n, deep, num_warps, num_stages, time in _HOPPER_TILES:
        tile = GemmTiling(
            block_m=block_m, block_n=block_n, block_k=deep // itemsize, num_warps=num_warps, num_stages=num_stages
        )
        by_time.append((cdiv(num_tiles(tile, m, n), target.multiprocessors) * time, tile))
    return min(by_time, key=lambda one: one[0])[1]


def _with_split_k(target: Target, tile: GemmTiling, m: int, n: int, k: int, itemsize: int) -> GemmTiling:
    """Adds split-K or persistent programs to `tile` where they help."""
    stages = target.stages(tile.num_stages, (tile.block_m + tile.block_n) * tile.block_k * itemsize)
    tile = replace(tile, num_stages=stages)
    parts = choose_split_k(target, tile, m, n, k, large=_HOPPER_SPLIT if target.generation == 90 else 1)
    # Descriptors need rows aligned to 16 bytes; without TMA they have no advantage.
    even = k * itemsize % 16 == 0 and n % 8 == 0
    return replace(tile, parts=parts, persistent=parts == 1 and target.generation >= 90 and even and m > 64)


def tilings(target: Target, case: Case) -> tuple[GemmTiling, ...]:
    """Alternative tilings: narrower and wider tiles, deeper blocks, and other split-K factors."""
    m, n, k, itemsize = case["M"], case["N"], case["K"], case.torch_dtype.itemsize
    rule = tiling(target, m, n, k, itemsize)
    if m <= 64:
        candidates = [
            replace(rule, block_n=32),
            replace(rule, block_n=128),
            replace(rule, block_k=2 * rule.block_k, num_stages=2),
            # Two programs of 64 x 64 on a multiprocessor, whose shared memory four stages of 32 KiB leave to one.
            replace(rule, num_stages=3),
        ]
    elif target.generation >= 90:
        stages = 4 if target.generation < 100 else 3
        wide = replace(rule, block_m=128, block_n=256, block_k=128 // itemsize, num_warps=8, num_stages=stages)
        square = replace(wide, block_n=128, num_stages=6)
        small = replace(square, block_m=64, block_k=256 // itemsize, num_warps=4, num_stages=4)
        rounds = num_tiles(square, m, n) / target.multiprocessors
        divides = target.generation == 90 and itemsize == 2 and k % 8 == 0 and n % 8 == 0
        blocks = rounds % 1 * cdiv(k, square.block_k)  # of k in the last round, for each multiprocessor
        divides &= rounds < _MAX_STREAM_ROUNDS and blocks >= _MIN_BLOCKS_PER_SPLIT
        candidates = [
            wide,
            replace(square, parts=1, persistent=False, stream_k=True)
            if divides
            else replace(wide, block_m=256, block_n=128),
            square,
            small,
            replace(small, block_n=64),
        ]
    else:
        candidates = [replace(rule, num_stages=3), replace(rule, block_m=64, block_n=128, num_warps=4)]
    candidates = [tile if tile.stream_k else _with_split_k(target, tile, m, n, k, itemsize) for tile in candidates]
    # The reduction of split-K parts spills registers with more than 64 accumulators per thread.
    candidates = [
        tile for tile in candidates if tile.parts == 1 or tile.block_m * tile.block_n <= 64 * 32 * tile.num_warps
    ]
    if target.generation == 90 and rule.persistent and itemsize == 2:
        specialized = replace(wide, num_warps=4, num_stages=3, parts=1, persistent=True, specialized=True)
        candidates += [
            specialized,
            replace(specialized, block_n=128, num_stages=4),
        ]  # last: the compiler's newest way is its least tried
    return alternatives(rule, candidates)


def alternatives(rule: GemmTiling, candidates: list[GemmTiling]) -> tuple[GemmTiling, ...]:
    """The candidates that differ from the default `rule`, and the rule with half and twice its split-K factor."""
    if rule.parts > 1:
        candidates += [replace(rule, parts=rule.parts // 2, persistent=False), replace(rule, parts=2 * rule.parts)]
    return tuple(tile for tile in dict.fromkeys(candidates) if tile != rule)


def choose_split_k(
    target: Target, tile: GemmTiling, m: int, n: int, k: int, small: float = 2, large: float = 1
) -> int:  # fmt: skip
    """The split-K factor that fills the multiprocessors with `small` programs each, above 64 tokens with `large`."""
    programs = int((small if m <= 64 else large) * target.multiprocessors)
    return max(min(programs // num_tiles(tile, m, n), k // (tile.block_k * _MIN_BLOCKS_PER_SPLIT), _MAX_SPLIT_K), 1)


def num_tiles(tile: GemmTiling, m: int, n: int) -> int:
    """Number of tiles of y."""
    return cdiv(m, tile.block_m) * cdiv(n, tile.block_n)


def plan(
    target: Target,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    tile: GemmTiling | None = None,
) -> LaunchPlan:
    """Plans y[m, n] = x[m, k] @ w[n, k].T; y has the type of x if that has 16 bits, else fp16."""
    (m, k), n = x.shape, w.shape[0]
    tile = tile or tiling(target, m, n, k, x.element_size())
    y = poisoned(m, n, dtype=x.dtype if x.element_size() == 2 else torch.float16, device=x.device)
    common = {
        "x_scale_ptr": x_scale, "w_scale_ptr": w_scale, "m": m, "n": n, "k": k,
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": GROUP_M,
        "SCALES": 0 if x_scale is None else 1 + (x_scale.numel() > 1),
        "SUM": tl.int32 if x.dtype == torch.int8 else tl.float32,
    }  # fmt: skip
    tiles = num_tiles(tile, m, n)
    if tile.specialized:
        triton.set_allocator(scratch)
        programs = min(tiles, target.multiprocessors)
        launch = Launch(
            function=_specialized,
            grid=(programs,),
            arguments={
                "x_ptr": x, "w_ptr": w, "y_ptr": y, "m": m, "n": n, "k": k, "BLOCK_M": tile.block_m,
                "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": GROUP_M, "PROGRAMS": programs,
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )  # fmt: skip
        return LaunchPlan(launches=(launch,), outputs=(y,))
    if tile.stream_k:
        programs = target.multiprocessors
        rest, blocks = tiles % programs, cdiv(k, tile.block_k)
        parts = poisoned(rest + programs, tile.block_m, tile.block_n, dtype=torch.float32, device=x.device)
        launch = Launch(
            function=_stream_k,
            grid=(programs,),
            arguments={
                "x_desc": TensorDescriptor.from_tensor(x, [tile.block_m, tile.block_k]),
                "w_desc": TensorDescriptor.from_tensor(w, [tile.block_n, tile.block_k]),
                "y_ptr": y, "parts_ptr": parts, "count_ptr": torch.zeros(rest, dtype=torch.int32, device=x.device),
                "m": m, "n": n, "k": k, "whole_tiles": tiles - rest, "share": cdiv(rest * blocks, programs),
                "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": GROUP_M,
                "PROGRAMS": programs,
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )  # fmt: skip
        return LaunchPlan(launches=(launch,), outputs=(y,))
    if tile.persistent:
        programs = min(tiles, target.multiprocessors)
        launch = Launch(
            function=_persistent,
            grid=(programs,),
            arguments=common | {
                "x_desc": TensorDescriptor.from_tensor(x, [tile.block_m, tile.block_k]),
                "w_desc": TensorDescriptor.from_tensor(w, [tile.block_n, tile.block_k]),
                "y_desc": TensorDescriptor.from_tensor(y, [tile.block_m, tile.block_n // 2]),
                "PROGRAMS": programs, "SPECIALIZED": target.generation >= 100,
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )  # fmt: skip
        return LaunchPlan(launches=(launch,), outputs=(y,))
    depth = tile.depth(k)
    parts = cdiv(k, depth)
    launch = Launch(
        function=_tiled,
        grid=(tiles, parts),
        arguments=common | split_k_arguments(y, tiles, parts) | {
            "x_ptr": x, "w_ptr": w, "depth": depth, "EVEN": k % tile.block_k == 0,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,))


def reference(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    tile: GemmTiling | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    """The product x w^T [M, N] in fp32, times the scales of rows and columns of int8 operands."""
    y = x.float() @ w.float().T
    return (y if x_scale is None or w_scale is None else y * x_scale[:, None] * w_scale,)


def make(case: Case, device: str, seed: int) -> Inputs:
    """Random operands x [M, K] and w [N, K] of a case, with the options of its launch."""
    m, n, k = case["M"], case["N"], case["K"]
    random, dtype = Random(device, seed), case.torch_dtype
    if case.dtype == "int8":
        operands: Inputs = {
            "x": random.integers(m, k, low=-127, high=128, dtype=dtype),
            "w": random.integers(n, k, low=-127, high=128, dtype=dtype),
            "x_scale": random.uniform(m, low=0.01, high=0.03),
            "w_scale": random.uniform(n, low=0.01, high=0.03) / k**0.5,
        }
    else:
        operands = {
            "x": random.normal(m, k, dtype=dtype),
            "w": random.normal(n, k, dtype=dtype, scale=1.0 if dtype.itemsize == 1 else k**-0.5),
        }
        if dtype.itemsize == 1:
            operands["x_scale"] = random.uniform(1, low=0.5, high=2)
            operands["w_scale"] = k**-0.5 / operands["x_scale"]
    if any(case.get(name) for name in ("parts", "persistent", "stream_k")):
        operands["tile"] = GemmTiling(
            block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=3, parts=case.get("parts", 1),
            persistent=bool(case.get("persistent")), specialized=bool(case.get("specialized")),
            stream_k=bool(case.get("stream_k")),
        )  # fmt: skip
    return operands


def tolerance(case: Case) -> tuple[float, float]:
    """Results are of the order of 1 and rounded once. fp8 sums on Hopper keep 14 bits (arXiv:2412.19437, 3.3.2): each
    32 elements of k may take 2 ** -12 away from sums of up to 4, in parts of k less than in all.
    """
    if case.dtype == "fp8_e4m3":
        return 2**-9, max(2**-9, case["K"] / 32 * 2**-12)
    return (EPSILON.get(case.dtype, EPSILON["fp16"]),) * 2


def linear(case: Case, x: Format, weight: Format, y: str = "fp16") -> tuple[Operator, ...]:
    """The Linear of M tokens from K to N features."""
    return (
        Linear(
            name="gemm",
            inputs=(Tensor(name="x", width=case["K"], format=x),),
            outputs=(Tensor(name="y", width=case["N"], format=NAMED[y]),),
            weights=(Weight(name="w", shape=(case["N"], case["K"]), format=weight),),
        ),
    )


def operators(case: Case) -> tuple[Operator, ...]:
    """The matrix product of a case as an operator; int8 has one scale per row of K values."""
    operand_format = case.format
    if case.dtype == "int8":
        operand_format = replace(operand_format, group=case["K"], scale_bits=32)
    return linear(case, operand_format, operand_format, case.dtype if case.dtype in EPSILON else "fp16")


def workload(case: Case) -> Workload:
    """Prefill of M tokens."""
    return Workload.prefill(batch=1, prompt=case["M"])


KERNELS = (
    Kernel(
        name="gemm", family="gemm",
        cases=(
            case("fp16", M=128, N=256, K=128),
            case("fp16", M=100, N=136, K=200, persistent=1),
            case("fp16", M=1, N=72, K=264),
            case("fp16", M=37, N=101, K=75),
            case("fp16", M=193, N=130, K=67),
            case("fp16", M=300, N=200, K=72, persistent=1),
            case("fp16", M=300, N=200, K=72, persistent=1, specialized=1),
            case("fp16", M=50, N=70, K=333, parts=3),
            case("fp16", M=300, N=200, K=328, stream_k=1),
            case("fp8_e4m3", M=64, N=80, K=144),
            case("fp8_e4m3", M=70, N=136, K=80, persistent=1),
            case("int8", M=33, N=65, K=129),
            case("int8", M=70, N=136, K=80, persistent=1),
            case("int8", M=20, N=70, K=260, parts=2),
        ),
        full_size=(
            case("bf16", M=8192, N=8192, K=8192),
            case("fp16", M=4096, N=4096, K=4096),
            case("bf16", M=512, N=4096, K=14336),
            case("bf16", M=16, N=4096, K=14336),
            case("fp8_e4m3", M=8192, N=8192, K=8192),
            case("int8", M=8192, N=8192, K=8192),
        ),
        make=make,
        plan=plan,
        reference=reference,
        tolerance=tolerance,
        operators=operators,
        workload=workload,
        tilings=tilings,
    ),
)  # fmt: skip
