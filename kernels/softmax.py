"""p[query, key] = exp(s[query, key] - max over keys s) / sum over keys of the same, for rows of scores.

A program takes a whole row, or a few where they are short, keeps it in registers and reads it once. Longer rows pass
twice: for the maximum and the sum, which is scaled down where a new maximum comes (arXiv:1805.02867, algorithm 3), and
for the quotients, by which time the row is in L2. Under a causal mask, as attention in separate launches has it, query
i of q sees the first kv - q + i + 1 keys: others are not read, and written as 0, as the product with values reads them.
"""

from __future__ import annotations

from dataclasses import replace
from math import e, log2

import torch
import triton
import triton.language as tl

from ..operators.attention import Heads, Softmax
from ..operators.base import Operator, Tensor
from ..operators.masks import Bidirectional, Causal
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_ELEMENTS_PER_PROGRAM = 4096  # of a program, where rows are shorter
_MAX_ROW_IN_REGISTERS = 16384  # elements of a row that registers hold: 32 of each thread of 16 warps
_BLOCK = 8192  # elements of a longer row that are taken at a time
_VECTOR: tl.constexpr = tl.constexpr(8)  # neighbours that are read or not as one: 16 bytes of 16-bit numbers
_LOG2_E: tl.constexpr = tl.constexpr(log2(e))


