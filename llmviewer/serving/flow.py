"""Continuous batching in closed form: the mean batch, at which departures keep up with arrivals, and queueing.

Prompts queue with priority: each waits for the running step and for the prompts before it (Cobham,
doi:10.1287/opre.2.1.70). Every quantity may be an array over devices and rates; [..., batch] also runs over the number
of sequences that decode.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf, log
from typing import Final

import numpy as np
import numpy.typing as npt

from ..forms import Num
from ..records import frozen
from .balance import decode_batch, descent, token_interval_s, value_at
from .demand import Prompts
from .markov_chain import Column, Reading, held_up_s, reading, saturated_s
from .policy import Policy

_MIN_STEEPNESS: Final = 0.05  # of arrivals less departures by batch; limits the variance of the batch to 20 means
_MIN_SHARE: Final = 1e-300  # of requests that wait, so that its logarithm is finite

_undefined = np.errstate(divide="ignore", invalid="ignore")  # where a flow is not stable


@frozen(kw_only=True)
class Flow:
    """Requests that start and finish while others decode, by the number of other sequences that decode with one.

    A lane is a running batch: that of a rank or, in a pipeline, of one of its micro-batches. Each prefills at the
    arrival rate, and spends the rest of the time on steps that only decode. A decoding sequence has B others with it
    where B is the mean, because arrivals at random see the mean (PASTA, doi:10.1287/opre.30.2.223).

    others        other sequences of a lane that decode with one, [batch]
    step_s        step that only decodes, of a sequence and its others, [..., batch] [s]
    full_step_s   step that only decodes, with as many sequences as `others` in all lanes, [..., batch] [s]
    prompts       [..., batch], or [..., 1] if they are as long for any batch
    decode_steps  mean decode steps of a request
    lanes         running batches that take steps together
    micro_batches  micro-batches of a rank in a pipeline
    """

    others: Column
    step_s: Column
    full_step_s: Column
    prompts: Prompts
    decode_steps: float
    policy: Policy
    lanes: int = 1
    micro_batches: int = 1

    @property
    @_undefined
    def max_rates(self) -> Column:
        """Maximum rate of requests of a lane, [..., batch]. [1/s]"""
        prompts, steps = self.prompts, self.decode_steps
        request_s = saturated_s(
            self.others / steps if steps else np.full(self.others.shape, inf),
            held_up_s(prompts.time_s, self.full_step_s, self.micro_batches), prompts.every_s, self.full_step_s,
            most=prompts.max_prompts, lanes=self.lanes, parts=prompts.full_steps, mixes=self.policy.mixes,
        )  # fmt: skip
        return np.where((self.others > 0) | (not steps), 1 / request_s, 0.0)

    def reading(self, rate: Column) -> Reading:
        """Prefill steps at rates of requests to a lane, [..., batch]. [1/s]"""
        alone_s = held_up_s(self.prompts.time_s, self.step_s, self.micro_batches)
        return reading(self.lanes * rate, alone_s, self.prompts.every_s, self.step_s, self.prompts.max_prompts)

    def busy(self, rate: Column, read: Reading) -> Column:
        """Fraction of the time in which prefills run."""
        return np.asarray(self.lanes * rate * read.read_s / read.prompts)

    def interval_s(self, rate: Column) -> Column:
        """Time between two decode steps of a sequence, [..., batch]; inf if there is no time to decode. [s]"""
        read = self.reading(rate)
        joined = self.prompts.decoding_steps if self.policy.mixes else np.maximum(1 - read.prompts / self.lanes, 0)
        return token_interval_s(self.step_s, self.busy(rate, read), self.lanes * rate * joined / read.prompts)

    def at(self, index: Column) -> Flow:
        """The flow at fractional indices of `others`, without the axis of batches."""
        columns = {name: value_at(np.asarray(values), index) for name, values in self.prompts._asdict().items()}
        return replace(
            self, others=value_at(self.others, index), step_s=value_at(self.step_s, index),
            full_step_s=value_at(self.full_step_s, index), prompts=Prompts(**columns),
        )  # fmt: skip

    @_undefined
    def steady(self, rate: Column) -> SteadyFlow:
        """The steady state at rates of requests to a lane, [...]. [1/s]"""
        interval_s = self.interval_s(rate[..., None])
        index, stable, missing = decode_batch(rate[..., None], self.decode_steps, interval_s, self.others)
        # Little's law gives the mean, where `missing` is 0.
        steepness = np.maximum(descent(missing, self.others, index), _MIN_STEEPNESS)
        return SteadyFlow(
            columns=self, mean=self.at(index), rate=rate, stable=stable, intervals_s=interval_s,
            interval_s=value_at(interval_s, index), steepness=np.where(stable & (index > 0), steepness, 1.0),
        )  # fmt: skip


@frozen(kw_only=True)
class SteadyFlow:
    """The steady state of a flow at rates of requests to a lane, [...]; of no meaning where that is not stable.

    columns      the flow by batch, and `mean` at the mean batch
    stable       whether departures keep up with arrivals
    intervals_s  time between two decode steps of a sequence, [..., batch], and `interval_s` at the mean batch [s]
    steepness    fall of arrivals less departures with each further sequence, at the mean batch
    """

    columns: Flow
    mean: Flow
    rate: Column
    stable: npt.NDArray[np.bool_]
    intervals_s: Column
    interval_s: Column
    steepness: Column

    @cached_property
    def _read(self) -> Reading:
        return self.mean.reading(self.rate)

    @cached_property
    def busy(self) -> Column:
        """Fraction of the time in which prefills run."""
        return self.mean.busy(self.rate, self._read)

    @property
    def batch(self) -> Column:
        """Mean decoding sequences of all lanes."""
        return self.mean.lanes * self.mean.others

    @property
    def any_decodes(self) -> Column:
        """Probability that any sequence decodes, as sequences come at random."""
        return 1 - np.exp(-self.batch)

    @property
    def decoding(self) -> Column:
        """Fraction of the time in which steps only decode."""
        return (1 - self.busy) * self.any_decodes

    @_undefined
    def ttft_s(self, percentile: float | None = None) -> Column:
        """Time to first token, at a percentile or, for None, in the mean. [s]

        A whole prompt delays those of all lanes. A chunk delays those of other lanes for a step, so that lanes are
        servers of one queue (Sakasegawa 1977). The wait for a running step is uniform, that in the queue exponential,
        which is long for equal prefills. Their percentiles are added.
        """
        flow, prompts, read, lanes = self.mean, self.mean.prompts, self._read, self.mean.lanes
        along = 1 if flow.policy.cuts else lanes
        servers = lanes // along
        each = np.maximum(read.prompts * along / lanes, 1)
        queued = along * self.rate * read.read_s / each
        before_s = prompts.unevenness * read.read_s / 2 / servers * waiting(queued, servers, percentile)
        chunk_s = read.read_s / np.maximum(prompts.decoding_steps, 1)
        running_s = self.decoding * flow.step_s / 2 + (self.busy - queued) * chunk_s / 2
        idle = 1 - queued * each * servers / prompts.max_prompts
        last_s = self.any_decodes * prompts.more_s + (1 - self.any_decodes) * self.columns.prompts.more_s[..., 0]
        uniform = 1.0 if percentile is None else 2 * percentile / 100  # percentile over mean
        return np.asarray(read.read_s + last_s + (uniform * running_s + before_s) / idle)

    def interval_quantile_s(self, deviations: float) -> Column:
        """Time between two decode steps with a batch that many standard deviations above its mean. [s]"""
        unusual_batch = self.batch + deviations * self.deviation
        others = self.columns.others
        index = np.interp(unusual_batch / self.mean.lanes, others, np.arange(len(others)))
        return value_at(self.intervals_s, index)

    @property
    def deviation(self) -> Column:
        """Standard deviation of the decoding sequences of all lanes.

        That of Poisson, the root of the mean, where decode steps are as long for any batch; the steeper arrivals less
        departures fall, the less.
        """
        return np.sqrt(self.batch / self.steepness)


def waiting(utilization: Num, servers: Num, percentile: float | None = None) -> Column:
    """Share of requests that wait for one of `servers` (Sakasegawa 1977); or the percentile of all waits over the mean
    of those that wait, which are exponential.
    """
    share = np.asarray(utilization ** (np.sqrt(2 * (servers + 1)) - 1))
    if percentile is None:
        return share
    return np.asarray(np.maximum(np.log(np.maximum(share, _MIN_SHARE)) - log(1 - percentile / 100), 0))
