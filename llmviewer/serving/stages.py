"""What the stages of a pipeline take for a step of all ranks that wait for each other: attention and dense layers as
long as the rank with most to do, experts as long as the tokens of all ranks take them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np

from ..expectation.engines import IDLE, Host
from ..expectation.kernels import Kernels
from ..expectation.launches import counted
from ..forms import Form, Num, evaluate
from ..layout import Layout
from ..operators.base import Operator
from ..operators.collectives import AllToAll
from ..roofline import Plan
from ..setting import Setting
from ..workload import Spans, Workload
from .paces import Bounds, Groups, Paces

_POINTS: Final = 64  # lengths of a row of decode steps; between them it is a line
_REMEMBERED: Final = 1 << 16  # steps that read prompts


def waiting_ranks(layout: Layout) -> int:
    """Ranks of data parallelism that wait for each other in every step, as tokens of all go to the experts of each."""
    return layout.dp if layout.ep > layout.tp else 1


def among_experts(operators: Iterable[Operator]) -> list[bool]:
    """Whether each is between tokens' way to the experts of other ranks and their way back."""
    travels = [isinstance(op, AllToAll) for op in operators]
    ways = accumulate(travels)
    return [count % 2 == 1 and not travel for count, travel in zip(ways, travels, strict=True)]


@dataclass(frozen=True)
class _Rows:
    """Launches one after another, of some sequences, remembered. [s]

    longest  tokens that a sequence has at most
    """

    times: Bounds
    longest: int
    _decode: dict[float, tuple[list[float], list[float]]] = field(default_factory=dict, repr=False)
    _mixed: dict[Groups, float] = field(default_factory=dict, repr=False)

    def decode_s(self, batch: float, kv_len: float) -> float:
        """Of a decode step, from a row of lengths that is worked out once for each batch. [s]"""
        if batch not in self._decode:
            points = np.geomspace(1, max(self.longest, 2), _POINTS)
            each = np.broadcast_to(self.times.decode_s(batch=float(batch), kv_len=points), points.shape)
            self._decode[batch] = points.tolist(), each.tolist()
        lengths, times = self._decode[batch]
        right = min(max(bisect_left(lengths, kv_len), 1), len(lengths) - 1)
        left = right - 1
        slope = (times[right] - times[left]) / (lengths[right] - lengths[left])
        return float(times[left] + slope * (kv_len - lengths[left]))

    def mixed_s(self, groups: Groups) -> float:
        if groups not in self._mixed:
            if len(self._mixed) > _REMEMBERED:
                self._mixed.clear()
            self._mixed[groups] = float(self.times.mixed_s(groups))
        return self._mixed[groups]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One of a pipeline, or all of a model.

    own     launches that each rank has for its own sequences
    shared  those of experts, which work on the tokens of all ranks; None where no ranks wait for each other
    ranks   that do
    """

    own: Bounds
    shared: Bounds | None
    ranks: int
    host: Host
    longest: int

    @classmethod
    def each(cls, setting: Setting, kernels: Kernels | None, ranks: int) -> tuple[Stage, ...]:
        """Those of a setting, as long as is expected of `kernels`; their lower bounds where that is None."""
        plans = tuple(zip(setting.plan.stages, setting.decode_plan.stages, strict=True))
        if setting.decode_plan is setting.plan:
            plans = tuple((one, one) for one, _ in plans)
        host, longest = kernels.host if kernels else IDLE, setting.model.max_context or 1 << 17

        def times(plan: Plan, decode_plan: Plan) -> Bounds:
            return Paces(plan, decode_plan, kernels) if kernels else Bounds(plan, decode_plan)

        def some(plan: Plan, decode_plan: Plan, experts: bool) -> Bounds:
            one = _experts(plan, experts)
            return times(one, one if decode_plan is plan else _experts(decode_plan, experts))

        return tuple(
            cls(own=times(*pair), shared=None, ranks=1, host=host, longest=longest)
            if ranks == 1
            else cls(own=some(*pair, False), shared=some(*pair, True), ranks=ranks, host=host, longest=longest)
            for pair in plans
        )

    def alike_decode_s(self, *, batch: Num, kv_len: Num) -> Num:
        """A step in which `batch` sequences decode on every rank. [s]"""
        times = (part.decode_s(batch=batch, kv_len=kv_len) for part in (self.own, self.shared) if part)
        return self._hosted(sum(times, start=0.0), 1, (Spans(batch=batch, q_len=1.0, kv_len=kv_len),))

    def alike_mixed_s(self, groups: Groups) -> Num:
        """A step in which every rank has these to read and to decode. [s]"""
        times = (part.mixed_s(groups) for part in (self.own, self.shared) if part)
        return self._hosted(sum(times, start=0.0), 0, groups)

    def decode_s(self, ranks: Sequence[tuple[int, float]]) -> float:
        """A step in which ranks decode: how many sequences, and the tokens that each attends to on average. [s]"""
        busy = [pair for pair in ranks if pair[0]]
        found = max(self._own.decode_s(*pair) for pair in busy)
        if self._shared:
            found += self._shared.mixed_s(self._alike(sum(count for count, _ in busy)))
        most = max(busy)
        return float(self._hosted(found, 1, (Spans(batch=float(most[0]), q_len=1.0, kv_len=most[1]),)))

    def mixed_s(self, ranks: Sequence[Groups]) -> float:
        """A step in which ranks have these to read and to decode. [s]"""
        busy = [groups for groups in ranks if groups]
        times = [self._own.mixed_s(groups) for groups in busy]
        found = max(times)
        if self._shared:
            tokens = sum(float(group.batch * group.q_len) for groups in busy for group in groups)
            found += self._shared.mixed_s(self._alike(tokens))
        return float(self._hosted(found, 0, busy[times.index(max(times))]))

    def _alike(self, tokens: float) -> Groups:
        """An equal part of so many tokens of all ranks, which is what experts are told of."""
        return (Spans(batch=tokens / self.ranks, q_len=1.0, kv_len=1.0),)

    @cached_property
    def _own(self) -> _Rows:
        return _Rows(self.own, self.longest)

    @cached_property
    def _shared(self) -> _Rows | None:
        return _Rows(self.shared, self.longest) if self.shared else None

    @cached_property
    def _launches(self) -> tuple[Form, Form]:
        """Of a step that reads, and of one that decodes alone."""
        parts = [part for part in (self.own, self.shared) if part]
        read, decode = ([counted(getattr(part, name)) for part in parts] for name in ("plan", "decode_plan"))
        return sum(read[1:], start=read[0]), sum(decode[1:], start=decode[0])

    def _hosted(self, kernels_s: Num, decodes: int, groups: Groups) -> Num:
        if self.host == IDLE:
            return kernels_s
        return self.host.time_s(kernels_s, evaluate(self._launches[decodes], Workload(groups)))


def _experts(plan: Plan, experts: bool) -> Plan:
    """The launches of experts that tokens travel to, or all others."""
    inside = among_experts([row.operator for row in plan.operators])
    return Plan(tuple(row for row, own in zip(plan.operators, inside, strict=True) if own is experts))
