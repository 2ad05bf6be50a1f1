"""o[query, head] = softmax over keys of (q[query, head] . k[key, kv_head] / sqrt(dim)) @ v[:, kv_head], for prompts.

FlashAttention (arXiv:2205.14135) with the loop order and the late division of FlashAttention-2 (arXiv:2307.08691,
section 3.1): a program holds a tile of queries of one head while keys and values stream past, with the running maximum
and sum of each query. Only tiles at the diagonal, at the edge of a window and at the end of a sequence pay for a mask.
Sequences of any lengths are packed one after the other. Queries are the last of their sequence's keys, so a prompt, a
chunk of one with a past, and a few drafted tokens are the same call.
"""

from __future__ import annotations

from dataclasses import replace
from math import e, log2
from typing import Final

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from llmviewer.records import frozen

from ..errors import InputError
from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.masks import Bidirectional, Causal, FixedKeys, Mask
from ..workload import Sequences, Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2, scratch

_LOG2_E = log2(e)
_SINK_SCALE = tl.constexpr(_LOG2_E)
MASKED_SCORE = tl.constexpr(-(2.0**100))  # of a key that a query does not see; see `online_softmax`


@triton.jit
def _load_tile(source, first, last, head, heads, dim, ROWS: tl.constexpr, DIM: tl.constexpr, DESCRIBED: tl.constexpr):
    """Loads ROWS rows of one head from row `first` on; rows from `last` on are the next sequence's, or zero.

    GPUs without TMA load by pointers, because a descriptor becomes loads that are not pipelined with the products.
    """
    if DESCRIBED:
        tile = source.load([first, head * dim])
    else:
        rows, columns = first + tl.arange(0, ROWS), tl.arange(0, DIM)
        offsets = source + (rows.to(tl.int64)[:, None] * heads + head) * dim + columns[None, :]
        tile = tl.load(offsets, (rows[:, None] < last) & (columns[None, :] < dim), 0.0)
    return tile


@triton.jit
def _masked(
    scores, first, positions, kv_len, window, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr
):  # fmt: skip
    """The scores of the keys from `first` on, with a large negative number where a query does not see a key."""
    keys = first + tl.arange(0, BLOCK_N)[None, :]
    # Queries of the sequence see no key past its end, and what those after them see does not matter.
    visible = keys <= positions[:, None] if CAUSAL else keys < kv_len
    if WINDOWED:
        visible = visible & (keys > positions[:, None] - window)
    return tl.where(visible, scores, MASKED_SCORE)


@triton.jit
def online_softmax(scores, visible, scale, row_max, row_sum):
    """Updates the running maximum and sum of each row of an online softmax (arXiv:2205.14135) with new scores.

    visible  mask of the scores; None if all are visible

    Returns the weights of these scores, the factor that rescales older sums, the new maximum and the new sum. The scale
    is applied in the multiply-add that subtracts the maximum. Masked scores become a large negative number that is
    finite, so that a query that sees none of these keys has weights and no NaN; they vanish with the first visible key.
    It is a power of two, so that its product with the scale is exact.
    """
    if visible is not None:
        scores = tl.where(visible, scores, MASKED_SCORE)
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_max[:, None])
    correction = tl.exp2(row_max - new_max)
    return weights, correction, new_max, row_sum * correction + tl.sum(weights, 1)


@triton.jit
def sink_score(sink_ptr, heads, mask):
    """The scores of heads' sinks, in powers of two as those of keys are once scaled."""
    return tl.load(sink_ptr + heads, mask, 0.0).to(tl.float32) * _SINK_SCALE


