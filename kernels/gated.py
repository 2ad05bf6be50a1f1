"""y = act(gate) * up, where x = [gate, up] is one tensor, as the projection of both leaves it; or y = act(x).

SwiGLU and GeGLU (arXiv:2002.05202); silu(x) = x / (1 + exp(-x)); gelu(x) = x / 2 * (1 + erf(x / sqrt 2))
and its approximation by tanh (arXiv:1606.08415); relu2(x) = max(x, 0)^2 (arXiv:2109.08668).
As (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), a tanh takes one exponential. All of it is in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import pi, sqrt
from typing import Final

import torch
import triton
import triton.language as tl
from torch.nn import functional

from ..operators.base import Operator, Tensor
from ..operators.elementwise import ACTIVATION_OPS, Activation
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_ELEMENTS_PER_PROGRAM = 2048  # of y in a program: 16 a thread, which are two loads of 16 bytes of each input
_WIDTHS = (2048, 1024, 512, 256, 128)  # of the part of a row that a program takes
_SQRT_HALF: tl.constexpr = tl.constexpr(sqrt(1 / 2))
_TANH_SCALE: tl.constexpr = tl.constexpr(-2 * sqrt(2 / pi))
_TANH_CUBE: tl.constexpr = tl.constexpr(0.044715)

_REFERENCES: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda x: functional.relu(x).square(),
}


@triton.jit
def _act(x, ACT: tl.constexpr):
    if ACT == "silu":
        y = x / (1 + tl.exp(-x))
    elif ACT == "gelu":
        y = 0.5 * x * (1 + tl.erf(x * _SQRT_HALF))
    elif ACT == "gelu_tanh":
        y = x / (1 + tl.exp((x + x * x * x * _TANH_CUBE) * _TANH_SCALE))
    else:
        tl.static_assert(ACT == "relu2")
        y = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    return y


@triton.jit
def _activate(x_ptr, y_ptr, m, n, ACT: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    row = rows.to(tl.int64)[:, None] * n
    x_at = x_ptr + (2 * row if GATED else row) + columns[None, :]
    x = tl.load(x_at, mask, 0.0).to(tl.float32)
    if GATED:
        up_proj = tl.load(x_at + n, mask, 0.0).to(tl.float32)
        y = _act(x, ACT) * up_proj
    else:
        y = _act(x, ACT)
    tl.store(y_ptr + row + columns[None, :], y.to(y_ptr.dtype.element_ty), mask)


def _width(n: int) -> int:
    """The widest part of a row with which less than an eighth of the threads has nothing to do, or the narrowest."""
    return next((width for width in _WIDTHS if cdiv(n, width) * width <= n * 9 // 8), _WIDTHS[-1])


def plan(target: Target, x: torch.Tensor, act: str, *, gated: bool) -> LaunchPlan:  # noqa: ARG001
    """x[m, 2 n], gates first, to y[m, n]; x[m, n] to y[m, n] where it is not gated."""
    m, n = x.shape[0], x.shape[1] // (2 if gated else 1)
    y = poisoned(m, n, dtype=x.dtype, device=x.device)
    block_n = _width(n)
    block_m = min(_ELEMENTS_PER_PROGRAM // block_n, pow2(m))
    launch = Launch(
        function=_activate,
        grid=(cdiv(m, block_m), cdiv(n, block_n)),
        arguments={
            "x_ptr": x, "y_ptr": y, "m": m, "n": n,
            "ACT": act, "GATED": gated, "BLOCK_M": block_m, "BLOCK_N": block_n,
        },
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,))


def reference(x: torch.Tensor, act: str, *, gated: bool) -> tuple[torch.Tensor, ...]:
    """The activation of x [M, N]; where gated, that of the first half of x [M, 2 N] times the second; in fp32."""
    if not gated:
        return (_REFERENCES[act](x.float()),)
    gate, up_proj = x.float().chunk(2, 1)
    return (_REFERENCES[act](gate) * up_proj,)


def _make(act: str, *, gated: bool) -> Callable[[Case, str, int], Inputs]:
    def make(case: Case, device: str, seed: int) -> Inputs:
        width = case["N"] * (2 if gated else 1)
        x = Random(device, seed).normal(case["M"], width, dtype=case.torch_dtype, scale=2.0)
        return {"x": x, "act": act, "gated": gated}

    return make


def _operators(act: str, *, gated: bool) -> Callable[[Case], tuple[Operator, ...]]:
    def operators(case: Case) -> tuple[Operator, ...]:
        gate, up_proj, y = (Tensor(name=name, width=case["N"], format=case.format) for name in ("gate", "up", "y"))
        inputs = (gate, up_proj) if gated else (gate,)
        ops = ACTIVATION_OPS[act] + len(inputs) - 1
        return (Activation(name="activation", inputs=inputs, outputs=(y,), ops_per_element=ops),)

    return operators


def _kernel(name: str, act: str, *, gated: bool) -> Kernel:
    return Kernel(
        name=name,
        family="activation",
        cases=(
            case("fp16", M=3, N=128),
            case("bf16", M=5, N=301),
            case("fp32", M=2, N=2500),
        ),
        full_size=(
            case("bf16", M=8192, N=14336),
            case("bf16", M=16, N=14336),
            case("bf16", M=65536, N=768),
        ),
        make=_make(act, gated=gated),
        plan=plan,
        reference=reference,
        # One result is rounded; in fp32 there are also the last bits of an exponential. Far below 0, 1 + erf cancels to
        # the last bit of fp32, which goes into a product with x / 2 and up, some 40.
        tolerance=lambda case: (4 * EPSILON["fp32"] + EPSILON[case.dtype] / 2, 64 * EPSILON["fp32"]),
        operators=_operators(act, gated=gated),
        workload=lambda case: Workload.prefill(batch=1, prompt=case["M"]),
    )


KERNELS = (
    _kernel("silu_and_mul", "silu", gated=True),
    _kernel("gelu_and_mul", "gelu", gated=True),
    _kernel("gelu_tanh_and_mul", "gelu_tanh", gated=True),
    _kernel("gelu", "gelu", gated=False),
    _kernel("gelu_tanh", "gelu_tanh", gated=False),
    _kernel("relu2", "relu2", gated=False),
)
