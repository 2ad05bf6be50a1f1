"""y[c] = silu(sum over taps of w[tap, c] * x[tap, c] + bias[c]): a filter of each channel over its last `taps` tokens.

One decode step of the short convolutions before Mamba-2 and Gated DeltaNet (arXiv:2312.00752, section 3.4): the last
taps - 1 tokens of a sequence are its state, which moves on by one. Channels are what lies side by side in state and
weights, so that every load is wide. The state may be written where it was read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..forms import SEQUENCES
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.state_space import CausalConv
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_BLOCK = 1024  # channels of a program: 16 bytes a thread and load in 16 bits


@triton.jit
def _causal_conv_update(
    x_ptr, state_ptr, weight_ptr, bias_ptr, y_ptr, into_ptr, channels, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    sequence = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    x = tl.load(x_ptr + sequence * channels + channel, mask, 0.0)
    sums = x.to(tl.float32) * tl.load(weight_ptr + (TAPS - 1) * channels + channel, mask, 0.0).to(tl.float32)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + channel, mask, 0.0).to(tl.float32)
    state_offsets = sequence * (TAPS - 1) * channels + channel
    for tap in tl.static_range(TAPS - 1):
        previous = tl.load(state_ptr + state_offsets + tap * channels, mask, 0.0)
        sums += previous.to(tl.float32) * tl.load(weight_ptr + tap * channels + channel, mask, 0.0).to(tl.float32)
        if tap > 0:
            tl.store(into_ptr + state_offsets + (tap - 1) * channels, previous, mask)
    tl.store(into_ptr + state_offsets + (TAPS - 2) * channels, x, mask)
    y = sums / (1 + tl.exp(-sums))
    tl.store(y_ptr + sequence * channels + channel, y.to(y_ptr.dtype.element_ty), mask)


def plan(
    target: Target,  # noqa: ARG001
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    into: torch.Tensor | None = None,
) -> LaunchPlan:
    """x[sequences, channels], state[sequences, taps - 1, channels] from the oldest on, weight[taps, channels],
    bias[channels] to y like x and a state, which goes `into` a tensor of its own or a given one.
    """
    (sequences, channels), taps = x.shape, weight.shape[0]
    y = poisoned(*x.shape, dtype=x.dtype, device=x.device)
    into = poisoned(*state.shape, dtype=state.dtype, device=x.device) if into is None else into
    block = min(_BLOCK, pow2(channels))
    launch = Launch(
        function=_causal_conv_update,
        grid=(cdiv(channels, block), sequences),
        arguments={
            "x_ptr": x, "state_ptr": state, "weight_ptr": weight, "bias_ptr": bias, "y_ptr": y, "into_ptr": into,
            "channels": channels, "TAPS": taps, "BLOCK": block,
        },
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y, into))


def reference(
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """SiLU of the convolution [B, C], and the inputs for the next step [B, taps - 1, C]; in fp32."""
    inputs = torch.cat((state, x[:, None]), dim=1)
    sums = (inputs.float() * weight.float()).sum(1) + (0 if bias is None else bias.float())
    return (torch.nn.functional.silu(sums), inputs[:, 1:].float())


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, batch, channels, taps = Random(device, seed), case.torch_dtype, case["B"], case["C"], case["taps"]
    inputs: Inputs = {
        "x": random.normal(batch, channels, dtype=dtype),
        "state": random.normal(batch, taps - 1, channels, dtype=dtype),
        "weight": random.normal(taps, channels, dtype=dtype, scale=taps**-0.5),
    }
    return inputs | ({"bias": random.normal(channels, dtype=dtype)} if case.get("bias") else {})


def _operators(case: Case) -> tuple[Operator, ...]:
    channels, taps = case["C"], case["taps"]
    x, y = (Tensor(name=name, width=channels, format=case.format) for name in ("x", "conv"))
    state = Tensor(name="conv_state", width=channels * (taps - 1), format=case.format, rows=SEQUENCES, role=Role.STATE)
    weight_shapes = [("weight", (channels, taps))] + ([("bias", (channels,))] if case.get("bias") else [])
    weights = tuple(Weight(name=name, shape=shape, format=case.format) for name, shape in weight_shapes)
    return (CausalConv(name="conv", inputs=(x, state), outputs=(y, state), weights=weights, taps=taps),)


KERNELS = (
    Kernel(
        name="causal_conv_update", family="state",
        cases=(
            case("fp16", B=3, C=72, taps=4, bias=1),
            case("fp32", B=2, C=1100, taps=2),
            case("fp16", B=1, C=1024, taps=3),
        ),
        full_size=(
            case("bf16", B=64, C=8192, taps=4),
            case("bf16", B=1, C=10240, taps=4, bias=1),
        ),
        make=_make, plan=plan, reference=reference,
        # In fp32 a GPU's exponential and quotient are off by two of their last bits each (PTX ISA, ex2, div.full).
        tolerance=lambda case: (EPSILON[case.dtype], max(EPSILON[case.dtype], 16 * EPSILON["fp32"])),
        operators=_operators,
        workload=lambda case: Workload.decode(batch=case["B"], kv_len=1),
    ),
)  # fmt: skip
