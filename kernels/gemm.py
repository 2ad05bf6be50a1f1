"""y[m, n] = (x[m, k] @ w[n, k].T) * x_scale * w_scale: matrix products in 16 bits, fp8 and int8.

Programs take tiles of y in groups of rows, so that those at work at the same time share what they read in L2 (Triton's
tutorial 03). Large products are persistent: one program a multiprocessor goes from tile to tile, and the loads of the
next overlap the stores of the last (tutorial 09); operands come through tensor descriptors, which are TMA from sm_90
on, and may be loaded by warps that do nothing else. Where there are fewer tiles than multiprocessors, as in decoding, k
is split between programs, too; the last one of a tile adds the partial sums of all in a fixed order, not as they come,
so results repeat bit by bit (Stream-K, arXiv:2301.03598, section 3.2, calls it fixed split).
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

GROUP_M = 8  # rows of tiles that share columns of w in L2
_MOST_PARTS = 16
_PARTS_DEPTH = 4  # blocks of k below which a part of a split is not worth its pass through memory


@triton.jit
def tile_of(index, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of the tile that a program takes: down GROUP rows of tiles, then on to the next column."""
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = index // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    inside = index % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def rows_of(source, first, last, start, k, ROWS: tl.constexpr, DEPTH: tl.constexpr, DESCRIBED: tl.constexpr):
    """ROWS rows of a matrix from `first` on, DEPTH of their k elements from `start` on; those past k are zero, and what
    rows from `last` on hold is not to be stored.

    GPUs without TMA load by pointers: for them a descriptor becomes loads that no loop overlaps with its products.
    """
    if DESCRIBED:
        tile = source.load([first, start])
    else:
        rows, ks = tl.minimum(first + tl.arange(0, ROWS), last - 1), start + tl.arange(0, DEPTH)
        tile = tl.load(source + rows.to(tl.int64)[:, None] * k + ks[None, :], ks[None, :] < k, 0.0)
    return tile


@triton.jit
def _scaled(sums, x_scale_ptr, w_scale_ptr, rows, columns, m, n, SCALES: tl.constexpr):
    """Sums in fp32, times the scales of both operands: 1 is one for all of each, 2 one for each row of each."""
    sums = sums.to(tl.float32)
    if SCALES == 1:
        sums *= tl.load(x_scale_ptr) * tl.load(w_scale_ptr)
    if SCALES == 2:
        sums *= tl.load(x_scale_ptr + rows, rows < m, 0.0)[:, None]
        sums *= tl.load(w_scale_ptr + columns, columns < n, 0.0)[None, :]
    return sums


@triton.jit
def put(sums, y_ptr, parts_ptr, count_ptr, tile, at, inside, numel):
    """Store sums at y[at], or where they are parts (count[tile] says how many are there), the sum of all.

    Every thread's part is written before its program counts itself, and only the last to come reads those of others,
    past the L1 of its multiprocessor, which may have older ones. It leaves the count at 0 for the next launch.
    """
    if parts_ptr is None:
        tl.store(y_ptr + at, sums.to(y_ptr.dtype.element_ty), inside)
    else:
        parts = tl.num_programs(1)
        tl.store(parts_ptr + tl.program_id(1).to(tl.int64) * numel + at, sums, inside)
        tl.debug_barrier()
        if tl.atomic_add(count_ptr + tile, 1, sem="acq_rel") == parts - 1:
            sums = tl.zeros_like(sums)
            for _ in range(parts):
                sums += tl.load(parts_ptr + at, inside, 0.0, cache_modifier=".cg")
                parts_ptr += numel
            tl.store(y_ptr + at, sums.to(y_ptr.dtype.element_ty), inside)
            tl.store(count_ptr + tile, 0)


