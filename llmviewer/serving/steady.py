"""The steady state in closed form: the batch at which departures keep up with arrivals, and what a request waits.

Little's law (doi:10.1287/opre.9.3.383): the sequences that decode are the rate of requests times how long each decodes,
which in turn depends on how many they are. Prompts queue for the device as customers with priority do, who wait for the
step that runs and for the prompts before them (Cobham, doi:10.1287/opre.2.1.70).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isinf, nan, sqrt
from typing import Final

import numpy as np

from ..workload import Spans
from .balance import crossing, value_at
from .demand import Demand, Prompts, prompts_of
from .markov_chain import Column, Reading, held_up_s, reading, saturated_s
from .policy import Policy
from .steps import Steps
from .traffic import Traffic

_BATCHES: Final = 192  # between which the batch is looked for
_STEPS: Final = 64  # of the longest answer, at which is asked how many are still written


@dataclass(frozen=True, kw_only=True)
class Steady:
    """Means of the steady state; inf where requests come faster than they are served.

    tpot_s       nan where all answers are of one token
    batch        sequences that decode, or that a batch has where it is served as a whole
    utilization  part of the time in which the device works
    max_rate     requests that it can serve at most [1/s]
    max_batch    sequences that it can have at most, by memory and as asked
    """

    batch: float
    utilization: float
    ttft_s: float
    tpot_s: float
    max_rate: float
    max_batch: int

    @property
    def stable(self) -> bool:
        return not isinf(self.ttft_s)


def steady(steps: Steps, traffic: Traffic, *, rate: float, policy: Policy, max_batch: int) -> Steady:
    """`rate` requests a second with lengths as those of `traffic`, of any policy, on one copy. Lanes do all alike.

    max_batch  sequences at a time of each rank, if memory has room for the caches of so many in the middle of their
               answers
    """
    demand, lanes = Demand.of(traffic, steps), steps.lanes * steps.apart
    longest = int(demand.prompt[-1])
    if policy.padded:
        ranks = steps.ranks
        fitting = steps.fitting(max_batch * ranks, prompt=longest, gen=int(demand.gen[-1])) // ranks
    else:
        room = steps.room_bytes(policy.most_read(longest)) - steps.common_bytes(traffic.prompt)
        fitting = int(room / float(steps.cache_bytes(demand.own + steps.ahead))) if room > 0 else 0
    most = min(max_batch, fitting) / steps.turns
    if not most:
        return _overrun(max_rate=0, most=0)
    kind = _in_batches if policy.drains else _flowing
    found = kind(steps, demand, rate / lanes, policy, max(most, 1))
    return replace(
        found, batch=found.batch * lanes, max_rate=found.max_rate * lanes, max_batch=round(most * lanes),
    )  # fmt: skip


def _overrun(*, max_rate: float, most: float) -> Steady:
    return Steady(batch=most, utilization=1, ttft_s=inf, tpot_s=inf, max_rate=max_rate, max_batch=int(most))


@dataclass(frozen=True, kw_only=True)
class _Flow:
    """Requests that come and go while others decode, by how many decode beside one of them.

    In a second, a rate of prompts is read in each turn of a pipeline, and what is left of it goes to steps that decode
    alone. A request that decodes has B others beside it where B is the mean, as arrivals at random see the mean (PASTA,
    doi:10.1287/opre.30.2.223).

    step_s   a step that decodes alone, of one more than `batch`
    alone_s  the same of so many, all turns filled
    """

    batch: Column
    turns: int
    wanted: float
    policy: Policy
    prompts: Prompts
    step_s: Column
    alone_s: Column

    @classmethod
    def of(cls, steps: Steps, demand: Demand, policy: Policy, most: float) -> _Flow:
        batch, turns = np.concatenate(([0.0], np.geomspace(1 / 64, most, _BATCHES))), steps.turns
        filled = 1 - (1 - 1 / turns) * np.exp(-batch)  # of the turns, those that have anybody, who decodes being in one
        step_s, alone_s = (
            np.broadcast_to(
                np.asarray(steps.decode_s(batch=count, kv_len=demand.middle, filled=part), dtype=float), batch.shape
            )
            for count, part in ((1 + batch, filled), (np.maximum(batch, 1), 1.0))
        )
        return cls(
            batch=batch, turns=turns, wanted=demand.wanted, policy=policy,
            prompts=prompts_of(steps, demand, policy, batch), step_s=step_s, alone_s=alone_s,
        )  # fmt: skip

    @property
    def every_s(self) -> Column:
        return self.prompts.every_s / self.turns

    @property
    def together(self) -> Column | int:
        return self.turns * self.prompts.together

    @property
    def max_rate(self) -> float:
        """Requests that a turn serves at most. [1/s]"""
        prompts, some = self.prompts, np.maximum(self.batch, 1e-9)
        if self.turns > 1:
            per_request = saturated_s(
                some / max(self.wanted, 1e-9), held_up_s(prompts.time_s, self.alone_s, self.turns), self.every_s,
                self.alone_s, most=self.together, lanes=self.turns, parts=np.maximum(prompts.along, 1),
                mixes=self.policy.mixes,
            )  # fmt: skip
        else:
            per_request = self.wanted * self.alone_s / some + prompts.every_s - prompts.each * self.alone_s
        return float(np.max(1 / np.maximum(per_request, prompts.every_s)[1:]))

    def reading(self, rate: float) -> Reading:
        alone = held_up_s(self.prompts.time_s, self.step_s, self.turns)
        rates = np.full(len(self.batch), self.turns * rate)
        return reading(rates, alone, self.every_s, self.step_s, self.together)

    def between_s(self, rate: float, read: Reading, busy: Column) -> Column:
        """Between two steps of a sequence; inf where no time is left to decode. [s]"""
        beside = self.prompts.along if self.policy.mixes else np.maximum(1 - read.prompts / self.turns, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = 1 / (self.turns * rate * beside / read.prompts + (1 - busy) / self.step_s)
            return np.where(busy < 1, each, inf)

    def ttft_s(self, rate: float, read: Reading, at: Callable[[Column], float]) -> tuple[float, float]:
        """Until the first token is there, and the part of the time in which nobody is read but some decode. [s]

        A whole prompt is in the way of those of all turns. Parts of one are so for a step of those of other turns, and
        the turns are as many servers of a queue (Sakasegawa 1977).

        at  gives the entry for the batch that there is on average
        """
        prompts, turns = self.prompts, self.turns
        occupied = at(turns * rate * read.read_s / read.prompts)
        somebody = 1 - float(np.exp(-turns * at(self.batch)))  # of as many as come at random
        decoding = (1 - occupied) * somebody
        last_s = somebody * prompts.more_s + (1 - somebody) * prompts.more_s[0]
        along = 1 if self.policy.cuts else turns
        lines = turns // along
        each = np.maximum(read.prompts * along / turns, 1)
        square = prompts.square * (read.read_s / prompts.time_s) ** 2 / each
        queued = along * rate * at(read.read_s / each)
        part_s = read.read_s / np.maximum(prompts.along, 1)
        before = along * rate * at(square) / 2 * queued ** (sqrt(2 * (lines + 1)) - 2) / lines
        residual = before + decoding * at(self.step_s) / 2 + (occupied - queued) * at(part_s) / 2
        waited = residual / (1 - queued * at(each / (along * prompts.together)))
        return at(read.read_s + last_s) + waited, decoding


def _flowing(steps: Steps, demand: Demand, rate: float, policy: Policy, most: float) -> Steady:
    """Requests come and go while others decode, of whom there are as many as Little's law has."""
    flow = _Flow.of(steps, demand, policy, most)
    max_rate = flow.max_rate
    if rate >= max_rate:
        return _overrun(max_rate=max_rate, most=most)
    read = flow.reading(rate)
    busy = steps.turns * rate * read.read_s / read.prompts
    between = flow.between_s(rate, read, busy)
    place, stable = crossing(rate * demand.wanted * between - flow.batch)
    if not stable:
        return _overrun(max_rate=max_rate, most=most)

    def at(values: Column) -> float:
        return float(value_at(values, place))

    ttft_s, decoding = flow.ttft_s(rate, read, at)
    return Steady(
        batch=at(flow.batch), utilization=at(busy) + decoding, ttft_s=ttft_s, tpot_s=at(between) * demand.often,
        max_rate=max_rate, max_batch=int(most),
    )  # fmt: skip


