"""h = exp(-exp(A_log) step) h + step x (outer) B; y = h C + D x, of each head, over the tokens of prompts.

The chunked scan of Mamba-2 (arXiv:2405.21060, section 6): within a chunk, tokens are products of matrices over pairs,
and the state, in fp32, stays in registers from chunk to chunk. A program takes channels of a head, and all tokens of a
sequence. step = softplus(dt + bias); heads in groups share B and C. The state may be written where it was read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import triton
import triton.language as tl

from ..records import frozen
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .mamba2_update import operators, softplus
from .mamba2_update import reference as update

CHUNK = 32  # tokens of a chunk; 64 spill registers on Hopper
_MAX_CHANNELS = 32  # of a head that a program takes; 64 spill registers on Hopper


@frozen(kw_only=True)
class ScanTiling:
    """Channels of a head that a program takes, warps and stages of a scan."""

    channels: int
    num_warps: int = 4
    num_stages: int = 2


@triton.jit
def running_sums(x, CHUNK: tl.constexpr):
    """Sums of x[CHUNK] from the first element up to each."""
    tokens = tl.arange(0, CHUNK)
    return tl.sum(tl.where(tokens[None, :] <= tokens[:, None], x[None, :], 0.0), 1)


@triton.jit
def decays(sums, CHUNK: tl.constexpr):
    """exp(sums[t] - sums[s]) for s <= t, else 0, [t, s]: decays from the token after s to t.

    sums  running sums of the logarithms of decays, which do not grow
    """
    tokens = tl.arange(0, CHUNK)
    earlier = tokens[None, :] <= tokens[:, None]
    return tl.where(earlier, tl.exp(tl.where(earlier, sums[:, None] - sums[None, :], 0.0)), 0.0)


@triton.jit
def _mamba2_scan(
    xbc_ptr, step_ptr, state_ptr, a_ptr, d_ptr, bias_ptr, y_ptr, into_ptr, num_tokens, heads, dim, size, groups,
    CHUNK: tl.constexpr, BLOCK_P: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(1), tl.program_id(2)
    rows, columns = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, SIZE)
    inner = heads * dim
    width = inner + 2 * groups * size
    state_base, state_at = (sequence * heads + head).to(tl.int64) * dim * size, rows[:, None] * size + columns[None, :]
    state_mask = (rows[:, None] < dim) & (columns[None, :] < size)
    h = tl.load(state_ptr + state_base + state_at, state_mask, 0.0)
    rate = tl.exp(tl.load(a_ptr + head).to(tl.float32))
    skip = tl.load(d_ptr + head).to(tl.float32)
    bias = tl.load(bias_ptr + head).to(tl.float32)
    b_column = inner + head // (heads // groups) * size
    token = tl.arange(0, CHUNK)
    for first in range(0, num_tokens, CHUNK):
        valid = first + token < num_tokens
        row = (sequence * num_tokens + first).to(tl.int64)  # of the chunk; offsets within it take 32 bits
        x_mask = valid[:, None] & (rows[None, :] < dim)
        b_mask = valid[:, None] & (columns[None, :] < size)
        x = tl.load(xbc_ptr + row * width + head * dim + (token[:, None] * width + rows[None, :]), x_mask, 0.0)
        b_at = xbc_ptr + row * width + b_column
        b = tl.load(b_at + (token[:, None] * width + columns[None, :]), b_mask, 0.0)
        c = tl.load(b_at + groups * size + (token[:, None] * width + columns[None, :]), b_mask, 0.0)
        step = softplus(tl.load(step_ptr + row * heads + head + token * heads, valid, 0.0).to(tl.float32) + bias)
        step = tl.where(valid, step, 0.0)  # tokens past the end neither decay nor add
        logs = -rate * step
        sums, total = running_sums(logs, CHUNK), tl.sum(logs, 0)
        weights = tl.dot(c, b.T, input_precision=PRECISION) * decays(sums, CHUNK) * step[None, :]
        y = tl.dot(weights.to(x.dtype), x, input_precision=PRECISION)
        past = tl.dot(c, h.to(c.dtype).T, input_precision=PRECISION)
        y += tl.exp(sums)[:, None] * past + skip * x.to(tl.float32)
        y_at = y_ptr + row * inner + head * dim + (token[:, None] * inner + rows[None, :])
        tl.store(y_at, y.to(y_ptr.dtype.element_ty), x_mask)
        added = (x.to(tl.float32) * (tl.exp(total - sums) * step)[:, None]).to(b.dtype)
        h = h * tl.exp(total) + tl.dot(added.T, b, input_precision=PRECISION)
    tl.store(into_ptr + state_base + state_at, h, state_mask)


def plan(
    target: Target,
    xbc: torch.Tensor,
    step: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    d: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    into: torch.Tensor | None = None,
    tile: ScanTiling | None = None,
) -> LaunchPlan:
    """xbc[sequences, tokens, heads dim + 2 groups size], what the convolution makes: x, B, C; step[sequences, tokens,
    heads]; state[sequences, heads, dim, size] in fp32; a_log, d, bias[heads]; y[sequences, tokens, heads dim]. The new
    state goes `into` a tensor of its own or a given one.
    """
    (sequences, heads, dim, size), num_tokens = state.shape, xbc.shape[1]
    y = poisoned(sequences, num_tokens, heads * dim, dtype=xbc.dtype, device=xbc.device)
    into = poisoned(*state.shape, dtype=state.dtype, device=xbc.device) if into is None else into
    tile = tile or tiling(target, dim, heads * sequences)
    launch = Launch(
        function=_mamba2_scan,
        grid=(cdiv(dim, tile.channels), heads, sequences),
        arguments={
            "xbc_ptr": xbc, "step_ptr": step, "state_ptr": state, "a_ptr": a_log, "d_ptr": d, "bias_ptr": bias,
            "y_ptr": y, "into_ptr": into, "num_tokens": num_tokens, "heads": heads, "dim": dim, "size": size,
            "groups": groups, "CHUNK": CHUNK, "BLOCK_P": tile.channels, "SIZE": max(pow2(size), 16),
            "PRECISION": "tf32x3",
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y, into))


def tiling(target: Target, dim: int, heads: int) -> ScanTiling:
    """The default tiling: 32 channels of a head a program, or 16 where multiprocessors would be idle."""
    block = max(min(pow2(dim), _MAX_CHANNELS), 16)
    while block > 16 and heads * cdiv(dim, block) < target.multiprocessors:
        block //= 2
    return ScanTiling(channels=block)


def tilings(target: Target, case: Case) -> tuple[ScanTiling, ...]:
    """Alternative tilings: more warps, fewer and more stages, and 16 in place of 32 channels or the reverse.

    Two warps, 64 channels and chunks of 64 tokens spill registers on Hopper.
    """
    rule = tiling(target, case["dim"], case["heads"] * case["B"])
    other_channels = {16, min(pow2(case["dim"]), _MAX_CHANNELS)} - {rule.channels}
    return (
        replace(rule, num_warps=8),
        *(replace(rule, num_stages=n) for n in (1, 3)),
        *(replace(rule, channels=n) for n in other_channels if n >= 16),
    )


def reference(
    xbc: torch.Tensor,
    step: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    d: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
) -> tuple[torch.Tensor, ...]:
    """Outputs [sequences, tokens, heads dim] and the last state, by one decode step after another; in fp32."""
    outputs = []
    for x, dt in zip(xbc.unbind(1), step.unbind(1), strict=True):
        y, state = update(x, dt, state, a_log, d, bias, groups)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, batch, tokens = Random(device, seed), case.torch_dtype, case["B"], case["T"]
    heads, dim, size, groups = (case[name] for name in ("heads", "dim", "state", "groups"))
    return {
        "xbc": random.normal(batch, tokens, heads * dim + 2 * groups * size, dtype=dtype, scale=0.5),
        "step": random.normal(batch, tokens, heads, dtype=dtype),
        "state": random.normal(batch, heads, dim, size, dtype=torch.float32, scale=size**-0.5),
        "a_log": random.uniform(heads, low=-1, high=1).to(dtype),
        "d": random.normal(heads, dtype=dtype),
        "bias": random.normal(heads, dtype=dtype),
        "groups": groups,
    }


KERNELS = (
    Kernel(
        name="mamba2_scan", family="scan",
        cases=(
            case("fp16", B=2, T=70, heads=4, dim=16, state=32, groups=2),
            case("fp32", B=1, T=33, heads=3, dim=20, state=24, groups=1),
            case("fp16", B=1, T=32, heads=2, dim=64, state=128, groups=1),
            case("fp16", B=2, T=5, heads=2, dim=32, state=16, groups=2),
        ),
        full_size=(
            case("bf16", B=1, T=8192, heads=80, dim=64, state=128, groups=1),
            case("bf16", B=8, T=1024, heads=128, dim=64, state=128, groups=8),
        ),
        make=_make, plan=plan, reference=reference,
        # Weights of a chunk, what it adds to the state, and the state that its tokens read are rounded to 16 bits.
        tolerance=lambda case: (4 * EPSILON[case.dtype], max(2 * EPSILON[case.dtype], 256 * EPSILON["fp32"])),
        operators=partial(operators, chunk=CHUNK),
        workload=lambda case: Workload.prefill(batch=case["B"], prompt=case["T"]),
        tilings=tilings,
    ),
)  # fmt: skip
