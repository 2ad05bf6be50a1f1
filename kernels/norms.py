"""y = x / sqrt(mean(x^2) + epsilon) * weight, or of x - mean(x) instead of x, and with a bias; with a residual, x = x +
residual first, which is written, too.

RMSNorm (arXiv:1910.07467, equation 4) and layer normalization (arXiv:1607.06450). A program takes a whole row, or a few
where they are short, keeps it in registers and reads it once: a variance is that of differences from the mean, not one
of squares, which cancel where the mean is large. All of it is in fp32.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import triton
import triton.language as tl

from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Add, Norm
from ..records import frozen
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_MAX_WARPS = 32  # of a program
_ELEMENTS_PER_PROGRAM = 4096  # of a program, where rows are shorter
RMS_OPS = 4  # square, sum, scale, weight
_LAYER_OPS = 6  # mean and subtract, too; the bias is one more
RMS_EPSILON, _LAYER_EPSILON = 1e-6, 1e-5


@frozen
class NormTiling:
    """Rows of a program, and its warps."""

    rows: int
    num_warps: int


@triton.jit
def load_sums(x_ptr, residual_ptr, sum_ptr, offsets, mask):
    """x, or x + residual, which is stored, in fp32."""
    x = tl.load(x_ptr + offsets, mask, 0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + offsets, mask, 0.0).to(tl.float32)
        tl.store(sum_ptr + offsets, x.to(sum_ptr.dtype.element_ty), mask)
    return x


@triton.jit
def _norm(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, sum_ptr, y_ptr, m, n, epsilon,
    CENTRED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    valid_columns = columns < n
    mask = (rows[:, None] < m) & valid_columns[None, :]
    offsets = rows.to(tl.int64)[:, None] * n + columns[None, :]
    x = load_sums(x_ptr, residual_ptr, sum_ptr, offsets, mask)
    if CENTRED:
        x = tl.where(valid_columns[None, :], x - (tl.sum(x, 1) / n)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(x * x, 1) / n + epsilon)
    y = x * scale[:, None] * tl.load(weight_ptr + columns, valid_columns, 0.0).to(tl.float32)[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, valid_columns, 0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask)


def plan(
    target: Target,  # noqa: ARG001
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    centred: bool = False,
    tile: NormTiling | None = None,
) -> LaunchPlan:
    """x[m, n], weight[n], bias[n] to y[m, n]; with residual[m, n] to y and the sum; `centred` with the mean at 0."""
    m, n = x.shape
    y = poisoned(m, n, dtype=x.dtype, device=x.device)
    sums = None if residual is None else poisoned(m, n, dtype=x.dtype, device=x.device)
    tile = tile or tiling(m, n)
    launch = Launch(
        function=_norm,
        grid=(cdiv(m, tile.rows),),
        arguments={
            "x_ptr": x, "residual_ptr": residual, "weight_ptr": weight, "bias_ptr": bias, "sum_ptr": sums, "y_ptr": y,
            "m": m, "n": n, "epsilon": _LAYER_EPSILON if centred else RMS_EPSILON, "CENTRED": centred,
            "BLOCK_M": tile.rows, "BLOCK_N": pow2(n),
        },
        num_warps=tile.num_warps,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(y,) if sums is None else (y, sums))


def tiling(m: int, n: int) -> NormTiling:
    """The default tiling of rows of n elements: 16 elements a thread, two loads of 16 bytes."""
    rows = max(min(_ELEMENTS_PER_PROGRAM // pow2(n), pow2(m)), 1)
    return NormTiling(rows, max(min(rows * pow2(n) // 512, 16), 4))


def tilings(target: Target, case: Case) -> tuple[NormTiling, ...]:  # noqa: ARG001
    """Alternatives: half and twice the warps, and a row alone."""
    rule = tiling(case["M"], case["N"])
    warps = [n for n in (rule.num_warps // 2, 2 * rule.num_warps) if 1 <= n <= _MAX_WARPS]
    single_row = NormTiling(1, max(rule.num_warps // rule.rows, 1))
    return (*(replace(rule, num_warps=n) for n in warps), *((single_row,) if rule.rows > 1 else ()))


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    centred: bool = False,
) -> tuple[torch.Tensor, ...]:
    """RMSNorm or LayerNorm (`centred`) of x or of x + residual [rows, width], and that sum; in fp32."""
    sums = x.float() if residual is None else x.float() + residual.float()
    centred_x = sums - sums.mean(1, keepdim=True) if centred else sums
    epsilon = _LAYER_EPSILON if centred else RMS_EPSILON
    y = centred_x * (centred_x.square().mean(1, keepdim=True) + epsilon).rsqrt() * weight.float()
    y = y if bias is None else y + bias.float()
    return (y,) if residual is None else (y, sums)


def _make(case: Case, device: str, seed: int) -> Inputs:
    m, n, random, dtype = case["M"], case["N"], Random(device, seed), case.torch_dtype
    inputs: Inputs = {
        "x": random.normal(m, n, dtype=dtype) + case.get("mean"),
        "weight": random.normal(n, dtype=dtype),
    }
    if case.get("bias"):
        inputs["bias"] = random.normal(n, dtype=dtype)
    if case.get("residual"):
        inputs["residual"] = random.normal(m, n, dtype=dtype)
    return inputs


def _operators(case: Case, ops: int) -> tuple[Operator, ...]:
    """The Norm; with a residual, also the Add before it, whose sum is written and stays on the chip for the Norm."""
    x, y = (Tensor(name=name, width=case["N"], format=case.format) for name in "xy")
    names = ("weight", "bias") if case.get("bias") else ("weight",)
    weights = tuple(Weight(name=name, shape=(case["N"],), format=case.format) for name in names)
    norm = Norm(name="norm", inputs=(x,), outputs=(y,), weights=weights, ops_per_element=ops + len(weights) - 1)
    if not case.get("residual"):
        return (norm,)
    operands = (x, replace(x, name="residual"))
    add = Add(name="add", inputs=operands, outputs=(replace(x, name="sum"),), ops_per_element=1)
    return (add, replace(norm, inputs=()))


def _workload(case: Case) -> Workload:
    return Workload.prefill(batch=1, prompt=case["M"])


KERNELS = (
    Kernel(
        name="rms_norm", family="norm",
        cases=(
            case("fp16", M=5, N=128),
            case("fp16", M=3, N=300, residual=1),
            case("fp32", M=2, N=5000, residual=1),
            case("fp16", M=1, N=4096),
        ),
        full_size=(
            case("bf16", M=8192, N=8192, residual=1),
            case("bf16", M=16, N=4096, residual=1),
            case("bf16", M=65536, N=128),
        ),
        make=_make, plan=plan, reference=reference,
        # Results go up to some 15, the sum of fp32 squares is off by a few of its last bits.
        tolerance=lambda case: (4 * EPSILON[case.dtype], EPSILON[case.dtype]),
        operators=partial(_operators, ops=RMS_OPS),
        workload=_workload, tilings=tilings,
    ),
    Kernel(
        name="layer_norm", family="norm",
        cases=(
            case("fp16", M=5, N=128, bias=1),
            case("fp16", M=3, N=300, residual=1),
            case("bf16", M=9, N=77, bias=1, residual=1),
            case("fp32", M=2, N=5000, bias=1, residual=1),
            case("fp32", M=3, N=700, mean=1000),  # squares of which lose all that a variance of 1 is made of
        ),
        full_size=(
            case("bf16", M=8192, N=8192, bias=1, residual=1),
            case("bf16", M=16, N=4096, bias=1, residual=1),
            case("bf16", M=65536, N=128, bias=1),
        ),
        make=_make,
        plan=partial(plan, centred=True),
        reference=partial(reference, centred=True),
        # Results go up to some 15. A mean, the reference's and the kernel's, is off by its last bits in fp32, a GPU's
        # quotient by two of them (PTX ISA, div.full), as then are all differences from it, which meet weights of up to
        # some 4.
        tolerance=lambda case: (
            4 * EPSILON[case.dtype],
            EPSILON[case.dtype] + 4 * 4 * (1 + case.get("mean")) * EPSILON["fp32"],
        ),
        operators=partial(_operators, ops=_LAYER_OPS),
        workload=_workload, tilings=tilings,
    ),
)  # fmt: skip
