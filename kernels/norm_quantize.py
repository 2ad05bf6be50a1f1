"""y = x / sqrt(mean(x^2) + epsilon) * weight as codes and scales; with a residual, of x = x + residual, written, too.

RMSNorm (arXiv:1910.07467, equation 4) before a product of 8-bit operands: what `rms_norm` would write and `quantize`
read in 16 bits stays in registers, in fp32. One scale for each `group` elements of a row, which lie as those of
`quantize`. A program takes a whole row, or a few where they are short.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from ..errors import InputError
from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Add, Norm
from ..precision import BF16
from ..workload import Workload
from . import norms
from . import quantize as quantizing
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .norms import load_sums
from .quantize import LARGEST_CODES, codes_of, scales_of


@triton.jit
def _norm_quantize(
    x_ptr, residual_ptr, weight_ptr, sum_ptr, code_ptr, scale_ptr, m, n, epsilon,
    LARGEST: tl.constexpr, INTEGER: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    offsets = rows.to(tl.int64)[:, None] * n + columns[None, :]
    x = load_sums(x_ptr, residual_ptr, sum_ptr, offsets, mask)
    scale = 1 / tl.sqrt(tl.sum(x * x, 1) / n + epsilon)
    y = x * scale[:, None] * tl.load(weight_ptr + columns, columns < n, 0.0).to(tl.float32)[None, :]
    if GROUP == 0:
        scales = scales_of(y, 1, LARGEST)
        y = y / scales[:, None]
        tl.store(scale_ptr + rows, scales, rows < m)
    else:
        groups = tl.reshape(y, (BLOCK_M, BLOCK_N // GROUP, GROUP))
        scales = scales_of(groups, 2, LARGEST)
        y = tl.reshape(groups / scales[:, :, None], (BLOCK_M, BLOCK_N))
        group = tl.arange(0, BLOCK_N // GROUP)
        tl.store(
            scale_ptr + group[None, :] * m + rows[:, None], scales, (rows[:, None] < m) & (group * GROUP < n)[None, :]
        )
    tl.store(code_ptr + offsets, codes_of(y, INTEGER).to(code_ptr.dtype.element_ty), mask)


def plan(
    target: Target,  # noqa: ARG001
    x: torch.Tensor,
    weight: torch.Tensor,
    group: int,
    dtype: torch.dtype,
    residual: torch.Tensor | None = None,
    tile: norms.NormTiling | None = None,
) -> LaunchPlan:
    """x[m, n] and weight[n] to codes[m, n] and scales[n / group, m]; with residual[m, n] to the sum, too.

    Raises InputError if the group is neither n nor a power of two that divides it.
    """
    m, n = x.shape
    if n % group or (group != n and group != pow2(group)):
        raise InputError(f"group must be the width {n}, or a power of two that divides it; got {group}")
    codes = poisoned(m, n, dtype=dtype, device=x.device)
    scales = poisoned(n // group, m, dtype=torch.float32, device=x.device)
    sums = None if residual is None else poisoned(m, n, dtype=x.dtype, device=x.device)
    tile = tile or norms.tiling(m, n)
    launch = Launch(
        function=_norm_quantize,
        grid=(cdiv(m, tile.rows),),
        arguments={
            "x_ptr": x, "residual_ptr": residual, "weight_ptr": weight, "sum_ptr": sums, "code_ptr": codes,
            "scale_ptr": scales, "m": m, "n": n, "epsilon": norms.RMS_EPSILON, "LARGEST": LARGEST_CODES[dtype],
            "INTEGER": dtype == torch.int8, "GROUP": 0 if group == n else group, "BLOCK_M": tile.rows,
            "BLOCK_N": pow2(n),
        },
        num_warps=tile.num_warps,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(codes, scales) if sums is None else (codes, scales, sums))


def reference(
    x: torch.Tensor, weight: torch.Tensor, group: int, dtype: torch.dtype, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Codes of the norm of x or of x + residual [rows, width] as fp32, scales of their groups, and that sum."""
    y, *sums = norms.reference(x, weight, residual)
    return (*quantizing.reference(y, group, dtype), *sums)


def _make(case: Case, device: str, seed: int) -> Inputs:
    m, n, random = case["M"], case["N"], Random(device, seed)
    inputs: Inputs = {
        "x": random.normal(m, n, dtype=torch.bfloat16),
        "weight": random.normal(n, dtype=torch.bfloat16),
        "group": case["group"],
        "dtype": case.torch_dtype,
    }
    return inputs | ({"residual": random.normal(m, n, dtype=torch.bfloat16)} if case.get("residual") else {})


def _operators(case: Case) -> tuple[Operator, ...]:
    """The Norm, which writes codes; with a residual, also the Add before it, whose sum stays on the chip."""
    x = Tensor(name="x", width=case["N"], format=BF16)
    codes = replace(x, name="codes", format=replace(case.format, group=case["group"], scale_bits=32))
    weight = Weight(name="weight", shape=(case["N"],), format=BF16)
    norm = Norm(name="norm", inputs=(x,), outputs=(codes,), weights=(weight,), ops_per_element=norms.RMS_OPS)
    if not case.get("residual"):
        return (norm,)
    operands = (x, replace(x, name="residual"))
    add = Add(name="add", inputs=operands, outputs=(replace(x, name="sum"),), ops_per_element=1)
    return (add, replace(norm, inputs=()))


def _tolerance(case: Case) -> tuple[float, float]:
    """Relative and absolute tolerance of codes, and of sums in bf16."""
    relative, absolute = quantizing.tolerance(case)
    return max(relative, EPSILON["bf16"]), absolute


KERNELS = (
    Kernel(
        name="norm_quantize", family="norm",
        cases=(
            case("fp8_e4m3", M=5, N=300, group=300, residual=1),
            case("fp8_e4m3", M=3, N=384, group=128, residual=1),
            case("int8", M=2, N=5000, group=5000),
            case("fp8_e4m3", M=7, N=256, group=128),
        ),
        full_size=(
            case("fp8_e4m3", M=8192, N=7168, group=128, residual=1),
            case("fp8_e4m3", M=16, N=4096, group=4096, residual=1),
        ),
        make=_make, plan=plan, reference=reference, tolerance=_tolerance, operators=_operators,
        workload=lambda case: Workload.prefill(batch=1, prompt=case["M"]), tilings=norms.tilings,
    ),
)  # fmt: skip