@triton.jit
def _attend(
    out, row_max, row_sum, q, k_rows, v_rows, kv_start, kv_head, kv_heads, dim, positions, kv_len, window, scale,
    first, last, unmasked_start, unmasked_end,
    DIM: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, DESCRIBED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Processes the keys from `first` to `last` (a multiple of BLOCK_N or the end) into `out`, `row_max` and `row_sum`.

    Values are loaded before keys: the warps that share tiles then synchronize before the first product, and one half of
    them can compute the softmax while the other multiplies.

    MASKED  whether blocks of keys have a mask: True, False, or None for those not between `unmasked_start` and
            `unmasked_end`
    """
    for key in range(first, last, BLOCK_N):
        v = _load_tile(v_rows, kv_start + key, kv_start + kv_len, kv_head, kv_heads, dim, BLOCK_N, DIM, DESCRIBED)
        k = _load_tile(k_rows, kv_start + key, kv_start + kv_len, kv_head, kv_heads, dim, BLOCK_N, DIM, DESCRIBED)
        scores = tl.dot(q, k.T)
        if MASKED is None:
            if key >= unmasked_end or (WINDOWED and key < unmasked_start):
                scores = _masked(scores, key, positions, kv_len, window, BLOCK_N, CAUSAL, WINDOWED)
        elif MASKED:
            scores = _masked(scores, key, positions, kv_len, window, BLOCK_N, CAUSAL, WINDOWED)
        weights, correction, row_max, row_sum = online_softmax(scores, None, scale, row_max, row_sum)
        out = tl.dot(weights.to(v.dtype), v, out * correction[:, None])
    return out, row_max, row_sum


@triton.jit
def _flash_attention(
    q_rows, k_rows, v_rows, o_ptr, sink_ptr, q_ends_ptr, kv_ends_ptr, scale, window, heads, kv_heads, dim,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    DESCRIBED: tl.constexpr, ONE_LOOP: tl.constexpr,
):  # fmt: skip
    # The last tiles have the most keys. They start first, so that no long program runs alone at the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head, sequence = tl.program_id(1), tl.program_id(2)
    q_start = tl.load(q_ends_ptr + sequence)
    q_len = tl.load(q_ends_ptr + sequence + 1) - q_start
    row = tile * BLOCK_M
    if row < q_len:
        kv_start = tl.load(kv_ends_ptr + sequence)
        kv_len = tl.load(kv_ends_ptr + sequence + 1) - kv_start
        rows = row + tl.arange(0, BLOCK_M)
        first_position = kv_len - q_len + row  # of the tile's first query in its sequence
        positions = kv_len - q_len + rows
        kv_head = head // (heads // kv_heads)
        q = _load_tile(q_rows, q_start + row, q_start + q_len, head, heads, dim, BLOCK_M, DIM, DESCRIBED)
        out = tl.zeros((BLOCK_M, DIM), dtype=tl.float32)
        row_max = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)
        row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
        if sink_ptr is not None:  # as a key before all others would leave them, whose value is 0
            row_max = tl.zeros((BLOCK_M,), dtype=tl.float32) + sink_score(sink_ptr, head, True)
            row_sum += 1.0
        first_key, unmasked_start = 0, 0  # first key that any query sees, and that all see
        if CAUSAL:
            end = min(kv_len, first_position + BLOCK_M)
            unmasked_end = (first_position + 1) // BLOCK_N * BLOCK_N  # end of the keys that all queries see
            if WINDOWED:
                first_key = max(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
                unmasked_start = tl.cdiv(max(first_position + BLOCK_M - window, 0), BLOCK_N) * BLOCK_N
                unmasked_end = max(unmasked_end, first_key)
                unmasked_start = min(unmasked_start, unmasked_end)
        else:
            end = kv_len
            unmasked_end = kv_len // BLOCK_N * BLOCK_N
        if ONE_LOOP:
            out, row_max, row_sum = _attend(
                out, row_max, row_sum, q, k_rows, v_rows, kv_start, kv_head, kv_heads, dim, positions, kv_len, window,
                scale, first_key, end, unmasked_start, unmasked_end,
                DIM, BLOCK_N, CAUSAL, WINDOWED, DESCRIBED, None,
            )  # fmt: skip
        else:
            if WINDOWED:
                out, row_max, row_sum = _attend(
                    out, row_max, row_sum, q, k_rows, v_rows, kv_start, kv_head, kv_heads, dim, positions, kv_len,
                    window, scale, first_key, unmasked_start, unmasked_start, unmasked_end,
                    DIM, BLOCK_N, CAUSAL, WINDOWED, DESCRIBED, True,
                )  # fmt: skip
            out, row_max, row_sum = _attend(
                out, row_max, row_sum, q, k_rows, v_rows, kv_start, kv_head, kv_heads, dim, positions, kv_len, window,
                scale, unmasked_start, unmasked_end, unmasked_start, unmasked_end,
                DIM, BLOCK_N, CAUSAL, WINDOWED, DESCRIBED, False,
            )  # fmt: skip
            out, row_max, row_sum = _attend(
                out, row_max, row_sum, q, k_rows, v_rows, kv_start, kv_head, kv_heads, dim, positions, kv_len, window,
                scale, unmasked_end, end, unmasked_start, unmasked_end,
                DIM, BLOCK_N, CAUSAL, WINDOWED, DESCRIBED, True,
            )  # fmt: skip
        out = out / row_sum[:, None]
        columns = tl.arange(0, DIM)
        o_at = o_ptr + ((q_start + rows).to(tl.int64)[:, None] * heads + head) * dim + columns[None, :]
        tl.store(o_at, out.to(o_ptr.dtype.element_ty), (rows[:, None] < q_len) & (columns[None, :] < dim))


@triton.jit
def _specialized(
    q_ptr, k_ptr, v_ptr, o_ptr, q_ends_ptr, kv_ends_ptr, queries, keys, scale, heads, kv_heads,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Warp-specialized `_flash_attention` under a causal mask: four warps load, and two groups of four alternate
    between softmax and products, each for half of the queries.

    The compiler specializes warps on Hopper only for a kernel with one loop (see `gemm`), so all tiles are masked.
    """
    q_rows = tl.make_tensor_descriptor(q_ptr, [queries, heads * DIM], [heads * DIM, 1], [BLOCK_M, DIM])
    k_rows = tl.make_tensor_descriptor(k_ptr, [keys, kv_heads * DIM], [kv_heads * DIM, 1], [BLOCK_N, DIM])
    v_rows = tl.make_tensor_descriptor(v_ptr, [keys, kv_heads * DIM], [kv_heads * DIM, 1], [BLOCK_N, DIM])
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head, sequence = tl.program_id(1), tl.program_id(2)
    q_start = tl.load(q_ends_ptr + sequence)
    q_len = tl.load(q_ends_ptr + sequence + 1) - q_start
    row = tile * BLOCK_M
    if row < q_len:
        kv_start = tl.load(kv_ends_ptr + sequence)
        kv_len = tl.load(kv_ends_ptr + sequence + 1) - kv_start
        rows = row + tl.arange(0, BLOCK_M)
        positions = kv_len - q_len + rows
        kv_column = head // (heads // kv_heads) * DIM
        q = q_rows.load([q_start + row, head * DIM])
        out = tl.zeros((BLOCK_M, DIM), dtype=tl.float32)
        row_max = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)
        row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
        for key in tl.range(0, min(kv_len, kv_len - q_len + row + BLOCK_M), BLOCK_N, warp_specialize=True):
            k = k_rows.load([kv_start + key, kv_column])
            visible = key + tl.arange(0, BLOCK_N)[None, :] <= positions[:, None]
            weights, correction, row_max, row_sum = online_softmax(tl.dot(q, k.T), visible, scale, row_max, row_sum)
            v = v_rows.load([kv_start + key, kv_column])
            out = tl.dot(weights.to(v.dtype), v, out * correction[:, None])
        out = out / row_sum[:, None]
        o_at = o_ptr + ((q_start + rows).to(tl.int64)[:, None] * heads + head) * DIM + tl.arange(0, DIM)[None, :]
        tl.store(o_at, out.to(o_ptr.dtype.element_ty), rows[:, None] < q_len)


