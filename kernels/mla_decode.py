"""o[sequence, head, latent] = softmax over tokens of ([q, q_rope] . [c, c_rope] * scale) @ c, for one new token each.

Multi-head latent attention with its projections absorbed (DeepSeek-V2, arXiv:2405.04434, section 2.1): all heads share
one latent of each token, which is key and value, and a few rotated elements beside it. A program reads it once, for
BLOCK_H heads. Splits of the tokens are those of `decode_attention`; their sums, of so many heads, are merged by a
launch of its own.
"""

from __future__ import annotations

from dataclasses import replace
from math import e, log2

import torch
import triton
import triton.language as tl

from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator, Role, Tensor
from ..operators.masks import CAUSAL
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .decode_attention import (
    STARTUP_KEYS,
    DecodeTiling,
    PartialResults,
    cache_slots,
    choose_splits,
    max_splits,
    split_range,
    start_early,
    store_log_sum,
)
from .flash_attention import online_softmax

_LOG2_E = log2(e)


@triton.jit
def _mla_decode(
    q_ptr, c_ptr, o_ptr, weight_ptr, table_ptr, length_ptr, scale, heads, pages, splits, cache_pages,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    HALVES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Computes the partial result of one split of a sequence's tokens for BLOCK_H heads.

    HALVES  products of the latent's halves are separate, which do not wait for each other
    """
    split, block, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    WIDTH: tl.constexpr = LATENT // 2 if HALVES else LATENT
    if EARLY:
        start_early(
            c_ptr, None, table_ptr, length_ptr, sequence, 0, 1, 2 * (LATENT + ROPE), pages * PAGE, splits, pages,
            cache_pages, BLOCK_N, PAGE, 2 * LATENT // 16,
        )  # fmt: skip
    length = tl.load(length_ptr + sequence)
    first, last = split_range(length, length, splits, BLOCK_N)
    inside = block * BLOCK_H + tl.arange(0, BLOCK_H)
    mask = inside < heads
    head = sequence * heads + inside
    latent, rope = tl.arange(0, WIDTH), LATENT + tl.arange(0, ROPE)
    q_at = q_ptr + head[:, None] * (LATENT + ROPE)
    q = tl.load(q_at + latent[None, :], mask[:, None], 0.0)
    q_rope = tl.load(q_at + rope[None, :], mask[:, None], 0.0)
    out = tl.zeros((BLOCK_H, WIDTH), dtype=tl.float32)
    if HALVES:
        second_q = tl.load(q_at + WIDTH + latent[None, :], mask[:, None], 0.0)
        second_out = tl.zeros((BLOCK_H, WIDTH), dtype=tl.float32)
    row_max = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for token in range(first, last, BLOCK_N):
        tokens = token + tl.arange(0, BLOCK_N)
        valid = tokens < last
        # Past the end the last token is read again, with weight 0: masks of loads take more instructions.
        slots = cache_slots(table_ptr, sequence, pages, tl.minimum(tokens, last - 1), PAGE)
        c_at = c_ptr + slots[:, None] * (LATENT + ROPE)
        c = tl.load(c_at + latent[None, :])
        c_rope = tl.load(c_at + rope[None, :])
        scores = tl.dot(q_rope, c_rope.T, tl.dot(q, c.T))
        if HALVES:
            second_c = tl.load(c_at + WIDTH + latent[None, :])
            scores += tl.dot(second_q, second_c.T)
        weights, correction, row_max, row_sum = online_softmax(scores, valid[None, :], scale, row_max, row_sum)
        out = tl.dot(weights.to(c.dtype), c, out * correction[:, None])
        if HALVES:
            second_out = tl.dot(weights.to(c.dtype), second_c, second_out * correction[:, None])
    sums = tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    o_at = o_ptr + (head * splits + split).to(tl.int64)[:, None] * LATENT + latent[None, :]
    tl.store(o_at, (out / sums).to(o_ptr.dtype.element_ty), mask[:, None])
    if HALVES:
        tl.store(o_at + WIDTH, (second_out / sums).to(o_ptr.dtype.element_ty), mask[:, None])
    store_log_sum(weight_ptr, head, row_max, row_sum, mask, splits)


def heads_of(target: Target, heads: int) -> int:
    """Heads per program: as many as a matrix instruction of the generation processes and whose queries fit."""
    return min(max(pow2(heads), 16), 64 if target.generation >= 90 else 16)


def tiling(target: Target, sequences: int, heads: int, longest: int) -> DecodeTiling:
    """The default tiling. In shared memory, 32 tokens with a latent of 512 take 36 KB and queries of 64 heads 72 KB, so
    one program runs per multiprocessor.
    """
    block_h = heads_of(target, heads)
    wide = block_h == 64
    splits = choose_splits(
        target, sequences * cdiv(heads, block_h), longest,
        resident=1 if wide else 2,
        start=STARTUP_KEYS + 4 * block_h,  # writing and reading a head's partial sums moves the bytes of four tokens
    )  # fmt: skip
    # From Blackwell on, products take shared memory, too.
    return DecodeTiling(
        keys=32, splits=splits, num_warps=8 if wide else 4, num_stages=3 if wide and target.generation >= 100 else 5
    )


def tilings(target: Target, case: Case) -> tuple[DecodeTiling, ...]:
    """Others: twice and half as many splits, a start before the launch before has ended, and blocks of twice the
    tokens, whose results are rescaled half as often: where there are registers, and with 16 heads by twice the warps.
    """
    rule = tiling(target, case["B"], case["heads"], case["kv"])
    splits = {2 * rule.splits, rule.splits // 2} - {0, rule.splits}
    alternatives = [replace(rule, splits=one) for one in sorted(splits) if one <= max_splits(case["kv"])]
    if rule.num_warps == 8 and target.generation < 100:
        alternatives.append(replace(rule, keys=64, num_stages=2))
    elif rule.num_warps == 4 and target.generation >= 90:
        alternatives.append(replace(rule, keys=64, num_warps=8, num_stages=3))
    if target.sm >= 90:
        alternatives.append(replace(rule, early=True))
    return tuple(alternatives)


def plan(
    target: Target,
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,
    *,
    latent: int,
    scale: float,
    tile: DecodeTiling | None = None,
) -> LaunchPlan:
    """q[sequences, heads, latent + rope], the first part through the absorbed projection; cache[pages, page, latent +
    rope]; table and lengths as in `decode_attention`; o[sequences, heads, latent], for the value projection.
    """
    (sequences, heads, width), page = q.shape, cache.shape[1]
    block_h = heads_of(target, heads)
    blocks = cdiv(heads, block_h)
    tile = tile or tiling(target, sequences, heads, longest)
    o = poisoned(sequences, heads, latent, dtype=q.dtype, device=q.device)
    parts = PartialResults.of(o, tile.splits)
    early = tile.early and target.starts_early(q.device)
    launch = Launch(
        function=_mla_decode,
        grid=(tile.splits, blocks, sequences),
        arguments={
            "q_ptr": q, "c_ptr": cache, "o_ptr": parts.values, "weight_ptr": parts.weight, "table_ptr": table,
            "length_ptr": lengths, "scale": scale * _LOG2_E, "heads": heads, "pages": table.shape[1],
            "splits": tile.splits, "LATENT": latent, "ROPE": width - latent, "BLOCK_H": block_h,
            "BLOCK_N": tile.keys, "PAGE": page, "cache_pages": len(cache), "HALVES": block_h < 64, "EARLY": early,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        early=early,
    )  # fmt: skip
    return LaunchPlan(launches=(launch, *parts.merge(o, early=early)), outputs=(o,))


def reference(
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,  # noqa: ARG001
    *,
    latent: int,
    scale: float,
    tile: DecodeTiling | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    """Attention of each query over the latents of its sequence, which are its keys and values; in fp32."""
    outputs = []
    for ours, pages, length in zip(q.float(), table.long(), lengths.tolist(), strict=True):
        c = cache.float()[pages].flatten(0, 1)[:length]
        outputs.append((ours @ c.T * scale).softmax(1) @ c[:, :latent])
    return (torch.stack(outputs),)


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, page, batch = Random(device, seed), case.torch_dtype, case["page"], case["B"]
    width, pages = case["latent"] + case["rope"], cdiv(case["kv"], page)
    return {
        "q": random.normal(batch, case["heads"], width, dtype=dtype),
        "cache": random.normal(batch * pages, page, width, dtype=dtype),
        "table": random.uniform(batch * pages, low=0, high=1).argsort().to(torch.int32).view(batch, pages),
        "lengths": torch.full((batch,), case["kv"], dtype=torch.int32).to(device),
        "longest": case["kv"],
        "latent": case["latent"],
        "scale": width**-0.5,
    }


def _operators(case: Case) -> tuple[Operator, ...]:
    """The attention operator: a single KV head of latent and rotated elements. Its values are the latent, so both are
    read once.
    """
    latent, width = case["latent"], case["latent"] + case["rope"]
    heads = Heads(num_heads=case["heads"], num_kv_heads=1, head_dim=width, value_dim=latent)
    q = Tensor(name="q", width=heads.q_width, format=case.format)
    cache = Tensor(name="cache", width=width, format=case.format, rows=CAUSAL.keys_read, role=Role.KV_CACHE)
    o = Tensor(name="o", width=case["heads"] * latent, format=case.format)
    return (FlashAttention(name="attention", inputs=(q, cache), outputs=(o,), heads=heads),)


KERNELS = (
    Kernel(
        name="mla_decode", family="attention",
        cases=(
            case("fp16", B=2, heads=4, latent=64, rope=16, kv=96, page=16),
            case("fp16", B=1, heads=20, latent=128, rope=32, kv=701, page=64),
            case("fp16", B=1, heads=70, latent=64, rope=16, kv=45, page=16),
        ),
        full_size=(
            case("bf16", B=32, heads=128, latent=512, rope=64, kv=8192, page=64),
            case("bf16", B=1, heads=16, latent=512, rope=64, kv=32768, page=64),
            case("bf16", B=8, heads=16, latent=512, rope=64, kv=8192, page=64),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (2 * EPSILON[case.dtype], 2 * EPSILON[case.dtype]),
        operators=_operators,
        workload=lambda case: Workload.decode(batch=case["B"], kv_len=case["kv"]),
        tilings=tilings,
    ),
)  # fmt: skip
