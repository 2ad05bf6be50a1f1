"""Generations: a prefill, which yields the first token, and a decode step per further token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import combinations, pairwise
from math import inf
from typing import Final

import numpy as np

from .forms import BATCH_SHARE, CONTEXT_INDEPENDENT, PERIODIC, TARGET, WHOLE_PASS, Feature, Num
from .parallel.layout import ONE_DEVICE, Layout
from .records import frozen
from .roofline import Plan
from .workload import Workload

_MAX_POINTS_AT_ONCE: Final = 1 << 16  # points of a workload that are computed together


@frozen(kw_only=True)
class Generation:
    """Lower bounds for `gen` tokens of each of `batch` sequences.

    ttft_s        time to first token: the prefill [s]
    tpot_s        time per output token: mean of the decode steps; nan if there is none [s]
    latency_s     prefill and decode steps [s]
    tokens_per_s  generated tokens of all sequences over the latency [1/s]
    """

    ttft_s: Num
    tpot_s: Num
    latency_s: Num
    tokens_per_s: Num


def generation(
    plan: Plan,
    decode_plan: Plan | None = None,
    *,
    batch: Num,
    prompt: Num,
    gen: Num,
    images: Num = 0,
    layout: Layout = ONE_DEVICE,
) -> Generation:
    """Times of a generation; step i = 1 .. gen - 1 attends to prompt + i tokens, its own included.

    decode_plan  plan of decode steps; None: `plan`
    images       images per prompt
    layout       layout of all devices; plans are those of one
    """
    ttft = prefill_s(plan, layout, batch=batch, prompt=prompt, images=images)
    decoding = decoding_s(decode_plan or plan, layout, batch=batch, prompt=prompt, gen=gen, images=images)
    latency = ttft + decoding
    with np.errstate(invalid="ignore"):
        tpot = decoding / (np.asarray(gen) - 1)
    return Generation(ttft_s=ttft, tpot_s=tpot, latency_s=latency, tokens_per_s=batch * gen / latency)


def decoding_s(plan: Plan, layout: Layout = ONE_DEVICE, *, batch: Num, prompt: Num, gen: Num, images: Num = 0) -> Num:
    """Time of all decode steps, one per token after the first. [s]"""
    steps = np.asarray(gen) - 1
    last = prompt + np.maximum(steps, 1)
    share, parts = layout.micro_batch_size(batch), layout.micro_batch_count(batch)
    lengths = {"first": prompt + 1, "last": last, "prompt": prompt, "images": images}
    decoding = decode_s(plan, batch=share, **lengths)
    if layout.splits_batches:  # every lane processes all micro-batches before the next step
        lanes = (decode_s(lane, batch=share, **lengths) for lane in plan.lanes)
        decoding = reduce(np.maximum, (parts * busy for busy in lanes), decoding)
    return np.where(steps > 0, decoding, 0.0)


def prefill_s(plan: Plan, layout: Layout = ONE_DEVICE, *, batch: Num, prompt: Num, images: Num = 0) -> Num:
    """Time of the prefill of a batch. [s]"""
    values = plan.values(Workload.prefill(batch=layout.micro_batch_size(batch), prompt=prompt, images=images))
    return plan.pipelined_s(values, layout.micro_batch_count(batch), autoregressive=False)


def decode_s(plan: Plan, *, batch: Num, first: Num, last: Num, prompt: Num = 0, images: Num = 0) -> Num:
    """Time of one decode step at each kv_len from `first` to `last`, both included. [s]

    Exact without a loop over steps: busy times are piecewise linear in kv_len, with bends where a mask starts to hide
    keys. Between bends, an operator's time is the largest of a few lines, which is summed between their crossings.

    prompt  tokens processed by the encoder, if the model has one
    images  images per prompt
    """
    if plan.fetches:
        return _step_by_step(plan, first, last, batch=batch, prompt=prompt, images=images)
    bends, periods = _bends(plan.features, prompt)
    result: Num = 0.0
    while np.any(np.less_equal(first, last)):
        end = last
        for bend in bends:
            end = np.where(np.less_equal(first, bend), np.minimum(end, bend), end)
        for period in periods:
            end = np.minimum(end, np.ceil(first / period) * period)
        result = result + _segment(plan, first, end, batch=batch, prompt=prompt, images=images)
        first = end + 1
    return result


def _step_by_step(plan: Plan, first: Num, last: Num, **sequences: Num) -> Num:
    """decode_s of offloaded data, for which a pass waits as a whole: its time is no sum over operators."""
    steps, shape = int(np.max(last - first, initial=-1)) + 1, np.broadcast_shapes(*map(np.shape, (first, last)))
    chunk_steps = max(_MAX_POINTS_AT_ONCE // max(int(np.prod(shape)), 1), 1)
    start, end = (np.asarray(each)[..., None] for each in (first, last))
    sequence_columns = {name: np.asarray(value)[..., None] for name, value in sequences.items()}
    result: Num = 0.0
    for before in range(0, steps, chunk_steps):
        lengths = start + np.arange(before, min(before + chunk_steps, steps))
        each = plan.time_s(Workload.decode(kv_len=np.minimum(lengths, np.maximum(start, end)), **sequence_columns))
        result = result + np.sum(np.where(lengths <= end, each, 0.0), axis=-1)
    return result


def _bends(features: Iterable[Feature], prompt: Num) -> tuple[list[Num], list[float]]:
    """The lengths at which features bend, and the periods of periodic bends."""
    limits = {
        (WHOLE_PASS if f.stream.name == BATCH_SHARE else f.stream, f.arguments[-1], f.name)
        for f in features
        if f.arguments and f.arguments[-1] < inf
    }
    shift = {WHOLE_PASS: 0, TARGET: prompt - 1}  # decoder lengths start at the end of the encoder's input
    bends = [limit + shift[stream] for stream, limit, name in limits if stream in shift and name not in PERIODIC]
    periods = {limit for stream, limit, name in limits if stream == WHOLE_PASS and name in PERIODIC}
    return bends, sorted(periods)


def _segment(plan: Plan, first: Num, last: Num, **sequences: Num) -> Num:
    """decode_s without bends between `first` and `last`; 0 if `last` < `first`."""
    present = np.less_equal(first, last)
    last = np.maximum(first, last)
    at_first = plan.values(Workload.decode(kv_len=first, **sequences))
    at_last = plan.values(Workload.decode(kv_len=last, **sequences))
    result: Num = 0.0
    for forms, launches in plan.equal_launches:
        if all(feature.name in CONTEXT_INDEPENDENT for form in forms for feature in form.features()):
            each = reduce(np.maximum, (form(at_first) for form in forms))
            result = result + launches * each * (last - first + 1)
            continue
        ends = [(form(at_first), form(at_last)) for form in forms]
        result = result + launches * _sum_of_largest(ends, last - first)
    return np.where(present, result, 0.0)


def _sum_of_largest(ends: Sequence[tuple[Num, Num]], steps: Num) -> Num:
    """Sum over 0 .. steps of the maximum of lines, given by their values at 0 and at `steps`."""
    crossings = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for (a0, a1), (b0, b1) in combinations(ends, 2):
            before, after = np.subtract(a0, b0), np.subtract(a1, b1)
            crosses = before * after < 0
            crossings.append(np.where(crosses, np.floor(steps * before / (before - after)), 0))
        edges = [np.full(np.shape(steps), -1), *np.sort(np.broadcast_arrays(*crossings, 0), axis=0), steps]
        slope = 1 / np.maximum(steps, 1)

        def largest(step: Num) -> Num:
            return reduce(np.maximum, (a + (b - a) * (step * slope) for a, b in ends))

        pieces = [
            np.maximum(stop - start, 0) * (largest(start + 1) + largest(stop)) / 2 for start, stop in pairwise(edges)
        ]
    return sum(pieces, start=0.0)
