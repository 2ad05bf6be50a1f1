"""Pairs of elements of each query and key head turn by an angle: (a, b) to (a cos - b sin, a sin + b cos).

Pair i of the token at position t turns by t * frequency[i] (arXiv:2104.09864). Pairs are an element of the first and
one of the second half of what is rotated (GPT-NeoX, LLaMA), or neighbours (the paper, GPT-J). Where only a part of a
head is rotated, the rest is copied.

No table of angles is read: they are fixed-point numbers of turns. Frequencies are whole numbers of 2^-64 turns, of
which a product with a position keeps the fraction when it overflows, and so is as exact for position 10^6 as for 1,
where one in fp32 may be off by a hundredth of a turn. A program computes the angles of a few tokens once, for up to 32
heads of q or of k.
"""

from __future__ import annotations

from math import pi

import torch
import triton
import triton.language as tl

from ..operators.attention import Heads
from ..operators.base import Operator, Role, Tensor
from ..operators.elementwise import Elementwise, Rope
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_PAIRS_PER_STEP = 1024  # of 4 warps at a time: a load of 16 bytes of each half a thread
_MAX_HEADS_PER_STEP = 8  # at a time
_STEPS_PER_PROGRAM = 4  # that reuse a program's angles, if enough programs remain
_MIN_PROGRAMS_PER_SM = 16  # programs a multiprocessor
_THETA = 10000.0
_MAX_POSITION = 131072  # positions of cases are below
_RADIANS: tl.constexpr = tl.constexpr(2 * pi * 2.0**-32)


@triton.jit
def _cos_sin(angle):
    """Cosine and sine of an angle in 2^-32 turns (int32), by Taylor series within an eighth of a turn; error below
    3e-8.
    """
    quarter = (angle + (1 << 29)) >> 30  # to the nearest: -2, -1, 0, 1
    x = (angle - (quarter << 30)).to(tl.float32) * _RADIANS
    xx = x * x
    cos = 1 + xx * (-1 / 2 + xx * (1 / 24 + xx * (-1 / 720 + xx * (1 / 40320))))
    sin = x * (1 + xx * (-1 / 6 + xx * (1 / 120 + xx * (-1 / 5040 + xx * (1 / 362880)))))
    odd = (quarter & 1) != 0
    first, second = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    return (
        tl.where(((quarter + 1) & 2) != 0, -first, first),
        tl.where((quarter & 2) != 0, -second, second),
    )


