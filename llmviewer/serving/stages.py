"""Times of pipeline stages in a step of all ranks that wait for each other.

Attention and dense layers take as long as on the busiest rank, experts as long as the tokens of all ranks need.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from itertools import accumulate, compress
from typing import Final

import numpy as np

from ..expectation.engines import IDLE, Host
from ..expectation.kernels import Kernels
from ..expectation.launches import counted
from ..forms import Num
from ..operators.base import Operator
from ..operators.collectives import AllToAll
from ..records import frozen
from ..roofline import Plan, pipelined_s
from ..setting import Setting
from ..techniques import Drafter
from ..workload import Spans
from .launch_tables import TabulatedForm
from .step_times import BoundTimes, ExpectedStepTimes, Groups, decoding_group

_LENGTHS: Final = 64  # contexts at which decode steps are tabulated, linear in between


def inside_experts(operators: Iterable[Operator]) -> list[bool]:
    """Whether each operator is between the dispatch of tokens to experts of other ranks and their combination."""
    travels = [isinstance(op, AllToAll) for op in operators]
    ways = accumulate(travels)
    return [count % 2 == 1 and not travel for count, travel in zip(ways, travels, strict=True)]


@frozen
class _Cached:
    """Cached times of launches. [s]

    longest  maximum context of a sequence
    """

    times: BoundTimes
    longest: int
    _decode: dict[float, tuple[list[float], list[float]]] = field(default_factory=dict, repr=False)

    def time_s(self, groups: Groups, *, decodes: bool) -> float:
        if decodes:
            return self._between(groups[0])
        return float(self.times.time_s(groups))

    def _between(self, group: Spans) -> float:
        """Time of a decode step, from a table of contexts that is made once for each batch. [s]"""
        batch, kv_len = float(group.batch), float(group.past + 1)
        if batch not in self._decode:
            points = np.geomspace(1, max(self.longest, 2), _LENGTHS)
            row = decoding_group(self.times.width, batch, points)
            each = np.broadcast_to(self.times.time_s((row,), decodes=True), points.shape)
            self._decode[batch] = points.tolist(), each.tolist()
        lengths, times = self._decode[batch]
        right = min(max(bisect_left(lengths, kv_len), 1), len(lengths) - 1)
        left = right - 1
        slope = (times[right] - times[left]) / (lengths[right] - lengths[left])
        return times[left] + slope * (kv_len - lengths[left])


@frozen(kw_only=True)
class Stage:
    """A stage of a pipeline, or a whole model.

    compute     launches of each rank for its own sequences
    shared      launches of experts for the tokens of all ranks; None if no ranks wait for each other
    sent        communication that overlaps with the other micro-batch's computation; None without two micro-batches
    core_times  core time of that communication; None at the bound
    ranks       number of ranks that wait for each other
    longest     maximum context of a sequence
    width       tokens of each decoding sequence in a step
    drafts      passes of the draft model before a decode step; None without one
    """

    compute: BoundTimes
    shared: BoundTimes | None
    sent: BoundTimes | None
    core_times: BoundTimes | None
    ranks: int
    host: Host
    longest: int
    width: int
    drafts: Drafts | None = None

    @classmethod
    def each(cls, setting: Setting, kernels: Kernels | None, ranks: int, width: int) -> tuple[Stage, ...]:
        """The stages of a setting, with expected times of `kernels`; with lower bounds if that is None."""
        longest = setting.model.max_context or 1 << 17
        stage = partial(cls._of, kernels=kernels, ranks=ranks, longest=longest)
        plans: Iterable[tuple[Plan, Plan]] = zip(setting.plan.stages, setting.decode_plan.stages, strict=True)
        if setting.decode_plan is setting.plan:
            plans = ((one, one) for one, _ in plans)
        drafters = (technique.drafter(setting) for technique in setting.techniques)
        drafter = next((one for one in drafters if one), None)
        drafts = Drafts.of(drafter, stage) if drafter else None
        return tuple(replace(stage(*pair, width=width), drafts=drafts) for pair in plans)

    @classmethod
    def _of(
        cls, plan: Plan, decode_plan: Plan, *, width: int, kernels: Kernels | None, ranks: int, longest: int
    ) -> Stage:
        host = kernels.host if kernels else IDLE

        def times_of(experts: bool | None, *, overlapped: bool = False) -> BoundTimes:
            prefill = _selected_plan(plan, experts, overlapped)
            decode = prefill if decode_plan is plan else _selected_plan(decode_plan, experts, overlapped)
            return ExpectedStepTimes(prefill, decode, width, kernels) if kernels else BoundTimes(prefill, decode, width)

        sent = times_of(None, overlapped=True) if any(row.operator.overlapped for row in plan.operators) else None
        return cls(
            compute=times_of(None if ranks == 1 else False),
            shared=None if ranks == 1 else times_of(True),
            sent=sent,
            core_times=sent.of_cores if isinstance(sent, ExpectedStepTimes) else None,
            ranks=ranks, host=host, longest=longest, width=width,
        )  # fmt: skip

    def alike_s(self, groups: Groups, *, decodes: bool = False) -> Num:
        """Time of a step in which every rank has the same groups to prefill or decode; fields may be arrays. [s]

        decodes  whether nothing is prefilled, so that the launches are those of steps that only decode
        """
        microbatches = self._halves(_token_count(groups))
        own_groups = self._divided(groups, microbatches)
        step_s = self._whole(
            [part.time_s(own_groups, decodes=decodes) for part in self._timed], microbatches, groups, decodes
        )
        return step_s + self.drafts.alike_s(*self._by_kind(groups)) if self.drafts else step_s

    def time_s(self, ranks: Sequence[Groups], *, decodes: bool = False) -> float:
        """Time of a step in which ranks have different groups, or none; decode steps are interpolated. [s]"""
        if len(ranks) == 1 and self._follows_launches:
            return self._own.time_s(ranks[0], decodes=decodes)
        busy = [groups for groups in ranks if groups]
        tokens = [float(_token_count(groups)) for groups in busy] if self.shared or self.sent else []
        microbatches = int(self._halves(max(tokens))) if self.sent else 1
        each = [self._divided(groups, microbatches) for groups in busy] if self.sent else busy
        own_times = [self._own.time_s(groups, decodes=decodes) for groups in each]
        times = [max(own_times)]
        if self._shared:
            times.append(self._shared.time_s(self._evenly(sum(tokens) / microbatches), decodes=False))
        times += [max(part.time_s(groups, decodes=decodes) for groups in each) for part in self._overlapped]
        step_s = float(self._whole(times, microbatches, busy[own_times.index(max(own_times))], decodes))
        return step_s + self.drafts.time_s([self._by_kind(groups) for groups in busy]) if self.drafts else step_s

    def _by_kind(self, groups: Groups) -> tuple[Groups, Groups]:
        """Groups that are prefilled, and those that decode: chunks of prompts give logits of their last token alone."""
        decode = [bool(np.all(np.equal(group.logits, self.width))) for group in groups]
        prefilling, decoding = (tuple(compress(groups, chosen)) for chosen in ([not one for one in decode], decode))
        return prefilling, decoding

    @cached_property
    def _follows_launches(self) -> bool:
        """Whether a step of one rank takes just as long as its launches."""
        return not (self.shared or self.sent or self.drafts) and self.host is IDLE

    @property
    def _parts(self) -> list[BoundTimes]:
        """Launches by part: own, shared and sent."""
        return [part for part in (self.compute, self.shared, self.sent) if part]

    @property
    def _timed(self) -> list[BoundTimes]:
        return [*self._parts, self.core_times] if self.core_times else self._parts

    def _halves(self, tokens: Num) -> Num:
        """Number of micro-batches of a step with this many tokens of a rank."""
        return np.where(np.greater_equal(tokens, 2), 2, 1)[()] if self.sent else 1

    def _divided(self, groups: Groups, microbatches: Num) -> Groups:
        """The groups of one of equal micro-batches."""
        return tuple(group.times(1 / microbatches) for group in groups) if self.sent else groups

    def _whole(self, times: Sequence[Num], microbatches: Num, groups: Groups, decodes: bool) -> Num:
        """Time of a step from the times of one micro-batch by part, with the host time of the launches for the groups
        of a rank. [s]
        """
        kernels_s: Num = sum(times, start=0.0)
        if self.sent:
            *computing, communication_s, core_s = times if self.core_times else (*times, 0.0)
            computing_s = sum(computing, start=0.0)
            kernels_s = pipelined_s(
                computing_s + communication_s,
                np.maximum(computing_s + core_s, communication_s),
                microbatches,
                autoregressive=True,
            )
        host = self._hosts[decodes]
        return kernels_s if host is IDLE else host.time_s(kernels_s, self._launches[decodes].amount(groups))

    def _evenly(self, tokens: float) -> Groups:
        """An equal share of the tokens of all ranks, by which launches of experts are counted."""
        return (Spans(batch=tokens / self.ranks, q_len=1.0, kv_len=1.0),)

    @cached_property
    def _own(self) -> _Cached:
        return _Cached(self.compute, self.longest)

    @cached_property
    def _shared(self) -> _Cached | None:
        return _Cached(self.shared, self.longest) if self.shared else None

    @cached_property
    def _overlapped(self) -> list[_Cached]:
        return [_Cached(part, self.longest) for part in (self.sent, self.core_times) if part]

    @cached_property
    def _hosts(self) -> tuple[Host, Host]:
        """The host in a step with prefills, and in one that only decodes."""
        return self.host.of_step(prefills=True), self.host.of_step(prefills=False)

    @cached_property
    def _launches(self) -> tuple[TabulatedForm, TabulatedForm]:
        """Number of launches of a step with prefills, and of one that only decodes."""
        prefill, decode = ([counted(getattr(part, name)) for part in self._parts] for name in ("plan", "decode_plan"))
        return TabulatedForm(sum(prefill[1:], start=prefill[0])), TabulatedForm(sum(decode[1:], start=decode[0]))


@frozen(kw_only=True)
class Drafts:
    """Passes of a draft model before a decode step, each a step of that model.

    passes  each pass, with the tokens of each sequence in the passes before
    reader  prefill of prompts for the draft model; None if it needs none
    """

    passes: tuple[tuple[Stage, int], ...]
    reader: Stage | None

    @classmethod
    def of(cls, drafter: Drafter, stage: Callable[..., Stage]) -> Drafts:
        read, step = drafter.network.plan, drafter.network.decode_plan
        each = {width: stage(read, step, width=width) for width in drafter.widths}
        passes = tuple((each[width], before) for width, before in zip(drafter.widths, drafter.before, strict=True))
        return cls(passes=passes, reader=passes[0][0] if drafter.reads else None)

    def alike_s(self, prefilling: Groups, decoding: Groups) -> Num:
        """Time for the prefills and the decoding sequences of every rank, which may be less than one on average. [s]"""
        total_s: Num = self.reader.alike_s(prefilling) if self.reader and prefilling else 0.0
        for group in decoding:
            run_probability, batch = np.minimum(group.batch, 1), np.maximum(group.batch, 1)
            passes = [
                stage.alike_s((decoding_group(stage.width, batch, group.past + 1 + before),), decodes=True)
                for stage, before in self.passes
            ]
            total_s = total_s + run_probability * sum(passes, start=0.0)
        return total_s

    def time_s(self, ranks: Sequence[tuple[Groups, Groups]]) -> float:
        """Time for the prefills and the decoding sequences of each rank. [s]"""
        prefilling = [groups for groups, _ in ranks if groups]
        total_s = self.reader.time_s(prefilling) if self.reader and prefilling else 0.0
        decoding = [group for _, groups in ranks for group in groups]
        for stage, before in self.passes if decoding else ():
            each = [(decoding_group(stage.width, group.batch, group.past + 1 + before),) for group in decoding]
            total_s += stage.time_s(each, decodes=True)
        return total_s


def _selected_plan(plan: Plan, experts: bool | None, overlapped: bool) -> Plan:
    """The launches of a plan that belong to a part.

    experts     launches of experts between dispatch and combination, or all others; None for both
    overlapped  launches that overlap with the other micro-batch, or all others
    """
    inside = inside_experts([row.operator for row in plan.operators])
    rows = (row for row, is_inside in zip(plan.operators, inside, strict=True) if experts in (None, is_inside))
    rows_of_part = tuple(row for row in rows if row.operator.overlapped is overlapped)
    return plan if len(rows_of_part) == len(plan.operators) else Plan(rows_of_part)


def _token_count(groups: Groups) -> Num:
    """New tokens of all groups."""
    return sum(group.batch * group.q_len for group in groups)
