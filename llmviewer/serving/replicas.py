"""Replicas of a plan on many devices at once: their steady states, and what the targets require over what they allow.

All prompts and outputs have one length, prefills go first, and several ranks may wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from math import inf
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .demand import Prompts
from .fleet_times import StepTimes
from .flow import Flow
from .load import POLICY, Grid, Load
from .policy import POLICIES

_DEVIATIONS: Final = 3.09  # a normal variable is less than this above its mean 99.9 % of the time
_RATES, _ROUNDS = 16, 3  # rates of each round, and rounds: they narrow an interval to a 3375th
_NONE, _ONE = np.zeros(1), np.ones(1)

Rows = Sequence[int] | npt.NDArray[np.intp]


@frozen(kw_only=True)
class SteadyReplicas:
    """The steady state of a replica, [device, rate].

    stable    whether departures keep up with arrivals
    busy      fraction of the time in which prefills run
    ttft_quantile_s, tpot_quantile_s  times at the percentiles of the goals; the means for goals of means
    place     index of the smallest batch limit that the batch needs, or of the one with the highest rate if unstable
    ratios    required over allowed or available, by name
    """

    stable: npt.NDArray[np.bool_]
    batch: Grid
    busy: Grid
    ttft_s: Grid
    tpot_s: Grid
    ttft_quantile_s: Grid
    tpot_quantile_s: Grid
    place: npt.NDArray[np.intp]
    ratios: Mapping[str, Grid]

    @property
    def within_targets(self) -> npt.NDArray[np.bool_]:
        """Whether nothing required exceeds what is allowed or available."""
        return np.asarray(self.stable & (reduce(np.maximum, self.ratios.values()) <= 1))


@frozen(kw_only=True)
class Replicas:
    """Replicas of a setting on several devices.

    times   of their steps
    memory  required over available, [device, batch]
    """

    times: StepTimes
    memory: Grid
    load: Load

    def only(self, rows: Rows) -> Replicas:
        """The replicas on some of the devices."""
        return replace(self, times=self.times.only(rows), memory=self.memory[list(rows)])

    @property
    def lanes(self) -> int:
        """Lanes of all sets of ranks, which have equal shares of the requests."""
        return self.times.rank_sets * self.times.lanes

    @cached_property
    def flow(self) -> Flow:
        """Requests by batch, [device, 1, batch]; the rates of a lane go between."""
        times, load = self.times, self.load
        single_s, every_s = (each[:, None, None] for each in (times.single_prefill, times.packed_prefill))
        prompts = Prompts(
            time_s=single_s, unevenness=_ONE, decoding_steps=_NONE, full_steps=_ONE, more_s=_NONE, every_s=every_s,
            max_prompts=times.max_prompts,
        )  # fmt: skip
        step_s = times.step[:, None, :]
        return Flow(
            others=(load.limits - 1) / self.lanes, step_s=step_s, full_step_s=step_s, prompts=prompts,
            decode_steps=load.decode_steps, policy=POLICIES[POLICY], lanes=times.lanes,
            micro_batches=times.micro_batches,
        )  # fmt: skip

    @cached_property
    def max_rates(self) -> Grid:
        """Maximum rate of requests of a replica, [device, batch]; 0 for batches without memory. [1/s]"""
        return np.where(self.memory <= 1, self.lanes * self.flow.max_rates[:, 0, :], 0.0)

    @cached_property
    def max_rate(self) -> Grid:
        """Highest rate of requests by memory, [device]. [1/s]"""
        return np.asarray(np.max(self.max_rates, axis=1))

    @np.errstate(divide="ignore", invalid="ignore")
    def steady(self, rate: Grid) -> SteadyReplicas:
        """The steady state at rates of requests to one replica, [device, rate]. [1/s]"""
        load, goals, limits, sets = self.load, self.load.goals, self.load.limits, self.times.rank_sets
        state = self.flow.steady(rate / self.lanes)
        stable, later_tokens = state.stable, max(load.gen - 1, 1)
        batch = np.where(stable, sets * state.batch, 0.0)

        def first_token(percentile: float | None) -> Grid:
            return np.where(stable, state.ttft_s(percentile), inf)

        def per_token(interval_s: Grid) -> Grid:
            """Time per token, if steps generate several. [s]"""
            if not load.decode_steps:
                return np.zeros(stable.shape)
            return np.where(stable, interval_s * load.decode_steps / later_tokens, inf)

        ttft_s, tpot_s = first_token(None), per_token(state.interval_s)
        tpot_quantile_s = tpot_s
        if goals.tpot_percentile is not None:
            # Many arrivals at a time mean more sequences and more prefills during the decoding of each.
            normal = NormalDist().inv_cdf(goals.tpot_percentile / 100)
            prefills = rate / sets * tpot_s * later_tokens
            each_s = state.busy / (rate / sets) / later_tokens
            tpot_quantile_s = per_token(state.interval_quantile_s(normal)) + normal * np.sqrt(prefills) * each_s
        batch_needed = np.where(stable, 1 + batch + _DEVIATIONS * np.sqrt(sets) * state.deviation, 1.0)
        fitting_place = np.minimum(np.searchsorted(limits, batch_needed), len(limits) - 1)
        place = np.where(stable, fitting_place, np.argmax(self.max_rates, axis=1)[:, None])
        ttft_quantile_s = ttft_s if goals.ttft_percentile is None else first_token(goals.ttft_percentile)
        max_rate = self.max_rate[:, None]
        ratios = {
            "memory": np.take_along_axis(self.memory, place, axis=1),
            "rate": np.divide(rate, max_rate, out=np.ones(stable.shape), where=~stable & (max_rate > 0)),
            "batch": batch_needed / limits[-1],
            "time to first token": np.where(stable, ttft_quantile_s, 0.0) / goals.ttft_s,
            "time per token": np.where(stable, tpot_quantile_s, 0.0) / goals.tpot_s,
        }
        return SteadyReplicas(
            stable=stable, batch=batch, busy=state.busy, ttft_s=ttft_s, tpot_s=tpot_s, ttft_quantile_s=ttft_quantile_s,
            tpot_quantile_s=tpot_quantile_s, place=place, ratios=ratios,
        )  # fmt: skip

    def most_within(self, rate: Grid) -> Grid:
        """The highest rate of requests at which replicas meet every target that they meet at `rate`, [device]. [1/s]"""
        return _highest(rate, np.maximum(self.max_rate, rate), lambda tried: self.steady(tried).within_targets)

    def sustained(self, rate: Grid) -> Grid:
        """The highest rate of requests, up to `rate`, at which departures keep up with arrivals, [device]. [1/s]

        `max_rates` are those of steps that are always full. In a steady state some are not, so a replica may fall
        behind earlier.
        """
        return _highest(np.zeros_like(rate), rate, lambda tried: self.steady(tried).stable)


def _highest(low: Grid, high: Grid, holds: Callable[[Grid], npt.NDArray[np.bool_]]) -> Grid:
    """The highest rate from `low` to `high` [device] before a condition first fails.

    All rates of a round are tried, since the condition may hold again at higher ones: steps jump where kernels change.

    holds  takes rates [device, _RATES]
    """
    for _ in range(_ROUNDS):
        tried = np.linspace(low, high, _RATES, axis=1)
        fine = holds(tried)
        last = np.where(np.all(fine, axis=1), _RATES - 1, np.maximum(np.argmin(fine, axis=1) - 1, 0))
        low, high = (
            np.take_along_axis(tried, index[:, None], axis=1)[:, 0]
            for index in (last, np.minimum(last + 1, _RATES - 1))
        )  # fmt: skip
    return low
