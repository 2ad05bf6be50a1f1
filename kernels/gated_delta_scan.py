"""S = decay S; S = S + k (outer) beta (v - k S); o = q S, of each value head, over the tokens of prompts.

The chunked form of the gated delta rule (arXiv:2412.06464, section 3.3; the WY representation of arXiv:2406.06484,
section 3.2), in two launches. With A[t, s] = beta[t] (k[t] . k[s]) decay(s..t) for s < t, a chunk's corrections are
(I + A)^-1 beta (V - decay K S): the first launch, a program per chunk and head, inverts I + A and writes W = (I + A)^-1
beta decay K and U = (I + A)^-1 beta V; the second, a program per columns of a head's S, goes from chunk to chunk with
U - W S, while S stays in registers, in fp32. q and k are normalized to length 1 inside, q scaled by 1 / sqrt(dim)
besides; neighbouring value heads share those of a key head. The state may be written where it was read.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .gated_delta_update import NORM_EPSILON, operators
from .gated_delta_update import reference as update
from .mamba2_scan import CHUNK, ScanTiling, decays, running_sums, tiling, tilings
from .mamba2_update import softplus


@triton.jit
def _unit_rows(x, epsilon):
    """Rows of x at length 1, in fp32."""
    x = x.to(tl.float32)
    return x / tl.sqrt(tl.sum(x * x, 1) + epsilon)[:, None]


@triton.jit
def _log_decays(decay_at, valid, rate, bias):
    """Logarithms of the decays of a chunk's tokens; 0 past the end."""
    decay = tl.load(decay_at, valid, 0.0).to(tl.float32)
    return tl.where(valid, -rate * softplus(decay + bias), 0.0)


