"""token ~ softmax(logits / temperature) of what top-k and then top-p leave, for a random number u of each row; argmax.

Top-k leaves logits that are no less than the k-th largest (arXiv:1805.04833). Top-p, of what top-k has left, leaves
those that are no less than the largest threshold above which there is p of the sum (nucleus sampling,
arXiv:1904.09751). Logits that are alike stay or go together, so more than k may stay. A k of 0 and a p of 1 are none.
What is left stays in the order of the vocabulary; the token is the first whose running sum exceeds u times the sum.

There is no sort. Weights, 2^((logit - max) log2(e) / temperature), are whole numbers of 2^-40, so that sums do not
depend on the order in which programs add, results repeat bit by bit, and thresholds are exact: logits as ordered
integers, their keys. Programs take parts of rows; the last one of a row goes on from what all have found:

1. `_summarize` reads logits from memory; all others have them from L2. The k-th largest maximum of groups of 128 logits
   is no more than the k-th largest logit, and there are few logits between the two. For a k of more than half of the
   groups, and for top-p alone, amounts (numbers, or sums of weights) above every other power of two tell between which
   of them the threshold is.
2. `_narrow` gathers the logits from a bound on where a k is known with them, and bisects their keys for the thresholds
   of top-k and top-p. Elsewhere it adds amounts between two bounds up in bins, and leaves one bin, which the second
   launch gathers if it has more than one key; those of 16 bits seldom have.
3. `_draw` sums the weights that stay, and looks for the token in one part.
"""

from __future__ import annotations

from math import e, log2

import torch
import triton
import triton.language as tl

from llmviewer.records import frozen

from ..forms import LOGITS
from ..operators.base import Operator, Tensor
from ..operators.sampling import Sample
from ..precision import FP32, Format
from ..workload import Workload
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, poisoned, pow2

_BLOCK = 4096  # logits of a program of `_best`
_GROUP = 128  # logits that the largest is known of
_BINS = 2048  # between two bounds
_LOG2_E: tl.constexpr = tl.constexpr(log2(e))
_ONE: tl.constexpr = tl.constexpr(2**40)  # the weight of the largest logit; 2^22 of them have a sum of 62 bits
_RANGE: tl.constexpr = tl.constexpr(41 / log2(e))  # below the largest, at a temperature of 1, weights are 0
_SHIFT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # last bits of fp32 that are alike for all logits
_LEVELS: tl.constexpr = tl.constexpr(8)  # powers of 4 that weights are summed above
_BOUND_STEPS: tl.constexpr = tl.constexpr(12)  # of a bisection that need not be exact
_SLACK: tl.constexpr = tl.constexpr(2**-10)  # relative error that sums in fp32 may have, far from it
_IN_REGISTERS: tl.constexpr = tl.constexpr(1024)  # gathered logits; others are read at every step


@triton.jit
def _is_last(done_ptr, programs):
    """Whether all other programs of a row have stored what they found; loads of it must bypass L1 (.cg)."""
    tl.debug_barrier()
    last = tl.atomic_add(done_ptr, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(done_ptr, 0)
    return last


@triton.jit
def _best(
    x_ptr, value_ptr, index_ptr, done_ptr, token_ptr, n, PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr
):
    """The first place of the largest logit of a row."""
    row, part = tl.program_id(0), tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * n + columns, columns < n, float("-inf")).to(tl.float32)
    value, index = tl.max(x, 0, return_indices=True)
    tl.store(value_ptr + row * PARTS + part, value)
    tl.store(index_ptr + row * PARTS + part, part * BLOCK + index)
    if _is_last(done_ptr + row, PARTS):
        parts = tl.arange(0, BLOCK_S)
        offsets = row * PARTS + parts
        values = tl.load(value_ptr + offsets, parts < PARTS, float("-inf"), cache_modifier=".cg")
        _, first = tl.max(values, 0, return_indices=True)
        tl.store(token_ptr + row, tl.load(index_ptr + row * PARTS + first, cache_modifier=".cg"))