@frozen(kw_only=True)
class FlashTiling:
    """Tiling of flash attention: queries per program, keys per iteration, and whether warps are specialized.

    one_loop  one loop over all keys, which asks for each block whether it has a mask; else one for those that have one
              and one for the others, whose loads do not overlap
    """

    queries: int
    keys: int
    num_warps: int
    num_stages: int
    specialized: bool = False
    one_loop: bool = False


# (queries, keys, warps, stages) without register spills, by the first generation that supports them and the head size.
_ALTERNATIVE_TILES: Final = {
    80: {64: ((128, 32, 4, 3), (64, 64, 4, 3)), 128: ((128, 32, 8, 3),), 256: ((64, 32, 8, 2),)},
    90: {
        64: ((128, 64, 8, 4), (64, 128, 4, 2), (64, 64, 4, 4), (128, 128, 8, 2)),
        128: ((128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2)),
        256: ((128, 32, 8, 4), (64, 64, 4, 2)),
    },
    100: {
        64: ((128, 64, 4, 4), (128, 64, 8, 4), (64, 128, 4, 2)),
        128: ((128, 64, 4, 2), (128, 64, 8, 3), (64, 128, 4, 2)),
        256: ((128, 32, 8, 3), (64, 64, 4, 2)),
    },
}

_OTHER_MASKS: Final = {"window", "both_ways", "cross", "sinks"}  # sizes of cases that specialized warps are not for
_SPECIALIZED_TILES: Final = {64: (128, 3), 128: (128, 2), 256: (64, 2)}  # (keys, stages), by the width of a head


