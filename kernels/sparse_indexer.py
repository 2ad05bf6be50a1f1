"""The best keys of new queries by score = scale * sum over heads of w * relu(q . k), in a paged cache.

The indexer of DeepSeek sparse attention (arXiv:2512.02556, equation 1), whose queries and keys are fp8; the scale of
each key lies beside its page, those of queries are part of w. New queries, one of each sequence in decoding and many of
a prompt, are the last tokens of their sequences, and see the keys up to their own. A program scores a block of keys,
which it keeps, for one query after another, with one product for all heads. Then the largest scores of each query are
selected exactly, of equal ones the first: programs take a part of the keys each and one bit of the threshold after the
other, by counting in registers; further launches select among what those chose. Scores of a prompt would fill the
memory, so queries are scored and selected for in parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from ..errors import InputError
from ..operators.attention import Heads, Indexer
from ..operators.base import Operator, Role, Tensor
from ..operators.masks import Causal, TopK
from ..precision import FP32, NAMED
from ..records import frozen
from ..workload import Sequences, Workload
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_PART = 8192  # scores that a program selects from: 16 a thread of 16 warps
_MAX_CHOSEN = 8192  # of a part that is four times as large: counts of them have 16 bits
_MAX_SCORES = 2**29  # scores in memory at a time: 2 GiB


@frozen(kw_only=True)
class IndexerTiling:
    """Keys that a program scores, for how many queries, its warps, and the warps of a program that selects from all of
    a part.
    """

    keys: int = 128
    queries: int = 64
    num_warps: int = 4
    select_warps: int = 16


@triton.jit
def _scores(
    q_ptr, weight_ptr, k_ptr, scale_ptr, table_ptr, length_ptr, score_ptr,
    queries, first_query, num_queries, heads, longest, pages,
    PAGE: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Scores [sequences, num_queries, longest] of the queries from `first_query` on, of `queries` of a sequence."""
    sequence, first = tl.program_id(2), tl.program_id(0) * BLOCK
    length = tl.load(length_ptr + sequence)
    past = length - queries + first_query  # keys before the first of these queries, which sees one more
    start, end = tl.program_id(1) * QUERIES, tl.minimum(tl.program_id(1) * QUERIES + QUERIES, num_queries)
    start = tl.maximum(start, first - past)  # queries before see none of these keys
    if start < end:
        keys, head, dims = first + tl.arange(0, BLOCK), tl.arange(0, HEADS), tl.arange(0, DIM)
        page = tl.load(table_ptr + sequence * pages + keys // PAGE, keys < length, 0)
        row = page.to(tl.int64) * PAGE + keys % PAGE
        k = tl.load(k_ptr + row[:, None] * DIM + dims[None, :], keys[:, None] < length, 0.0)
        scale = tl.load(scale_ptr + row, keys < length, 0.0)
        for query in range(start, end):
            token = (sequence * queries + first_query + query).to(tl.int64) * heads
            q_at = q_ptr + token * DIM + head[:, None] * DIM + dims[None, :]
            q = tl.load(q_at, head[:, None] < heads, 0.0)
            weight = tl.load(weight_ptr + token + head, head < heads, 0.0).to(tl.float32)
            products = tl.maximum(tl.dot(k, q.T), 0.0)
            score = tl.sum(products * weight[None, :], 1) * scale
            score_at = score_ptr + (sequence * num_queries + query).to(tl.int64) * longest + keys
            tl.store(score_at, score, keys <= past + query)


@triton.jit
def _select(
    score_ptr, index_ptr, length_ptr, best_score_ptr, best_ptr, queries, first_query, num_queries, width,
    CHOSEN: tl.constexpr, CHOSEN_BLOCK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The CHOSEN largest of a part of the scores of a query, in order of their numbers, and -1 where it has fewer.

    index_ptr       numbers of the scores, -1 for none; None: their places, up to the query's own
    best_score_ptr  [sequences, num_queries, parts, CHOSEN], as then best_ptr; None: best_ptr is that of all `queries`
    """
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, query = row // num_queries, first_query + row % num_queries
    place = part * PART + tl.arange(0, PART)
    score_ptr += row.to(tl.int64) * width
    if best_score_ptr is None:
        best_ptr += (sequence * queries + query).to(tl.int64) * CHOSEN
    else:
        best_ptr += (row * parts + part).to(tl.int64) * CHOSEN
        best_score_ptr += (row * parts + part).to(tl.int64) * CHOSEN
    if index_ptr is None:
        valid = place <= tl.load(length_ptr + sequence) - queries + query
    else:
        index_ptr += row.to(tl.int64) * width
        valid = tl.load(index_ptr + place, place < width, -1) >= 0
    bits = tl.load(score_ptr + place, valid, 0.0).to(tl.int32, bitcast=True)
    rank = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000  # in the order of floats
    rank = tl.where(valid, rank, 0)  # which is below that of any number
    threshold = tl.zeros((), dtype=tl.uint32)
    for step in range(32):
        candidate = threshold | (tl.full((), 1, dtype=tl.uint32) << (31 - step))
        threshold = tl.where(tl.sum((rank >= candidate).to(tl.int32), 0) >= CHOSEN, candidate, threshold)
    above, equal = rank > threshold, (rank == threshold) & (rank > 0)
    room = CHOSEN - tl.sum(above.to(tl.int32), 0)
    sums = tl.cumsum(above.to(tl.int32) + equal.to(tl.int32) * 65536, 0)  # both in one register
    chosen = above | (equal & (sums >> 16 <= room))
    best_at = (sums & 65535) + tl.minimum(sums >> 16, room) - 1
    # Numbers and scores are loaded again, as registers are for ranks.
    index = place if index_ptr is None else tl.load(index_ptr + place, chosen, -1)
    tl.store(best_ptr + best_at, index, chosen)
    if best_score_ptr is not None:
        tl.store(best_score_ptr + best_at, tl.load(score_ptr + place, chosen, 0.0), chosen)
    rest = tl.arange(0, CHOSEN_BLOCK)
    missing = (rest < CHOSEN) & (rest >= CHOSEN - room + tl.minimum(tl.sum(equal.to(tl.int32), 0), room))
    tl.store(best_ptr + rest, tl.full((CHOSEN_BLOCK,), -1, dtype=tl.int32), missing)


def plan(
    target: Target,  # noqa: ARG001
    q: torch.Tensor,
    weight: torch.Tensor,
    k: torch.Tensor,
    k_scale: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,
    chosen: int,
    tile: IndexerTiling | None = None,
) -> LaunchPlan:
    """q[sequences, queries, heads, dim] and weight[sequences, queries, heads]; k[slots, page, dim] with k_scale[slots,
    page] in fp32, of which table[sequences, pages] are those of each sequence and lengths[sequences] its keys,
    `longest` at the most and `queries` at least, to best[sequences, queries, chosen] in ascending order, -1 after the
    last where there are fewer keys.

    Raises InputError if the head size is no power of two of at least 32, or more than 8192 keys are to be chosen.
    """
    (sequences, queries, heads, dim), device, tile = q.shape, q.device, tile or IndexerTiling()
    if dim < 32 or dim != pow2(dim):
        raise InputError(f"dim must be a power of two of at least 32; got {dim}")
    if not 0 < chosen <= _MAX_CHOSEN:
        raise InputError(f"chosen must be from 1 to {_MAX_CHOSEN}; got {chosen}")
    at_once = max(min(_MAX_SCORES // (sequences * longest), queries), 1)
    score = poisoned(sequences * at_once * longest, dtype=torch.float32, device=device)
    best = poisoned(sequences, queries, chosen, dtype=torch.int32, device=device)
    launches: list[Launch] = []
    for first in range(0, queries, at_once):
        num_queries = min(at_once, queries - first)
        part = score[: sequences * num_queries * longest].view(sequences * num_queries, longest)
        query_arguments = {"length_ptr": lengths, "queries": queries, "first_query": first, "num_queries": num_queries}
        scoring = Launch(
            function=_scores,
            grid=(cdiv(longest, tile.keys), cdiv(num_queries, tile.queries), sequences),
            arguments=query_arguments | {
                "q_ptr": q, "weight_ptr": weight, "k_ptr": k, "scale_ptr": k_scale, "table_ptr": table,
                "score_ptr": part, "heads": heads, "longest": longest, "pages": table.shape[1],
                "PAGE": k.shape[1], "HEADS": max(pow2(heads), 16), "DIM": dim, "BLOCK": tile.keys,
                "QUERIES": tile.queries,
            },
            num_warps=tile.num_warps,
        )  # fmt: skip
        launches += (scoring, *_selections(part, best, query_arguments, tile.select_warps))
    return LaunchPlan(launches=tuple(launches), outputs=(best,))


def _selections(
    score: torch.Tensor, best: torch.Tensor, query_arguments: dict[str, Any], warps: int
) -> Iterator[Launch]:
    """The launches that select from score[rows, keys] to best[sequences, queries, chosen]: from parts of all keys, then
    from parts of what those chose, until there is one. `query_arguments` tell which queries rows are.
    """
    rows, chosen = score.shape[0], best.shape[2]
    part, index = max(_PART, 4 * pow2(chosen)), None
    while True:
        width = score.shape[1]
        parts, block = cdiv(width, part), max(min(part, pow2(width)), 16)
        last = parts == 1
        best_score = None if last else poisoned(rows, parts * chosen, dtype=torch.float32, device=best.device)
        best_index = best if last else poisoned(rows, parts * chosen, dtype=torch.int32, device=best.device)
        yield Launch(
            function=_select,
            grid=(rows, parts),
            arguments=query_arguments | {
                "score_ptr": score, "index_ptr": index, "best_score_ptr": best_score, "best_ptr": best_index,
                "width": width, "CHOSEN": chosen, "CHOSEN_BLOCK": pow2(chosen), "PART": block,
            },
            num_warps=max(min(block // 512, warps), 4),
        )  # fmt: skip
        if best_score is None:
            return
        score, index = best_score, best_index


def tilings(target: Target, case: Case) -> tuple[IndexerTiling, ...]:  # noqa: ARG001
    """Alternatives: fewer and more keys a program, more warps to score, and other warps to select; in place of those,
    for prompts, whose programs fill a GPU with any, other numbers of queries.
    """
    of_phase = (
        (IndexerTiling(queries=16), IndexerTiling(queries=256))
        if case.get("q")
        else (IndexerTiling(select_warps=8), IndexerTiling(select_warps=32))
    )
    return (IndexerTiling(keys=64), IndexerTiling(keys=256, num_warps=8), IndexerTiling(num_warps=8), *of_phase)


def reference(
    q: torch.Tensor,
    weight: torch.Tensor,
    k: torch.Tensor,
    k_scale: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,  # noqa: ARG001
    chosen: int,
) -> tuple[torch.Tensor, ...]:
    """Numbers of the best keys of each query in ascending order, then -1; scores in fp32."""
    sequences, queries = q.shape[:2]
    best = torch.full((sequences, queries, chosen), -1, dtype=torch.int32, device=q.device)
    for sequence, length in enumerate(lengths.tolist()):
        keys, scales = (x.float()[table[sequence].long()].flatten(0, 1)[:length] for x in (k, k_scale))
        for query in range(queries):
            num_seen = length - queries + query + 1
            products = torch.relu(keys[:num_seen] @ q[sequence, query].float().T)
            scores = (products * weight[sequence, query].float()).sum(1) * scales[:num_seen]
            first = scores.sort(descending=True, stable=True).indices[:chosen].sort().values
            best[sequence, query, : len(first)] = first.to(torch.int32)
    return (best,)


def _lengths(case: Case) -> list[int]:
    return [case["kv"] - i * case.get("ragged") for i in range(case["B"])]


def _make(case: Case, device: str, seed: int) -> Inputs:
    """Inputs of whole numbers, eighths and powers of two, of which all sums are exact, and many scores equal."""
    random, batch, heads, dim, page = Random(device, seed), case["B"], case["heads"], case["dim"], case["page"]
    queries = case.get("q", 1)
    pages = cdiv(case["kv"], page)
    shuffled = random.uniform(batch * pages, low=0, high=1).argsort()
    scales = random.integers(batch * pages, page, low=-1, high=2, dtype=torch.float32)
    return {
        "q": random.integers(batch, queries, heads, dim, low=-3, high=4, dtype=torch.float8_e4m3fn),
        "weight": random.integers(batch, queries, heads, low=-8, high=17, dtype=case.torch_dtype) / 8,
        "k": random.integers(batch * pages, page, dim, low=-3, high=4, dtype=torch.float8_e4m3fn),
        "k_scale": 2.0**scales,
        "table": shuffled.to(torch.int32).view(batch, pages),
        "lengths": torch.tensor(_lengths(case), dtype=torch.int32).to(device),
        "longest": case["kv"],
        "chosen": case["chosen"],
    }


def _operators(case: Case) -> tuple[Operator, ...]:
    mask, fp8, dim = Causal(), NAMED["fp8_e4m3"], case["dim"]
    heads = Heads(num_heads=case["heads"], num_kv_heads=1, head_dim=dim, mask=mask)
    key_format = replace(fp8, group=dim, scale_bits=32)
    keys = Tensor(name="keys", width=dim, format=key_format, rows=mask.keys_read, role=Role.KV_CACHE)
    inputs = (
        Tensor(name="q", width=heads.q_width, format=fp8),
        keys,
        Tensor(name="weights", width=case["heads"], format=case.format),
    )
    best = Tensor(name="best", width=1, rows=TopK(case["chosen"]).pairs, format=FP32)
    return (Indexer(name="indexer", inputs=inputs, outputs=(best,), heads=heads),)


KERNELS = (
    Kernel(
        name="sparse_indexer", family="indexer",
        cases=(
            case("fp16", B=2, heads=4, dim=32, kv=300, page=16, chosen=40, ragged=270),
            case("fp16", B=1, heads=20, dim=64, kv=9000, page=64, chosen=100),
            case("fp16", B=2, heads=16, dim=32, kv=17000, page=64, chosen=2048, ragged=7500),
            case("fp16", B=2, q=6, heads=4, dim=32, kv=70, page=16, chosen=5, ragged=64),
        ),
        full_size=(
            case("bf16", B=1, heads=64, dim=128, kv=65536, page=64, chosen=2048),
            case("bf16", B=1, heads=64, dim=128, kv=8192, page=64, chosen=2048),
            case("bf16", B=16, heads=64, dim=128, kv=8192, page=64, chosen=2048),
            case("bf16", B=16, heads=64, dim=128, kv=65536, page=64, chosen=2048),
            case("bf16", B=128, heads=64, dim=128, kv=8192, page=64, chosen=2048),
            case("bf16", B=1, q=8192, heads=64, dim=128, kv=8192, page=64, chosen=2048),
            case("bf16", B=1, q=2048, heads=64, dim=128, kv=65536, page=64, chosen=2048),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (0.0, 0.0),  # sums of these inputs are exact
        operators=_operators,
        workload=lambda case: Workload(
            tuple(Sequences(batch=1, q_len=case.get("q", 1), kv_len=kv_len) for kv_len in _lengths(case))
        ),
        min_sm=lambda case: 89,
        tilings=tilings,
    ),
)  # fmt: skip