@triton.jit
def _tiled(
    x_ptr, w_ptr, y_ptr, parts_ptr, count_ptr, x_scale_ptr, w_scale_ptr, m, n, k, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr, SCALES: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """A tile of y, or of the part of it that comes of `depth` elements of k. EVEN: each part is whole blocks of k."""
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    start = tl.program_id(1) * depth
    # Rows past the end read the first ones again: no mask in the loop, and what they give is not stored.
    x_at = x_ptr + (rows % m).to(tl.int64)[:, None] * k + start + ks[None, :]
    w_at = w_ptr + (columns % n).to(tl.int64)[None, :] * k + start + ks[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
    for done in range(0, min(depth, k - start), BLOCK_K):
        if EVEN:
            x, w = tl.load(x_at), tl.load(w_at)
        else:
            left = k - start - done
            x, w = tl.load(x_at, ks[None, :] < left, 0.0), tl.load(w_at, ks[:, None] < left, 0.0)
        sums = tl.dot(x, w, sums, out_dtype=SUM)
        x_at += BLOCK_K
        w_at += BLOCK_K
    y = _scaled(sums, x_scale_ptr, w_scale_ptr, rows, columns, m, n, SCALES)
    at = rows.to(tl.int64)[:, None] * n + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    put(y, y_ptr, parts_ptr, count_ptr, tl.program_id(0), at, inside, m * n)


@triton.jit
def _persistent(
    x_desc, w_desc, y_desc, x_scale_ptr, w_scale_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, SPECIALIZED: tl.constexpr, SCALES: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Every PROGRAMS-th tile of y. y leaves in halves, which takes half of the shared memory that a whole would."""
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True, warp_specialize=SPECIALIZED):
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
        for block in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row * BLOCK_M, block * BLOCK_K])
            w = w_desc.load([column * BLOCK_N, block * BLOCK_K])
            sums = tl.dot(x, w.T, sums, out_dtype=SUM)
        rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
        y = _scaled(sums, x_scale_ptr, w_scale_ptr, rows, columns, m, n, SCALES).to(y_desc.dtype)
        left, right = y.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
        y_desc.store([row * BLOCK_M, column * BLOCK_N], left)
        y_desc.store([row * BLOCK_M, column * BLOCK_N + BLOCK_N // 2], right)


@triton.jit
def _specialized(
    x_ptr, w_ptr, y_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """`_persistent` in which four warps load, and four for each half of the rows of a tile multiply and store.

    The compiler does so for Hopper where a program has 4 warps, which become 12, where loops are not one, and where
    the kernel makes its descriptors itself: it halves the blocks of those.
    """
    x_desc = tl.make_tensor_descriptor(x_ptr, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
    w_desc = tl.make_tensor_descriptor(w_ptr, [n, k], [k, 1], [BLOCK_N, BLOCK_K])
    y_desc = tl.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, warp_specialize=True):
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row * BLOCK_M, block * BLOCK_K])
            w = w_desc.load([column * BLOCK_N, block * BLOCK_K])
            sums = tl.dot(x, w.T, sums)
        y_desc.store([row * BLOCK_M, column * BLOCK_N], sums.to(y_desc.dtype))


def partial(y: torch.Tensor, tiles: int, parts: int) -> dict[str, torch.Tensor | None]:
    """What `put` is given: y, room for the parts that it is the sum of, and for how many of them there are."""
    if parts == 1:
        return {"y_ptr": y, "parts_ptr": None, "count_ptr": None}
    sums = poisoned(parts, *y.shape, dtype=torch.float32, device=y.device)
    return {"y_ptr": y, "parts_ptr": sums, "count_ptr": torch.zeros(tiles, dtype=torch.int32, device=y.device)}


@frozen(kw_only=True)
class GemmTiling:
    """How a product is cut up. `parts` of k are summed by programs of their own; a persistent program may have warps
    that are specialized in loads.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    parts: int = 1
    persistent: bool = False
    specialized: bool = False

    def depth(self, k: int) -> int:
        """Elements of k in a part: whole blocks."""
        return cdiv(cdiv(k, self.parts), self.block_k) * self.block_k


def tiling(target: Target, m: int, n: int, k: int, itemsize: int) -> GemmTiling:
    """The largest tiles that still give every multiprocessor one, and where none do, k in parts.

    From Hopper on as many stages as shared memory holds (Blackwell's specialised warps have some of it): a block of k
    takes the matrix units about as long as a load takes.
    """
    deep = 128 // itemsize
    if m <= 64:  # reading w is what takes time: deep blocks keep enough of it in flight
        tile = GemmTiling(block_m=max(pow2(m), 16), block_n=64, block_k=2 * deep, num_warps=4, num_stages=4)
    elif target.generation >= 90:
        stages = 4 if target.generation < 100 else 3
        wide = GemmTiling(block_m=128, block_n=256, block_k=deep, num_warps=8, num_stages=stages)
        tile = wide if tiles_of(wide, m, n) >= target.multiprocessors else replace(wide, block_n=128, num_stages=6)
    else:
        wide = GemmTiling(block_m=128, block_n=256, block_k=deep // 2, num_warps=8, num_stages=4)
        tile = wide if tiles_of(wide, m, n) >= target.multiprocessors else replace(wide, block_n=128, num_warps=4)
    return _spread(target, tile, m, n, k, itemsize)


def _spread(target: Target, tile: GemmTiling, m: int, n: int, k: int, itemsize: int) -> GemmTiling:
    """`tile` with k in parts or with persistent programs, where that is of use."""
    stages = target.stages(tile.num_stages, (tile.block_m + tile.block_n) * tile.block_k * itemsize)
    tile = replace(tile, num_stages=stages)
    parts = splits(target, tile, m, n, k)
    # Descriptors need rows that begin at multiples of 16 bytes; without TMA they bring nothing.
    even = k * itemsize % 16 == 0 and n % 8 == 0
    return replace(tile, parts=parts, persistent=parts == 1 and target.generation >= 90 and even and m > 64)


def tilings(target: Target, case: Case) -> tuple[GemmTiling, ...]:
    """Narrower and wider tiles, deeper blocks, and fewer and more parts than `tiling` has."""
    m, n, k, itemsize = case["M"], case["N"], case["K"], case.torch_dtype.itemsize
    own = tiling(target, m, n, k, itemsize)
    if m <= 64:
        cut = [replace(own, block_n=32), replace(own, block_n=128), replace(own, block_k=2 * own.block_k, num_stages=2)]
    elif target.generation >= 90:
        stages = 4 if target.generation < 100 else 3
        cut = [
            replace(own, block_m=128, block_n=256, num_stages=stages),
            replace(own, block_m=256, block_n=128, num_stages=stages),
            replace(own, block_m=128, block_n=128, num_stages=6),
            replace(own, block_m=128, block_n=128, num_stages=6, num_warps=4),
            replace(own, block_m=64, block_n=256, num_stages=4, num_warps=4),
        ]
        if own.parts > 1:  # smaller tiles have fewer parts, which their last program adds up alone
            cut.append(replace(own, block_m=64, block_n=64, block_k=2 * own.block_k, num_stages=4, num_warps=4))
    else:
        cut = [replace(own, num_stages=3), replace(own, block_m=64, block_n=128, num_warps=4)]
    cut = [_spread(target, tile, m, n, k, itemsize) for tile in cut]
    # Parts of wide tiles are summed in registers that are not there: those of 64 sums a thread are.
    cut = [tile for tile in cut if tile.parts == 1 or tile.block_m * tile.block_n <= 64 * 32 * tile.num_warps]
    if target.generation == 90 and own.persistent and itemsize == 2:
        wide = replace(own, block_m=128, block_n=256, num_warps=4, num_stages=3, specialized=True)
        cut += [wide, replace(wide, block_n=128, num_stages=4)]  # last: the compiler's newest way is its least tried
    return others(own, cut)


def others(own: GemmTiling, cut: list[GemmTiling]) -> tuple[GemmTiling, ...]:
    """Those that are not the rule's own, which is there with half and twice the parts, too."""
    if own.parts > 1:
        cut += [replace(own, parts=own.parts // 2, persistent=False), replace(own, parts=2 * own.parts)]
    return tuple(tile for tile in dict.fromkeys(cut) if tile != own)


def splits(target: Target, tile: GemmTiling, m: int, n: int, k: int, room: int = 2) -> int:
    """Parts of k: as many as multiprocessors have room for, `room` programs each where tiles are small."""
    wanted = (room if m <= 64 else 1) * target.multiprocessors // tiles_of(tile, m, n)
    return max(min(wanted, k // (tile.block_k * _PARTS_DEPTH), _MOST_PARTS), 1)


def tiles_of(tile: GemmTiling, m: int, n: int) -> int:
    """How many there are of y."""
    return cdiv(m, tile.block_m) * cdiv(n, tile.block_n)


def plan(
    target: Target,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    tile: GemmTiling | None = None,
) -> LaunchPlan:
    """x[m, k], w[n, k] to y[m, n]: of the type of x in 16 bits, fp16 otherwise."""
    (m, k), n = x.shape, w.shape[0]
    tile = tile or tiling(target, m, n, k, x.element_size())
    y = poisoned(m, n, dtype=x.dtype if x.element_size() == 2 else torch.float16, device=x.device)
    common = {
        "x_scale_ptr": x_scale, "w_scale_ptr": w_scale, "m": m, "n": n, "k": k,
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": GROUP_M,
        "SCALES": 0 if x_scale is None else 1 + (x_scale.numel() > 1),
        "SUM": tl.int32 if x.dtype == torch.int8 else tl.float32,
    }  # fmt: skip
    tiles = tiles_of(tile, m, n)
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
        arguments=common | partial(y, tiles, parts) | {
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
    y = x.float() @ w.float().T
    return (y if x_scale is None or w_scale is None else y * x_scale[:, None] * w_scale,)


def make(case: Case, device: str, seed: int) -> Inputs:
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
    if case.get("parts") or case.get("persistent"):
        operands["tile"] = GemmTiling(
            block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=3, parts=case.get("parts", 1),
            persistent=bool(case.get("persistent")), specialized=bool(case.get("specialized")),
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
    own = case.format
    if case.dtype == "int8":
        own = replace(own, group=case["K"], scale_bits=32)
    return linear(case, own, own, case.dtype if case.dtype in EPSILON else "fp16")


def workload(case: Case) -> Workload:
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
