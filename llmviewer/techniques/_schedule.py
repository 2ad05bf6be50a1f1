"""How a generation is made of passes: which plans run, on what, how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..forms import Form, Num, evaluate
from ..roofline import Plan
from ..workload import Spans, Workload


@dataclass(frozen=True, kw_only=True)
class Run:
    """Passes of one plan. Where fields of the workload are arrays, the last axis has an entry for each pass.

    times   how often each of them is run
    main    whether it is the model that answers, and not one that helps it
    parts   micro-batches, each of which is such a pass
    turns   whether a pass waits for the one before it, as decode steps do
    host_s  what the host needs for its launches, while the device works on those before [s]
    """

    name: str
    plan: Plan
    workload: Workload
    times: Num = 1.0
    main: bool = True
    parts: Num = 1
    turns: bool = False
    host_s: Num = 0.0

    @property
    def passes(self) -> Num:
        """How many there are."""
        return self._sum(1.0)

    @property
    def time_s(self) -> Num:
        """Of all of them, one after the other. [s]"""
        values = self.plan.values(self.workload)
        return self._sum(np.maximum(self.plan.in_parts(values, self.parts, turns=self.turns), self.host_s))

    def amount(self, name: str) -> Num:
        """Of all of them, on a device of each stage: ops or bytes, as `name` says."""
        return self.total(getattr(self.plan, name))

    def total(self, form: Form) -> Num:
        """What `form` amounts to in all of them, on a device of each stage."""
        return self._sum(self.parts * evaluate(form, self.workload))

    def _sum(self, each: Num) -> Num:
        fields = (value for group in self.workload.groups for value in vars(group).values())
        shapes = (np.shape(each), np.shape(self.times), *map(np.shape, fields))
        whole = np.broadcast_to(np.asarray(each) * self.times, np.broadcast_shapes(*shapes))
        return np.sum(whole, axis=-1) if np.ndim(whole) else whole[()]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The runs of one generation.

    first   those until the first token is there
    rest    those that make the others
    answer  tokens that it makes for those who asked, of all sequences together
    steps   tokens after the first of each sequence
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
        """All after the first token. [s]"""
        return time_s(self.rest)

    @property
    def latency_s(self) -> Num:
        return self.ttft_s + self.decoding_s

    @property
    def tpot_s(self) -> Num:
        """Mean time of a token after the first. [s]"""
        return self.decoding_s / self.steps

    @property
    def tokens_per_step(self) -> Num:
        """Tokens after the first, of each sequence, over the passes of the model that make them."""
        return self.steps / sum(run.passes for run in self.rest if run.main)

    def map(
        self, *, first: Callable[[Run], Iterable[Run]] | None = None, rest: Callable[[Run], Iterable[Run]] | None = None
    ) -> Schedule:
        """Each run replaced by those that a function makes of it."""
        return replace(
            self,
            first=tuple(new for run in self.first for new in (first(run) if first else (run,))),
            rest=tuple(new for run in self.rest for new in (rest(run) if rest else (run,))),
        )


def time_s(runs: Iterable[Run]) -> Num:
    """Of all runs together. [s]"""
    return sum((run.time_s for run in runs), start=0.0)


def each(workload: Workload, change: Callable[[Spans], Spans]) -> Workload:
    """The workload with every group of sequences changed."""
    return Workload(tuple(map(change, workload.groups)))