@triton.jit
def _rotate_heads(
    x_ptr, y_ptr, tokens, heads, dim, token_stride, head_stride, rows, head, cos, sin,
    HALF: tl.constexpr, BLOCK_P: tl.constexpr, REST: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """Tokens `rows` and heads `head` of one tensor, by angles[tokens, 1, pairs]; REST is room for what is copied."""
    valid = (rows[:, None, None] < tokens) & (head[None, :, None] < heads)
    token = rows.to(tl.int64)[:, None, None]
    x_ptr += token * token_stride + head[None, :, None] * head_stride
    y_ptr += (token * heads + head[None, :, None]) * dim
    if NEIGHBOURS:
        columns = tl.arange(0, 2 * BLOCK_P)[None, None, :]
        mask = valid & (columns < 2 * HALF)
        x = tl.load(x_ptr + columns, mask, 0.0).to(tl.float32)
        a, b = tl.split(x.reshape(x.shape[0], x.shape[1], BLOCK_P, 2))
        y = tl.join(a * cos - b * sin, a * sin + b * cos).reshape(x.shape)
        tl.store(y_ptr + columns, y.to(y_ptr.dtype.element_ty), mask)
    else:
        columns = tl.arange(0, BLOCK_P)[None, None, :]
        mask = valid & (columns < HALF)
        a = tl.load(x_ptr + columns, mask, 0.0).to(tl.float32)
        b = tl.load(x_ptr + HALF + columns, mask, 0.0).to(tl.float32)
        tl.store(y_ptr + columns, (a * cos - b * sin).to(y_ptr.dtype.element_ty), mask)
        tl.store(y_ptr + HALF + columns, (a * sin + b * cos).to(y_ptr.dtype.element_ty), mask)
    if REST > 0:
        columns = 2 * HALF + tl.arange(0, REST)[None, None, :]
        mask = valid & (columns < dim)
        tl.store(y_ptr + columns, tl.load(x_ptr + columns, mask), mask)


@triton.jit
def _rope(
    q_ptr, k_ptr, q_out_ptr, k_out_ptr, position_ptr, frequency_ptr, tokens, heads, kv_heads, dim,
    q_token, q_head, k_token, k_head,
    HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
    REST: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    pairs = tl.arange(0, BLOCK_P)
    position = tl.load(position_ptr + rows, rows < tokens, 0).to(tl.int64)
    frequency = tl.load(frequency_ptr + pairs, pairs < HALF, 0)
    cos, sin = _cos_sin(((position[:, None] * frequency[None, :]) >> 32).to(tl.int32)[:, None, :])
    share, of_q = tl.program_id(1), tl.cdiv(heads, HEADS)
    if share < of_q:
        for first in range(share * HEADS, tl.minimum((share + 1) * HEADS, heads), BLOCK_H):
            head = first + tl.arange(0, BLOCK_H)
            _rotate_heads(
                q_ptr, q_out_ptr, tokens, heads, dim, q_token, q_head, rows, head, cos, sin,
                HALF, BLOCK_P, REST, NEIGHBOURS,
            )  # fmt: skip
    else:
        share -= of_q
        for first in range(share * HEADS, tl.minimum((share + 1) * HEADS, kv_heads), BLOCK_H):
            head = first + tl.arange(0, BLOCK_H)
            _rotate_heads(
                k_ptr, k_out_ptr, tokens, kv_heads, dim, k_token, k_head, rows, head, cos, sin,
                HALF, BLOCK_P, REST, NEIGHBOURS,
            )  # fmt: skip


def frequencies(rotary_dim: int, theta: float = _THETA) -> torch.Tensor:
    """theta^(-2 i / rotary_dim) radians for each pair i, as whole numbers of 2^-64 turns: int64[rotary_dim / 2]."""
    radians = (theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2))
    return torch.tensor([round(angle / (2 * pi) * 2.0**64) for angle in radians], dtype=torch.int64)


def plan(
    target: Target,
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    *,
    neighbours: bool = False,
) -> LaunchPlan:
    """q[tokens, heads, dim] and k[tokens, kv_heads, dim], which may be parts of one tensor, positions[tokens] and
    frequencies[pairs] to q and k in memory of their own; pairs are the first 2 * pairs elements of a head.
    """
    (tokens, heads, dim), kv_heads, half = q.shape, k.shape[1], frequencies.numel()
    q_out, k_out = (poisoned(*x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    block_p, block_h = pow2(half), min(pow2(max(heads, kv_heads)), _MAX_HEADS_PER_STEP)
    block_t = min(max(_PAIRS_PER_STEP // (block_p * block_h), 1), pow2(tokens))
    heads_with_shared_angles = block_h * _STEPS_PER_PROGRAM
    programs = cdiv(tokens, block_t) * (
        cdiv(heads, heads_with_shared_angles) + cdiv(kv_heads, heads_with_shared_angles)
    )
    heads_per_program = (
        heads_with_shared_angles if programs >= _MIN_PROGRAMS_PER_SM * target.multiprocessors else block_h
    )
    launch = Launch(
        function=_rope,
        grid=(cdiv(tokens, block_t), cdiv(heads, heads_per_program) + cdiv(kv_heads, heads_per_program)),
        arguments={
            "q_ptr": q, "k_ptr": k, "q_out_ptr": q_out, "k_out_ptr": k_out, "position_ptr": positions,
            "frequency_ptr": frequencies, "tokens": tokens, "heads": heads, "kv_heads": kv_heads, "dim": dim,
            "q_token": q.stride(0), "q_head": q.stride(1), "k_token": k.stride(0), "k_head": k.stride(1),
            "HALF": half, "HEADS": heads_per_program, "BLOCK_T": block_t, "BLOCK_H": block_h, "BLOCK_P": block_p,
            "REST": pow2(dim - 2 * half) if dim > 2 * half else 0, "NEIGHBOURS": neighbours,
        },
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(q_out, k_out))


def reference(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, *, neighbours: bool = False
) -> tuple[torch.Tensor, ...]:
    """Queries and keys rotated by their positions, in halves or in neighbouring pairs; in fp32."""
    half = frequencies.numel()
    angles = positions.double()[:, None] * frequencies.double() * (2 * pi * 2.0**-64)
    cos, sin = (f(angles).float()[:, None, :] for f in (torch.cos, torch.sin))
    outputs = []
    for x in (q.float(), k.float()):
        y = x.clone()
        first = slice(0, 2 * half, 2) if neighbours else slice(0, half)
        second = slice(1, 2 * half, 2) if neighbours else slice(half, 2 * half)
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        outputs.append(y)
    return tuple(outputs)


def _make(case: Case, device: str, seed: int) -> Inputs:
    """Queries and keys as one projection leaves them, side by side, with values behind."""
    random, tokens, dim = Random(device, seed), case["tokens"], case["dim"]
    heads, kv_heads = case["heads"], case["kv_heads"]
    qkv = random.normal(tokens, heads + 2 * kv_heads, dim, dtype=case.torch_dtype)
    return {
        "q": qkv[:, :heads],
        "k": qkv[:, heads : heads + kv_heads],
        "positions": random.integers(tokens, low=0, high=_MAX_POSITION, dtype=torch.int32),
        "frequencies": frequencies(case["rotary"]).to(device),
        "neighbours": bool(case.get("neighbours")),
    }


def _operators(case: Case) -> tuple[Operator, ...]:
    """The Rope; and, where not all of a query is rotated, the copy of the rest, as results have memory of their own."""
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=case["dim"])
    inputs = tuple(
        Tensor(name=name, width=width, format=case.format)
        for name, width in (("q", heads.q_width), ("k", heads.kv_width))
    )
    outputs = (
        Tensor(name="q_rope", width=heads.q_width, format=case.format),
        Tensor(name="k_rope", width=heads.kv_width, format=case.format, role=Role.KV_CACHE),
    )
    rope = Rope(name="rope", inputs=inputs, outputs=outputs, heads=heads, rotary_dim=case["rotary"])
    if case["rotary"] == case["dim"]:
        return (rope,)
    rest, copied = (
        Tensor(name=name, width=case["heads"] * (case["dim"] - case["rotary"]), format=case.format)
        for name in ("q_rest", "q_rest_copy")
    )
    return (rope, Elementwise(name="copy", inputs=(rest,), outputs=(copied,), ops_per_element=0))


KERNELS = (
    Kernel(
        name="rope", family="rope",
        cases=(
            case("fp16", tokens=5, heads=4, kv_heads=2, dim=64, rotary=64),
            case("bf16", tokens=3, heads=9, kv_heads=3, dim=80, rotary=32),
            case("fp32", tokens=37, heads=2, kv_heads=1, dim=24, rotary=24, neighbours=1),
            case("fp16", tokens=370, heads=12, kv_heads=3, dim=16, rotary=16),
            case("fp16", tokens=7, heads=3, kv_heads=3, dim=100, rotary=48, neighbours=1),
        ),
        full_size=(
            case("bf16", tokens=8192, heads=32, kv_heads=8, dim=128, rotary=128),
            case("bf16", tokens=16, heads=32, kv_heads=8, dim=128, rotary=128),
            case("bf16", tokens=8192, heads=32, kv_heads=32, dim=80, rotary=32),
            case("bf16", tokens=8192, heads=128, kv_heads=1, dim=64, rotary=64, neighbours=1),
        ),
        make=_make, plan=plan, reference=reference,
        # One result is rounded; of two terms that cancel, up to some 5 each, fp32 leaves an error in their last bits.
        tolerance=lambda case: (EPSILON[case.dtype] / 2, 16 * EPSILON["fp32"]),
        operators=_operators,
        workload=lambda case: Workload.prefill(batch=1, prompt=case["tokens"]),
    ),
)  # fmt: skip
