"""Copies of tokens in the order of their experts, and the weighted sums of what experts make of them.

`permute` is what dispatch and `combine` what combine of expert parallelism is on one device (MegaBlocks,
arXiv:2211.15841, section 5.2). A counting sort of (token, expert) pairs by expert keeps the order of tokens and uses no
atomics, so that results repeat bit by bit. Few pairs take one launch, of a program for each expert, which counts those
of experts before it and places its own; many take two, of a program for a part of the pairs: it counts them by expert,
then places each after those of all experts and parts before. A row of a token is read once, however many experts it
goes to.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..forms import TOKENS
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Combine, Permute
from ..precision import FP32
from ..records import frozen
from ..workload import Workload
from .base import EPSILON, Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_MAX_FEW = 16384  # pairs that the program of an expert goes through; beyond, parts take fewer instructions
_PAIRS = 1024  # of them at a time
_MAX_PARTS = 128  # of many pairs, each of which reads the counts of all
_COMPARISONS = 16384  # of pairs with experts, and with pairs, at a time: 64 a thread
_MAX_BLOCK = 128  # whose square is as many
_SORT_WARPS = 8


@frozen
class RowTiling:
    """Elements of a row that a program copies or sums, and its warps; by the rule a load of 16 bytes a thread."""

    width: int = 1024
    num_warps: int = 4


_ALTERNATIVES = (RowTiling(512, 2), RowTiling(1024, 2), RowTiling(2048, 4), RowTiling(2048, 8), RowTiling(8192, 16))


@triton.jit
def _place_few(expert_ptr, order_ptr, place_ptr, end_ptr, pairs, BLOCK: tl.constexpr):
    """order[row] = pair and place[pair] = row of the pairs of this program's expert; end[expert], the row after it."""
    expert, row = tl.program_id(0), 0
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        row += tl.sum((tl.load(expert_ptr + pair, pair < pairs, 0x7FFFFFFF) < expert).to(tl.int32), 0)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        is_expert = tl.load(expert_ptr + pair, pair < pairs, -1) == expert
        rows = row + tl.cumsum(is_expert.to(tl.int32), 0) - 1
        tl.store(order_ptr + rows, pair, is_expert)
        tl.store(place_ptr + pair, rows, is_expert)
        row += tl.sum(is_expert.to(tl.int32), 0)
    tl.store(end_ptr + expert, row)


@triton.jit
def _is_of(expert_ptr, first, pairs, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr):
    """1 where pair first + i goes to expert e, else 0 [BLOCK, BLOCK_E]."""
    pair = first + tl.arange(0, BLOCK)
    expert = tl.load(expert_ptr + pair, pair < pairs, -1)
    return (expert[:, None] == tl.arange(0, BLOCK_E)[None, :]).to(tl.int32)


@triton.jit
def _count(expert_ptr, count_ptr, pairs, PART: tl.constexpr, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr):
    """Counts the pairs of this program's part by expert: count[part, expert]."""
    count = tl.zeros((BLOCK_E,), dtype=tl.int32)
    first = tl.program_id(0) * PART
    for start in range(first, min(first + PART, pairs), BLOCK):
        count += tl.sum(_is_of(expert_ptr, start, pairs, BLOCK, BLOCK_E), 0)
    tl.store(count_ptr + tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E), count)