def _in_batches(steps: Steps, demand: Demand, rate: float, policy: Policy, most: float) -> Steady:
    """Those who came while a batch was served are the next; a request that finds nobody is a batch alone.

    Rough where lengths vary, as the longest answer of a batch stands for a random one.
    """
    batch = np.unique(np.round(np.geomspace(1, most, _BATCHES)))
    longest = batch / (batch + 1)  # the quantile that the longest of so many is at on average
    prompts, new, answers, passes = (
        np.where(batch > 1, np.quantile(each, longest), np.mean(each))
        for each in (demand.prompt, demand.new, demand.gen, demand.passes)
    )
    if policy.padded:
        read = np.asarray(steps.mixed_s((Spans(batch=batch, q_len=new, kv_len=prompts),)), dtype=float)
        parts = np.ones(len(batch))
    else:
        each = steps.mixed_s((Spans(batch=1.0, q_len=demand.new, kv_len=demand.prompt),))
        read = batch * np.mean(np.broadcast_to(each, demand.prompt.shape))
        parts = np.maximum(batch * np.mean(demand.new) / policy.budget, 1)
    through = (np.arange(_STEPS) + 0.5) / _STEPS
    step, written = (through * np.maximum(each - 1, 0)[:, None] for each in (passes, answers))
    left = np.mean(demand.passes - 1 > step[:, :, None], axis=2)
    alive = batch[:, None] * (1.0 if policy.padded else left)
    context = (prompts[:, None] if policy.padded else float(np.mean(demand.prompt))) + written + 1
    step_s = np.mean(np.broadcast_to(steps.decode_s(batch=np.maximum(alive, 1), kv_len=context), step.shape), axis=1)
    decoding = step_s * np.maximum(passes - 1, 0)
    cycle = read + decoding
    max_rate = float(np.max(batch / cycle))
    taken = 1.0
    if rate >= max_rate:
        return _overrun(max_rate=max_rate, most=most)
    for _ in range(_BATCHES):
        spent = float(np.interp(taken, batch, cycle))
        taken = rate * spent / -float(np.expm1(-rate * spent))
    if taken > most:
        return _overrun(max_rate=max_rate, most=most)

    def found(values: Column) -> float:
        return float(np.interp(taken, batch, values))

    utilization = spent / (spent + float(np.exp(-rate * spent)) / rate)
    several = demand.gen[demand.gen > 1] - 1
    each = float(np.mean(1 / several)) if len(several) else nan
    later = found(read * (parts - 1) / (2 * parts)) * each  # for the prompts of the same batch that are read after it
    return Steady(
        batch=taken,
        utilization=utilization,
        ttft_s=utilization * spent / 2 + found(read * (parts + 1) / (2 * parts)),
        tpot_s=found(decoding) * each if policy.padded else found(step_s) * demand.often + later,
        max_rate=max_rate,
        max_batch=int(most),
    )