@triton.jit
def _inverse(a, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """(I + a)^-1 of a strictly lower triangular matrix, in fp32.

    Four blocks on the diagonal by forward substitution, all at once, a row of each at a time. With their inverse D and
    the blocks L below them, (I + a)^-1 = (I + D L)^-1 D, and the fourth power of D L is zero.
    """
    BLOCK: tl.constexpr = CHUNK // 4
    block, other = tl.arange(0, 4)[:, None, None, None], tl.arange(0, 4)[None, None, :, None]
    blocks = tl.reshape(a, (4, BLOCK, 4, BLOCK))
    inverted = -tl.sum(tl.where(block == other, blocks, 0.0), 2)
    rows = tl.arange(0, BLOCK)[None, :, None]
    for i in range(1, BLOCK):
        row = tl.sum(tl.where(rows == i, inverted, 0.0), 1)  # [4, BLOCK], zero from i on
        row += tl.sum(row[:, :, None] * inverted, 1)
        inverted = tl.where(rows == i, row[:, None, :], inverted)
    inverted += tl.where(rows == tl.arange(0, BLOCK)[None, None, :], 1.0, 0.0)
    d = tl.reshape(tl.where(block == other, inverted[:, :, None, :], 0.0), (CHUNK, CHUNK))
    below = tl.reshape(tl.where(block > other, blocks, 0.0), (CHUNK, CHUNK))
    power = -tl.dot(d, below, input_precision=PRECISION)
    d += tl.dot(power, d, input_precision=PRECISION)
    return d + tl.dot(tl.dot(power, power, input_precision=PRECISION), d, input_precision=PRECISION)


@triton.jit
def _chunk_corrections(
    qkv_ptr, beta_ptr, decay_ptr, a_ptr, bias_ptr, w_ptr, u_ptr, num_tokens, key_heads, heads, key_dim, dim, epsilon,
    CHUNK: tl.constexpr, KEY_DIM: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W and U of one chunk of a head."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, token = tl.program_id(0) * CHUNK, tl.arange(0, CHUNK)
    valid = first + token < num_tokens
    row = (sequence * num_tokens + first).to(tl.int64)  # of the chunk; offsets within it take 32 bits
    keys, values = tl.arange(0, KEY_DIM), tl.arange(0, DIM)
    key_width = key_heads * key_dim
    width = 2 * key_width + heads * dim
    k_mask, v_mask = valid[:, None] & (keys[None, :] < key_dim), valid[:, None] & (values[None, :] < dim)
    k_at = qkv_ptr + row * width + key_width + head // (heads // key_heads) * key_dim
    k = tl.load(k_at + (token[:, None] * width + keys[None, :]), k_mask, 0.0)
    v_at = qkv_ptr + row * width + 2 * key_width + head * dim
    v = tl.load(v_at + (token[:, None] * width + values[None, :]), v_mask, 0.0)
    rate = tl.exp(tl.load(a_ptr + head).to(tl.float32))
    bias = tl.load(bias_ptr + head).to(tl.float32)
    scalars = row * heads + head + token * heads
    logs = _log_decays(decay_ptr + scalars, valid, rate, bias)
    beta = tl.load(beta_ptr + scalars, valid, 0.0).to(tl.float32)
    beta = tl.where(valid, 1 / (1 + tl.exp(-beta)), 0.0)
    unit = _unit_rows(k, epsilon)
    rounded = unit.to(k.dtype)
    sums = running_sums(logs, CHUNK)
    pairs = tl.dot(rounded, rounded.T, input_precision=PRECISION) * decays(sums, CHUNK) * beta[:, None]
    earlier = tl.arange(0, CHUNK)[None, :] < tl.arange(0, CHUNK)[:, None]
    inverse = _inverse(tl.where(earlier, pairs, 0.0), CHUNK, PRECISION).to(k.dtype)
    decayed = (unit * (beta * tl.exp(sums))[:, None]).to(k.dtype)
    w = tl.dot(inverse, decayed, input_precision=PRECISION)
    u = tl.dot(inverse, (v.to(tl.float32) * beta[:, None]).to(k.dtype), input_precision=PRECISION)
    w_at = w_ptr + (row * heads + head) * key_dim + (token[:, None] * heads * key_dim + keys[None, :])
    u_at = u_ptr + (row * heads + head) * dim + (token[:, None] * heads * dim + values[None, :])
    tl.store(w_at, w.to(w_ptr.dtype.element_ty), k_mask)
    tl.store(u_at, u.to(u_ptr.dtype.element_ty), v_mask)


@triton.jit
def _gated_delta_scan(
    qkv_ptr, decay_ptr, state_ptr, a_ptr, bias_ptr, w_ptr, u_ptr, o_ptr, into_ptr,
    num_tokens, key_heads, heads, key_dim, dim, scale, epsilon,
    CHUNK: tl.constexpr, KEY_DIM: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(1), tl.program_id(2)
    keys, values = tl.arange(0, KEY_DIM), tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    state_base = (sequence * heads + head).to(tl.int64) * key_dim * dim
    state_at = keys[:, None] * dim + values[None, :]
    state_mask = (keys[:, None] < key_dim) & (values[None, :] < dim)
    state = tl.load(state_ptr + state_base + state_at, state_mask, 0.0)
    key_width = key_heads * key_dim
    rate = tl.exp(tl.load(a_ptr + head).to(tl.float32))
    bias = tl.load(bias_ptr + head).to(tl.float32)
    width, token = 2 * key_width + heads * dim, tl.arange(0, CHUNK)
    for first in range(0, num_tokens, CHUNK):
        valid = first + token < num_tokens
        row = (sequence * num_tokens + first).to(tl.int64)
        k_mask, v_mask = valid[:, None] & (keys[None, :] < key_dim), valid[:, None] & (values[None, :] < dim)
        q_at = qkv_ptr + row * width + head // (heads // key_heads) * key_dim
        q = tl.load(q_at + (token[:, None] * width + keys[None, :]), k_mask, 0.0)
        q = (_unit_rows(q, epsilon) * scale).to(q.dtype)
        k = tl.load(q_at + key_width + (token[:, None] * width + keys[None, :]), k_mask, 0.0)
        k = _unit_rows(k, epsilon).to(q.dtype)
        w_at = w_ptr + (row * heads + head) * key_dim
        w = tl.load(w_at + (token[:, None] * heads * key_dim + keys[None, :]), k_mask, 0.0)
        value_at = (row * heads + head) * dim + (token[:, None] * heads * dim + values[None, :])
        u = tl.load(u_ptr + value_at, v_mask, 0.0)
        logs = _log_decays(decay_ptr + row * heads + head + token * heads, valid, rate, bias)
        sums, total = running_sums(logs, CHUNK), tl.sum(logs, 0)
        rounded = state.to(q.dtype)
        corrections = u - tl.dot(w, rounded, input_precision=PRECISION)
        weights = (tl.dot(q, k.T, input_precision=PRECISION) * decays(sums, CHUNK)).to(q.dtype)
        o = tl.exp(sums)[:, None] * tl.dot(q, rounded, input_precision=PRECISION)
        o += tl.dot(weights, corrections.to(q.dtype), input_precision=PRECISION)
        tl.store(o_ptr + value_at, o.to(o_ptr.dtype.element_ty), v_mask)
        decayed = (corrections * tl.exp(total - sums)[:, None]).to(q.dtype)
        state = state * tl.exp(total) + tl.dot(k.T, decayed, input_precision=PRECISION)
    tl.store(into_ptr + state_base + state_at, state, state_mask)


def plan(
    target: Target,
    qkv: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    bias: torch.Tensor,
    key_heads: int,
    into: torch.Tensor | None = None,
    tile: ScanTiling | None = None,
) -> LaunchPlan:
    """qkv[sequences, tokens, 2 key_heads key_dim + heads dim], what the convolution makes; beta and decay[sequences,
    tokens, heads] before their functions; state[sequences, heads, key_dim, dim] in fp32; a_log and bias[heads];
    o[sequences, tokens, heads dim]. The new state goes `into` a tensor of its own or a given one.
    """
    (sequences, heads, key_dim, dim), num_tokens = state.shape, qkv.shape[1]
    o = poisoned(sequences, num_tokens, heads * dim, dtype=qkv.dtype, device=qkv.device)
    into = poisoned(*state.shape, dtype=state.dtype, device=qkv.device) if into is None else into
    w, u = (poisoned(sequences, num_tokens, heads, n, dtype=qkv.dtype, device=qkv.device) for n in (key_dim, dim))
    tile = tile or tiling(target, dim, heads * sequences)
    common = {
        "qkv_ptr": qkv, "decay_ptr": decay, "a_ptr": a_log, "bias_ptr": bias, "w_ptr": w, "u_ptr": u,
        "num_tokens": num_tokens, "key_heads": key_heads, "heads": heads, "key_dim": key_dim, "dim": dim,
        "epsilon": NORM_EPSILON, "CHUNK": CHUNK, "KEY_DIM": max(pow2(key_dim), 16), "PRECISION": "tf32x3",
    }  # fmt: skip
    corrections = Launch(
        function=_chunk_corrections,
        grid=(cdiv(num_tokens, CHUNK), heads, sequences),
        arguments=common | {"beta_ptr": beta, "DIM": max(pow2(dim), 16)},
        num_warps=4,
    )
    scan = Launch(
        function=_gated_delta_scan,
        grid=(cdiv(dim, tile.channels), heads, sequences),
        arguments=common | {
            "state_ptr": state, "o_ptr": o, "into_ptr": into, "scale": key_dim**-0.5, "BLOCK_V": tile.channels,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return LaunchPlan(launches=(corrections, scan), outputs=(o, into))


def reference(
    qkv: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    bias: torch.Tensor,
    key_heads: int,
) -> tuple[torch.Tensor, ...]:
    """Outputs [sequences, tokens, heads dim] and the last state, by one decode step after another; in fp32."""
    outputs = []
    for x, of_token, decayed in zip(qkv.unbind(1), beta.unbind(1), decay.unbind(1), strict=True):
        o, state = update(x, of_token, decayed, state, a_log, bias, key_heads)
        outputs.append(o)
    return torch.stack(outputs, 1), state


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, batch, tokens = Random(device, seed), case.torch_dtype, case["B"], case["T"]
    heads, key_heads, key_dim, dim = (case[name] for name in ("heads", "key_heads", "key_dim", "dim"))
    return {
        "qkv": random.normal(batch, tokens, 2 * key_heads * key_dim + heads * dim, dtype=dtype),
        "beta": random.normal(batch, tokens, heads, dtype=dtype),
        "decay": random.normal(batch, tokens, heads, dtype=dtype),
        "state": random.normal(batch, heads, key_dim, dim, dtype=torch.float32),
        "a_log": random.uniform(heads, low=-4, high=0).to(dtype),
        "bias": random.normal(heads, dtype=dtype),
        "key_heads": key_heads,
    }


KERNELS = (
    Kernel(
        name="gated_delta_scan", family="scan",
        cases=(
            case("fp16", B=2, T=70, heads=4, key_heads=2, key_dim=32, dim=48),
            case("fp32", B=1, T=33, heads=3, key_heads=3, key_dim=20, dim=20),
            case("fp16", B=1, T=64, heads=2, key_heads=1, key_dim=128, dim=128),
            case("fp16", B=2, T=3, heads=2, key_heads=2, key_dim=16, dim=16),
        ),
        full_size=(
            case("bf16", B=1, T=8192, heads=32, key_heads=16, key_dim=128, dim=128),
            case("bf16", B=8, T=1024, heads=32, key_heads=16, key_dim=128, dim=128),
        ),
        make=_make, plan=plan, reference=reference,
        # W, U, corrections, weights and the state that tokens read are rounded to 16 bits.
        tolerance=lambda case: (2 * EPSILON[case.dtype], max(2 * EPSILON[case.dtype], 64 * EPSILON["fp32"])),
        operators=partial(operators, chunk=CHUNK),
        workload=lambda case: Workload.prefill(batch=case["B"], prompt=case["T"]),
        tilings=tilings,
    ),
)  # fmt: skip
