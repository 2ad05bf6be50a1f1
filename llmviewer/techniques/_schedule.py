"""Schedules: the passes of a generation, each with its plan, workload and count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from ..forms import Form, Num, evaluate
from ..records import frozen
from ..roofline import Plan
from ..workload import Spans, Workload


@frozen(kw_only=True)
class Run:
    """Passes of one plan; fields of the workload may be arrays whose last axis has one entry per pass.

    times           repetitions of each pass
    main            whether the plan is the model's, not a draft model's or scorer's
    parts           micro-batches; each is such a pass
    autoregressive  whether a pass waits for the one before it, as decode steps do
    host_s          least host time for the launches of a pass, which overlaps the device's work [s]
    host_range      expected host time and the most, over the least
    """

    name: str
    plan: Plan
    workload: Workload
    times: Num = 1.0
    main: bool = True
    parts: Num = 1
    autoregressive: bool = False
    host_s: Num = 0.0
    host_range: tuple[float, float] = (1.0, 1.0)

    @property
    def passes(self) -> Num:
        """Number of passes."""
        return self._sum(1.0)

    @property
    def time_s(self) -> Num:
        """Time of all passes in sequence. [s]"""
        values = self.plan.values(self.workload)
        return self._sum(
            np.maximum(self.plan.pipelined_s(values, self.parts, autoregressive=self.autoregressive), self.host_s)
        )

    def amount(self, name: str) -> Num:
        """OPs or bytes of all passes on one device per stage; `name` is a form of the plan."""
        return self.total(getattr(self.plan, name))

    def total(self, form: Form) -> Num:
        """`form` summed over all passes on one device per stage."""
        return self._sum(self.parts * evaluate(form, self.workload))

    def _sum(self, per_pass_value: Num) -> Num:
        shapes = (np.shape(per_pass_value), np.shape(self.times), self.workload.shape)
        per_pass = np.broadcast_to(np.asarray(per_pass_value) * self.times, np.broadcast_shapes(*shapes))
        return np.sum(per_pass, axis=-1) if np.ndim(per_pass) else per_pass[()]


@frozen(kw_only=True)
class Schedule:
    """The runs of one generation.

    first   runs up to the first token
    rest    runs for the other tokens
    answer  tokens returned to users, of all sequences together
    steps   tokens after the first, of each sequence
    """

    first: tuple[Run, ...]
    rest: tuple[Run, ...]
    answer: Num
    steps: Num

    @property
    def ttft_s(self) -> Num:
        return time_s(self.first)

    @property
    def decoding_s(self) -> Num:
        """Time after the first token. [s]"""
        return time_s(self.rest)

    @property
    def latency_s(self) -> Num:
        return self.ttft_s + self.decoding_s

    @property
    def tpot_s(self) -> Num:
        """Mean time per token after the first. [s]"""
        return self.decoding_s / self.steps

    @property
    def tokens_per_step(self) -> Num:
        """Tokens after the first of each sequence, per pass of the model."""
        return self.steps / sum(run.passes for run in self.rest if run.main)

    def passes_over_prompts(self, name: str, plan: Plan) -> tuple[Run, ...]:
        """Passes of another network over the prompts that the model processes."""
        return tuple(replace(run, name=name, plan=plan, main=False) for run in self.first if run.main)

    def map(
        self, *, first: Callable[[Run], Iterable[Run]] | None = None, rest: Callable[[Run], Iterable[Run]] | None = None
    ) -> Schedule:
        """The schedule with each run replaced by the runs that `first` or `rest` returns for it."""
        return replace(
            self,
            first=tuple(new for run in self.first for new in (first(run) if first else (run,))),
            rest=tuple(new for run in self.rest for new in (rest(run) if rest else (run,))),
        )


def time_s(runs: Iterable[Run]) -> Num:
    """Time of all runs in sequence. [s]"""
    return sum((run.time_s for run in runs), start=0.0)


def each(workload: Workload, change: Callable[[Spans], Spans]) -> Workload:
    """The workload with `change` applied to every group of sequences."""
    return Workload(tuple(map(change, workload.groups)))
