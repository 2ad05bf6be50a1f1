"""Bounds and expected times of a whole generation, of one batch or of many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..expectation.expected import Interval
from ..expectation.kernels import Kernels
from ..forms import Num
from ..generation import generation, prefill_s
from ..setting import Setting, arranges
from ..techniques import Run, Schedule
from ..workload import Workload

NOTHING: Final = Interval(expected=0.0, low=0.0, high=0.0)
_STEPS: Final = 8  # decode steps of a generation whose expected times are evaluated
_TOGETHER: Final = 1 << 18  # most decode steps, of all batches, evaluated at once

Column = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """Lower bounds of a generation, and expected times, which are None if only bounds are known. [s], [1/s]

    tpot_s is the mean over decode steps, None if there are none. For a model that does not generate, ttft_s is the time
    of its one pass, and tokens_per_s counts prompt tokens.
    """

    ttft_s: float
    tpot_s: float | None
    latency_s: float
    tokens_per_s: float
    expected_ttft_s: float | None = None
    expected_ttft_low_s: float | None = None
    expected_ttft_high_s: float | None = None
    expected_tpot_s: float | None = None
    expected_tpot_low_s: float | None = None
    expected_tpot_high_s: float | None = None
    expected_latency_s: float | None = None
    expected_latency_low_s: float | None = None
    expected_latency_high_s: float | None = None
    expected_tokens_per_s: float | None = None


def generated(setting: Setting, *, batch: int, prompt: int, gen: int, images: int) -> GenerationResult:
    """The generation of `gen` tokens, or one pass if `gen` is 0."""
    asked = {"prompt": prompt, "images": images}
    first, rest = expected_answer(setting, batch=np.array([batch]), gen=gen or 1, **asked)
    if gen <= 1:
        rest = NOTHING if first else None
    if not gen:
        time_s = float(prefill_s(setting.plan, setting.layout, batch=batch, **asked))
        return GenerationResult(
            ttft_s=time_s,
            tpot_s=None,
            latency_s=time_s,
            tokens_per_s=batch * prompt / time_s,
            **_expected(first, rest, steps=0, tokens=batch * prompt),
        )
    answer = generation(setting.plan, setting.decode_plan, layout=setting.layout, batch=batch, gen=gen, **asked)
    return GenerationResult(
        ttft_s=float(answer.ttft_s),
        tpot_s=None if gen == 1 else float(answer.tpot_s),
        latency_s=float(answer.latency_s),
        tokens_per_s=float(answer.tokens_per_s),
        **_expected(first, rest, steps=gen - 1, tokens=batch * gen),
    )


def scheduled(setting: Setting, schedule: Schedule) -> GenerationResult:
    """The generation, with the passes of `schedule`."""
    first, rest = (runs_expected(setting.kernels, runs) for runs in (schedule.first, schedule.rest))
    expected: dict[str, Any] = _expected(first, rest, steps=float(schedule.steps), tokens=float(schedule.answer))
    return GenerationResult(**bounds_of(schedule), **expected)


def bounds_of(schedule: Schedule) -> dict[str, Any]:
    """The lower bounds of GenerationResult, by name."""
    return {
        "ttft_s": float(schedule.ttft_s), "tpot_s": float(schedule.tpot_s) if schedule.rest else None,
        "latency_s": float(schedule.latency_s), "tokens_per_s": float(schedule.answer / schedule.latency_s),
    }  # fmt: skip


def _expected(first: Interval | None, rest: Interval | None, *, steps: float, tokens: float) -> dict[str, float | None]:
    """Expected fields of GenerationResult, from the expected times until the first token and after it.

    Intervals add end by end: both times have the same kernels, so their errors correlate.
    """
    if first is None or rest is None:
        return {}
    whole = first.join(rest, add)
    each = rest.map(lambda s: s / steps) if steps else None
    found: dict[str, float | None] = {"expected_tokens_per_s": tokens / whole.numbers()[0]}
    for name, interval in (("ttft", first), ("tpot", each), ("latency", whole)):
        found |= {f"expected_{name}{end}_s": value for end, value in ends(interval).items()}
    return found


def ends(interval: Interval | None) -> dict[str, float | None]:
    """The expected time and its 80 % interval, by suffix of field names. [s]"""
    numbers: Sequence[float | None] = interval.numbers() if interval else (None, None, None)
    return dict(zip(("", "_low", "_high"), numbers, strict=True))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Lower bounds of a generation, as arrays over batches.

    ttft_s       time to first token [s]
    tpot_s       mean time per token after the first, nan if there is none [s]
    decoding_s   time from the first token to the last [s]
    tokens       generated tokens of all sequences together
    ops, nbytes  work of all passes until the first token, on one device [OP], [B]
    """

    ttft_s: Column
    tpot_s: Column
    decoding_s: Column
    tokens: Column
    ops: Column
    nbytes: Column

    @property
    def latency_s(self) -> Column:
        return self.ttft_s + self.decoding_s

    @property
    def tokens_per_s(self) -> Column:
        return self.tokens / self.latency_s


