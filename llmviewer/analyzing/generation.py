"""The whole generation: its lower bounds, and what is expected of real kernels; of one batch, and of many at once."""

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
_STEPS: Final = 8  # decode steps of a generation that are looked at
_TOGETHER: Final = 1 << 18  # decode steps of all batches whose times are held at once

Column = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """Lower bounds, and what is expected. tpot_s, the mean over the decode steps, is None where one token is generated:
    no step is taken.

    A model that does not generate takes ttft_s for its one pass, and tokens_per_s are those that it reads. What is
    expected is None where only bounds are known.
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
    """The whole generation of `gen` tokens, or the one pass where none are written."""
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
    """The whole generation, in the passes that techniques arrange."""
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
    """Fields of GenerationResult, from what is expected until the first token and after it.

    Errors of both are those of the same kernels, so they add.
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
    """What is expected, and between what most measured times lie. [s]"""
    numbers: Sequence[float | None] = interval.numbers() if interval else (None, None, None)
    return dict(zip(("", "_low", "_high"), numbers, strict=True))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A generation at every batch, as a lower bound.

    tpot_s       mean time of a token after the first, nan where there is none [s]
    decoding_s   all after the first token [s]
    tokens       that are made for those who asked, of all sequences together
    ops, nbytes  of all passes until the first token, on one device [OP], [B]
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
    """Of `setting`, at each of several batches, a column of which is worked out at a time."""
    step = max(_TOGETHER // gen, 1)
    parts = [
        _columns(setting, batch[start : start + step], prompt=prompt, gen=gen, images=images)
        for start in range(0, len(batch), step)
    ]
    return Answer(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _columns(setting: Setting, batch: Column, **lengths: int) -> dict[str, Column]:
    """Fields of Answer. The last axis of a schedule's arrays is that of passes."""
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
    """What is expected until the first token and after it, at every batch, whoever arranges the passes; None where no
    more than a bound is known, and where there is no token after the first. [s]
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
    """What the `steps` after a prefill take, at each batch: every step where they are few, else those amid equal parts
    of them.

    That is exact where times are linear in the length, as they nearly are between the points where kernels change.
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
    """What passes are expected to take, one after another; None where no more than a bound is known of one."""
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
