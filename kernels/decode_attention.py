"""o[sequence, head] = softmax over keys of (q . k / sqrt(dim)) @ v, for one new token of each sequence.

FlashDecoding (T. Dao et al., "Flash-Decoding for long-context inference", 2023): reading the cache is what takes time,
and batch times KV heads are too few programs for a GPU, so the keys of a sequence are split between programs and their
results put together by a second launch, which weighs them by their sums. All query heads of a KV head are one
program's: it reads keys and values once for them (GQA, arXiv:2305.13245), as rows of one product, padded to the 16 of a
matrix unit. The cache is in pages (PagedAttention, arXiv:2309.06180, section 4.1), of 16 bits, or fp8 with a scale for
all of it.
"""

from __future__ import annotations

from math import e, log2

import torch
import triton
import triton.language as tl

from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator, Role, Tensor
from ..operators.masks import Causal
from ..precision import NAMED
from ..workload import Sequences, Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, Plan, Random, Target, case, cdiv, poisoned, pow2

_LOG2_E = log2(e)
_BLOCK_N = 64  # keys of a step
_LEAST = 256  # keys below which a split is not worth its pass through memory
_MOST_SPLITS = 64
_UNBOUND = 2**30  # a window that no sequence fills


@triton.jit
def _decode(
    q_ptr, k_ptr, v_ptr, o_ptr, weight_ptr, table_ptr, length_ptr, k_scale_ptr, v_scale_ptr,
    scale, window, heads, kv_heads, dim, pages,
    GROUP: tl.constexpr, BLOCK_H: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """What one split of one sequence's keys gives the query heads of a KV head, and log2 of the sum of its weights."""
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(length_ptr + sequence)
    begin = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - begin, SPLITS), BLOCK_N) * BLOCK_N
    first = begin + split * share
    last = tl.minimum(first + share, length)
    inside = tl.arange(0, BLOCK_H)
    columns = tl.arange(0, DIM)
    head = sequence * heads + kv_head * GROUP + inside
    there = (inside[:, None] < GROUP) & (columns[None, :] < dim)
    q = tl.load(q_ptr + head[:, None] * dim + columns[None, :], there, 0.0)
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr)
    out = tl.zeros((BLOCK_H, DIM), dtype=tl.float32)
    most = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for key in range(first, last, BLOCK_N):
        keys = key + tl.arange(0, BLOCK_N)
        real = keys < last
        page = tl.load(table_ptr + sequence * pages + keys // PAGE, real, 0).to(tl.int64)
        at = ((page * PAGE + keys % PAGE) * kv_heads + kv_head)[:, None] * dim + columns[None, :]
        mask = real[:, None] & (columns[None, :] < dim)
        k = tl.load(k_ptr + at, mask, 0.0).to(q.dtype)
        scores = tl.where(real[None, :], tl.dot(q, k.T) * scale, -1e30)
        new = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        old = tl.exp2(most - new)
        total = total * old + tl.sum(weights, 1)
        v = tl.load(v_ptr + at, mask, 0.0).to(q.dtype)
        out = tl.dot(weights.to(q.dtype), v, out * old[:, None])
        most = new
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr)
    # A split without keys has weight 0.
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    o_at = o_ptr + (head * SPLITS + split).to(tl.int64)[:, None] * dim + columns[None, :]
    tl.store(o_at, out.to(o_ptr.dtype.element_ty), there)
    if SPLITS > 1:
        weight = tl.where(total > 0, most + tl.log2(tl.maximum(total, 1e-30)), -1e30)
        tl.store(weight_ptr + head * SPLITS + split, weight, inside < GROUP)


@triton.jit
def _merge(parts_ptr, weight_ptr, o_ptr, dim, DIM: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr):
    """The mean of a head's splits by 2 ** weight."""
    row = tl.program_id(0).to(tl.int64)
    splits, columns = tl.arange(0, BLOCK_S), tl.arange(0, DIM)
    weight = tl.load(weight_ptr + row * SPLITS + splits, splits < SPLITS, -1e30)
    weight = tl.exp2(weight - tl.max(weight, 0))
    at = parts_ptr + (row * SPLITS + splits)[:, None] * dim + columns[None, :]
    parts = tl.load(at, (splits[:, None] < SPLITS) & (columns[None, :] < dim), 0.0)
    out = tl.sum(parts * weight[:, None], 0) / tl.sum(tl.where(splits < SPLITS, weight, 0.0), 0)
    tl.store(o_ptr + row * dim + columns, out.to(o_ptr.dtype.element_ty), columns < dim)


def merge(parts: torch.Tensor, weight: torch.Tensor, o: torch.Tensor) -> Launch:
    """parts[rows, splits, dim] in fp32 and weight[rows, splits] to o[rows, dim]."""
    rows, splits, dim = parts.shape
    arguments = {
        "parts_ptr": parts, "weight_ptr": weight, "o_ptr": o, "dim": dim,
        "DIM": pow2(dim), "SPLITS": splits, "BLOCK_S": pow2(splits),
    }  # fmt: skip
    return Launch(function=_merge, grid=(rows,), arguments=arguments)


