"""token ~ softmax(logits / temperature) of what top-k and then top-p leave, for a random number u of each row; argmax.

Top-k leaves logits that are no less than the k-th largest (arXiv:1805.04833). Top-p, of what top-k has left, leaves
those that are no less than the largest threshold above which there is p of the sum (nucleus sampling,
arXiv:1904.09751). Logits that are alike stay or go together, so more than k may stay. A k of 0 and a p of 1 are none.
What is left stays in the order of the vocabulary; the token is the first whose running sum exceeds u times the sum.

There is no sort. Weights, 2^((logit - max) log2(e) / temperature), are whole numbers of 2^-40, so that sums do not
depend on the order in which programs add, results repeat bit by bit, and thresholds are exact: logits as ordered
integers, bisected. To bisect a whole vocabulary is to read it dozens of times, so three launches go before, of which
the first reads logits from memory and the others from L2: maxima of parts of a row; counts and sums of the weights
above a few levels; and the logits above the highest level that is sure to hold the threshold, one after the other. Up
to 4096 of these the last launch has in registers; more it reads again and again.
"""

from __future__ import annotations

from math import e, log2

import torch
import triton
import triton.language as tl

from ..forms import LOGITS
from ..operators.base import Operator, Tensor
from ..operators.sampling import Sample
from ..precision import FP32, Format
from ..workload import Workload
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_BLOCK = 4096  # logits of a program
_MERGED_ROWS = 4  # rows whose parts one warp puts together
_LOG2_E: tl.constexpr = tl.constexpr(log2(e))
_ONE: tl.constexpr = tl.constexpr(2**40)  # the weight of the largest logit; 2^22 of them have a sum of 62 bits
_SHIFT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # last bits of fp32 that are alike for all logits
_LEVELS = 4
_LEVEL_BITS: tl.constexpr = tl.constexpr(5)  # levels are weights of 2^-5, 2^-10, 2^-15, and all that are not 0


@triton.jit
def _best(x_ptr, value_ptr, index_ptr, n, BLOCK: tl.constexpr):
    """The largest logit of a part of a row, and the first place where it is."""
    row, part = tl.program_id(0), tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * n + columns, columns < n, float("-inf")).to(tl.float32)
    value, index = tl.max(x, 0, return_indices=True)
    offset = row * tl.num_programs(1) + part
    tl.store(index_ptr + offset, part * BLOCK + index)
    if value_ptr is not None:
        tl.store(value_ptr + offset, value)


@triton.jit
def _best_of_parts(
    value_ptr, index_ptr, token_ptr, m, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr
):
    rows, parts = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_S)
    mask = (rows[:, None] < m) & (parts[None, :] < PARTS)
    value = tl.load(value_ptr + rows[:, None] * PARTS + parts[None, :], mask, float("-inf"))
    _, part = tl.max(value, 1, return_indices=True)
    tl.store(token_ptr + rows, tl.load(index_ptr + rows * PARTS + part, rows < m), rows < m)


@triton.jit
def _weights(x, best, temperature):
    """Whole numbers of 2^-40."""
    return (tl.exp2((x - best) * (_LOG2_E / temperature)) * _ONE).to(tl.int64)


@triton.jit
def _level_bits(level, LEVELS: tl.constexpr):
    """A level begins at a weight of 2^-bits; the last one has all but zeros."""
    return tl.where(level < LEVELS - 1, (level + 1) * _LEVEL_BITS, 40)


@triton.jit
def _min_weight(level, LEVELS: tl.constexpr):
    """The weight that a level begins at."""
    return tl.full((), _ONE, tl.int64) >> _level_bits(level, LEVELS)


@triton.jit
def _load_part(x_ptr, best_ptr, temperature_ptr, n, PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr):
    """Columns, logits and weights of a program's part of a row."""
    row, parts = tl.program_id(0), tl.arange(0, BLOCK_S)
    best = tl.max(tl.load(best_ptr + row * PARTS + parts, parts < PARTS, float("-inf")), 0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * n + columns, columns < n, float("-inf")).to(tl.float32)
    return columns, x, _weights(x, best, tl.load(temperature_ptr + row))


