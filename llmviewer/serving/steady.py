"""The steady state of one replica in closed form, under any policy, with the lengths of any traffic."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, isinf, nan
from typing import Final

import numpy as np

from ..expectation.engines import Frontend
from ..records import frozen
from ..workload import Spans
from .demand import Demand, prompts_of
from .flow import Flow
from .lengths import Tokens
from .markov_chain import Column
from .policy import Policy
from .steps import Steps
from .traffic import Traffic

_BATCHES: Final = 192  # batch sizes that are evaluated
_OUTPUT_PARTS: Final = 64  # moments of the longest output, at each of which some sequences have finished


@frozen(kw_only=True)
class SteadyState:
    """Means of the steady state; inf where requests arrive faster than they are served.

    batch        decoding sequences; with static batching, the size of a batch
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

    def behind(self, frontend: Frontend, prompt: Tokens) -> SteadyState:
        """The state with the time that requests take through a frontend, whose own queue is left out: they also wait
        for a step that is launched already, if any sequence decodes.
        """
        own_s = frontend.request_s + frontend.token_s * float(np.mean(prompt)) + frontend.response_s
        launched_s = self.tpot_s * (1 - exp(-self.batch)) if frontend.ahead and self.stable else 0.0
        return replace(self, ttft_s=self.ttft_s + own_s + launched_s)

    @property
    def stable(self) -> bool:
        return not isinf(self.ttft_s)


def steady(steps: Steps, traffic: Traffic, *, rate: float, policy: Policy, max_batch: int) -> SteadyState:
    """The steady state of one replica at an arrival rate, with the lengths of `traffic`, under any policy.

    max_batch  maximum running sequences of each rank; fewer if KV-cache capacity limits them, at mean context
    """
    demand, lanes = Demand.of(traffic, steps), steps.running_batches * steps.rank_sets
    longest = int(demand.prompt[-1])
    if policy.padded:
        ranks = steps.ranks
        fitting = steps.max_fitting(max_batch * ranks, prompt=longest, gen=int(demand.gen[-1])) // ranks
    else:
        cache_bytes = steps.kv_budget_bytes(policy.most_read(longest)) - steps.shared_prefix_bytes(traffic.prompt)
        fitting = (
            int(cache_bytes / float(steps.cache_bytes(demand.unshared + steps.draft_tokens))) if cache_bytes > 0 else 0
        )
    batch_limit = min(max_batch, fitting) / steps.micro_batches
    if not batch_limit:
        return _overrun(max_rate=0, batch=0)
    of_lane = (_static if policy.drains else _continuous)(steps, demand, rate / lanes, policy, max(batch_limit, 1))
    return replace(
        of_lane, batch=of_lane.batch * lanes, max_rate=of_lane.max_rate * lanes, max_batch=round(batch_limit * lanes),
    )  # fmt: skip


def _overrun(*, max_rate: float, batch: float) -> SteadyState:
    return SteadyState(batch=batch, utilization=1, ttft_s=inf, tpot_s=inf, max_rate=max_rate, max_batch=int(batch))


def _flow(steps: Steps, demand: Demand, policy: Policy, batch_limit: float) -> Flow:
    """Requests of a replica whose ranks do not wait for each other, or are all alike."""
    others = np.concatenate(([0.0], np.geomspace(1 / 64, batch_limit, _BATCHES)))
    micro_batches = steps.micro_batches
    # Fraction of micro-batches with any sequence: that of the sequence itself has one.
    filled = 1 - (1 - 1 / micro_batches) * np.exp(-others)
    step_s, full_step_s = (
        np.broadcast_to(
            np.asarray(steps.decode_s(batch=batch, kv_len=demand.middle, filled=part), dtype=float), others.shape
        )
        for batch, part in ((1 + others, filled), (np.maximum(others, 1), 1.0))
    )
    return Flow(
        others=others, step_s=step_s, full_step_s=full_step_s, prompts=prompts_of(steps, demand, policy, others),
        decode_steps=demand.decode_steps, policy=policy, lanes=micro_batches, micro_batches=micro_batches,
    )  # fmt: skip


def _continuous(steps: Steps, demand: Demand, rate: float, policy: Policy, batch_limit: float) -> SteadyState:
    """Continuous batching: requests start and finish while others decode."""
    flow = _flow(steps, demand, policy, batch_limit)
    max_rate = float(np.max(flow.max_rates))
    if rate >= max_rate:
        return _overrun(max_rate=max_rate, batch=batch_limit)
    state = flow.steady(np.asarray(rate))
    if not state.stable:
        return _overrun(max_rate=max_rate, batch=batch_limit)
    return SteadyState(
        batch=float(state.mean.others), utilization=float(state.busy + state.decoding), ttft_s=float(state.ttft_s()),
        tpot_s=float(state.interval_s) * demand.steps_per_token, max_rate=max_rate, max_batch=int(batch_limit),
    )  # fmt: skip


def _static(steps: Steps, demand: Demand, rate: float, policy: Policy, batch_limit: float) -> SteadyState:
    """Static batching: requests that arrive while a batch is served are the next; one that finds no batch is one alone.

    Rough where lengths vary, as the longest output of a batch stands for a random one.
    """
    batch = np.unique(np.round(np.geomspace(1, batch_limit, _BATCHES)))
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
        return _overrun(max_rate=max_rate, batch=batch_limit)
    for _ in range(_BATCHES):
        cycle_s = float(np.interp(mean_batch, batch, cycle))
        mean_batch = rate * cycle_s / -float(np.expm1(-rate * cycle_s))
    if mean_batch > batch_limit:
        return _overrun(max_rate=max_rate, batch=batch_limit)

    def at_mean(values: Column) -> float:
        return float(np.interp(mean_batch, batch, values))

    utilization = cycle_s / (cycle_s + float(np.exp(-rate * cycle_s)) / rate)
    later_tokens = demand.gen[demand.gen > 1] - 1
    per_token = float(np.mean(1 / later_tokens)) if len(later_tokens) else nan
    later = at_mean(read * (parts - 1) / (2 * parts)) * per_token  # prefills of the same batch after its own
    return SteadyState(
        batch=mean_batch,
        utilization=utilization,
        ttft_s=utilization * cycle_s / 2 + at_mean(read * (parts + 1) / (2 * parts)),
        tpot_s=at_mean(decoding) * per_token if policy.padded else at_mean(step_s) * demand.steps_per_token + later,
        max_rate=max_rate,
        max_batch=int(batch_limit),
    )
