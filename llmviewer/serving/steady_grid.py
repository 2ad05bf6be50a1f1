"""The steady state of a copy in closed form, on many devices and at many rates at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .balance import crossing, value_at
from .load import Grid, Load, StepTimes
from .markov_chain import saturated_s

_TAIL: Final = 3.09  # deviations above the mean that 999 of 1000 moments stay below, where sequences vary normally
_LEAST: Final = 0.05  # of how steeply it falls: no batch is twenty times as wide
_HALVINGS: Final = 7  # of the distance to where a rate and the steps that it makes agree
_RATES, _ROUNDS = 16, 3  # that are tried at a time, and how often: to a three thousandth of what is looked through


@dataclass(frozen=True, kw_only=True)
class Steady:
    """The steady state of a copy, [device, rate].

    stable  whether departures keep up with arrivals
    busy    part of the time in which prompts are read
    place   among the limits, of that which there is room for
    most    requests that memory lets it serve, [device, 1] [1/s]
    over    what is needed over what is allowed or there, by name
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
        """Whether it keeps to all of it."""
        return np.asarray(self.stable & (reduce(np.maximum, self.over.values()) <= 1))

    @classmethod
    def of(cls, rate: Grid, times: StepTimes, able: Grid, memory: Grid, load: Load) -> Steady:
        """At requests a second that come to one copy, [device, rate].

        able    as of able_rates()
        memory  needed over there is, [device, batch]
        """
        wanted, limits, own = load.wanted, load.limits, rate / times.apart
        step = times.step[:, None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = _Turns.of(own[..., None], step, times).tpot_s  # by sequences that decode together
            # A sequence has one less than them beside it; no number of them is enough where there is no time to decode.
            missing = np.where(np.isinf(tpot), inf, rate[..., None] * wanted * tpot - (limits - 1))
            at, stable = crossing(missing)
            batch = value_at(limits - 1, at)
            step_s, tpot_s = value_at(np.broadcast_to(step, missing.shape), at), value_at(tpot, at)
            turns = _Turns.of(own, step_s, times)
            ttft_s = np.where(stable, turns.ttft_s(1 - np.exp(-batch)), inf)
            each_s = tpot_s * wanted / max(load.gen - 1, 1)  # of a token, where steps leave several
            tpot_s = np.where(stable, each_s, inf) if wanted else np.zeros(stable.shape)
            # Little's law gives the mean, where `missing` is 0. The steeper it falls there the less they vary around
            # it: with Poisson's variance, the mean, where decode steps are as long for any batch.
            steepness = np.where(stable & (at > 0), np.maximum(_slope(missing, limits, at), _LEAST), 1.0)
            room = np.where(stable, 1 + batch + _TAIL * np.sqrt(batch / steepness), 1.0)
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
            stable=stable, batch=batch, busy=turns.busy, ttft_s=ttft_s, tpot_s=tpot_s, place=place, most=most, over=over
        )  # fmt: skip


class _Turns(NamedTuple):
    """Steps of two kinds: those that read prompts, and those that decode alone.

    busy             part of the time that prompts are read in
    tpot_s           between two tokens of a sequence; inf where there is no time to decode
    read_s, alone_s  until a prompt is read, others before it and in its step included, and what it waits for one that
                     others decode in
    """

    busy: Grid
    tpot_s: Grid
    read_s: Grid
    alone_s: Grid

    @classmethod
    def of(cls, rate: Grid, step: Grid, times: StepTimes) -> _Turns:
        """At requests a second that come to ranks which wait for each other, or to one that does not. [s]"""
        found = times.reading(rate, step)
        read, round_s = found.read_s, found.round_s
        with np.errstate(divide="ignore", invalid="ignore"):
            if times.lanes == 1:
                busy = rate * read / found.prompts
                tpot_s = np.where(busy < 1, step / (1 - busy), inf)
                idle = 1 - busy * found.full
                return cls(busy, tpot_s, read + busy * read / 2 / idle, (1 - busy) * step / 2 / idle)
            own = np.minimum(rate * round_s / times.lanes, found.often)  # of its steps, those that a lane reads in
            return cls(
                busy=found.often * read / round_s,
                tpot_s=np.where(own < 1, round_s / (1 - own), inf),
                read_s=read + found.often * read * read / round_s / 2 + own * round_s / (1 - own) / 2,
                alone_s=(1 - found.often) * step * step / round_s / 2,
            )

    def ttft_s(self, somebody: Grid) -> Grid:
        """Until a prompt is read that comes at random. [s]

        somebody  how likely it is that anybody decodes
        """
        return self.read_s + somebody * self.alone_s


def able_rates(times: StepTimes, memory: Grid, load: Load) -> Grid:
    """Requests that a copy serves at most, [device, batch]; 0 by batches that there is no room for. [1/s]

    memory  as of Steady.of()
    """
    wanted, step = load.wanted, times.step
    with np.errstate(divide="ignore", invalid="ignore"):
        each = times.apart * wanted / (load.limits - (wanted > 0))  # tokens for each that decodes beside others
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

    able, memory  as of Steady.of()
    """
    high = np.maximum(np.max(able, axis=1), rate)
    return _highest(rate, high, lambda tried: Steady.of(tried, times, able, memory, load).fine)


def sustained(rate: Grid, times: StepTimes, able: Grid, memory: Grid, load: Load) -> Grid:
    """The highest rate of requests, up to `rate`, at which departures keep up with arrivals, [device]. [1/s]

    able_rates() assumes that steps are always full. In a steady state some are not, so a copy may fall behind earlier.

    able, memory  as of Steady.of()
    """
    return _highest(np.zeros_like(rate), rate, lambda tried: Steady.of(tried, times, able, memory, load).stable)


def _highest(low: Grid, high: Grid, holds: Callable[[Grid], npt.NDArray[np.bool_]]) -> Grid:
    """The highest rate between `low` and `high` [device] at which a condition holds that fails from some rate on.

    holds  takes rates [device, _RATES]
    """
    for _ in range(_ROUNDS):
        tried = np.linspace(low, high, _RATES, axis=1)
        fine = holds(tried)
        last = np.where(np.all(fine, axis=1), _RATES - 1, np.maximum(np.argmin(fine, axis=1) - 1, 0))
        low, high = (
            np.take_along_axis(tried, place[:, None], axis=1)[:, 0]
            for place in (last, np.minimum(last + 1, _RATES - 1))
        )  # fmt: skip
    return low


def _slope(values: Grid, over: Grid, at: Grid) -> Grid:
    """How steeply entries of the last axis fall at places with fractions."""
    high = np.maximum(np.ceil(at).astype(int), 1)
    left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (high - 1, high))
    return np.asarray((left - right) / (over[high] - over[high - 1]))