@triton.jit
def _levels(
    x_ptr, best_ptr, temperature_ptr, count_ptr, sum_ptr, n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Counts the logits of a part of a row above each level and sums their weights."""
    _, _, weights = _load_part(x_ptr, best_ptr, temperature_ptr, n, PARTS, BLOCK, BLOCK_S)
    for level in tl.static_range(LEVELS):
        above = weights >= _min_weight(level, LEVELS)
        offset = (tl.program_id(0) * LEVELS + level) * PARTS + tl.program_id(1)
        tl.store(count_ptr + offset, tl.sum(above.to(tl.int32), 0))
        tl.store(sum_ptr + offset, tl.sum(tl.where(above, weights, 0), 0))


@triton.jit
def _fraction_of(fraction, total):
    """The least whole number that is no less than `part` of `whole`, and from 1 to `whole`."""
    return tl.minimum(tl.maximum(tl.ceil(fraction.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1), total)


@triton.jit
def _candidates(
    count_ptr, sum_ptr, top_k_ptr, top_p_ptr, PARTS: tl.constexpr, BLOCK_S: tl.constexpr, LEVELS: tl.constexpr
):
    """The highest level above which all are that may stay, counts of parts above it, and the sum of all weights."""
    row, parts = tl.program_id(0), tl.arange(0, BLOCK_S)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    offsets = (row * LEVELS + LEVELS - 1) * PARTS + parts
    total = tl.sum(tl.load(sum_ptr + offsets, parts < PARTS, 0), 0)
    level = LEVELS - 1
    for i in tl.static_range(LEVELS - 1):
        higher = LEVELS - 2 - i
        offsets = (row * LEVELS + higher) * PARTS + parts
        count = tl.sum(tl.load(count_ptr + offsets, parts < PARTS, 0), 0)
        weight = tl.sum(tl.load(sum_ptr + offsets, parts < PARTS, 0), 0)
        enough = tl.where(top_k > 0, count >= top_k, weight >= _fraction_of(top_p, total))
        level = tl.where(enough, higher, level)
    counts = tl.load(count_ptr + (row * LEVELS + level) * PARTS + parts, parts < PARTS, 0)
    return level, counts, total


@triton.jit
def _gather(
    x_ptr, best_ptr, temperature_ptr, top_k_ptr, top_p_ptr, count_ptr, sum_ptr, logit_ptr, index_ptr, n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Logits of a part of a row that may stay, and where they were, behind those of the parts before it."""
    level, counts, _ = _candidates(count_ptr, sum_ptr, top_k_ptr, top_p_ptr, PARTS, BLOCK_S, LEVELS)
    before = tl.sum(tl.where(tl.arange(0, BLOCK_S) < tl.program_id(1), counts, 0), 0)
    columns, x, weights = _load_part(x_ptr, best_ptr, temperature_ptr, n, PARTS, BLOCK, BLOCK_S)
    above = weights >= _min_weight(level, LEVELS)
    offsets = tl.program_id(0).to(tl.int64) * n + before + tl.cumsum(above.to(tl.int32), 0) - 1
    tl.store(logit_ptr + offsets, x, above)
    tl.store(index_ptr + offsets, columns, above)


@triton.jit
def _sortable_key(x, SHIFT: tl.constexpr):
    """Integers in the order of logits; both zeros are 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _load_candidates(logit_ptr, start, count, best, temperature, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Ordered logits and weights from `start` on; those past the end are less than all, and weigh nothing."""
    offsets = start + tl.arange(0, BLOCK)
    x = tl.load(logit_ptr + offsets, offsets < count, float("-inf"))
    return _sortable_key(x, SHIFT), _weights(x, best, temperature)


@triton.jit
def _amount_above(
    threshold, keys, weights, logit_ptr, count, best, temperature, COUNTS: tl.constexpr, SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The number of candidates at or above a threshold, or the sum of their weights. Registers hold the first BLOCK."""
    result = tl.sum(tl.where(keys >= threshold, 1 if COUNTS else weights, 0).to(tl.int64), 0)
    for start in range(BLOCK, count, BLOCK):
        other_keys, other_weights = _load_candidates(logit_ptr, start, count, best, temperature, SHIFT, BLOCK)
        result += tl.sum(tl.where(other_keys >= threshold, 1 if COUNTS else other_weights, 0).to(tl.int64), 0)
    return result


@triton.jit
def _largest_threshold(
    target, low, high, keys, weights, logit_ptr, count, best, temperature, COUNTS: tl.constexpr, SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest threshold in [low, high) above which the count or sum is at least `target`, by bisection."""
    while high - low > 1:
        middle = (low + high) >> 1
        above = _amount_above(middle, keys, weights, logit_ptr, count, best, temperature, COUNTS, SHIFT, BLOCK)
        low = tl.where(above >= target, middle, low)
        high = tl.where(above >= target, high, middle)
    return low


@triton.jit
def _draw(
    logit_ptr, index_ptr, best_ptr, temperature_ptr, top_k_ptr, top_p_ptr, uniform_ptr, count_ptr, sum_ptr, token_ptr,
    n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr, LEVELS: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    row, parts = tl.program_id(0), tl.arange(0, BLOCK_S)
    best = tl.max(tl.load(best_ptr + row * PARTS + parts, parts < PARTS, float("-inf")), 0)
    temperature, top_k, top_p = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    level, counts, total = _candidates(count_ptr, sum_ptr, top_k_ptr, top_p_ptr, PARTS, BLOCK_S, LEVELS)
    count = tl.sum(counts, 0)
    logit_ptr += row.to(tl.int64) * n
    keys, weights = _load_candidates(logit_ptr, 0, count, best, temperature, SHIFT, BLOCK)

    # Half a weight below the level, where rounding does not reach. Keys in 64 bits, whose differences do not overflow.
    low = _sortable_key(best - (_level_bits(level, LEVELS) + 1) * temperature / _LOG2_E, SHIFT).to(tl.int64)
    high = _sortable_key(best, SHIFT).to(tl.int64) + 1
    threshold, kept_weight = low, total
    if top_k > 0:
        target = tl.minimum(top_k, count)
        threshold = _largest_threshold(
            target, low, high, keys, weights, logit_ptr, count, best, temperature, True, SHIFT, BLOCK
        )
        kept_weight = _amount_above(threshold, keys, weights, logit_ptr, count, best, temperature, False, SHIFT, BLOCK)
    if top_p < 1:
        target = _fraction_of(top_p, kept_weight)
        threshold = _largest_threshold(
            target, threshold, high, keys, weights, logit_ptr, count, best, temperature, False, SHIFT, BLOCK
        )
        kept_weight = _amount_above(threshold, keys, weights, logit_ptr, count, best, temperature, False, SHIFT, BLOCK)

    uniform = tl.load(uniform_ptr + row).to(tl.float64)
    draw = tl.minimum((uniform * kept_weight.to(tl.float64)).to(tl.int64), kept_weight - 1)
    before, place = tl.zeros((), tl.int64), count
    for start in range(0, count, BLOCK):
        keys, weights = _load_candidates(logit_ptr, start, count, best, temperature, SHIFT, BLOCK)
        weights = tl.where(keys >= threshold, weights, 0)
        passed = before + tl.cumsum(weights, 0) > draw
        place = tl.minimum(place, tl.min(tl.where(passed, start + tl.arange(0, BLOCK), count), 0))
        before += tl.sum(weights, 0)
    tl.store(token_ptr + row, tl.load(index_ptr + row.to(tl.int64) * n + place))


def _block_size(n: int) -> int:
    return min(pow2(n), _BLOCK)


def plan_argmax(target: Target, logits: torch.Tensor) -> LaunchPlan:  # noqa: ARG001
    """logits[rows, vocab] to the first of the largest of each row: tokens[rows]."""
    rows, n = logits.shape
    parts = cdiv(n, _BLOCK)
    tokens = poisoned(rows, dtype=torch.int32, device=logits.device)
    if parts == 1:
        return LaunchPlan(launches=(_best_launch(logits, None, tokens),), outputs=(tokens,))
    value = poisoned(rows, parts, dtype=torch.float32, device=logits.device)
    index = poisoned(rows, parts, dtype=torch.int32, device=logits.device)
    arguments = {
        "value_ptr": value, "index_ptr": index, "token_ptr": tokens, "m": rows,
        "PARTS": parts, "BLOCK_M": _MERGED_ROWS, "BLOCK_S": pow2(parts),
    }  # fmt: skip
    merge = Launch(function=_best_of_parts, grid=(cdiv(rows, _MERGED_ROWS),), arguments=arguments, num_warps=1)
    return LaunchPlan(launches=(_best_launch(logits, value, index), merge), outputs=(tokens,))


def _best_launch(logits: torch.Tensor, value: torch.Tensor | None, index: torch.Tensor) -> Launch:
    rows, n = logits.shape
    arguments = {"x_ptr": logits, "value_ptr": value, "index_ptr": index, "n": n, "BLOCK": _block_size(n)}
    return Launch(function=_best, grid=(rows, cdiv(n, _BLOCK)), arguments=arguments, num_warps=8)


def plan_sample(
    target: Target,  # noqa: ARG001
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    uniform: torch.Tensor,
) -> LaunchPlan:
    """logits[rows, vocab] to tokens[rows]. For each row a temperature above 0, a k or 0, a p from 0 to 1, and a random
    number from 0 up to, but not including, 1.
    """
    rows, n = logits.shape
    parts, device = cdiv(n, _BLOCK), logits.device
    value = poisoned(rows, parts, dtype=torch.float32, device=device)
    first = poisoned(rows, parts, dtype=torch.int32, device=device)
    count = poisoned(rows, _LEVELS, parts, dtype=torch.int32, device=device)
    sums = poisoned(rows, _LEVELS, parts, dtype=torch.int64, device=device)
    logit = poisoned(rows, n, dtype=torch.float32, device=device)
    index = poisoned(rows, n, dtype=torch.int32, device=device)
    tokens = poisoned(rows, dtype=torch.int32, device=device)
    sizes = {"n": n, "PARTS": parts, "BLOCK": _block_size(n), "BLOCK_S": pow2(parts), "LEVELS": _LEVELS}
    shared = sizes | {"best_ptr": value, "temperature_ptr": temperature, "count_ptr": count, "sum_ptr": sums}
    candidate_arguments = shared | {"top_k_ptr": top_k, "top_p_ptr": top_p, "logit_ptr": logit, "index_ptr": index}
    draw_arguments = candidate_arguments | {"uniform_ptr": uniform, "token_ptr": tokens, "SHIFT": _SHIFT[logits.dtype]}
    launches = (
        _best_launch(logits, value, first),
        Launch(function=_levels, grid=(rows, parts), arguments=shared | {"x_ptr": logits}, num_warps=8),
        Launch(function=_gather, grid=(rows, parts), arguments=candidate_arguments | {"x_ptr": logits}, num_warps=8),
        Launch(function=_draw, grid=(rows,), arguments=draw_arguments, num_warps=16),  # 8 weights of 64 bits a thread
    )
    return LaunchPlan(launches=launches, outputs=(tokens,))


def reference_argmax(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The first token with the largest logit of each row."""
    largest = logits.float() == logits.float().amax(1, keepdim=True)
    return (largest.int().argmax(1).float(),)  # of ones, argmax finds the first


def reference_sample(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The reference, by sorting the logits."""
    tokens = []
    for x, t, k, p, u in zip(
        logits.float(), temperature, top_k.tolist(), top_p.tolist(), uniform.tolist(), strict=True
    ):
        weights = (((x - x.max()) * (log2(e) / t)).exp2() * 2.0**40).long()
        if 0 < k < x.numel():
            weights[x < x.sort(descending=True).values[k - 1]] = 0
        if p < 1:
            order = x.argsort(descending=True)
            running = weights[order].cumsum(0)
            enough = running >= min(max(torch.tensor(p * running[-1].item()).double().ceil().item(), 1), running[-1])
            weights[x < x[order[enough.int().argmax()]]] = 0
        running = weights.cumsum(0)
        aim = min(int(u * running[-1].item()), running[-1].item() - 1)
        tokens.append((running > aim).int().argmax())
    return (torch.stack(tokens).float(),)


def _make_argmax(case: Case, device: str, seed: int) -> Inputs:
    return {"logits": Random(device, seed).normal(case["rows"], case["vocab"], dtype=case.torch_dtype, scale=3.0)}


def _make_sample(case: Case, device: str, seed: int) -> Inputs:
    """Every other row has a k, every other two have a p, of `percent`."""
    rows, random = case["rows"], Random(device, seed)
    row = torch.arange(rows, device=device)
    return {
        "logits": random.normal(rows, case["vocab"], dtype=case.torch_dtype, scale=3.0),
        "temperature": random.uniform(rows, low=0.5, high=1.5),
        "top_k": torch.where(row % 2 == 0, case["k"], 0).to(torch.int32),
        "top_p": torch.where(row // 2 % 2 == 0, case["percent"] / 100, 1.0),
        "uniform": random.uniform(rows, low=0, high=1),
    }


def _operators(case: Case) -> tuple[Operator, ...]:
    logits = Tensor(name="logits", width=case["vocab"], format=case.format, rows=LOGITS)
    tokens = Tensor(name="tokens", width=1, format=Format("int32", 32, "fp32"), rows=LOGITS)
    if not case.get("k"):
        return (Sample(name="argmax", inputs=(logits,), outputs=(tokens,), greedy=True),)
    settings = Tensor(name="asked", width=4, format=FP32, rows=LOGITS)  # temperature, k, p, u
    return (Sample(name="sample", inputs=(logits, settings), outputs=(tokens,)),)


def _workload(case: Case) -> Workload:
    return Workload.decode(batch=case["rows"], kv_len=1)


KERNELS = (
    Kernel(
        name="argmax", family="sampling",
        cases=(
            case("fp16", rows=3, vocab=1000),
            case("bf16", rows=2, vocab=9001),  # of which some are alike
            case("fp32", rows=1, vocab=4097),
        ),
        full_size=(case("bf16", rows=64, vocab=128256), case("fp32", rows=1, vocab=128256)),
        make=_make_argmax, plan=plan_argmax, reference=reference_argmax,
        tolerance=lambda case: (0.0, 0.0),
        operators=_operators, workload=_workload,
    ),
    Kernel(
        name="sample", family="sampling",
        cases=(
            case("fp16", rows=8, vocab=1000, k=40, percent=90),
            case("bf16", rows=4, vocab=5500, k=4000, percent=50),
            case("fp32", rows=4, vocab=4097, k=1, percent=99),
        ),
        full_size=(
            case("bf16", rows=64, vocab=128256, k=50, percent=90),
            case("fp32", rows=64, vocab=128256, k=50, percent=90),
        ),
        make=_make_sample, plan=plan_sample, reference=reference_sample,
        # Tokens are what they are, unless u meets the last bit of an exponential, once in a million rows.
        tolerance=lambda case: (0.0, 0.0),
        operators=_operators, workload=_workload,
    ),
)  # fmt: skip
