"""The steady state of a copy in closed form: the batch at which departures keep up with arrivals, and waiting.

Prompts queue for the device as customers with priority do, who wait for the step that runs and for the prompts before
them (Cobham, doi:10.1287/opre.2.1.70).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isinf, nan, sqrt
from typing import Final

import numpy as np

from ..records import frozen
from ..workload import Spans
from .balance import decode_batch, token_interval_s, value_at
from .demand import Demand, Prompts, prompts_of
from .markov_chain import Column, Reading, held_up_s, reading, saturated_s
from .policy import Policy
from .steps import Steps
from .traffic import Traffic

_BATCHES: Final = 192  # sizes of the batch that are worked out
_OUTPUT_PARTS: Final = 64  # moments of the longest output, at each of which some sequences have finished


@frozen(kw_only=True)
class SteadyState:
    """Means of the steady state; inf where requests arrive faster than they are served.

    batch        sequences that decode, or the size of a batch that is served as a whole
    utilization  fraction of the time in which the device works
    tpot_s       nan where all outputs are one token
    max_rate     maximum rate of requests [1/s]
    max_batch    maximum sequences, by memory and by the limit given
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


def steady(steps: Steps, traffic: Traffic, *, rate: float, policy: Policy, max_batch: int) -> SteadyState:
    """One copy at a rate of requests with the lengths of `traffic`, under any policy. Its lanes are all alike.

    max_batch  maximum running sequences of each rank, if memory has room for their caches in the middle of the outputs
    """
    demand, lanes = Demand.of(traffic, steps), steps.running_batches * steps.rank_sets
    longest = int(demand.prompt[-1])
    if policy.padded:
        ranks = steps.ranks
        fitting = steps.max_fitting(max_batch * ranks, prompt=longest, gen=int(demand.gen[-1])) // ranks
    else:
        room = steps.kv_budget_bytes(policy.most_read(longest)) - steps.shared_prefix_bytes(traffic.prompt)
        fitting = int(room / float(steps.cache_bytes(demand.own + steps.draft_tokens))) if room > 0 else 0
    most = min(max_batch, fitting) / steps.micro_batches
    if not most:
        return _overrun(max_rate=0, most=0)
    of_lane = (_static if policy.drains else _continuous)(steps, demand, rate / lanes, policy, max(most, 1))
    return replace(
        of_lane, batch=of_lane.batch * lanes, max_rate=of_lane.max_rate * lanes, max_batch=round(most * lanes),
    )  # fmt: skip


def _overrun(*, max_rate: float, most: float) -> SteadyState:
    return SteadyState(batch=most, utilization=1, ttft_s=inf, tpot_s=inf, max_rate=max_rate, max_batch=int(most))


@frozen(kw_only=True)
class _Flow:
    """Continuous batching, by the number of sequences that decode beside one of them.

    Each turn of a pipeline prefills at the rate of requests, and spends the rest of the time on steps that only decode.
    A sequence that decodes has B others beside it where B is the mean, as arrivals at random see the mean (PASTA,
    doi:10.1287/opre.30.2.223).

    others        sequences that decode beside one
    turns         of the pipeline
    decode_steps  of a request
    step_s        step that only decodes, of one sequence and its others [s]
    full_step_s   step that only decodes, with as many sequences in all turns [s]
    """

    others: Column
    turns: int
    decode_steps: float
    policy: Policy
    prompts: Prompts
    step_s: Column
    full_step_s: Column

    @classmethod
    def of(cls, steps: Steps, demand: Demand, policy: Policy, most: float) -> _Flow:
        others, turns = np.concatenate(([0.0], np.geomspace(1 / 64, most, _BATCHES))), steps.micro_batches
        filled = 1 - (1 - 1 / turns) * np.exp(-others)  # fraction of the turns with any sequence; its own has one
        step_s, full_step_s = (
            np.broadcast_to(
                np.asarray(steps.decode_s(batch=batch, kv_len=demand.middle, filled=part), dtype=float), others.shape
            )
            for batch, part in ((1 + others, filled), (np.maximum(others, 1), 1.0))
        )
        return cls(
            others=others, turns=turns, decode_steps=demand.wanted, policy=policy,
            prompts=prompts_of(steps, demand, policy, others), step_s=step_s, full_step_s=full_step_s,
        )  # fmt: skip

    @property
    def every_s(self) -> Column:
        return self.prompts.every_s / self.turns

    @property
    def together(self) -> Column | int:
        return self.turns * self.prompts.together

    @property
    def max_rate(self) -> float:
        """Maximum rate of requests of a turn. [1/s]"""
        prompts, batch = self.prompts, np.maximum(self.others, 1e-9)
        if self.turns > 1:
            per_request = saturated_s(
                batch / max(self.decode_steps, 1e-9), held_up_s(prompts.time_s, self.full_step_s, self.turns),
                self.every_s, self.full_step_s, most=self.together, lanes=self.turns,
                parts=np.maximum(prompts.along, 1), mixes=self.policy.mixes,
            )  # fmt: skip
        else:
            per_request = (
                self.decode_steps * self.full_step_s / batch + prompts.every_s - prompts.each * self.full_step_s
            )
        return float(np.max(1 / np.maximum(per_request, prompts.every_s)[1:]))

    def reading(self, rate: float) -> Reading:
        alone_s = held_up_s(self.prompts.time_s, self.step_s, self.turns)
        rates = np.full(len(self.others), self.turns * rate)
        return reading(rates, alone_s, self.every_s, self.step_s, self.together)

    def interval_s(self, rate: float, read: Reading, busy: Column) -> Column:
        """Time between two decode steps of a sequence; inf if there is no time to decode. [s]"""
        joined = self.prompts.along if self.policy.mixes else np.maximum(1 - read.prompts / self.turns, 0)
        return token_interval_s(self.step_s, busy, self.turns * rate * joined / read.prompts)

    def ttft_s(self, rate: float, read: Reading, at: Callable[[Column], float]) -> tuple[float, float]:
        """Time to first token [s], and the fraction of the time in which steps only decode.

        A whole prompt delays those of all turns. A chunk delays those of other turns for a step, so that the turns are
        servers of one queue (Sakasegawa 1977).

        at  value of a column at the mean batch
        """
        prompts, turns = self.prompts, self.turns
        occupied = at(turns * rate * read.read_s / read.prompts)
        any_decodes = 1 - float(np.exp(-turns * at(self.others)))  # sequences come at random
        decoding = (1 - occupied) * any_decodes
        last_s = any_decodes * prompts.more_s + (1 - any_decodes) * prompts.more_s[0]
        along = 1 if self.policy.cuts else turns
        servers = turns // along
        each = np.maximum(read.prompts * along / turns, 1)
        square = prompts.square * (read.read_s / prompts.time_s) ** 2 / each
        queued = along * rate * at(read.read_s / each)
        chunk_s = read.read_s / np.maximum(prompts.along, 1)
        before = along * rate * at(square) / 2 * queued ** (sqrt(2 * (servers + 1)) - 2) / servers
        residual = before + decoding * at(self.step_s) / 2 + (occupied - queued) * at(chunk_s) / 2
        waited = residual / (1 - queued * at(each / (along * prompts.together)))
        return at(read.read_s + last_s) + waited, decoding


