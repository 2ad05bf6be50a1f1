"""S = decay S; S = S + k (outer) beta (v - k S); o = q S, of each value head, over the tokens of prompts.

The chunked form of the gated delta rule (arXiv:2412.06464, section 3.3; the WY representation of arXiv:2406.06484,
section 3.2), also with a decay of each channel of a key, as Kimi delta attention has it (arXiv:2510.26692, section 3).
With A[t, s] = beta[t] (k[t] . k[s]), whose channels decay from s to t > s, the corrections of a chunk are
(I + A)^-1 beta (V - decay K S). The first launch, a program per chunk and head, inverts I + A and writes all that does
not depend on S: W = (I + A)^-1 beta decay K, U = (I + A)^-1 beta V, decayed queries and keys, and their products. The
second, a program per columns of a head's S, goes from chunk to chunk with U - W S, while S stays in registers, in fp32.
Each chunk waits for the one before it, so this loop has as few instructions as can be. q and k are normalized to length
1 inside, q scaled by 1 / sqrt(dim) besides; neighbouring value heads share those of a key head. The state may be
written where it was read.
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
def _decayed_products(
    q, k, sums, DTYPE: tl.constexpr, CHUNK: tl.constexpr, KEY_DIM: tl.constexpr, PRECISION: tl.constexpr
):
    """q[t] . k[s] and k[t] . k[s] for s < t, [t, s], each channel of which decays from s to t.

    sums  [CHUNK, KEY_DIM]: running sums of the logarithms of decays, which do not grow

    exp(sums[t] - sums[s]) is a product of exp(sums[t] - sums[m]) and exp(sums[m] - sums[s]), which stay in the range
    of floats only if the token m is not before s and not after t. Of pairs whose numbers differ in a bit and agree in
    all above, m is the last token without it. So each of five bits takes products of a whole chunk, of which it keeps
    its pairs.
    """
    t, s = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    of_queries, of_keys = tl.zeros((CHUNK, CHUNK), dtype=tl.float32), tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    for bit in range(5):
        middle = tl.gather(sums, tl.broadcast_to((((t >> bit) | 1) << bit) - 1, (CHUNK, KEY_DIM)), 0)
        decay = tl.exp(-tl.abs(sums - middle))
        decayed_k, pair_mask = (k * decay).to(DTYPE), (s < t) & ((t ^ s) >> bit == 1)
        of_queries += tl.where(pair_mask, tl.dot((q * decay).to(DTYPE), decayed_k.T, input_precision=PRECISION), 0.0)
        of_keys += tl.where(pair_mask, tl.dot(decayed_k, decayed_k.T, input_precision=PRECISION), 0.0)
    return of_queries, of_keys


@triton.jit
def _chunk_products(
    qkv_ptr, beta_ptr, decay_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, w_ptr, u_ptr, pair_ptr, total_ptr,
    num_tokens, key_heads, heads, key_dim, dim, scale, epsilon,
    CHANNELS: tl.constexpr, CHUNK: tl.constexpr, KEY_DIM: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All of a chunk of a head that does not depend on its state; zeros for tokens past the end."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, token = tl.program_id(0) * CHUNK, tl.arange(0, CHUNK)
    valid = first + token < num_tokens
    row = (sequence * num_tokens + first).to(tl.int64)  # of the chunk; offsets within it take 32 bits
    keys, values = tl.arange(0, KEY_DIM), tl.arange(0, DIM)
    key_width = key_heads * key_dim
    width = 2 * key_width + heads * dim
    k_mask, v_mask = valid[:, None] & (keys[None, :] < key_dim), valid[:, None] & (values[None, :] < dim)
    q_at = qkv_ptr + row * width + head // (heads // key_heads) * key_dim + (token[:, None] * width + keys[None, :])
    DTYPE: tl.constexpr = qkv_ptr.dtype.element_ty
    q = _unit_rows(tl.load(q_at, k_mask, 0.0), epsilon) * scale
    k = _unit_rows(tl.load(q_at + key_width, k_mask, 0.0), epsilon)
    rate = tl.exp(tl.load(a_ptr + head).to(tl.float32))
    scalars = row * heads + head + token * heads
    beta = tl.load(beta_ptr + scalars, valid, 0.0).to(tl.float32)
    beta = tl.where(valid, 1 / (1 + tl.exp(-beta)), 0.0)
    earlier = token[None, :] < token[:, None]
    if CHANNELS:
        decay_at = decay_ptr + (row * heads + head) * key_dim + (token[:, None] * heads * key_dim + keys[None, :])
        decay = tl.load(decay_at, k_mask, 0.0).to(tl.float32)
        decay += tl.load(bias_ptr + head * key_dim + keys, keys < key_dim, 0.0).to(tl.float32)[None, :]
        logs = tl.where(k_mask, -rate * softplus(decay), 0.0)
        sums, total = tl.cumsum(logs, 0), tl.sum(logs, 0)
        weights, pairs = _decayed_products(q, k, sums, DTYPE, CHUNK, KEY_DIM, PRECISION)
        weights += tl.where(token[None, :] == token[:, None], tl.sum(q * k, 1)[:, None], 0.0)
    else:
        decay = tl.load(decay_ptr + scalars, valid, 0.0).to(tl.float32) + tl.load(bias_ptr + head).to(tl.float32)
        logs = tl.where(valid, -rate * softplus(decay), 0.0)
        sums = running_sums(logs, CHUNK)
        of_pairs, rounded = decays(sums, CHUNK), k.to(DTYPE)
        weights = tl.dot(q.to(DTYPE), rounded.T, input_precision=PRECISION) * of_pairs
        pairs = tl.where(earlier, tl.dot(rounded, rounded.T, input_precision=PRECISION) * of_pairs, 0.0)
        sums = sums[:, None]
        total = tl.zeros((KEY_DIM,), dtype=tl.float32) + tl.sum(logs, 0)
    chunk = (sequence * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * heads + head
    key_at = chunk * CHUNK * KEY_DIM + token[:, None] * KEY_DIM + keys[None, :]
    tl.store(q_ptr + key_at, (q * tl.exp(sums)).to(DTYPE))
    tl.store(k_ptr + key_at, (k * tl.exp(total[None, :] - sums)).to(DTYPE))
    tl.store(total_ptr + chunk * KEY_DIM + keys, tl.exp(total))
    tl.store(pair_ptr + chunk * CHUNK * CHUNK + token[:, None] * CHUNK + token[None, :], weights.to(DTYPE))
    inverse = _inverse(pairs * beta[:, None], CHUNK, PRECISION).to(DTYPE)
    decayed = (k * tl.exp(sums) * beta[:, None]).to(DTYPE)
    tl.store(w_ptr + key_at, tl.dot(inverse, decayed, input_precision=PRECISION).to(DTYPE))
    v_at = qkv_ptr + row * width + 2 * key_width + head * dim + (token[:, None] * width + values[None, :])
    v = tl.load(v_at, v_mask, 0.0).to(tl.float32)
    u = tl.dot(inverse, (v * beta[:, None]).to(DTYPE), input_precision=PRECISION)
    tl.store(u_ptr + chunk * CHUNK * DIM + token[:, None] * DIM + values[None, :], u.to(DTYPE))


@triton.jit
def _gated_delta_scan(
    q_ptr, k_ptr, w_ptr, u_ptr, pair_ptr, total_ptr, state_ptr, o_ptr, into_ptr, num_tokens, heads, key_dim, dim,
    CHUNK: tl.constexpr, KEY_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(1), tl.program_id(2)
    keys, values = tl.arange(0, KEY_DIM), tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    state_base = (sequence * heads + head).to(tl.int64) * key_dim * dim
    state_at = keys[:, None] * dim + values[None, :]
    state_mask = (keys[:, None] < key_dim) & (values[None, :] < dim)
    state = tl.load(state_ptr + state_base + state_at, state_mask, 0.0)
    token = tl.arange(0, CHUNK)
    key_at, value_at = token[:, None] * KEY_DIM + keys[None, :], token[:, None] * DIM + values[None, :]
    pair_at = token[:, None] * CHUNK + token[None, :]
    chunks = tl.cdiv(num_tokens, CHUNK)
    for number in range(chunks):
        chunk = (sequence * chunks + number).to(tl.int64) * heads + head
        keys_before = chunk * CHUNK * KEY_DIM
        w = tl.load(w_ptr + keys_before + key_at)
        q = tl.load(q_ptr + keys_before + key_at)
        k = tl.load(k_ptr + keys_before + key_at)
        u = tl.load(u_ptr + chunk * CHUNK * DIM + value_at)
        pairs = tl.load(pair_ptr + chunk * CHUNK * CHUNK + pair_at)
        total = tl.load(total_ptr + chunk * KEY_DIM + keys)
        rounded = state.to(w.dtype)
        corrections = (u - tl.dot(w, rounded, input_precision=PRECISION)).to(w.dtype)
        state = state * total[:, None] + tl.dot(k.T, corrections, input_precision=PRECISION)
        o = tl.dot(q, rounded, input_precision=PRECISION)
        o += tl.dot(pairs, corrections, input_precision=PRECISION)
        o_at = o_ptr + ((sequence * num_tokens + number * CHUNK).to(tl.int64) * heads + head) * dim
        mask = (number * CHUNK + token < num_tokens)[:, None] & (values[None, :] < dim)
        tl.store(o_at + (token[:, None] * heads * dim + values[None, :]), o.to(o_ptr.dtype.element_ty), mask)
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
    """qkv[sequences, tokens, 2 key_heads key_dim + heads dim], what the convolution makes; beta[sequences, tokens,
    heads] and decay[sequences, tokens, heads] or [sequences, tokens, heads key_dim] before their functions;
    state[sequences, heads, key_dim, dim] in fp32; a_log[heads], bias like a row of decay; o[sequences, tokens, heads
    dim]. The new state goes `into` a tensor of its own or a given one.
    """
    (sequences, heads, key_dim, dim), num_tokens, dtype = state.shape, qkv.shape[1], qkv.dtype
    o = poisoned(sequences, num_tokens, heads * dim, dtype=dtype, device=qkv.device)
    into = poisoned(*state.shape, dtype=state.dtype, device=qkv.device) if into is None else into
    tile = tile or tiling(target, dim, heads * sequences)
    padded_keys, padded_dim, chunks = max(pow2(key_dim), 16), max(pow2(dim), 16), cdiv(num_tokens, CHUNK)
    q, k, w, u, pairs = (
        poisoned(sequences, chunks, heads, CHUNK, width, dtype=dtype, device=qkv.device)
        for width in (padded_keys, padded_keys, padded_keys, padded_dim, CHUNK)
    )
    total = poisoned(sequences, chunks, heads, padded_keys, dtype=torch.float32, device=qkv.device)
    common = {
        "q_ptr": q, "k_ptr": k, "w_ptr": w, "u_ptr": u, "pair_ptr": pairs, "total_ptr": total,
        "num_tokens": num_tokens, "heads": heads, "key_dim": key_dim, "dim": dim,
        "CHUNK": CHUNK, "KEY_DIM": padded_keys, "DIM": padded_dim, "PRECISION": "tf32x3",
    }  # fmt: skip
    products = Launch(
        function=_chunk_products,
        grid=(chunks, heads, sequences),
        arguments=common | {
            "qkv_ptr": qkv, "beta_ptr": beta, "decay_ptr": decay, "a_ptr": a_log, "bias_ptr": bias,
            "key_heads": key_heads, "scale": key_dim**-0.5, "epsilon": NORM_EPSILON,
            "CHANNELS": bias.numel() > heads,
        },
        num_warps=8 if bias.numel() > heads else 4,  # 4 warps spill the decays of channels on Hopper
    )  # fmt: skip
    scan = Launch(
        function=_gated_delta_scan,
        grid=(cdiv(dim, tile.channels), heads, sequences),
        arguments=common | {"state_ptr": state, "o_ptr": o, "into_ptr": into, "BLOCK_V": tile.channels},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return LaunchPlan(launches=(products, scan), outputs=(o, into))


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
    decays = heads * (key_dim if case.get("channels") else 1)
    return {
        "qkv": random.normal(batch, tokens, 2 * key_heads * key_dim + heads * dim, dtype=dtype),
        "beta": random.normal(batch, tokens, heads, dtype=dtype),
        "decay": random.normal(batch, tokens, decays, dtype=dtype),
        "state": random.normal(batch, heads, key_dim, dim, dtype=torch.float32),
        "a_log": random.uniform(heads, low=-4, high=0).to(dtype),
        "bias": random.normal(decays, dtype=dtype),
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
            case("fp16", B=1, T=70, heads=2, key_heads=2, key_dim=32, dim=32, channels=1),
            case("fp32", B=2, T=37, heads=2, key_heads=2, key_dim=20, dim=20, channels=1),
        ),
        full_size=(
            case("bf16", B=1, T=8192, heads=32, key_heads=16, key_dim=128, dim=128),
            case("bf16", B=8, T=1024, heads=32, key_heads=16, key_dim=128, dim=128),
            case("bf16", B=1, T=8192, heads=32, key_heads=32, key_dim=128, dim=128, channels=1),
        ),
        make=_make, plan=plan, reference=reference,
        # W, U, corrections, weights and the state that tokens read are rounded to 16 bits.
        tolerance=lambda case: (2 * EPSILON[case.dtype], max(2 * EPSILON[case.dtype], 64 * EPSILON["fp32"])),
        operators=partial(operators, chunk=CHUNK),
        workload=lambda case: Workload.prefill(batch=case["B"], prompt=case["T"]),
        tilings=tilings,
    ),
)  # fmt: skip