@triton.jit
def _softmax(
    s_ptr, p_ptr, m, queries, keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    valid = rows[:, None] < m
    mask = valid & (columns[None, :] < keys)
    offsets = rows.to(tl.int64)[:, None] * keys + columns[None, :]
    if CAUSAL:
        last = keys - queries + (rows % queries)[:, None]
        s = tl.load(s_ptr + offsets, mask & (columns[None, :] // _VECTOR * _VECTOR <= last), 0.0).to(tl.float32)
        s = tl.where(columns[None, :] <= last, s, float("-inf"))
    else:
        s = tl.load(s_ptr + offsets, mask, float("-inf")).to(tl.float32)
    s = tl.where(valid, s, 0.0)
    weights = tl.exp2((s - tl.max(s, 1)[:, None]) * _LOG2_E)
    p = weights * (1 / tl.sum(weights, 1))[:, None]
    tl.store(p_ptr + offsets, p.to(p_ptr.dtype.element_ty), mask)


@triton.jit
def _long_softmax(s_ptr, p_ptr, queries, keys, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    visible_keys = keys
    if CAUSAL:
        visible_keys = keys - queries + row % queries + 1
    s_at, p_at = s_ptr + row.to(tl.int64) * keys, p_ptr + row.to(tl.int64) * keys
    column_max = tl.full((BLOCK,), -1e30, dtype=tl.float32)  # a column each: put together at the end
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in tl.range(0, visible_keys, BLOCK):
        offsets = start + columns
        s = tl.load(s_at + offsets, (offsets // _VECTOR * _VECTOR < visible_keys) & (offsets < keys), 0.0).to(
            tl.float32
        )
        s = tl.where(offsets < visible_keys, s, float("-inf"))
        new = tl.maximum(column_max, s)
        total = total * tl.exp2((column_max - new) * _LOG2_E) + tl.exp2((s - new) * _LOG2_E)
        column_max = new
    row_max = tl.max(column_max, 0)
    scale = 1 / tl.sum(total * tl.exp2((column_max - row_max) * _LOG2_E), 0)
    for start in tl.range(0, keys, BLOCK):
        offsets = start + columns
        s = tl.load(s_at + offsets, (offsets // _VECTOR * _VECTOR < visible_keys) & (offsets < keys), 0.0).to(
            tl.float32
        )
        s = tl.where(offsets < visible_keys, s, float("-inf"))
        p = tl.exp2((s - row_max) * _LOG2_E) * scale
        tl.store(p_at + offsets, p.to(p_ptr.dtype.element_ty), offsets < keys)


def plan(target: Target, scores: torch.Tensor, *, causal: bool = False) -> LaunchPlan:  # noqa: ARG001
    """scores[heads, queries, keys] to probabilities of that shape. Heads may be those of several sequences."""
    heads, queries, keys = scores.shape
    p = poisoned(heads, queries, keys, dtype=scores.dtype, device=scores.device)
    common = {"s_ptr": scores, "p_ptr": p, "queries": queries, "keys": keys, "CAUSAL": causal}
    m, block_n = heads * queries, pow2(keys)
    if block_n > _MAX_ROW_IN_REGISTERS:
        launch = Launch(function=_long_softmax, grid=(m,), arguments=common | {"BLOCK": _BLOCK}, num_warps=16)
        return LaunchPlan(launches=(launch,), outputs=(p,))
    block_m = max(min(_ELEMENTS_PER_PROGRAM // block_n, pow2(m)), 1)
    launch = Launch(
        function=_softmax,
        grid=(cdiv(m, block_m),),
        arguments=common | {"m": m, "BLOCK_M": block_m, "BLOCK_N": block_n},
        num_warps=max(min(block_m * block_n // 512, 16), 4),  # 16 elements a thread: two loads of 16 bytes
    )
    return LaunchPlan(launches=(launch,), outputs=(p,))


def reference(scores: torch.Tensor, *, causal: bool = False) -> tuple[torch.Tensor, ...]:
    """Softmax over the keys [B x heads, q, kv], with a causal mask if `causal`; in fp32."""
    s = scores.float()
    if causal:
        queries, keys = s.shape[1:]
        masked = torch.ones(queries, keys, dtype=torch.bool, device=s.device).triu(keys - queries + 1)
        s = s.masked_fill(masked, float("-inf"))
    return (s.softmax(2),)


def _make(case: Case, device: str, seed: int) -> Inputs:
    shape = (case["B"] * case["heads"], case["q"], case["kv"])
    scores = Random(device, seed).normal(*shape, dtype=case.torch_dtype, scale=3.0)
    return {"scores": scores, "causal": bool(case.get("causal"))}


def _operators(case: Case) -> tuple[Operator, ...]:
    """The Softmax of a model's graph reads whole matrices; this one reads what its mask leaves."""
    mask = Causal() if case.get("causal") else Bidirectional()
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["heads"], head_dim=1, mask=mask)
    scores = Tensor(name="scores", width=case["heads"], format=case.format, rows=mask.pairs)
    probs = replace(scores, name="probs", rows=mask.cells)
    return (Softmax(name="softmax", inputs=(scores,), outputs=(probs,), heads=heads),)


def _workload(case: Case) -> Workload:
    return Workload.chunk(batch=case["B"], chunk=case["q"], past=case["kv"] - case["q"])


KERNELS = (
    Kernel(
        name="softmax", family="softmax",
        cases=(
            case("fp16", B=1, heads=1, q=5, kv=128),
            case("bf16", B=2, heads=3, q=7, kv=301, causal=1),
            case("fp32", B=1, heads=2, q=13, kv=13, causal=1),
            case("fp32", B=1, heads=1, q=2, kv=20000),
            case("fp16", B=1, heads=2, q=3, kv=16500, causal=1),
        ),
        full_size=(
            case("bf16", B=1, heads=32, q=4096, kv=4096, causal=1),
            case("bf16", B=16, heads=32, q=1, kv=8192),
            case("bf16", B=1, heads=32, q=1024, kv=32768, causal=1),
            case("bf16", B=1, heads=1, q=65536, kv=128),
        ),
        make=_make, plan=plan, reference=reference,
        # One result is rounded; in fp32 exponents are off by their last bit, and go up to some 20. Below the normal
        # numbers of fp16 there is a step of 2^-24.
        tolerance=lambda case: (32 * EPSILON["fp32"] + EPSILON[case.dtype] / 2, 2.0**-24),
        operators=_operators, workload=_workload,
    ),
)  # fmt: skip
