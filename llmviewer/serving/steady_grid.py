"""The steady state of a replica of a plan in closed form, on many devices and at many rates at once.

All prompts and outputs have one length, prefills go first, and several ranks may wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import inf, log
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .balance import decode_batch, token_interval_s, value_at
from .load import Grid, Load, StepTimes
from .markov_chain import saturated_s

_DEVIATIONS: Final = 3.09  # a normal variable is less than this above its mean 99.9 % of the time
_MIN_STEEPNESS: Final = 0.05  # of arrivals less departures by batch; limits the variance of the batch to 20 means
_MIN_SHARE: Final = 1e-300  # of requests that wait, so that its logarithm is finite
_HALVINGS: Final = 7  # iterations that halve the distance between a rate and the step times that it causes
_RATES, _ROUNDS = 16, 3  # rates of each round, and rounds: they narrow an interval to a 3375th


@frozen(kw_only=True)
class FleetSteadyState:
    """The steady state of a replica, [device, rate].

    stable    whether departures keep up with arrivals
    busy      fraction of the time in which prefills run
    ttft_quantile_s, tpot_quantile_s  times at the percentiles of the goals; the means for goals of means
    place     index of the smallest batch limit that the batch needs, or of the one with the highest rate if unstable
    max_rate  highest rate of requests by memory, [device, 1] [1/s]
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
    max_rate: Grid
    ratios: Mapping[str, Grid]

    @property
    def within_targets(self) -> npt.NDArray[np.bool_]:
        """Whether nothing required exceeds what is allowed or available."""
        return np.asarray(self.stable & (reduce(np.maximum, self.ratios.values()) <= 1))

    @classmethod
    def of(cls, rate: Grid, times: StepTimes, max_rates: Grid, memory: Grid, load: Load) -> FleetSteadyState:
        """The steady state at rates of requests to one replica, [device, rate]. [1/s]

        max_rates  from max_rates_by_batch()
        memory     required over available, [device, batch]
        """
        decode_steps, limits, group_rate = load.decode_steps, load.limits, rate / times.rank_sets
        step = times.step[:, None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = _Steps.of(group_rate[..., None], step, times).tpot_s  # [device, rate, batch]
            index, stable, missing = decode_batch(rate[..., None], decode_steps, tpot, limits - 1)
            batch = value_at(limits - 1, index)
            step_s, tpot_s = value_at(np.broadcast_to(step, missing.shape), index), value_at(tpot, index)
            steps = _Steps.of(group_rate, step_s, times)
            decoding, goals = 1 - np.exp(-batch), load.goals
            ttft_s = np.where(stable, steps.ttft_s(decoding), inf)
            ttft_quantile_s = np.where(stable, steps.ttft_s(decoding, goals.ttft_percentile), inf)

            def per_token(interval_s: Grid) -> Grid:
                """Time per token, if steps generate several. [s]"""
                each_s = interval_s * decode_steps / max(load.gen - 1, 1)
                return np.where(stable, each_s, inf) if decode_steps else np.zeros(stable.shape)

            interval_s = tpot_s
            tpot_s = per_token(interval_s)
            # Little's law gives the mean, where `missing` is 0. The steeper it falls there the less the batch varies
            # around it: with Poisson's variance, the mean, where decode steps are as long for any batch.
            steepness = np.where(
                stable & (index > 0), np.maximum(_descent(missing, limits, index), _MIN_STEEPNESS), 1.0
            )
            deviation = np.sqrt(batch / steepness)
            tpot_quantile_s = tpot_s
            if goals.tpot_percentile is not None:
                # Many arrivals at a time mean more sequences and more prefills during the decoding of each.
                normal = NormalDist().inv_cdf(goals.tpot_percentile / 100)
                unusual_index = np.interp(batch + normal * deviation, limits - 1, np.arange(len(limits)))
                prefills = group_rate * tpot_s * max(load.gen - 1, 1)
                each_s = np.divide(steps.busy, group_rate) / max(load.gen - 1, 1)
                tpot_quantile_s = per_token(value_at(tpot, unusual_index)) + normal * np.sqrt(prefills) * each_s
            batch_needed = np.where(stable, 1 + batch + _DEVIATIONS * deviation, 1.0)
        max_rate = np.max(max_rates, axis=1, keepdims=True)
        fitting_place = np.minimum(np.searchsorted(limits, batch_needed), len(limits) - 1)
        place = np.where(stable, fitting_place, np.argmax(max_rates, axis=1, keepdims=True))
        ratios = {
            "memory": np.take_along_axis(memory, place, axis=1),
            "rate": np.divide(rate, max_rate, out=np.ones(stable.shape), where=~stable & (max_rate > 0)),
            "batch": batch_needed / limits[-1],
            "time to first token": np.where(stable, ttft_quantile_s, 0.0) / goals.ttft_s,
            "time per token": np.where(stable, tpot_quantile_s, 0.0) / goals.tpot_s,
        }
        return cls(
            stable=stable, batch=batch, busy=steps.busy, ttft_s=ttft_s, tpot_s=tpot_s,
            ttft_quantile_s=ttft_quantile_s, tpot_quantile_s=tpot_quantile_s, place=place, max_rate=max_rate,
            ratios=ratios,
        )  # fmt: skip


class _Steps(NamedTuple):
    """Steps with prefills, and steps that only decode.

    busy       fraction of the time in which prefills run
    tpot_s     time between two decode steps of a sequence; inf if there is no time to decode [s]
    prefill_s  time of a prefill, with others in its step [s]
    running_s  mean wait for a running step with prefills [s]
    queue_s    mean wait for prefills before it, and `queue_share` the fraction of prompts that have such a wait [s]
    decode_s   mean wait for a running decode step, if any sequence decodes [s]
    """

    busy: Grid
    tpot_s: Grid
    prefill_s: Grid
    running_s: Grid
    queue_s: Grid
    queue_share: Grid
    decode_s: Grid

    @classmethod
    def of(cls, rate: Grid, step: Grid, times: StepTimes) -> _Steps:
        """Steps at rates of requests to ranks that wait for each other, or to a single rank. [1/s]

        step  duration of a step that only decodes [s]
        """
        prefills = times.reading(rate, step)
        read, round_s = prefills.read_s, prefills.round_s
        with np.errstate(divide="ignore", invalid="ignore"):
            if times.lanes == 1:
                busy = rate * read / prefills.prompts
                idle = 1 - busy * prefills.full
                queue_s = busy * read / 2 / idle
                interval_s = token_interval_s(step, busy)
                return cls(busy, interval_s, read, np.zeros_like(queue_s), queue_s, busy, (1 - busy) * step / 2 / idle)
            # Fraction of steps in which a rank prefills.
            rank_share = np.minimum(rate * round_s / times.lanes, prefills.prefill_fraction)
            return cls(
                busy=prefills.prefill_fraction * read / round_s,
                tpot_s=np.where(rank_share < 1, round_s / (1 - rank_share), inf),
                prefill_s=read,
                running_s=prefills.prefill_fraction * read * read / round_s / 2,
                queue_s=rank_share * round_s / (1 - rank_share) / 2,
                queue_share=rank_share,
                decode_s=(1 - prefills.prefill_fraction) * step * step / round_s / 2,
            )

    def ttft_s(self, decoding: Grid, percentile: float | None = None) -> Grid:
        """Time to first token of a request that arrives at random, at a percentile or, for None, in the mean. [s]

        decoding  probability that any sequence decodes

        The wait for a running step is uniform, that in the queue exponential, which is long for equal prefills. Their
        percentiles are added.
        """
        residual_s = self.running_s + decoding * self.decode_s
        if percentile is None:
            return self.prefill_s + residual_s + self.queue_s
        quantile = percentile / 100
        queued_s = self.queue_s / np.maximum(self.queue_share, _MIN_SHARE) * wait_ratio(self.queue_share, percentile)
        return np.asarray(self.prefill_s + 2 * quantile * residual_s + queued_s)


def wait_ratio(share: Grid, percentile: float) -> Grid:
    """Percentile of an exponential wait over its mean, where a `share` of the requests wait."""
    return np.maximum(np.log(np.maximum(share, _MIN_SHARE)) - log(1 - percentile / 100), 0)


def max_rates_by_batch(times: StepTimes, memory: Grid, load: Load) -> Grid:
    """Maximum rate of requests of a replica, [device, batch]; 0 for batches without memory. [1/s]

    memory  required over available, [device, batch]
    """
    decode_steps, step = load.decode_steps, times.step
    with np.errstate(divide="ignore", invalid="ignore"):
        steps_per_sequence = (
            times.rank_sets * decode_steps / (load.limits - (decode_steps > 0))
        )  # decode steps per other sequence
        if times.lanes > 1:
            request_s = saturated_s(
                1 / steps_per_sequence / times.lanes, times.held_up(step), times.packed_prefill[:, None], step,
                most=times.max_prompts, lanes=times.lanes,
            )  # fmt: skip
            rate = np.where(np.isinf(steps_per_sequence), 0.0, times.lanes / request_s)
        else:
            rate = 1 / (times.packed_prefill[:, None] + steps_per_sequence * step)
    for _ in range(_HALVINGS if times.lanes == 1 and times.max_prompts > 1 else 0):
        prefills = times.reading(rate, step)
        request_s = prefills.read_s / prefills.prompts + steps_per_sequence * step
        rate = np.sqrt(rate / request_s)  # halfway, as it falls where steps are longer
    return np.where(memory <= 1, times.rank_sets * rate, 0.0)


def most_within(rate: Grid, times: StepTimes, max_rates: Grid, memory: Grid, load: Load) -> Grid:
    """The highest rate of requests at which replicas meet every target that they meet at `rate`, [device]. [1/s]

    max_rates, memory  as in FleetSteadyState.of()
    """
    high = np.maximum(np.max(max_rates, axis=1), rate)
    return _highest(rate, high, lambda tried: FleetSteadyState.of(tried, times, max_rates, memory, load).within_targets)


def sustained(rate: Grid, times: StepTimes, max_rates: Grid, memory: Grid, load: Load) -> Grid:
    """The highest rate of requests, up to `rate`, at which departures keep up with arrivals, [device]. [1/s]

    max_rates_by_batch() assumes that steps are always full. In a steady state some are not, so a replica may fall
    behind earlier.

    max_rates, memory  as in FleetSteadyState.of()
    """
    return _highest(
        np.zeros_like(rate), rate, lambda tried: FleetSteadyState.of(tried, times, max_rates, memory, load).stable
    )


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


def _descent(values: Grid, positions: Grid, index: Grid) -> Grid:
    """Steepness of the fall of `values` along the last axis, at fractional indices of its `positions`."""
    high = np.maximum(np.ceil(index).astype(int), 1)
    left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (high - 1, high))
    return np.asarray((left - right) / (positions[high] - positions[high - 1]))
