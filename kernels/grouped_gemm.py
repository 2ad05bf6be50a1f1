"""y[row, n] = x[row, k] @ w[expert of the row, n, k].T, for rows in the order of their experts.

One launch for all experts, whatever each got: a program finds its expert in the running sum of tiles, so nothing has to
be known when it is launched, and it can be captured in a CUDA graph (MegaBlocks, arXiv:2211.15841, section 5.1, has the
problem; this is the schedule of Triton's tutorial 08 without its table of pointers). The grid has a tile for each
BLOCK_M rows and one more for each expert; those that are left over return at once.
Rows can be gathered by the program that needs them, and a gated activation can be its last step: y = silu(x @ gate.T) *
(x @ up.T), so that `fused_moe` writes neither copies of tokens nor the two products.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..forms import TOKENS, distinct_experts
from ..operators.base import Operator, Tensor, Weight
from ..operators.linear import ExpertsLinear
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2
from .gemm import GROUP_M, GemmTiling, load_rows, tile_of, tolerance, workload


@triton.jit
def _grouped(
    x_ptr, w_rows, y_ptr, ends_ptr, order_ptr, n, k, chosen, grid_m,
    EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, GATED: tl.constexpr, EVEN: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(tl.program_id(0), grid_m, n, BLOCK_M, BLOCK_N, GROUP)
    experts = tl.arange(0, BLOCK_E)
    ends = tl.load(ends_ptr + experts, experts < EXPERTS, 0)
    starts = tl.load(ends_ptr + experts - 1, (experts > 0) & (experts < EXPERTS), 0)
    tiles = tl.where(experts < EXPERTS, (ends - starts + BLOCK_M - 1) // BLOCK_M, 0)
    before = tl.cumsum(tiles, 0) <= row  # the experts whose tiles are all before this one
    expert = tl.sum(before.to(tl.int32), 0)
    if expert < EXPERTS:
        is_expert = experts == expert
        start, end = tl.sum(tl.where(is_expert, starts, 0), 0), tl.sum(tl.where(is_expert, ends, 0), 0)
        rows = start + (row - tl.sum(tl.where(before, tiles, 0), 0)) * BLOCK_M + tl.arange(0, BLOCK_M)
        mask = rows < end
        sources = rows if order_ptr is None else tl.load(order_ptr + rows, mask, 0) // chosen
        ks = tl.arange(0, BLOCK_K)
        x_at = x_ptr + sources.to(tl.int64)[:, None] * k + ks[None, :]
        # Rows past an expert's last are the next expert's; their products are not stored.
        width = 2 * n if GATED else n
        w_row, last = expert * width + column * BLOCK_N, EXPERTS * width
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        up_accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block_start in range(0, k, BLOCK_K):
            x = tl.load(
                x_at + block_start, mask[:, None] if EVEN else mask[:, None] & (ks[None, :] < k - block_start), 0.0
            )
            w = load_rows(w_rows, w_row, last, block_start, k, BLOCK_N, BLOCK_K, DESCRIBED)
            accumulator = tl.dot(x, w.T, accumulator)
            if GATED:
                w = load_rows(w_rows, w_row + n, last, block_start, k, BLOCK_N, BLOCK_K, DESCRIBED)
                up_accumulator = tl.dot(x, w.T, up_accumulator)
        if GATED:
            accumulator = accumulator / (1 + tl.exp(-accumulator)) * up_accumulator
        columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
        y_at = y_ptr + rows.to(tl.int64)[:, None] * n + columns[None, :]
        tl.store(y_at, accumulator.to(y_ptr.dtype.element_ty), mask[:, None] & (columns[None, :] < n))


def tiling(target: Target, rows: int, experts: int, itemsize: int, *, gated: bool = False) -> GemmTiling:
    """The default tiling: as tall as the mean number of rows per expert; half as wide for two products (gated)."""
    block_m = min(max(pow2(cdiv(rows, experts)), 16), 128)
    deep = 128 // itemsize
    if block_m < 128:
        block_k = 2 * deep if block_m <= 32 else deep if target.generation >= 90 else deep // 2
        stages = target.stages(4, (block_m + 64 * (1 + gated)) * block_k * itemsize)
        return GemmTiling(block_m=block_m, block_n=64, block_k=block_k, num_warps=4, num_stages=stages)
    if target.generation < 90:
        return GemmTiling(block_m=128, block_n=64 if gated else 128, block_k=deep // 2, num_warps=8, num_stages=3)
    return GemmTiling(block_m=128, block_n=128 if gated else 256, block_k=deep, num_warps=8, num_stages=4)


def tilings(target: Target, case: Case) -> tuple[GemmTiling, ...]:
    """Alternative tilings: shorter and narrower tiles, and fewer stages."""
    rule = tiling(target, case["M"] * case["chosen"], case["experts"], case.torch_dtype.itemsize, gated=True)
    candidates = [replace(rule, num_stages=rule.num_stages - 1), replace(rule, block_n=rule.block_n // 2)]
    if rule.block_m == 128:
        candidates.append(replace(rule, block_m=64, num_warps=4))
    else:
        candidates.append(replace(rule, block_n=2 * rule.block_n, num_stages=rule.num_stages - 1))
    return tuple(candidates)


def launch_grouped(
    target: Target,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    ends: torch.Tensor,
    *,
    order: torch.Tensor | None = None,
    chosen: int = 1,
    gated: bool = False,
    tile: GemmTiling | None = None,
) -> Launch:
    """x[rows, k], w[experts, n or 2 n, k], y[rows, n]; ends[experts], the row after the last of each expert.

    order[rows] says which of `chosen` copies of the rows of x each is; None takes them as they are.
    gated: w has n rows of gates, then n rows of ups.
    """
    (rows, n), (experts, _, k) = y.shape, w.shape
    tile = tile or tiling(target, rows, experts, x.element_size(), gated=gated)
    described = target.generation >= 90 and k * x.element_size() % 16 == 0  # rows begin at multiples of 16 bytes
    w = w.view(-1, k)
    grid_m = (cdiv(rows, tile.block_m) + min(experts, rows)) * tile.block_m
    return Launch(
        function=_grouped,
        grid=(cdiv(grid_m, tile.block_m) * cdiv(n, tile.block_n),),
        arguments={
            "x_ptr": x, "y_ptr": y, "ends_ptr": ends, "order_ptr": order,
            "w_rows": TensorDescriptor.from_tensor(w, [tile.block_n, tile.block_k]) if described else w,
            "n": n, "k": k, "chosen": chosen, "grid_m": grid_m, "EXPERTS": experts, "BLOCK_E": pow2(experts),
            "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": GROUP_M,
            "GATED": gated, "EVEN": k % tile.block_k == 0, "DESCRIBED": described,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip


def plan(
    target: Target, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, tile: GemmTiling | None = None
) -> LaunchPlan:
    """One launch for the products of the rows of every expert with its weights."""
    y = poisoned(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)
    return LaunchPlan(launches=(launch_grouped(target, x, w, y, ends, tile=tile),), outputs=(y,))


def reference(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Products of the rows up to each of `ends` with the weights of their expert [M, N]; in fp32."""
    starts = [0, *ends.tolist()[:-1]]
    spans = zip(starts, ends.tolist(), w, strict=True)
    return (torch.cat([x[start:end].float() @ one.float().T for start, end, one in spans]),)


