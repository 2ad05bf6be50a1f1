"""h = exp(-exp(A_log) step) h + step x (outer) B; y = h C + D x, of each head, for one new token of each sequence.

One decode step of Mamba-2 (arXiv:2405.21060, section 2.2): step = softplus(dt + bias), heads in groups share B and C.
With a gate, y = silu(gate) y (arXiv:2312.00752, section 3.4). Reading and writing h, in fp32, is what takes time: a
program takes rows of a head's h, all loads of which are in flight at once. The state may be written where it was read.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from ..architectures.blocks.parts import Parts
from ..architectures.blocks.state_space import Mamba2
from ..operators.base import Operator
from ..operators.elementwise import ACTIVATION_OPS, Activation
from ..operators.state_space import Scan
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

ELEMENTS = 2048  # of a state, that a program of 4 warps takes: 4 loads of 16 bytes a thread


@triton.jit
def softplus(x):
    """log(1 + exp(x)), which is x where exp(x) is more than fp32 can tell from 1 + exp(x)."""
    return tl.where(x > 20, x, tl.log(1 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _mamba2_update(
    xbc_ptr, step_ptr, gate_ptr, state_ptr, a_ptr, d_ptr, bias_ptr, y_ptr, into_ptr, heads, dim, size, groups,
    BLOCK_P: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(1), tl.program_id(2)
    rows, columns = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, SIZE)
    row, inner = sequence * heads + head, heads * dim
    offsets = row.to(tl.int64) * dim * size + rows[:, None] * size + columns[None, :]
    mask = (rows[:, None] < dim) & (columns[None, :] < size)
    h = tl.load(state_ptr + offsets, mask, 0.0)
    token = xbc_ptr + sequence.to(tl.int64) * (inner + 2 * groups * size)
    x = tl.load(token + head * dim + rows, rows < dim, 0.0).to(tl.float32)
    b_at = token + inner + head // (heads // groups) * size + columns
    b = tl.load(b_at, columns < size, 0.0).to(tl.float32)
    c = tl.load(b_at + groups * size, columns < size, 0.0).to(tl.float32)
    step = softplus(tl.load(step_ptr + row).to(tl.float32) + tl.load(bias_ptr + head).to(tl.float32))
    decay = tl.exp(-tl.exp(tl.load(a_ptr + head).to(tl.float32)) * step)
    h = h * decay + (step * x)[:, None] * b[None, :]
    tl.store(into_ptr + offsets, h, mask)
    y = tl.sum(h * c[None, :], 1) + tl.load(d_ptr + head).to(tl.float32) * x
    y_at = row.to(tl.int64) * dim + rows
    if gate_ptr is not None:
        gate = tl.load(gate_ptr + y_at, rows < dim, 0.0).to(tl.float32)
        y *= gate / (1 + tl.exp(-gate))
    tl.store(y_ptr + y_at, y.to(y_ptr.dtype.element_ty), rows < dim)


def plan(
    target: Target,  # noqa: ARG001
    xbc: torch.Tensor,
    step: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    d: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    gate: torch.Tensor | None = None,
    into: torch.Tensor | None = None,
) -> LaunchPlan:
    """xbc[sequences, heads dim + 2 groups size], what the convolution makes: x, B, C; step[sequences, heads];
    state[sequences, heads, dim, size] in fp32; a_log, d, bias[heads]; gate and y[sequences, heads dim]. The new state
    goes `into` a tensor of its own or a given one.
    """
    sequences, heads, dim, size = state.shape
    y = poisoned(sequences, heads * dim, dtype=xbc.dtype, device=xbc.device)
    into = poisoned(*state.shape, dtype=state.dtype, device=xbc.device) if into is None else into
    block = max(min(ELEMENTS // pow2(size), pow2(dim)), 1)
    launch = Launch(
        function=_mamba2_update,
        grid=(cdiv(dim, block), heads, sequences),
        arguments={
            "xbc_ptr": xbc, "step_ptr": step, "gate_ptr": gate, "state_ptr": state, "a_ptr": a_log, "d_ptr": d,
            "bias_ptr": bias, "y_ptr": y, "into_ptr": into, "heads": heads, "dim": dim, "size": size,
            "groups": groups, "BLOCK_P": block, "SIZE": pow2(size),
        },
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y, into))


def reference(
    xbc: torch.Tensor,
    step: torch.Tensor,
    state: torch.Tensor,
    a_log: torch.Tensor,
    d: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    gate: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Output and new state of one decode step of Mamba-2; in fp32."""
    sequences, heads, dim, size = state.shape
    x, b, c = xbc.float().split((heads * dim, groups * size, groups * size), dim=1)
    x = x.view(sequences, heads, dim)
    b, c = (t.view(sequences, groups, size).repeat_interleave(heads // groups, 1) for t in (b, c))
    steps = torch.nn.functional.softplus(step.float() + bias.float())
    decay = torch.exp(-a_log.float().exp() * steps)
    h = decay[:, :, None, None] * state + torch.einsum("sh,shp,shn->shpn", steps, x, b)
    y = torch.einsum("shpn,shn->shp", h, c) + d.float()[:, None] * x
    y = y.flatten(1) * (1 if gate is None else torch.nn.functional.silu(gate.float()))
    return (y, h)


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, batch = Random(device, seed), case.torch_dtype, case["B"]
    heads, dim, size, groups = (case[name] for name in ("heads", "dim", "state", "groups"))
    inputs: Inputs = {
        "xbc": random.normal(batch, heads * dim + 2 * groups * size, dtype=dtype),
        "step": random.normal(batch, heads, dtype=dtype),
        "state": random.normal(batch, heads, dim, size, dtype=torch.float32, scale=size**-0.5),
        "a_log": random.uniform(heads, low=-1, high=1).to(dtype),
        "d": random.normal(heads, dtype=dtype),
        "bias": random.normal(heads, dtype=dtype),
        "groups": groups,
    }
    return inputs | ({"gate": random.normal(batch, heads * dim, dtype=dtype)} if case.get("gate") else {})


def operators(case: Case, chunk: int = 1) -> tuple[Operator, ...]:
    """The Scan of a Mamba-2 layer in chunks; with a gate, the Activation after it, its other operand on the chip."""
    heads, dim, parts = case["heads"], case["dim"], Parts(format=case.format)
    layer = Mamba2(
        inner=heads * dim, heads=heads, head_dim=dim, state=case["state"], groups=case["groups"], taps=4, chunk=chunk
    )
    (scan,) = (op for op in layer.operators(parts, parts.tensor("x", 1)) if isinstance(op, Scan))
    if not case.get("gate"):
        return (scan,)
    y, state = scan.outputs
    gate = replace(y, name="gate")
    gated = Activation(
        name="gated", inputs=(gate,), outputs=(replace(y, name="gated"),), ops_per_element=ACTIVATION_OPS["silu"] + 1
    )
    return (replace(scan, outputs=(state,)), gated)


KERNELS = (
    Kernel(
        name="mamba2_update", family="state",
        cases=(
            case("fp16", B=2, heads=4, dim=16, state=32, groups=2),
            case("fp32", B=3, heads=3, dim=20, state=24, groups=1, gate=1),
            case("fp16", B=1, heads=2, dim=64, state=128, groups=2, gate=1),
        ),
        full_size=(
            case("bf16", B=64, heads=80, dim=64, state=128, groups=1),
            case("bf16", B=1, heads=128, dim=64, state=128, groups=8, gate=1),
        ),
        make=_make, plan=plan, reference=reference,
        # y is a sum over the state, of the order of its root; in fp32 it is off by some tens of its last bits, and on a
        # GPU by some more, as its exponentials and quotients are off by two each (PTX ISA, ex2, div.full).
        tolerance=lambda case: (2 * EPSILON[case.dtype], max(EPSILON[case.dtype], 256 * EPSILON["fp32"])),
        operators=operators,
        workload=lambda case: Workload.decode(batch=case["B"], kv_len=1),
    ),
)  # fmt: skip
