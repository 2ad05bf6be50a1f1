"""Objectives of advice: latency, TTFT, TPOT or throughput of a generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from ..analyzing.generation import expected_answer
from ..expectation.launches import counted
from ..roofline import Plan
from ..setting import Setting
from ..techniques import Schedule
from ..workload import Workload


class Objective(StrEnum):
    """What recommend() is to make better."""

    LATENCY = "latency"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, kw_only=True)
class AnswerTimes:
    """Of a whole answer of every sequence. [s], [1/s]"""

    ttft_s: float
    tpot_s: float
    latency_s: float
    tokens_per_s: float

    @classmethod
    def of(cls, schedule: Schedule, first_s: float, rest_s: float) -> AnswerTimes:
        """From the time until the first token, and from then on."""
        whole = first_s + rest_s
        each = rest_s / float(schedule.steps)
        return cls(ttft_s=first_s, tpot_s=each, latency_s=whole, tokens_per_s=float(schedule.answer) / whole)

    def merit(self, wanted: Objective) -> float:
        """What is to be large. [1/s]"""
        return {
            Objective.LATENCY: 1 / self.latency_s, Objective.TTFT: 1 / self.ttft_s, Objective.TPOT: 1 / self.tpot_s,
            Objective.THROUGHPUT: self.tokens_per_s,
        }[wanted]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A whole answer of every sequence on one setting, at the bound.

    size                  batch, prompt and gen, as analyze() takes them
    expected              the same as expected of kernels; None where no more than the bound is known
    ops, bytes, launches  of a device, of one of each stage in a pipeline, for each token of the answers
    passes                of the model that answers, for each token of a sequence after the first
    reading               what the prefill is bound by
    bound                 what a decode step in the middle of the answer is bound by
    """

    setting: Setting = field(repr=False)
    size: Mapping[str, int] = field(repr=False)
    schedule: Schedule = field(repr=False)
    times: AnswerTimes
    expected: AnswerTimes | None
    memory_bytes: float
    ops: float
    bytes: float
    launches: float
    passes: float
    reading: str
    bound: str

    @classmethod
    def of(cls, setting: Setting, *, batch: int, prompt: int, gen: int) -> Generated:
        schedule = setting.schedule(batch=batch, prompt=prompt, gen=gen)
        tokens, runs = float(schedule.answer), (*schedule.first, *schedule.rest)
        first, whole = float(schedule.ttft_s), float(schedule.latency_s)
        middle = Workload.decode(batch=setting.layout.share(batch), kv_len=prompt + gen // 2, prompt=prompt)
        return cls(
            setting=setting,
            size={"batch": batch, "prompt": prompt, "gen": gen},
            schedule=schedule,
            times=AnswerTimes.of(schedule, first, whole - first),
            expected=None,
            memory_bytes=float(setting.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen)),
            ops=float(sum(run.amount("ops") for run in runs)) / tokens,
            bytes=float(sum(run.amount("bytes") for run in runs)) / tokens,
            launches=float(sum(run.total(counted(run.plan)) for run in runs)) / tokens,
            passes=1 / float(schedule.tokens_per_step),
            reading=_bound(
                setting.plan, setting.prefill(Workload.prefill(batch=middle.groups[0].batch, prompt=prompt))
            ),
            bound=_bound(setting.decode_plan, setting.step(middle)),
        )

    @property
    def likely(self) -> AnswerTimes:
        """What is expected, where something is."""
        return self.expected or self.times

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.setting.hardware.capacity

    def with_expected(self) -> Generated:
        """With what kernels are expected to take, as analyze() has it."""
        batch, prompt, gen = (self.size[name] for name in ("batch", "prompt", "gen"))
        first, rest = expected_answer(self.setting, batch=np.array([batch]), prompt=prompt, gen=gen)
        if first is None or rest is None:
            return self
        return replace(self, expected=AnswerTimes.of(self.schedule, first.numbers()[0], rest.numbers()[0]))


def _bound(plan: Plan, workload: Workload) -> str:
    """What most of the time of a pass waits for."""
    waits = plan.estimate(workload).waits_s
    return max(waits, key=waits.__getitem__)