def splits_of(target: Target, programs: int, longest: int) -> int:
    """Two programs a multiprocessor, none with next to nothing to read."""
    return max(min(2 * target.multiprocessors // programs, cdiv(longest, _LEAST), _MOST_SPLITS), 1)


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
) -> Plan:
    """q[sequences, heads, dim]; k and v[pages, page, kv_heads, dim]; table[sequences, pages], the page of each run of
    positions; lengths[sequences], `longest` at the most, as the shape of a launch must not depend on what is in memory.
    """
    (sequences, heads, dim), (_, page, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    splits = splits_of(target, sequences * kv_heads, min(longest, window or longest))
    o = poisoned(sequences, heads, dim, dtype=q.dtype, device=q.device)
    split = splits > 1
    parts = poisoned(sequences * heads, splits, dim, dtype=torch.float32, device=q.device) if split else o
    weight = poisoned(sequences * heads, splits, dtype=torch.float32, device=q.device) if split else None
    launch = Launch(
        function=_decode,
        grid=(splits, kv_heads, sequences),
        arguments={
            "q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": parts, "weight_ptr": weight, "table_ptr": table,
            "length_ptr": lengths, "k_scale_ptr": k_scale, "v_scale_ptr": v_scale, "scale": dim**-0.5 * _LOG2_E,
            "window": window or _UNBOUND, "heads": heads, "kv_heads": kv_heads, "dim": dim, "pages": table.shape[1],
            "GROUP": group, "BLOCK_H": max(pow2(group), 16), "DIM": pow2(dim), "BLOCK_N": _BLOCK_N, "PAGE": page,
            "SPLITS": splits,
        },
        num_stages=3 if dim > 128 else 5,  # of which the pages, read first, take every other one
    )  # fmt: skip
    return Plan(launches=(launch, merge(parts, weight, o)) if weight is not None else (launch,), outputs=(o,))


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
) -> tuple[torch.Tensor, ...]:
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
    kept = torch.float8_e4m3fn if case.get("kv_bits") == 8 else dtype
    pages = cdiv(case["kv"], page)
    shuffled = random.uniform(batch * pages, low=0, high=1).argsort()
    found: Inputs = {
        "q": random.normal(batch, case["heads"], dim, dtype=dtype),
        "k": random.normal(batch * pages, page, case["kv_heads"], dim, dtype=kept),
        "v": random.normal(batch * pages, page, case["kv_heads"], dim, dtype=kept),
        "table": shuffled.to(torch.int32).view(batch, pages),
        "lengths": torch.tensor(_lengths(case), dtype=torch.int32).to(device),
        "longest": case["kv"],
        "window": case.get("window"),
    }
    if case.get("kv_bits") == 8:
        found |= {name: random.uniform(1, low=0.5, high=1.5) for name in ("k_scale", "v_scale")}
    return found


def _operators(case: Case) -> tuple[Operator, ...]:
    mask = Causal(case["window"]) if case.get("window") else Causal()
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=case["dim"], mask=mask)
    q, o = (Tensor(name=name, width=heads.q_width, format=case.format) for name in "qo")
    kept = NAMED["fp8_e4m3"] if case.get("kv_bits") == 8 else case.format
    k, v = (Tensor(name=name, width=heads.kv_width, format=kept, rows=mask.read, role=Role.KV_CACHE) for name in "kv")
    return (FlashAttention(name="attention", inputs=(q, k, v), outputs=(o,), heads=heads),)


KERNELS = (
    Kernel(
        name="decode_attention",
        family="attention",
        cases=(
            case("fp16", B=2, heads=4, kv_heads=4, dim=64, kv=128, page=16),
            case("fp16", B=3, heads=8, kv_heads=2, dim=40, kv=301, page=16, ragged=113),
            case("fp16", B=1, heads=6, kv_heads=1, dim=32, kv=1300, page=32),
            case("fp16", B=1, heads=2, kv_heads=1, dim=32, kv=700, page=16, window=300),
            case("fp16", B=2, heads=4, kv_heads=1, dim=64, kv=517, page=64, ragged=516),
            case("fp16", B=1, heads=4, kv_heads=2, dim=64, kv=260, page=16, kv_bits=8),
        ),
        full_size=(
            case("bf16", B=16, heads=32, kv_heads=8, dim=128, kv=8192, page=16),
            case("bf16", B=1, heads=32, kv_heads=8, dim=128, kv=32768, page=64),
            case("bf16", B=64, heads=32, kv_heads=32, dim=128, kv=2048, page=16),
            case("bf16", B=16, heads=64, kv_heads=8, dim=128, kv=8192, page=64, kv_bits=8),
        ),
        make=_make,
        plan=plan,
        reference=reference,
        tolerance=lambda case: (2 * EPSILON[case.dtype], 2 * EPSILON[case.dtype]),
        operators=_operators,
        workload=lambda case: Workload(tuple(Sequences(batch=1, q_len=1, kv_len=kv_len) for kv_len in _lengths(case))),
        least_sm=lambda case: 89 if case.get("kv_bits") == 8 else 80,
    ),
)
