"""codes = round(x / scale), scale = max |x| / largest code: activations to fp8 or int8 on the fly.

One scale for each `group` elements of a row: all of it as in LLM.int8() (arXiv:2208.07339, section 2.1), or 128 as in
DeepSeek-V3 (arXiv:2412.19437, section 3.3.2), whose scales lie as `gemm_fp8_block` reads them. x is read once.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from ..operators.base import Operator, Tensor
from ..operators.elementwise import Quantize
from ..precision import FP16
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .gemm import workload

_ELEMENTS_PER_PROGRAM = 8192  # of a program, where groups are smaller
LARGEST_CODES = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # arXiv:2209.05433, table 1


@triton.jit
def scales_of(x, axis: tl.constexpr, LARGEST: tl.constexpr):
    """The scale of each group of x along an axis. A group of zeros has the smallest scale, and its codes are 0."""
    return tl.maximum(tl.max(tl.abs(x), axis), 1e-10) / LARGEST


@triton.jit
def codes_of(quotients, INTEGER: tl.constexpr):
    """Codes, still in fp32, of quotients of x and scales, rounded to the nearest integer where codes are integers:
    adding 1.5 * 2 ** 23 leaves fp32 no bits for fractions.
    """
    return (quotients + 12582912.0) - 12582912.0 if INTEGER else quotients


@triton.jit
def _quantize(
    x_ptr, code_ptr, scale_ptr, m, group, LARGEST: tl.constexpr, INTEGER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of one group."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1)
    ks = tl.arange(0, BLOCK_K)
    mask = (rows[:, None] < m) & (ks[None, :] < group)
    k = group * tl.num_programs(1)
    offsets = rows.to(tl.int64)[:, None] * k + column * group + ks[None, :]
    x = tl.load(x_ptr + offsets, mask, 0.0).to(tl.float32)
    scale = scales_of(x, 1, LARGEST)
    codes = codes_of(x / scale[:, None], INTEGER)
    tl.store(code_ptr + offsets, codes.to(code_ptr.dtype.element_ty), mask)
    tl.store(scale_ptr + column * m + rows, scale, rows < m)


def plan(target: Target, x: torch.Tensor, group: int, dtype: torch.dtype) -> LaunchPlan:  # noqa: ARG001
    """x[m, k] to codes[m, k] and scales[k / group, m]."""
    m, k = x.shape
    codes = poisoned(m, k, dtype=dtype, device=x.device)
    scales = poisoned(k // group, m, dtype=torch.float32, device=x.device)
    block_k = pow2(group)
    block_m = max(min(_ELEMENTS_PER_PROGRAM // block_k, pow2(m)), 1)
    launch = Launch(
        function=_quantize,
        grid=(cdiv(m, block_m), k // group),
        arguments={
            "x_ptr": x, "code_ptr": codes, "scale_ptr": scales, "m": m, "group": group,
            "LARGEST": LARGEST_CODES[dtype], "INTEGER": dtype == torch.int8, "BLOCK_M": block_m, "BLOCK_K": block_k,
        },
        num_warps=8,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(codes, scales))


def reference(x: torch.Tensor, group: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Codes of x [M, K] as fp32, and the scales of their groups [K / group, M]."""
    groups = x.float().view(x.shape[0], -1, group)
    scales = groups.abs().amax(2, keepdim=True).clamp_min(1e-10) / LARGEST_CODES[dtype]
    codes = groups / scales
    codes = codes.round() if dtype == torch.int8 else codes.to(dtype)
    return codes.float().view(x.shape), scales[:, :, 0].T


def tolerance(case: Case) -> tuple[float, float]:
    """Relative and absolute tolerance of codes.

    Quotients may differ in their last bit, which at the middle between two codes decides: one code of int8, an eighth
    of fp8 (three bits of mantissa). Scales are far below either.
    """
    return (0.0, 1.0) if case.dtype == "int8" else (2**-3, 2**-9)


def _make(case: Case, device: str, seed: int) -> Inputs:
    x = Random(device, seed).normal(case["M"], case["K"], dtype=torch.float16, scale=2.0)
    return {"x": x, "group": case["group"], "dtype": case.torch_dtype}


def _operators(case: Case) -> tuple[Operator, ...]:
    x = Tensor(name="x", width=case["K"], format=FP16)
    codes = replace(x, name="codes", format=replace(case.format, group=case["group"], scale_bits=32))
    return (Quantize(name="quantize", inputs=(x,), outputs=(codes,)),)


KERNELS = (
    Kernel(
        name="quantize", family="quantize",
        cases=(
            case("int8", M=5, K=300, group=300),
            case("fp8_e4m3", M=3, K=512, group=512),
            case("fp8_e4m3", M=7, K=384, group=128),
        ),
        full_size=(
            case("int8", M=8192, K=8192, group=8192),
            case("fp8_e4m3", M=8192, K=7168, group=128),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=tolerance,
        operators=_operators, workload=workload,
    ),
)  # fmt: skip