@triton.jit
def _sortable_key(x, SHIFT: tl.constexpr):
    """Integers in the order of logits; both zeros are 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _weights(x, best, temperature):
    """Whole numbers of 2^-40."""
    return (tl.exp2((x - best) * (_LOG2_E / temperature)) * _ONE).to(tl.int64)


@triton.jit
def _fraction_of(fraction, total):
    """The least whole number that is no less than `fraction` of `total`, and from 1 to `total`."""
    return tl.minimum(tl.maximum(tl.ceil(fraction.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1), total)


@triton.jit
def _grid_level(best, scale):
    """The even power of two at or below the weight of a logit, of all logits' common unit, halved."""
    return tl.floor(best * scale * 0.5)


@triton.jit
def _summarize(
    x_ptr, temperature_ptr, top_k_ptr, top_p_ptr, largest_ptr, sum_ptr, level_ptr, best_ptr, bound_ptr, target_ptr,
    done_ptr, n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr, GROUPS: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The largest of all groups and of a row, and bounds of the threshold: keys [low, high), of which low is a
    threshold where there are no others.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * n + columns, columns < n, float("-inf")).to(tl.float32)
    temperature, top_k, top_p = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    scale = _LOG2_E / temperature
    by_levels = (top_k > PARTS * GROUPS // 2) | ((top_k <= 0) & (top_p < 1))
    largest = tl.max(x.reshape(GROUPS, BLOCK // GROUPS), 1)
    tl.store(largest_ptr + (row * PARTS + part) * GROUPS + tl.arange(0, GROUPS), largest)
    if by_levels:
        best = tl.max(largest, 0)
        best = tl.where(best == float("-inf"), 0.0, best)
        weights = tl.exp2((x - best) * scale)
        amounts = tl.where(top_k > 0, tl.where(columns < n, 1.0, 0.0), weights)
        tl.store(sum_ptr + row * PARTS + part, tl.sum((weights * _ONE).to(tl.int64), 0))
        power, top = x * scale, _grid_level(best, scale)
        for level in tl.static_range(_LEVELS):
            above = tl.sum(tl.where(power >= (top - level) * 2, amounts, 0.0), 0)
            tl.store(level_ptr + (row * PARTS + part) * _LEVELS + level, above)
    if _is_last(done_ptr + row, PARTS):
        parts, groups = tl.arange(0, BLOCK_S), tl.arange(0, GROUPS)
        offsets = (row * PARTS + parts[:, None]) * GROUPS + groups[None, :]
        maxima = tl.load(largest_ptr + offsets, (parts < PARTS)[:, None], float("-inf"), cache_modifier=".cg")
        part_best = tl.max(maxima, 1)
        best = tl.max(part_best, 0)
        low, high = best - _RANGE * temperature, best
        target = top_k.to(tl.int64)
        if top_k > 0:
            above = best
            for _ in range(_BOUND_STEPS):
                middle = (low + above) * 0.5
                enough = tl.sum(tl.sum((maxima >= middle).to(tl.int32), 1), 0) >= top_k
                low = tl.where(enough, middle, low)
                above = tl.where(enough, above, middle)
        if by_levels:
            part_best = tl.where(part_best == float("-inf"), best, part_best)
            factors = tl.exp2((part_best - best) * scale)
            sums = tl.load(sum_ptr + row * PARTS + parts, parts < PARTS, 0, cache_modifier=".cg")
            total = tl.sum(sums.to(tl.float64) * factors.to(tl.float64), 0).to(tl.int64)
            target = tl.where(top_k > 0, target, _fraction_of(top_p, total))
            least = tl.where(top_k > 0, target.to(tl.float32), target.to(tl.float32) / _ONE)
            factors = tl.where(top_k > 0, 1.0, factors)
            top = _grid_level(best, scale)
            lower = tl.minimum(top - _grid_level(part_best, scale), _LEVELS).to(tl.int32)
            for level in tl.static_range(_LEVELS):
                has_level = (parts < PARTS) & (level >= lower)
                at = level_ptr + (row * PARTS + parts) * _LEVELS + level - lower
                amount = tl.sum(tl.load(at, has_level, 0.0, cache_modifier=".cg") * factors, 0)
                x_level = (top - level) * 2 / scale
                margin = tl.abs(x_level) * 2.0**-20
                if (top_k <= 0) | (top_p >= 1):  # else weights above a bound of top-k are needed for top-p
                    high = tl.where(amount * (1 + _SLACK) < least, x_level + margin, high)
                low = tl.where(amount * (1 - _SLACK) >= least, tl.maximum(low, x_level - margin), low)
        tl.store(target_ptr + row, target)
        low_key = _sortable_key(low, SHIFT).to(tl.int64)
        high_key = _sortable_key(tl.minimum(high, best), SHIFT).to(tl.int64) + 1
        high_key = tl.where((top_k > 0) | (top_p < 1), tl.maximum(high_key, low_key + 1), low_key)
        tl.store(best_ptr + row, best)
        tl.store(bound_ptr + 2 * row, low_key)
        tl.store(bound_ptr + 2 * row + 1, high_key)


@triton.jit
def _load_candidates(logit_ptr, start, count, best, temperature, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Keys and weights from `start` on; those past the end are less than all, and weigh nothing."""
    offsets = start + tl.arange(0, BLOCK)
    x = tl.load(logit_ptr + offsets, offsets < count, float("-inf"), cache_modifier=".cg")
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
def _threshold(
    logit_ptr, count, low, high, top_k, top_p, target, best, temperature, SHIFT: tl.constexpr, BLOCK: tl.constexpr
):
    """The key from which on logits stay, in [low, high): that above which there is `target`, of numbers for top-k, and
    of weights for top-p alone.
    """
    keys, weights = _load_candidates(logit_ptr, 0, count, best, temperature, SHIFT, BLOCK)
    threshold = low
    if top_k > 0:
        threshold = _largest_threshold(
            target, low, high, keys, weights, logit_ptr, count, best, temperature, True, SHIFT, BLOCK
        )
        if top_p < 1:
            kept_weight = _amount_above(
                threshold, keys, weights, logit_ptr, count, best, temperature, False, SHIFT, BLOCK
            )
            target = _fraction_of(top_p, kept_weight)
    if top_p < 1:
        threshold = _largest_threshold(
            target, threshold, high, keys, weights, logit_ptr, count, best, temperature, False, SHIFT, BLOCK
        )
    return threshold


@triton.jit
def _narrow(
    x_ptr, temperature_ptr, top_k_ptr, top_p_ptr, largest_ptr, best_ptr, bound_ptr, target_ptr, bin_ptr, above_ptr,
    logit_ptr, count_ptr, done_ptr, n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr, SHIFT: tl.constexpr, BINS: tl.constexpr,
    GATHERS: tl.constexpr,
):  # fmt: skip
    """Narrows the bounds of a row's threshold: to one key where logits are gathered, else to one bin."""
    row, part = tl.program_id(0), tl.program_id(1)
    low, high = tl.load(bound_ptr + 2 * row), tl.load(bound_ptr + 2 * row + 1)
    if high - low > 1:
        temperature, top_k, top_p = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
        best = tl.load(best_ptr + row)
        gathers = GATHERS | ((top_k > 0) & ((top_p < 1) | (top_k <= PARTS * GROUPS // 2)))
        shift = 0
        while (high - 1 - low) >> shift >= BINS:
            shift += 1
        logit_ptr += row.to(tl.int64) * n
        largest = tl.max(tl.load(largest_ptr + (row * PARTS + part) * GROUPS + tl.arange(0, GROUPS)), 0)
        if _sortable_key(largest, SHIFT) >= low:
            columns = part * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row.to(tl.int64) * n + columns, columns < n, float("-inf")).to(tl.float32)
            keys = _sortable_key(x, SHIFT)
            inside = (keys >= low) & (keys < high)
            if gathers:
                number = inside.to(tl.int32)
                places = tl.atomic_add(count_ptr + row, tl.sum(number, 0), sem="relaxed") + tl.cumsum(number, 0) - 1
                tl.store(logit_ptr + places, x, inside)
            else:
                amounts = tl.where(top_k > 0, 1, _weights(x, best, temperature))
                tl.atomic_add(above_ptr + row, tl.sum(tl.where(keys >= high, amounts, 0), 0), sem="relaxed")
                bins = ((keys - low) >> shift).to(tl.int32)
                tl.atomic_add(bin_ptr + row.to(tl.int64) * BINS + bins, amounts, inside, sem="relaxed")
        if _is_last(done_ptr + row, PARTS):
            target = tl.load(target_ptr + row)
            if gathers:
                count = tl.load(count_ptr + row, cache_modifier=".cg")
                tl.store(count_ptr + row, 0)
                low = _threshold(
                    logit_ptr, count, low, high, top_k, top_p, target, best, temperature, SHIFT, _IN_REGISTERS
                )
                high = low
            else:
                bins = tl.arange(0, BINS)
                bin_at = bin_ptr + row.to(tl.int64) * BINS + bins
                sums = tl.load(bin_at, cache_modifier=".cg")
                above = tl.load(above_ptr + row, cache_modifier=".cg") + tl.sum(sums, 0) - tl.cumsum(sums, 0)
                tl.store(bin_at, tl.zeros_like(sums))
                tl.store(above_ptr + row, tl.zeros((), tl.int64))
                chosen = tl.max(tl.where(above + sums >= target, bins, 0), 0)
                tl.store(target_ptr + row, target - tl.sum(tl.where(bins == chosen, above, 0), 0))
                low += chosen.to(tl.int64) << shift
                high = tl.minimum(low + (tl.full((), 1, tl.int64) << shift), high)
            tl.store(bound_ptr + 2 * row, low)
            tl.store(bound_ptr + 2 * row + 1, high)


@triton.jit
def _load_weights(x_ptr, row, part, n, threshold, best, temperature, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Columns of a part of a row, and their weights, of what stays."""
    columns = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * n + columns, columns < n, float("-inf")).to(tl.float32)
    return columns, tl.where(_sortable_key(x, SHIFT) >= threshold, _weights(x, best, temperature), 0)


@triton.jit
def _draw(
    x_ptr, temperature_ptr, uniform_ptr, largest_ptr, best_ptr, bound_ptr, sum_ptr, done_ptr, token_ptr, n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr, GROUPS: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The first token of a row whose running sum exceeds u times the sum of what stays."""
    row, part = tl.program_id(0), tl.program_id(1)
    threshold, best, temperature = tl.load(bound_ptr + 2 * row), tl.load(best_ptr + row), tl.load(temperature_ptr + row)
    largest = tl.max(tl.load(largest_ptr + (row * PARTS + part) * GROUPS + tl.arange(0, GROUPS)), 0)
    total = tl.zeros((), tl.int64)
    if _sortable_key(largest, SHIFT) >= threshold:
        _, weights = _load_weights(x_ptr, row, part, n, threshold, best, temperature, SHIFT, BLOCK)
        total = tl.sum(weights, 0)
    tl.store(sum_ptr + row * PARTS + part, total)
    if _is_last(done_ptr + row, PARTS):
        parts = tl.arange(0, BLOCK_S)
        sums = tl.load(sum_ptr + row * PARTS + parts, parts < PARTS, 0, cache_modifier=".cg")
        kept_weight, running = tl.sum(sums, 0), tl.cumsum(sums, 0)
        uniform = tl.load(uniform_ptr + row).to(tl.float64)
        draw = tl.minimum((uniform * kept_weight.to(tl.float64)).to(tl.int64), kept_weight - 1)
        chosen = tl.min(tl.where(running > draw, parts, PARTS - 1), 0)
        before = tl.sum(tl.where(parts < chosen, sums, 0), 0)
        columns, weights = _load_weights(x_ptr, row, chosen, n, threshold, best, temperature, SHIFT, BLOCK)
        passed = before + tl.cumsum(weights, 0) > draw
        tl.store(token_ptr + row, tl.min(tl.where(passed, columns, n - 1), 0))


def plan_argmax(target: Target, logits: torch.Tensor) -> LaunchPlan:  # noqa: ARG001
    """logits[rows, vocab] to the first of the largest of each row: tokens[rows]."""
    rows, n = logits.shape
    block, device = min(pow2(n), _BLOCK), logits.device
    parts = cdiv(n, block)
    tokens = poisoned(rows, dtype=torch.int32, device=device)
    arguments = {
        "x_ptr": logits, "value_ptr": poisoned(rows, parts, dtype=torch.float32, device=device),
        "index_ptr": poisoned(rows, parts, dtype=torch.int32, device=device),
        "done_ptr": torch.zeros(rows, dtype=torch.int32, device=device), "token_ptr": tokens, "n": n,
        "PARTS": parts, "BLOCK": block, "BLOCK_S": pow2(parts),
    }  # fmt: skip
    launch = Launch(function=_best, grid=(rows, parts), arguments=arguments, num_warps=8)
    return LaunchPlan(launches=(launch,), outputs=(tokens,))


@frozen(kw_only=True)
class SampleTiling:
    """`block` logits of a row for each program of `num_warps` warps."""

    block: int
    num_warps: int


_TILING = SampleTiling(block=2048, num_warps=8)  # of 8 logits a thread, 4 programs and more fit a multiprocessor
_ALTERNATIVE_TILINGS = (
    SampleTiling(block=4096, num_warps=16),
    SampleTiling(block=2048, num_warps=4),
    SampleTiling(block=4096, num_warps=8),
    SampleTiling(block=1024, num_warps=4),
)


def plan_sample(
    target: Target,  # noqa: ARG001
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    uniform: torch.Tensor,
    tile: SampleTiling = _TILING,
) -> LaunchPlan:
    """logits[rows, vocab] to tokens[rows]. For each row a temperature above 0, a k or 0, a p from 0 to 1, and a random
    number from 0 up to, but not including, 1.
    """
    rows, n = logits.shape
    block, device = min(pow2(n), tile.block), logits.device
    parts, groups = cdiv(n, block), max(block // _GROUP, 1)

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return poisoned(rows, *shape, dtype=dtype, device=device)

    def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, *shape, dtype=dtype, device=device)

    tokens, sums = empty(dtype=torch.int32), empty(parts, dtype=torch.int64)
    shared = {
        "x_ptr": logits, "temperature_ptr": temperature, "largest_ptr": empty(parts, groups, dtype=torch.float32),
        "best_ptr": empty(dtype=torch.float32), "bound_ptr": empty(2, dtype=torch.int64),
        "done_ptr": zeros(dtype=torch.int32), "n": n, "PARTS": parts, "BLOCK": block, "GROUPS": groups,
        "SHIFT": _SHIFT[logits.dtype],
    }  # fmt: skip
    limits = {"top_k_ptr": top_k, "top_p_ptr": top_p, "target_ptr": empty(dtype=torch.int64)}
    levels = {"sum_ptr": sums, "level_ptr": empty(parts, _LEVELS.value, dtype=torch.float32), "BLOCK_S": pow2(parts)}
    bins = {
        "bin_ptr": zeros(_BINS, dtype=torch.int64), "above_ptr": zeros(dtype=torch.int64), "BINS": _BINS,
        "logit_ptr": empty(n, dtype=torch.float32), "count_ptr": zeros(dtype=torch.int32),
    }  # fmt: skip
    drawn = {"uniform_ptr": uniform, "sum_ptr": sums, "token_ptr": tokens, "BLOCK_S": pow2(parts)}
    functions = (
        (_summarize, limits | levels),
        (_narrow, limits | bins | {"GATHERS": False}),
        (_narrow, limits | bins | {"GATHERS": True}),
        (_draw, drawn),
    )
    launches = tuple(
        Launch(function=function, grid=(rows, parts), arguments=shared | arguments, num_warps=tile.num_warps)
        for function, arguments in functions
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
    settings = Tensor(name="settings", width=4, format=FP32, rows=LOGITS)  # temperature, k, p, u
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
        tilings=lambda target, case: _ALTERNATIVE_TILINGS,
        # Tokens are what they are, unless u meets the last bit of an exponential, once in a million rows.
        tolerance=lambda case: (0.0, 0.0),
        operators=_operators, workload=_workload,
    ),
)  # fmt: skip