def tiling(target: Target, dim: int, longest: int) -> FlashTiling:
    """The default tiling; tiles of queries are no taller than the `longest` sequence of queries.

    From Hopper on, 128 queries are split between two warp groups, with three stages of keys and values. Before, the
    tiles are FlashAttention-2's.
    """
    queries = max(pow2(min(longest, 128)), 16)
    if target.generation >= 90:
        keys, num_stages = (64, 2) if dim > 128 else (128, 3 if target.generation < 100 else 2)
        return FlashTiling(queries=queries, keys=keys, num_warps=8 if queries == 128 else 4, num_stages=num_stages)
    queries = min(queries, 64) if dim > 128 else queries
    wide = queries * dim >= 64 * 128
    keys = 32 if dim > 128 and target.shared < 128 * 1024 else 64
    return FlashTiling(queries=queries, keys=keys, num_warps=8 if wide else 4, num_stages=2 if dim > 128 else 3)


def tilings(target: Target, case: Case) -> tuple[FlashTiling, ...]:
    """Alternative tilings. With the smaller ones a multiprocessor runs two programs, one of which can multiply while
    the other computes the softmax. With one loop, short prompts wait for the first keys once.
    """
    dim, longest = case["dim"], case["q"]
    width = min(max(pow2(dim), 64), 256)
    others = _ALTERNATIVE_TILES[max(sm for sm in _ALTERNATIVE_TILES if sm <= target.generation)][width]
    alternatives = [
        FlashTiling(queries=queries, keys=keys, num_warps=num_warps, num_stages=num_stages)
        for queries, keys, num_warps, num_stages in others
    ]
    alternatives.append(replace(tiling(target, pow2(dim), 128), one_loop=True))
    if target.generation == 90 and dim == width and not (_OTHER_MASKS & dict(case.sizes).keys()):
        keys, num_stages = _SPECIALIZED_TILES[width]  # last: the compiler's newest way is its least tried
        alternatives.append(FlashTiling(queries=128, keys=keys, num_warps=4, num_stages=num_stages, specialized=True))
    return tuple(one for one in alternatives if one.queries <= pow2(longest))