def _make(case: Case, device: str, seed: int) -> Inputs:
    tokens, n, k, experts, chosen = (case[name] for name in ("M", "N", "K", "experts", "chosen"))
    random, dtype = Random(device, seed), case.torch_dtype
    experts_of_tokens = random.uniform(tokens, experts, low=0, high=1).topk(chosen, 1).indices.flatten()
    if device == "meta":
        ends = torch.empty(experts, dtype=torch.int32, device=device)
    else:
        ends = experts_of_tokens.bincount(minlength=experts).cumsum(0).to(torch.int32)
    return {
        "x": random.normal(tokens * chosen, k, dtype=dtype),
        "w": random.normal(experts, n, k, dtype=dtype, scale=k**-0.5),
        "ends": ends,
    }


def experts_linear(case: Case, name: str, n: int, k: int) -> ExpertsLinear:
    """The ExpertsLinear from K to N features, of as many copies of each token as it chooses experts."""
    experts, chosen = case["experts"], case["chosen"]
    rows = chosen * TOKENS
    read = distinct_experts(experts, chosen)
    weight = Weight(name="w", shape=(experts, n, k), format=case.format, rows=read, active=chosen / experts)
    return ExpertsLinear(
        name=name,
        inputs=(Tensor(name="x", width=k, format=case.format, rows=rows),),
        outputs=(Tensor(name=name, width=n, format=case.format, rows=rows),),
        weights=(weight,),
    )


def _operators(case: Case) -> tuple[Operator, ...]:
    return (experts_linear(case, "y", case["N"], case["K"]),)


KERNELS = (
    Kernel(
        name="grouped_gemm", family="moe",
        cases=(
            case("fp16", M=12, N=72, K=136, experts=5, chosen=2),
            case("fp16", M=2, N=64, K=64, experts=8, chosen=1),
            case("fp16", M=90, N=40, K=72, experts=3, chosen=2),
        ),
        full_size=(
            case("bf16", M=4096, N=4096, K=4096, experts=8, chosen=2),
            case("bf16", M=16, N=4096, K=4096, experts=8, chosen=2),
        ),
        make=_make,
        plan=plan,
        reference=reference,
        tolerance=tolerance,
        operators=_operators,
        workload=workload,
        tilings=tilings,
    ),
)  # fmt: skip