def _continuous(steps: Steps, demand: Demand, rate: float, policy: Policy, most: float) -> SteadyState:
    """Continuous batching: requests start and finish while others decode."""
    flow = _Flow.of(steps, demand, policy, most)
    max_rate = flow.max_rate
    if rate >= max_rate:
        return _overrun(max_rate=max_rate, most=most)
    read = flow.reading(rate)
    busy = steps.micro_batches * rate * read.read_s / read.prompts
    interval_s = flow.interval_s(rate, read, busy)
    index, stable, _ = decode_batch(np.array([rate]), demand.wanted, interval_s, flow.others)
    if not stable:
        return _overrun(max_rate=max_rate, most=most)

    def at(values: Column) -> float:
        return float(value_at(values, index))

    ttft_s, decoding = flow.ttft_s(rate, read, at)
    return SteadyState(
        batch=at(flow.others), utilization=at(busy) + decoding, ttft_s=ttft_s, tpot_s=at(interval_s) * demand.often,
        max_rate=max_rate, max_batch=int(most),
    )  # fmt: skip


def _static(steps: Steps, demand: Demand, rate: float, policy: Policy, most: float) -> SteadyState:
    """Static batching: requests that arrive while a batch is served are the next; one that finds no batch is one alone.

    Rough where lengths vary, as the longest output of a batch stands for a random one.
    """
    batch = np.unique(np.round(np.geomspace(1, most, _BATCHES)))
    quantile = batch / (batch + 1)  # mean quantile of the longest of a batch
    prompts, new, answers, passes = (
        np.where(batch > 1, np.quantile(each, quantile), np.mean(each))
        for each in (demand.prompt, demand.new, demand.gen, demand.passes)
    )
    if policy.padded:
        read = np.asarray(steps.mixed_s((Spans(batch=batch, q_len=new, kv_len=prompts),)), dtype=float)
        parts = np.ones(len(batch))
    else:
        each = steps.mixed_s((Spans(batch=1.0, q_len=demand.new, kv_len=demand.prompt),))
        read = batch * np.mean(np.broadcast_to(each, demand.prompt.shape))
        parts = np.maximum(batch * np.mean(demand.new) / policy.budget, 1)
    through = (np.arange(_OUTPUT_PARTS) + 0.5) / _OUTPUT_PARTS
    step, generated = (through * np.maximum(each - 1, 0)[:, None] for each in (passes, answers))
    unfinished = np.mean(demand.passes - 1 > step[:, :, None], axis=2)
    alive = batch[:, None] * (1.0 if policy.padded else unfinished)
    context = (prompts[:, None] if policy.padded else float(np.mean(demand.prompt))) + generated + 1
    step_s = np.mean(np.broadcast_to(steps.decode_s(batch=np.maximum(alive, 1), kv_len=context), step.shape), axis=1)
    decoding = step_s * np.maximum(passes - 1, 0)
    cycle = read + decoding
    max_rate = float(np.max(batch / cycle))
    mean_batch = 1.0
    if rate >= max_rate:
        return _overrun(max_rate=max_rate, most=most)
    for _ in range(_BATCHES):
        cycle_s = float(np.interp(mean_batch, batch, cycle))
        mean_batch = rate * cycle_s / -float(np.expm1(-rate * cycle_s))
    if mean_batch > most:
        return _overrun(max_rate=max_rate, most=most)

    def at(values: Column) -> float:
        return float(np.interp(mean_batch, batch, values))

    utilization = cycle_s / (cycle_s + float(np.exp(-rate * cycle_s)) / rate)
    later_tokens = demand.gen[demand.gen > 1] - 1
    per_token = float(np.mean(1 / later_tokens)) if len(later_tokens) else nan
    later = at(read * (parts - 1) / (2 * parts)) * per_token  # prefills of the same batch after its own
    return SteadyState(
        batch=mean_batch,
        utilization=utilization,
        ttft_s=utilization * cycle_s / 2 + at(read * (parts + 1) / (2 * parts)),
        tpot_s=at(decoding) * per_token if policy.padded else at(step_s) * demand.often + later,
        max_rate=max_rate,
        max_batch=int(most),
    )