def plan(
    target: Target,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ends: torch.Tensor,
    kv_ends: torch.Tensor,
    longest: int,
    *,
    causal: bool = True,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    tile: FlashTiling | None = None,
) -> LaunchPlan:
    """q[queries, heads, dim], k and v[keys, kv_heads, dim] to o like q. Sequence i has the rows from ends[i] to
    ends[i + 1], of which there are `longest` queries at the most; ends[0] is 0. A window of 0 is none. Each
    head may have one of sinks[heads], a score that takes its share of the softmax and has no value.

    Raises InputError where `tile` is specialized and this attention is not what it is for.
    """
    (queries, heads, dim), kv_heads = q.shape, k.shape[1]
    padded = pow2(dim)
    tile = tile or tiling(target, padded, longest)
    o = poisoned(queries, heads, dim, dtype=q.dtype, device=q.device)
    grid = (cdiv(longest, tile.queries), heads, q_ends.numel() - 1)
    common = {
        "o_ptr": o, "q_ends_ptr": q_ends, "kv_ends_ptr": kv_ends, "scale": dim**-0.5 * _LOG2_E, "heads": heads,
        "kv_heads": kv_heads, "DIM": padded, "BLOCK_M": tile.queries, "BLOCK_N": tile.keys,
    }  # fmt: skip
    if tile.specialized:
        if dim != padded or window or not causal or sinks is not None:
            raise InputError(
                "warp specialization needs causal attention without a window or sinks and a head size that is a power "
                f"of two; got head size {dim}, window={window}, causal={causal}, sinks={sinks is not None}"
            )
        triton.set_allocator(scratch)
        launch = Launch(
            function=_specialized,
            grid=grid,
            arguments=common | {"q_ptr": q, "k_ptr": k, "v_ptr": v, "queries": queries, "keys": len(k)},
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        return LaunchPlan(launches=(launch,), outputs=(o,))
    # Columns of tokens with their heads side by side; a head that is padded would be read into the next.
    described = target.generation >= 90 and dim == padded and dim * q.element_size() % 16 == 0

    def rows(x: torch.Tensor, block: int) -> torch.Tensor | TensorDescriptor:
        return TensorDescriptor.from_tensor(x.view(len(x), -1), [block, padded]) if described else x

    launch = Launch(
        function=_flash_attention,
        grid=grid,
        arguments=common | {
            "q_rows": rows(q, tile.queries), "k_rows": rows(k, tile.keys), "v_rows": rows(v, tile.keys),
            "sink_ptr": sinks, "window": window, "dim": dim, "CAUSAL": causal, "WINDOWED": window > 0,
            "DESCRIBED": described, "ONE_LOOP": tile.one_loop,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(o,))


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ends: torch.Tensor,
    kv_ends: torch.Tensor,
    longest: int,  # noqa: ARG001
    *,
    causal: bool = True,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    tile: FlashTiling | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    """Attention of each sequence of a ragged batch by masked softmax [tokens, heads, dim]; in fp32."""
    group = q.shape[1] // k.shape[1]
    outputs = []
    for sequence in range(q_ends.numel() - 1):
        of_q, of_kv = (slice(int(ends[sequence]), int(ends[sequence + 1])) for ends in (q_ends, kv_ends))
        queries = q[of_q].float().transpose(0, 1)
        keys, values = (x[of_kv].float().transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
        scores = queries @ keys.transpose(1, 2) * q.shape[2] ** -0.5
        kv_len, q_len = keys.shape[1], queries.shape[1]
        key = torch.arange(kv_len, device=q.device)
        position = torch.arange(kv_len - q_len, kv_len, device=q.device)[:, None]
        visible = (key <= position) if causal else torch.ones_like(key <= position)
        visible = visible & (key > position - window) if window else visible
        weights = softmax_with_sinks(scores.masked_fill(~visible, float("-inf")), sinks)
        outputs.append((weights @ values).transpose(0, 1))
    return (torch.cat(outputs),)


def softmax_with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax of scores[heads, queries, keys] over keys and the sink of each head, if there are any."""
    if sinks is None:
        return scores.softmax(2)
    column = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat((scores, column), 2).softmax(2)[:, :, :-1]


def lengths(case: Case) -> list[tuple[int, int]]:
    """(queries, keys) of each sequence: `q` and `kv`, decreasing by `ragged` from sequence to sequence, but for keys of
    another network (`cross`).
    """
    if case.get("cross"):
        return [(max(case["q"] - i * case.get("ragged"), 1), case["kv"]) for i in range(case["B"])]
    return [(max(case["q"] - i * case.get("ragged"), 1), case["kv"] - i * case.get("ragged")) for i in range(case["B"])]


def ends(numbers: list[int], device: str) -> torch.Tensor:
    """Cumulative sums of lengths, starting at 0."""
    return torch.tensor([0, *numbers]).cumsum(0).to(torch.int32).to(device)


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, dim = Random(device, seed), case.torch_dtype, case["dim"]
    queries, keys = (list(numbers) for numbers in zip(*lengths(case), strict=True))
    inputs: Inputs = {
        "q": random.normal(sum(queries), case["heads"], dim, dtype=dtype),
        "k": random.normal(sum(keys), case["kv_heads"], dim, dtype=dtype),
        "v": random.normal(sum(keys), case["kv_heads"], dim, dtype=dtype),
        "q_ends": ends(queries, device),
        "kv_ends": ends(keys, device),
        "longest": max(queries),
        "causal": not (case.get("both_ways") or case.get("cross")),
        "window": case.get("window"),
    }
    if case.get("sinks"):
        inputs["sinks"] = random.normal(case["heads"], dtype=dtype)
    if case.get("specialized"):
        inputs["tile"] = FlashTiling(queries=128, keys=32, num_warps=4, num_stages=2, specialized=True)
    return inputs


def attention(case: Case) -> tuple[Operator, ...]:
    """The FlashAttention operator with the case's heads and mask."""
    mask: Mask = Causal(case["window"]) if case.get("window") else Causal()
    if case.get("both_ways") or case.get("cross"):
        mask = FixedKeys(case["kv"]) if case.get("cross") else Bidirectional()
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=case["dim"], mask=mask)
    q, o = (Tensor(name=name, width=heads.q_width, format=case.format) for name in "qo")
    k, v = (
        Tensor(name=name, width=heads.kv_width, format=case.format, rows=mask.keys_read, role=Role.KV_CACHE)
        for name in "kv"
    )
    return (FlashAttention(name="attention", inputs=(q, k, v), outputs=(o,), weights=sink_weights(case), heads=heads),)


def sink_weights(case: Case) -> tuple[Weight, ...]:
    """A score of each head, if it has sinks."""
    return (Weight(name="sinks", shape=(case["heads"],), format=case.format),) if case.get("sinks") else ()


def workload(case: Case) -> Workload:
    """Workload of a case: one sequence for each pair of lengths; the keys of another network are not its own."""
    pairs = [(q_len, q_len if case.get("cross") else kv_len) for q_len, kv_len in lengths(case)]
    return Workload(tuple(Sequences(batch=1, q_len=q_len, kv_len=kv_len) for q_len, kv_len in pairs))


KERNELS = (
    Kernel(
        name="flash_attention", family="attention",
        cases=(
            case("fp16", B=1, heads=2, kv_heads=2, dim=64, q=130, kv=130),
            case("fp16", B=2, heads=4, kv_heads=2, dim=32, q=70, kv=70, ragged=13),
            case("fp16", B=2, heads=4, kv_heads=1, dim=40, q=37, kv=201, ragged=9),  # chunks with a past
            case("fp16", B=1, heads=2, kv_heads=1, dim=32, q=300, kv=400, window=100),
            case("fp16", B=2, heads=2, kv_heads=2, dim=32, q=140, kv=140, window=7, ragged=60),
            case("fp16", B=2, heads=2, kv_heads=2, dim=24, q=139, kv=139, ragged=30, both_ways=1),
            case("fp16", B=2, heads=4, kv_heads=2, dim=32, q=70, kv=33, ragged=30, cross=1),
            case("fp16", B=2, heads=4, kv_heads=2, dim=32, q=140, kv=140, window=20, ragged=60, sinks=1),
            case("fp16", B=1, heads=1, kv_heads=1, dim=256, q=20, kv=50),
            case("fp16", B=3, heads=4, kv_heads=2, dim=64, q=1, kv=150, ragged=50),
            case("fp16", B=2, heads=4, kv_heads=2, dim=64, q=150, kv=201, ragged=30, specialized=1),
        ),
        full_size=(
            case("bf16", B=4, heads=32, kv_heads=8, dim=128, q=4096, kv=4096),
            case("bf16", B=1, heads=32, kv_heads=8, dim=128, q=512, kv=32768),
            case("bf16", B=4, heads=32, kv_heads=16, dim=64, q=4096, kv=4096, window=1024),
            case("bf16", B=1, heads=8, kv_heads=4, dim=256, q=8192, kv=8192, window=1024),
            case("bf16", B=8, heads=32, kv_heads=8, dim=128, q=1024, kv=1024),
            case("bf16", B=1, heads=64, kv_heads=8, dim=64, q=8192, kv=8192, sinks=1),
            case("bf16", B=8, heads=20, kv_heads=20, dim=64, q=448, kv=1500, cross=1),
        ),
        make=_make, plan=plan, reference=reference,
        # Weights are rounded to 16 bits before they meet the values.
        tolerance=lambda case: (2 * EPSILON[case.dtype], 2 * EPSILON[case.dtype]),
        operators=attention, workload=workload, tilings=tilings,
    ),
)  # fmt: skip
