"""S = decay S; S = S + k (outer) beta (v - k S); o = q S, of each value head, for one new token of each sequence.

One decode step of Gated DeltaNet (arXiv:2412.06464, equation 10), whose decay is exp(-exp(A_log) softplus(a + bias)),
and of Kimi delta attention (arXiv:2510.26692, section 3), where each channel of a key has a decay of its own; beta is a
sigmoid. q and k are normalized to length 1 inside, q scaled by 1 / sqrt(dim) besides; neighbouring value heads share
those of a key head. Reading and writing S, in fp32, is what takes time: a program takes columns of a head's S, all
loads of which are in flight at once. The state may be written where it was read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..architectures.blocks.parts import Parts
from ..architectures.blocks.recurrent import Kda
from ..architectures.blocks.state_space import GatedDeltaNet
from ..operators.base import Operator
from ..operators.state_space import Scan
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .mamba2_update import ELEMENTS, softplus

NORM_EPSILON = 1e-6


@triton.jit
def _unit(x, epsilon):
    """X at length 1."""
    return x / tl.sqrt(tl.sum(x * x, 0) + epsilon)


@triton.jit
def _gated_delta_update(
    qkv_ptr, beta_ptr, decay_ptr, state_ptr, a_ptr, bias_ptr, o_ptr, into_ptr,
    key_heads, heads, key_dim, dim, scale, epsilon,
    CHANNELS: tl.constexpr, KEY_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(1), tl.program_id(2)
    rows, columns = tl.arange(0, KEY_DIM), tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    row = sequence * heads + head
    offsets = row.to(tl.int64) * key_dim * dim + rows[:, None] * dim + columns[None, :]
    mask = (rows[:, None] < key_dim) & (columns[None, :] < dim)
    state = tl.load(state_ptr + offsets, mask, 0.0)
    keys = key_heads * key_dim
    token = qkv_ptr + sequence.to(tl.int64) * (2 * keys + heads * dim)
    q_at = token + head // (heads // key_heads) * key_dim + rows
    q = _unit(tl.load(q_at, rows < key_dim, 0.0).to(tl.float32), epsilon) * scale
    k = _unit(tl.load(q_at + keys, rows < key_dim, 0.0).to(tl.float32), epsilon)
    v = tl.load(token + 2 * keys + head * dim + columns, columns < dim, 0.0).to(tl.float32)
    beta = 1 / (1 + tl.exp(-tl.load(beta_ptr + row).to(tl.float32)))
    rate = tl.exp(tl.load(a_ptr + head).to(tl.float32))
    if CHANNELS:
        decay = tl.load(decay_ptr + row * key_dim + rows, rows < key_dim, 0.0).to(tl.float32)
        decay += tl.load(bias_ptr + head * key_dim + rows, rows < key_dim, 0.0).to(tl.float32)
        state *= tl.exp(-rate * softplus(decay))[:, None]
    else:
        decay = tl.load(decay_ptr + row).to(tl.float32) + tl.load(bias_ptr + head).to(tl.float32)
        state *= tl.exp(-rate * softplus(decay))
    missing = beta * (v - tl.sum(state * k[:, None], 0))
    state += k[:, None] * missing[None, :]
    tl.store(into_ptr + offsets, state, mask)
    o = tl.sum(state * q[:, None], 0)
    tl.store(o_ptr + row.to(tl.int64) * dim + columns, o.to(o_ptr.dtype.element_ty), columns < dim)


def plan(
    target: Target,  # noqa: ARG001
    qkv: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    bias: torch.Tensor,
    key_heads: int,
    into: torch.Tensor | None = None,
) -> LaunchPlan:
    """qkv[sequences, 2 key_heads key_dim + heads dim], what the convolution makes; beta[sequences, heads] and
    decay[sequences, heads] or [sequences, heads key_dim] before their functions; state[sequences, heads, key_dim, dim]
    in fp32; a_log[heads], bias like a row of decay; o[sequences, heads dim]. The new state goes `into` a tensor of its
    own or a given one.
    """
    sequences, heads, key_dim, dim = state.shape
    o = poisoned(sequences, heads * dim, dtype=qkv.dtype, device=qkv.device)
    into = poisoned(*state.shape, dtype=state.dtype, device=qkv.device) if into is None else into
    block = max(min(ELEMENTS // pow2(key_dim), pow2(dim)), 1)
    launch = Launch(
        function=_gated_delta_update,
        grid=(cdiv(dim, block), heads, sequences),
        arguments={
            "qkv_ptr": qkv, "beta_ptr": beta, "decay_ptr": decay, "state_ptr": state, "a_ptr": a_log,
            "bias_ptr": bias, "o_ptr": o, "into_ptr": into, "key_heads": key_heads, "heads": heads,
            "key_dim": key_dim, "dim": dim, "scale": key_dim**-0.5, "epsilon": NORM_EPSILON,
            "CHANNELS": bias.numel() > heads, "KEY_DIM": pow2(key_dim), "BLOCK_V": block,
        },
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(o, into))


def reference(
    qkv: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    bias: torch.Tensor,
    key_heads: int,
) -> tuple[torch.Tensor, ...]:
    """Output and new state of one decode step of the gated delta rule; in fp32."""
    sequences, heads, key_dim, dim = state.shape
    q, k, v = qkv.float().split((key_heads * key_dim, key_heads * key_dim, heads * dim), dim=1)
    q, k = (x.view(sequences, key_heads, key_dim).repeat_interleave(heads // key_heads, 1) for x in (q, k))
    q, k = (x / (x.square().sum(2, keepdim=True) + NORM_EPSILON).sqrt() for x in (q, k))
    rates = torch.nn.functional.softplus(decay.float() + bias.float()).view(sequences, heads, -1)
    decayed = torch.exp(-a_log.float().exp()[:, None] * rates)[:, :, :, None] * state
    missing = v.view(sequences, heads, dim) - torch.einsum("shk,shkv->shv", k, decayed)
    new = decayed + torch.einsum("sh,shk,shv->shkv", beta.float().sigmoid(), k, missing)
    return (torch.einsum("shk,shkv->shv", q, new).flatten(1) * key_dim**-0.5, new)


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, batch = Random(device, seed), case.torch_dtype, case["B"]
    heads, key_heads, key_dim, dim = (case[name] for name in ("heads", "key_heads", "key_dim", "dim"))
    decays = heads * (key_dim if case.get("channels") else 1)
    return {
        "qkv": random.normal(batch, 2 * key_heads * key_dim + heads * dim, dtype=dtype),
        "beta": random.normal(batch, heads, dtype=dtype),
        "decay": random.normal(batch, decays, dtype=dtype),
        "state": random.normal(batch, heads, key_dim, dim, dtype=torch.float32),
        "a_log": random.uniform(heads, low=-2, high=1).to(dtype),
        "bias": random.normal(decays, dtype=dtype),
        "key_heads": key_heads,
    }


def operators(case: Case, chunk: int = 1) -> tuple[Operator, ...]:
    """The Scan of a Gated DeltaNet layer in chunks, or of Kimi delta attention where each channel has a decay."""
    heads, parts = case["heads"], Parts(format=case.format)
    layer = (
        Kda(heads=heads, head_dim=case["dim"], taps=4, chunk=chunk)
        if case.get("channels")
        else GatedDeltaNet(
            key_heads=case["key_heads"],
            value_heads=heads,
            key_dim=case["key_dim"],
            value_dim=case["dim"],
            taps=4,
            chunk=chunk,
        )
    )
    return tuple(op for op in layer.operators(parts, parts.tensor("x", 1)) if isinstance(op, Scan))


KERNELS = (
    Kernel(
        name="gated_delta_update", family="state",
        cases=(
            case("fp16", B=2, heads=4, key_heads=2, key_dim=32, dim=48),
            case("fp32", B=3, heads=3, key_heads=3, key_dim=20, dim=20, channels=1),
            case("fp16", B=1, heads=2, key_heads=1, key_dim=128, dim=128),
        ),
        full_size=(
            case("bf16", B=64, heads=32, key_heads=16, key_dim=128, dim=128),
            case("bf16", B=64, heads=32, key_heads=32, key_dim=128, dim=128, channels=1),
            case("bf16", B=1, heads=32, key_heads=16, key_dim=128, dim=128),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (EPSILON[case.dtype], max(EPSILON[case.dtype], 16 * EPSILON["fp32"])),
        operators=operators,
        workload=lambda case: Workload.decode(batch=case["B"], kv_len=1),
    ),
)  # fmt: skip
