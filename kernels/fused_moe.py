"""y[token] = sum over its best experts e of p[token, e] * down[e] @ (silu(gate[e] @ x) * (up[e] @ x)).

Softmax, the choice of the best and their renormalization (Mixtral, arXiv:2401.04088, section 2.1); the sort of
`permute` without its copies; two grouped products, of which the first gathers its rows and ends in the activation; and
the weighted sum.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from ..operators.base import Operator, Tensor
from ..operators.elementwise import ACTIVATION_OPS, Activation, Combine, Route
from ..precision import FP32
from .base import (
    EPSILON,
    Case,
    Inputs,
    Kernel,
    Launch,
    LaunchPlan,
    Random,
    Target,
    case,
    cdiv,
    cloned_inputs,
    poisoned,
    pow2,
)
from .gemm import GemmTiling, workload
from .grouped_gemm import experts_linear, launch_grouped, tilings
from .permute import launch_combine, sort_pairs

_ROUTE_TOKENS = 4


@triton.jit
def _route(
    logits_ptr, expert_ptr, weight_ptr, tokens,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The best CHOSEN of EXPERTS logits, one after the other, and softmax weights that sum to 1 over them."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    columns = tl.arange(0, BLOCK_E)
    mask = rows < tokens
    offsets = rows[:, None] * EXPERTS + columns[None, :]
    logits = tl.load(logits_ptr + offsets, mask[:, None] & (columns[None, :] < EXPERTS), float("-inf"))
    logits = logits.to(tl.float32)
    logits = tl.where(mask[:, None], logits, 0.0)
    best = tl.max(logits, 1)
    weights = tl.exp(logits - best[:, None])  # those of softmax but for a factor that renormalizing cancels
    remaining = logits
    chosen_sum = tl.zeros((BLOCK_T,), dtype=tl.float32)
    for _ in tl.static_range(CHOSEN):
        is_expert = columns[None, :] == tl.argmax(remaining, 1)[:, None]
        chosen_sum += tl.sum(tl.where(is_expert, weights, 0.0), 1)
        remaining = tl.where(is_expert, float("-inf"), remaining)
    remaining = logits
    for rank in tl.static_range(CHOSEN):
        expert = tl.argmax(remaining, 1)
        is_expert = columns[None, :] == expert[:, None]
        weight = tl.sum(tl.where(is_expert, weights, 0.0), 1) / chosen_sum
        tl.store(expert_ptr + rows * CHOSEN + rank, expert, mask)
        tl.store(weight_ptr + rows * CHOSEN + rank, weight, mask)
        remaining = tl.where(is_expert, float("-inf"), remaining)


def plan(
    target: Target,
    x: torch.Tensor,
    logits: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    chosen: int,
    tile: GemmTiling | None = None,
) -> LaunchPlan:
    """x[tokens, k], logits[tokens, experts], gate_up[experts, 2 n, k], down[experts, k, n] to y[tokens, k].

    `tile` is of both products.
    """
    (tokens, k), (experts, _, n), pairs = x.shape, down.shape, x.shape[0] * chosen
    expert = poisoned(pairs, dtype=torch.int32, device=x.device)
    weight = poisoned(pairs, dtype=torch.float32, device=x.device)
    sorting, order, place, end = sort_pairs(expert, experts)
    middle, out = (poisoned(pairs, width, dtype=x.dtype, device=x.device) for width in (n, k))
    y = poisoned(tokens, k, dtype=x.dtype, device=x.device)
    route = Launch(
        function=_route,
        grid=(cdiv(tokens, _ROUTE_TOKENS),),
        arguments={
            "logits_ptr": logits, "expert_ptr": expert, "weight_ptr": weight, "tokens": tokens,
            "EXPERTS": experts, "CHOSEN": chosen, "BLOCK_T": _ROUTE_TOKENS, "BLOCK_E": pow2(experts),
        },
    )  # fmt: skip
    products = (
        launch_grouped(target, x, gate_up, middle, end, order=order, chosen=chosen, gated=True, tile=tile),
        launch_grouped(target, middle, down, out, end, tile=tile),
    )
    combine = launch_combine(out, place, weight, y)
    return LaunchPlan(launches=(route, *sorting, *products, combine), outputs=(y,))


def reference(
    x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, chosen: int
) -> tuple[torch.Tensor, ...]:
    """Top-k experts by the softmax of logits, with their SwiGLU networks [tokens, width]; sums in fp32."""
    weights, experts = logits.float().softmax(1).topk(chosen, 1)
    weights = weights / weights.sum(1, keepdim=True)
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for number in range(down.shape[0]):
        token, place = (experts == number).nonzero(as_tuple=True)
        gate, up_proj = (x[token].float() @ gate_up[number].float().T).chunk(2, dim=1)
        middle = (torch.nn.functional.silu(gate) * up_proj).to(x.dtype).float()  # stored between the products
        y.index_add_(0, token, weights[token, place, None] * (middle @ down[number].float().T))
    return (y,)


def _make(case: Case, device: str, seed: int) -> Inputs:
    tokens, n, k, experts, chosen = (case[name] for name in ("M", "N", "K", "experts", "chosen"))
    random, dtype = Random(device, seed), case.torch_dtype
    return {
        "x": random.normal(tokens, k, dtype=dtype),
        "logits": random.normal(tokens, experts, dtype=torch.float32),
        "gate_up": random.normal(experts, 2 * n, k, dtype=dtype, scale=k**-0.5),
        "down": random.normal(experts, k, n, dtype=dtype, scale=n**-0.5),
        "chosen": chosen,
    }


def _next_inputs(inputs: Inputs, number: int) -> Inputs:
    """Copies, with another choice of experts."""
    logits = inputs["logits"]
    other = Random(logits.device.type, number).normal(*logits.shape, dtype=logits.dtype)
    return cloned_inputs(inputs, number) | {"logits": other}


def _operators(case: Case) -> tuple[Operator, ...]:
    """Route; both products, the first with the activation at its end and without a copy of tokens; Combine."""
    n, k, experts, chosen = (case[name] for name in ("N", "K", "experts", "chosen"))
    logits = Tensor(name="logits", width=experts, format=FP32)
    weights = Tensor(name="weights", width=2 * chosen, format=FP32)  # and the numbers of their experts
    gate_up = experts_linear(case, "gate_up", 2 * n, k)
    middle = replace(gate_up.outputs[0], width=n)
    down = experts_linear(case, "down", k, n)
    y = Tensor(name="y", width=k, format=case.format)
    activation = Activation(
        name="activation", inputs=(), outputs=(replace(middle, name="act"),), ops_per_element=ACTIVATION_OPS["silu"] + 1
    )
    return (
        Route(name="route", inputs=(logits,), outputs=(weights,), top_k=chosen),
        replace(gate_up, outputs=()),
        activation,  # writes what the first product would
        down,
        Combine(name="combine", inputs=(down.outputs[0], weights), outputs=(y,), top_k=chosen),
    )


KERNELS = (
    Kernel(
        name="fused_moe", family="moe",
        cases=(
            case("fp16", M=9, N=40, K=72, experts=5, chosen=2),
            case("fp16", M=1, N=64, K=64, experts=8, chosen=3),
            case("fp16", M=130, N=24, K=40, experts=4, chosen=1),
        ),
        full_size=(
            case("bf16", M=4096, N=14336, K=4096, experts=8, chosen=2),
            case("bf16", M=16, N=768, K=2048, experts=128, chosen=8),
        ),
        make=_make, next_inputs=_next_inputs, plan=plan, reference=reference,
        tolerance=lambda case: (2 * EPSILON[case.dtype], 2 * EPSILON[case.dtype]),
        operators=_operators, workload=workload, tilings=tilings,
    ),
)  # fmt: skip
