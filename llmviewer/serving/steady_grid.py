"""The steady state of a copy of a plan in closed form, on many devices and at many rates at once.

Prompts and outputs are all alike here, prefills go first, and several ranks may wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .balance import decode_batch, token_interval_s, value_at
from .load import Grid, Load, StepTimes
from .markov_chain import saturated_s

_DEVIATIONS: Final = 3.09  # above the mean, below which a normal variable is at 999 of 1000 moments
_MIN_STEEPNESS: Final = 0.05  # of arrivals less departures, by batch: no batch is twenty times as wide
_HALVINGS: Final = 7  # of the distance between a rate and the steps that it makes
_RATES, _ROUNDS = 16, 3  # rates that are tried at a time, and rounds: to a 3375th of the interval


@frozen(kw_only=True)
class FleetSteadyState:
    """The steady state of a copy, [device, rate].

    stable  whether departures keep up with arrivals
    busy    fraction of the time in which prefills run
    place   index of the batch limit for which there is memory
    most    requests that memory lets the copy serve, [device, 1] [1/s]
    over    required over allowed or available, by name
    """

    stable: npt.NDArray[np.bool_]
    batch: Grid
    busy: Grid
    ttft_s: Grid
    tpot_s: Grid
    place: npt.NDArray[np.intp]
    most: Grid
    over: Mapping[str, Grid]

    @property
    def fine(self) -> npt.NDArray[np.bool_]:
        """Whether nothing required exceeds what is allowed or available."""
        return np.asarray(self.stable & (reduce(np.maximum, self.over.values()) <= 1))

    @classmethod
    def of(cls, rate: Grid, times: StepTimes, able: Grid, memory: Grid, load: Load) -> FleetSteadyState:
        """The steady state at rates of requests to one copy, [device, rate]. [1/s]

        able    from able_rates()
        memory  required over available, [device, batch]
        """
        wanted, limits, own = load.wanted, load.limits, rate / times.apart
        step = times.step[:, None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = _Steps.of(own[..., None], step, times).tpot_s  # by sequences that decode together
            index, stable, missing = decode_batch(rate[..., None], wanted, tpot, limits - 1)
            batch = value_at(limits - 1, index)
            step_s, tpot_s = value_at(np.broadcast_to(step, missing.shape), index), value_at(tpot, index)
            steps = _Steps.of(own, step_s, times)
            ttft_s = np.where(stable, steps.ttft_s(1 - np.exp(-batch)), inf)
            each_s = tpot_s * wanted / max(load.gen - 1, 1)  # of a token, where steps give several
            tpot_s = np.where(stable, each_s, inf) if wanted else np.zeros(stable.shape)
            # Little's law gives the mean, where `missing` is 0. The steeper it falls there the less the batch varies
            # around it: with Poisson's variance, the mean, where decode steps are as long for any batch.
            steepness = np.where(stable & (index > 0), np.maximum(_slope(missing, limits, index), _MIN_STEEPNESS), 1.0)
            room = np.where(stable, 1 + batch + _DEVIATIONS * np.sqrt(batch / steepness), 1.0)
        most = np.max(able, axis=1, keepdims=True)
        wide = np.minimum(np.searchsorted(limits, room), len(limits) - 1)
        place = np.where(stable, wide, np.argmax(able, axis=1, keepdims=True))
        over = {
            "memory": np.take_along_axis(memory, place, axis=1),
            "rate": np.divide(rate, most, out=np.ones(stable.shape), where=~stable & (most > 0)),
            "batch": room / limits[-1],
            "time to first token": np.where(stable, ttft_s, 0.0) / load.goals.ttft_s,
            "time per token": np.where(stable, tpot_s, 0.0) / load.goals.tpot_s,
        }
        return cls(
            stable=stable, batch=batch, busy=steps.busy, ttft_s=ttft_s, tpot_s=tpot_s, place=place, most=most, over=over
        )  # fmt: skip


class _Steps(NamedTuple):
    """Steps of two kinds: prefills, and steps that only decode.

    busy      fraction of the time in which prefills run
    tpot_s    time between two decode steps of a sequence; inf if there is no time to decode [s]
    read_s    time to the end of a prefill, with others before it and in its step [s]
    decode_s  wait for a decode step that runs, if any sequence decodes [s]
    """

    busy: Grid
    tpot_s: Grid
    read_s: Grid
    decode_s: Grid

    @classmethod
    def of(cls, rate: Grid, step: Grid, times: StepTimes) -> _Steps:
        """Steps at rates of requests to ranks that wait for each other, or to one that does not. [1/s]

        step  duration of a step that only decodes [s]
        """
        found = times.reading(rate, step)
        read, round_s = found.read_s, found.round_s
        with np.errstate(divide="ignore", invalid="ignore"):
            if times.lanes == 1:
                busy = rate * read / found.prompts
                idle = 1 - busy * found.full
                read_s = read + busy * read / 2 / idle
                return cls(busy, token_interval_s(step, busy), read_s, (1 - busy) * step / 2 / idle)
            own = np.minimum(
                rate * round_s / times.lanes, found.often
            )  # fraction of its steps in which a rank prefills
            return cls(
                busy=found.often * read / round_s,
                tpot_s=np.where(own < 1, round_s / (1 - own), inf),
                read_s=read + found.often * read * read / round_s / 2 + own * round_s / (1 - own) / 2,
                decode_s=(1 - found.often) * step * step / round_s / 2,
            )

    def ttft_s(self, decoding: Grid) -> Grid:
        """Time to first token of a request that arrives at random. [s]

        decoding  probability that any sequence decodes
        """
        return self.read_s + decoding * self.decode_s


def able_rates(times: StepTimes, memory: Grid, load: Load) -> Grid:
    """Maximum rate of requests of a copy, [device, batch]; 0 for batches without memory. [1/s]

    memory  required over available, [device, batch]
    """
    wanted, step = load.wanted, times.step
    with np.errstate(divide="ignore", invalid="ignore"):
        each = times.apart * wanted / (load.limits - (wanted > 0))  # decode steps per other sequence
        if times.lanes > 1:
            taken = saturated_s(
                1 / each / times.lanes, times.held_up(step), times.every[:, None], step, most=times.together,
                lanes=times.lanes,
            )  # fmt: skip
            rate = np.where(np.isinf(each), 0.0, times.lanes / taken)
        else:
            rate = 1 / (times.every[:, None] + each * step)
    for _ in range(_HALVINGS if times.lanes == 1 and times.together > 1 else 0):
        found = times.reading(rate, step)
        taken = found.read_s / found.prompts + each * step
        rate = np.sqrt(rate / taken)  # halfway, as it falls where steps are longer
    return np.where(memory <= 1, times.apart * rate, 0.0)


def most_within(rate: Grid, times: StepTimes, able: Grid, memory: Grid, load: Load) -> Grid:
    """The highest rate of requests at which copies keep to every limit that they keep to at `rate`, [device]. [1/s]

    able, memory  as in FleetSteadyState.of()
    """
    high = np.maximum(np.max(able, axis=1), rate)
    return _highest(rate, high, lambda tried: FleetSteadyState.of(tried, times, able, memory, load).fine)


def sustained(rate: Grid, times: StepTimes, able: Grid, memory: Grid, load: Load) -> Grid:
    """The highest rate of requests, up to `rate`, at which departures keep up with arrivals, [device]. [1/s]

    able_rates() assumes that steps are always full. In a steady state some are not, so a copy may fall behind earlier.

    able, memory  as in FleetSteadyState.of()
    """
    return _highest(
        np.zeros_like(rate), rate, lambda tried: FleetSteadyState.of(tried, times, able, memory, load).stable
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


def _slope(values: Grid, over: Grid, at: Grid) -> Grid:
    """Steepness of the fall of the last axis at indices with fractions."""
    high = np.maximum(np.ceil(at).astype(int), 1)
    left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (high - 1, high))
    return np.asarray((left - right) / (over[high] - over[high - 1]))