@triton.jit
def _place(
    expert_ptr, count_ptr, order_ptr, place_ptr, end_ptr, pairs, parts,
    EXPERTS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """order, place and end as `_place_few` writes them, for the pairs of this program's part."""
    part, experts = tl.program_id(0), tl.arange(0, BLOCK_E)
    total, before = tl.zeros((BLOCK_E,), dtype=tl.int32), tl.zeros((BLOCK_E,), dtype=tl.int32)
    for first in range(0, parts, BLOCK):
        others = first + tl.arange(0, BLOCK)[:, None]
        counts = tl.load(count_ptr + others * BLOCK_E + experts[None, :], others < parts, 0)
        total += tl.sum(counts, 0)
        before += tl.sum(tl.where(others < part, counts, 0), 0)
    ends = tl.cumsum(total, 0)
    row = ends - total + before
    for start in range(part * PART, min((part + 1) * PART, pairs), BLOCK):
        is_of, place = _is_of(expert_ptr, start, pairs, BLOCK, BLOCK_E), tl.arange(0, BLOCK)
        pair = start + place
        expert = tl.load(expert_ptr + pair, pair < pairs, -1)
        earlier = (expert[:, None] == expert[None, :]) & (place[None, :] < place[:, None])
        rows = tl.sum(is_of * row[None, :], 1) + tl.sum(earlier.to(tl.int32), 1)
        tl.store(order_ptr + rows, pair, pair < pairs)
        tl.store(place_ptr + pair, rows, pair < pairs)
        row += tl.sum(is_of, 0)
    tl.store(end_ptr + experts, ends, (experts < EXPERTS) & (part == 0))


@triton.jit
def _permute(x_ptr, place_ptr, y_ptr, width, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + token.to(tl.int64) * width + columns, columns < width)
    for number in tl.static_range(CHOSEN):
        row = tl.load(place_ptr + token * CHOSEN + number).to(tl.int64)
        tl.store(y_ptr + row * width + columns, x, columns < width)


@triton.jit
def _combine(x_ptr, place_ptr, weight_ptr, y_ptr, width, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for number in tl.static_range(CHOSEN):
        row = tl.load(place_ptr + token * CHOSEN + number).to(tl.int64)
        weight = tl.load(weight_ptr + token * CHOSEN + number)
        sums += weight * tl.load(x_ptr + row * width + columns, columns < width, 0.0).to(tl.float32)
    y_at = y_ptr + token.to(tl.int64) * width + columns
    tl.store(y_at, sums.to(y_ptr.dtype.element_ty), columns < width)


def sort_pairs(
    expert: torch.Tensor, experts: int
) -> tuple[tuple[Launch, ...], torch.Tensor, torch.Tensor, torch.Tensor]:
    """(launches, order[rows], place[pairs], end[experts]) of pairs whose expert is expert[pairs], in int32."""
    pairs, sizes = expert.numel(), {"device": expert.device, "dtype": torch.int32}
    order, place, end = poisoned(pairs, **sizes), poisoned(pairs, **sizes), poisoned(experts, **sizes)
    common = {"expert_ptr": expert, "order_ptr": order, "place_ptr": place, "end_ptr": end, "pairs": pairs}
    if pairs <= _MAX_FEW:
        few = Launch(function=_place_few, grid=(experts,), arguments=common | {"BLOCK": _PAIRS})
        return (few,), order, place, end
    part, block_e = pow2(cdiv(pairs, _MAX_PARTS)), pow2(experts)
    parts, block = cdiv(pairs, part), max(min(_COMPARISONS // block_e, _MAX_BLOCK, part), 1)
    count = poisoned(parts, block_e, **sizes)
    cut = {"count_ptr": count, "PART": part, "BLOCK": block, "BLOCK_E": block_e}
    counting = Launch(
        function=_count,
        grid=(parts,),
        arguments={"expert_ptr": expert, "pairs": pairs} | cut,
        num_warps=_SORT_WARPS,
    )
    placing = Launch(
        function=_place,
        grid=(parts,),
        arguments=common | cut | {"parts": parts, "EXPERTS": experts},
        num_warps=_SORT_WARPS,
    )
    return (counting, placing), order, place, end


def launch_combine(
    x: torch.Tensor, place: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, tile: RowTiling | None = None
) -> Launch:
    """x[rows, width], place and weight[tokens * chosen] to y[tokens, width]."""
    tokens, width = y.shape
    return _of_tokens(_combine, tokens, width, place, {"x_ptr": x, "weight_ptr": weight, "y_ptr": y}, tile)


def _of_tokens(
    function: object,
    tokens: int,
    width: int,
    place: torch.Tensor,
    tensors: dict[str, torch.Tensor],
    tile: RowTiling | None,
) -> Launch:
    """A launch of a program for each part of each token's row."""
    tile = tile or RowTiling()
    block = min(tile.width, pow2(width))
    arguments = {"place_ptr": place, "width": width, "CHOSEN": place.numel() // tokens, "BLOCK": block}
    return Launch(
        function=function,
        grid=(tokens, cdiv(width, block)),
        arguments=tensors | arguments,
        num_warps=tile.num_warps,
    )


def tilings(target: Target, case: Case) -> tuple[RowTiling, ...]:  # noqa: ARG001
    """Alternatives: wider and narrower parts of rows, and fewer and more warps."""
    return tuple(one for one in _ALTERNATIVES if one.width <= pow2(case["K"]))


def plan_permute(
    target: Target,  # noqa: ARG001
    x: torch.Tensor,
    expert: torch.Tensor,
    experts: int,
    tile: RowTiling | None = None,
) -> LaunchPlan:
    """x[tokens, width] and expert[tokens, chosen] in int32 to y[tokens * chosen, width], place[tokens * chosen], the
    row of y of each pair, and end[experts], the row after the last of each expert.
    """
    tokens, width = x.shape
    sorting, _, place, end = sort_pairs(expert, experts)
    y = poisoned(expert.numel(), width, dtype=x.dtype, device=x.device)
    copying = _of_tokens(_permute, tokens, width, place, {"x_ptr": x, "y_ptr": y}, tile)
    return LaunchPlan(launches=(*sorting, copying), outputs=(y, place, end))


def reference_permute(x: torch.Tensor, expert: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...]:
    """Rows of tokens in the order of their experts, the row of each pair, and the end of each expert."""
    order = expert.flatten().sort(stable=True).indices
    end = expert.flatten().bincount(minlength=experts).cumsum(0)
    return x[order // expert.shape[1]], order.argsort(), end


def plan_combine(
    target: Target,  # noqa: ARG001
    x: torch.Tensor,
    place: torch.Tensor,
    weight: torch.Tensor,
    tile: RowTiling | None = None,
) -> LaunchPlan:
    """x[tokens * chosen, width], place and weight[tokens, chosen] in int32 and fp32 to y[tokens, width]."""
    y = poisoned(place.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
    return LaunchPlan(launches=(launch_combine(x, place, weight, y, tile),), outputs=(y,))


def reference_combine(x: torch.Tensor, place: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums of the rows of each token times their weights; in fp32."""
    return ((x.float()[place.long()] * weight[..., None]).sum(1),)


def _chosen(case: Case, random: Random) -> torch.Tensor:
    """Distinct random experts of each token [tokens, chosen]."""
    scores = random.uniform(case["M"], case["experts"], low=0, high=1)
    return scores.topk(case["chosen"], 1).indices.to(torch.int32)


def _make_permute(case: Case, device: str, seed: int) -> Inputs:
    random = Random(device, seed)
    x = random.normal(case["M"], case["K"], dtype=case.torch_dtype)
    return {"x": x, "expert": _chosen(case, random), "experts": case["experts"]}


def _make_combine(case: Case, device: str, seed: int) -> Inputs:
    random, tokens, chosen = Random(device, seed), case["M"], case["chosen"]
    expert = _chosen(case, random)
    order = expert.flatten().sort(stable=True).indices
    return {
        "x": random.normal(tokens * chosen, case["K"], dtype=case.torch_dtype),
        "place": order.argsort().view(tokens, chosen).to(torch.int32),
        "weight": random.uniform(tokens, chosen, low=0, high=1),
    }


def _copies(case: Case) -> Tensor:
    return Tensor(name="copies", width=case["K"], format=case.format, rows=case["chosen"] * TOKENS)


def _numbers(case: Case, name: str) -> Tensor:
    """A number of 4 bytes for each pair."""
    return Tensor(name=name, width=case["chosen"], format=FP32)


def _permute_operators(case: Case) -> tuple[Operator, ...]:
    x = Tensor(name="x", width=case["K"], format=case.format)
    experts, place = (_numbers(case, name) for name in ("experts", "place"))
    return (Permute(name="permute", inputs=(x, experts), outputs=(_copies(case), place)),)


def _combine_operators(case: Case) -> tuple[Operator, ...]:
    weights, place = (_numbers(case, name) for name in ("weights", "place"))
    y = Tensor(name="y", width=case["K"], format=case.format)
    inputs = (_copies(case), place, weights)
    return (Combine(name="combine", inputs=inputs, outputs=(y,), top_k=case["chosen"]),)


def _workload(case: Case) -> Workload:
    return Workload.prefill(batch=1, prompt=case["M"])


_CASES = (
    case("fp16", M=9, K=72, experts=5, chosen=2),
    case("fp16", M=1, K=2500, experts=8, chosen=3),
    case("fp16", M=270, K=24, experts=40, chosen=4),
)
_FULL_SIZE = (
    case("bf16", M=8192, K=2048, experts=128, chosen=8),
    case("bf16", M=64, K=7168, experts=256, chosen=8),
)

KERNELS = (
    Kernel(
        name="permute", family="permute", cases=_CASES, full_size=_FULL_SIZE,
        make=_make_permute, plan=plan_permute, reference=reference_permute,
        tolerance=lambda case: (0.0, 0.0),
        operators=_permute_operators, workload=_workload, tilings=tilings,
    ),
    Kernel(
        name="combine", family="permute", cases=_CASES, full_size=_FULL_SIZE,
        make=_make_combine, plan=plan_combine, reference=reference_combine,
        tolerance=lambda case: (EPSILON[case.dtype], 16 * EPSILON["fp32"]),
        operators=_combine_operators, workload=_workload, tilings=tilings,
    ),
)  # fmt: skip