def answer(setting: Setting, *, batch: Column, prompt: int, gen: int, images: int = 0) -> Answer:
    """The generation at each of several batches."""
    step = max(_TOGETHER // gen, 1)
    parts = [
        _columns(setting, batch[start : start + step], prompt=prompt, gen=gen, images=images)
        for start in range(0, len(batch), step)
    ]
    return Answer(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _columns(setting: Setting, batch: Column, **lengths: int) -> dict[str, Column]:
    """Fields of Answer. The last axis of arrays in a schedule is that of passes."""
    schedule = setting.schedule(batch=batch[:, None], **lengths)
    found = {
        "ttft_s": schedule.ttft_s,
        "tpot_s": schedule.tpot_s if schedule.rest else np.nan,
        "decoding_s": schedule.decoding_s,
        "tokens": np.reshape(schedule.answer, -1),
        "ops": sum(run.amount("ops") for run in schedule.first),
        "nbytes": sum(run.amount("bytes") for run in schedule.first),
    }
    return {name: np.broadcast_to(values, batch.shape) for name, values in found.items()}


def expected_answer(
    setting: Setting, *, batch: Column, prompt: int, gen: int, images: int = 0
) -> tuple[Interval | None, Interval | None]:
    """(expected time until the first token, expected time after it), at each batch. [s]

    None where only bounds are known; the second is also None if one token is generated.
    """
    kernels = setting.kernels
    if kernels is None:
        return None, None
    if not arranges(setting.techniques):
        read = {"prompt": prompt, "images": images}
        first = setting.expected_time("prefill", Workload.prefill(batch=setting.layout.share(batch), **read), batch)
        rest = steps_expected(setting, batch=batch, steps=gen - 1, **read) if gen > 1 else None
        return first, rest
    found: list[tuple[Interval | None, Interval | None]] = []
    for one in batch.tolist():
        schedule = setting.schedule(batch=one, prompt=prompt, gen=gen, images=images)
        first, rest = (runs_expected(kernels, runs) if runs else None for runs in (schedule.first, schedule.rest))
        found.append((first, rest))
    first, rest = (_stacked(side) for side in zip(*found, strict=True))
    return first, rest


def steps_expected(setting: Setting, *, batch: Num, prompt: int, steps: int, images: int = 0) -> Interval | None:
    """Expected total time of the `steps` decode steps after a prefill, at each batch. [s]

    Up to _STEPS steps are evaluated each; more are split into _STEPS equal parts, each evaluated at its middle. That is
    exact if times are linear in the context length, as they nearly are between changes of kernels.
    """
    points = min(steps, _STEPS)
    lengths = prompt + 0.5 + (np.arange(points) + 0.5) * steps / points
    each, context = (grid.ravel() for grid in np.meshgrid(np.atleast_1d(batch), lengths, indexing="ij"))
    workload = Workload.decode(batch=setting.layout.share(each), kv_len=context, prompt=prompt, images=images)
    found = setting.expected_time("decode", workload, each)
    return found.map(lambda s: np.mean(np.reshape(s, (-1, points)), axis=1) * steps) if found else None


def _stacked(each: Sequence[Interval | None]) -> Interval | None:
    known = [one.numbers() for one in each if one]
    if len(known) < len(each):
        return None
    expected, low, high = np.array(known).T
    return Interval(expected=expected, low=low, high=high)


def runs_expected(kernels: Kernels | None, runs: Sequence[Run]) -> Interval | None:
    """Expected total time of passes, one after another; None if only a bound is known for one. [s]"""
    whole = NOTHING
    for run in runs:
        found = kernels.run(run.plan, run.workload) if kernels else None
        if not found or not found.modelled:
            return None
        bound = np.sum(run.plan.time_s(run.workload) * np.asarray(run.times))
        for_each = replace(run, host_s=0.0, parts=1).time_s / bound  # passes alike may have one entry for all
        each = found.in_parts(run.parts, turns=run.turns)
        times = each.map(partial(np.maximum, run.host_s)).map(partial(np.multiply, run.times)).map(np.sum)
        whole = whole.join(times.map(partial(np.multiply, for_each)), add)
    return whole
