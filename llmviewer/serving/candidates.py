"""A setting that may serve a load, judged in closed form: copies of a model on devices of one kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf, nan
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..costs import By, usd_per_h, watts
from ..hardware import Hardware
from ..layout import Layout
from ..units import counted, fold, seconds, si
from .outcome import Goals
from .policy import POLICIES
from .steady import Reading, held_up_s, reading, saturated_s

Grid = npt.NDArray[np.float64]  # [device, copies] or [device, copies, batch]

_TAIL: Final = 3.09  # deviations above the mean that 999 of 1000 moments stay below, where sequences vary normally
_LEAST: Final = 0.05  # of how steeply it falls: no batch is twenty times as wide
_HALVINGS: Final = 7  # of the distance to where a rate and the steps that it makes agree
_RATES, _ROUNDS = 16, 3  # that are tried at a time, and how often: to a three thousandth of what is looked through

POLICY: Final = "prefill-first"  # whose closed form this is
PRICES: Final = {By.COST: "USD/h", By.ENERGY: "W at TDP", By.DEVICES: "devices"}  # the first that is known is usual


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Copies of a model on devices of one kind, at the rate asked for shared out among them.

    least        the same devices, precision and layout where steps take as long as their lower bounds; None where the
                 times here are such, as nothing is expected of the kernels
    quant        the precision as it was asked for, PUBLISHED where none was
    copies       of the model, each laid out alike
    limit        sequences at a time for which each copy has room: what it takes, or what serves most where no number
                 serves the rate; `batch` is how many there are on average
    utilization  of the time of each copy that prompts are read in
    rate_within  up to which all copies keep to what is asked of them [1/s]; nan where they do not at the rate asked for
    max_rate     requests that all copies serve at most, however long they take; nearly so many wait for ever [1/s]
    usd_per_h    of all devices; nan where a file has no price. `watts` likewise, at TDP
    memory       needed over there is, at `limit`
    unmodelled   part of the time of a decode step that is a bound, as nothing is expected of its kernels
    factor       what rules it out: "", "data type", "layout", "link", "memory", "rate", "batch", "time to first token"
                 or "time per token"
    excess       over what is allowed or there; inf where that is no matter of degree
    reason       both, in words; "" beside a factor where `excess` is not worked out further than that it is no less
    """

    hardware: Hardware
    quant: str
    layout: Layout
    copies: int = 0
    limit: int = 0
    batch: float = nan
    utilization: float = nan
    ttft_s: float = nan
    tpot_s: float = nan
    rate_within: float = nan
    max_rate: float = nan
    memory: float = nan
    usd_per_h: float = nan
    watts: float = nan
    unmodelled: float = nan
    factor: str = ""
    excess: float = 1.0
    reason: str = ""
    least: Candidate | None = field(default=None, repr=False)

    @property
    def devices(self) -> int:
        return self.copies * self.layout.devices

    def price(self, by: By) -> float:
        """What is to be low, in PRICES; nan where unknown."""
        return {By.COST: self.usd_per_h, By.ENERGY: self.watts, By.DEVICES: float(self.devices)}[by]


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of every setting."""

    rate: float
    prompt: int
    gen: int
    goals: Goals
    limits: Grid
    max_devices: int
    years: float | None

    @property
    def together(self) -> int:
        """Prompts that one step of a rank reads at most."""
        return max(POLICIES[POLICY].budget // self.prompt, 1)

    @property
    def middle(self) -> float:
        """What a sequence that decodes attends to on average. [tokens]"""
        return self.prompt + self.gen / 2


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """A step that reads one prompt in one lane, and for each of as many prompts as one reads at most, [device]; a
    decode step, [device, batch]. [s]

    unmodelled  as of Candidate
    ranks       of a copy that wait for each other in every step, each with sequences of its own
    turns       of each rank in a pipeline, likewise; all of them are lanes
    apart       of a copy, sets of such ranks
    together    prompts that one step of all these lanes reads at most
    """

    alone: Grid
    every: Grid
    step: Grid
    unmodelled: Grid
    ranks: int
    turns: int
    apart: int
    together: int

    @classmethod
    def unknown(cls, devices: int, batches: int, *, ranks: int, turns: int, apart: int, together: int) -> StepTimes:
        """To be filled in.

        together  of one lane
        """
        alone, every, unmodelled = np.full((3, devices), nan)
        return cls(
            alone=alone, every=every, step=np.full((devices, batches), nan), unmodelled=unmodelled, ranks=ranks,
            turns=turns, apart=apart, together=ranks * turns * together,
        )  # fmt: skip

    @property
    def lanes(self) -> int:
        return self.ranks * self.turns

    def only(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> StepTimes:
        grids = {name: getattr(self, name)[list(rows)] for name in ("alone", "every", "step", "unmodelled")}
        return replace(self, **grids)

    def held_up(self, step: Grid) -> Grid:
        """A step that reads one prompt where those that decode alone take `step`, [device, ...]. [s]"""
        return held_up_s(self.alone.reshape(-1, *[1] * (np.ndim(step) - 1)), step, self.turns)

    def reading(self, rate: Grid, step: Grid) -> Reading:
        """Steps that read, where requests come at such rates and steps that decode alone take `step`, [device, ...]."""
        every = self.every.reshape(-1, *[1] * (np.ndim(rate) - 1))
        return reading(rate, self.held_up(step), every, step, self.together)


def judged(
    devices: Sequence[Hardware], asked: tuple[str, Layout], times: StepTimes, needed: Grid, load: Load
) -> Iterator[Candidate]:
    """The closed form of the steady state for every device and number of copies, and what it is to be held to."""
    quant, layout = asked
    copies = np.arange(1.0, load.max_devices // layout.devices + 1)
    memory = needed / np.array([[device.capacity] for device in devices])
    rates = np.broadcast_to(load.rate / copies, (len(devices), len(copies)))
    able = _able(times, memory, load)
    found = _Steady.of(rates, times, able, memory, load)
    stable, over, fine = found.stable, found.over, found.fine
    worst = reduce(np.maximum, over.values())
    missed = np.where(stable | ~np.any(stable, axis=1, keepdims=True), worst, inf)  # more copies serve any rate
    first = np.where(np.any(fine, axis=1), np.argmax(fine, axis=1), np.argmin(missed, axis=1))
    within = np.full(len(devices), nan)
    rows = np.flatnonzero(np.any(fine, axis=1))
    if len(rows):
        own = rates[rows, first[rows]]
        within[rows] = _most_within(own, times.only(rows), able[rows], memory[rows], load)
    for row, device in enumerate(devices):
        at_row = row, int(first[row])
        count = int(copies[at_row[1]])
        taken = [(device, count * layout.devices)]
        factor = "" if fine[at_row] else max(over, key=lambda name: over[name][at_row])
        one = Candidate(
            hardware=device, quant=quant, layout=layout, copies=count, limit=int(load.limits[found.place[at_row]]),
            batch=float(found.batch[at_row]), utilization=float(found.busy[at_row]),
            ttft_s=float(found.ttft_s[at_row]), tpot_s=float(found.tpot_s[at_row]),
            rate_within=float(within[row] * count), max_rate=float(found.most[row, 0] * count),
            memory=float(over["memory"][at_row]),
            usd_per_h=usd_per_h(taken, load.years), watts=watts(taken),
            unmodelled=float(times.unmodelled[row]), factor=factor,
            excess=float(over[factor][at_row]) if factor else 1.0,
        )  # fmt: skip
        yield replace(one, reason=_reason(one, load)) if factor else one


@dataclass(frozen=True, kw_only=True)
class _Steady:
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
        kept: npt.NDArray[np.bool_] = self.stable & (reduce(np.maximum, self.over.values()) <= 1)
        return kept

    @classmethod
    def of(cls, rate: Grid, times: StepTimes, able: Grid, memory: Grid, load: Load) -> _Steady:
        """At requests a second that come to one copy, [device, rate].

        able    as of _able()
        memory  needed over there is, [device, batch]
        """
        wanted, limits, own = load.gen - 1, load.limits, rate / times.apart
        step = times.step[:, None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = _Turns.of(own[..., None], step, times).tpot_s  # by sequences that decode together
            # A sequence has one less than them beside it; no number of them is enough where there is no time to decode.
            missing = np.where(np.isinf(tpot), inf, rate[..., None] * wanted * tpot - (limits - 1))
            at, stable = _crossing(missing)
            batch = _at(limits - 1, at)
            step_s, tpot_s = _at(np.broadcast_to(step, missing.shape), at), _at(tpot, at)
            turns = _Turns.of(own, step_s, times)
            ttft_s = np.where(stable, turns.ttft_s(1 - np.exp(-batch)), inf)
            tpot_s = np.where(stable, tpot_s, inf) if wanted else np.zeros(stable.shape)
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


def _able(times: StepTimes, memory: Grid, load: Load) -> Grid:
    """Requests that a copy serves at most, [device, batch]; 0 by batches that there is no room for. [1/s]

    memory  as of _Steady.of()
    """
    wanted, step = load.gen - 1, times.step
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


def _most_within(rate: Grid, times: StepTimes, able: Grid, memory: Grid, load: Load) -> Grid:
    """Up to how many requests a second copies keep to everything that they keep to at `rate`, [device]. [1/s]

    What each is held to grows with the rate, so the edge is between two of several rates, and of several between those.

    able, memory  as of _Steady.of()
    """
    low, high = rate, np.maximum(np.max(able, axis=1), rate)
    for _ in range(_ROUNDS):
        tried = np.linspace(low, high, _RATES, axis=1)
        fine = _Steady.of(tried, times, able, memory, load).fine
        last = np.where(np.all(fine, axis=1), _RATES - 1, np.maximum(np.argmin(fine, axis=1) - 1, 0))
        low, high = (
            np.take_along_axis(tried, place[:, None], axis=1)[:, 0]
            for place in (last, np.minimum(last + 1, _RATES - 1))
        )  # fmt: skip
    return low


def _crossing(missing: Grid) -> tuple[Grid, npt.NDArray[np.bool_]]:
    """Where a row of the last axis falls to 0, as a place with its fraction, and whether it does."""
    place = np.argmax(missing <= 0, axis=-1)
    stable = np.take_along_axis(missing, place[..., None], axis=-1)[..., 0] <= 0
    before = np.maximum(place - 1, 0)
    left, right = (np.take_along_axis(missing, p[..., None], axis=-1)[..., 0] for p in (before, place))
    between = np.where(np.isinf(left), 1.0, left / np.where(left == right, 1.0, left - right))
    fraction = np.where(place > 0, between, 0.0)
    return np.where(stable, before + fraction, 0.0), stable


def _at(values: Grid, at: Grid) -> Grid:
    """Entries of the last axis at places with fractions."""
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, values.shape[-1] - 1)
    if values.ndim == 1:
        left, right = values[low], values[high]
    else:
        left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (low, high))
    mixed: Grid = left + (at - low) * (right - left)
    return mixed


def _slope(values: Grid, over: Grid, at: Grid) -> Grid:
    """How steeply entries of the last axis fall at places with fractions."""
    high = np.maximum(np.ceil(at).astype(int), 1)
    left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (high - 1, high))
    fall: Grid = (left - right) / (over[high] - over[high - 1])
    return fall


def _reason(one: Candidate, load: Load) -> str:
    most = f"{one.max_rate:.4g} requests/s at most"
    if one.factor == "memory":
        there = one.hardware.capacity
        slower = f" (room for {most})" if 0 < one.max_rate < load.rate else ""
        return (
            f"memory: {si(one.memory * there)}B for {counted(one.limit, 'sequence')} at a time, {fold(one.memory)} the "
            f"{si(there)}B of each device{slower}"
        )
    if one.factor == "batch":
        return f"batch: {one.excess * load.limits[-1]:.0f} sequences at a time, of {load.limits[-1]:.0f} at most"
    if one.factor == "rate":
        room = f" (memory for {one.limit} at a time on each copy)" if one.limit < load.limits[-1] else ""
        return f"rate: {most} on {counted(one.devices, 'device')}{room}, of {load.rate:.4g} asked"
    value, goal = (
        (one.ttft_s, load.goals.ttft_s) if one.factor == "time to first token" else (one.tpot_s, load.goals.tpot_s)
    )
    return f"{one.factor}: {seconds(value)}, {fold(one.excess)} the {seconds(goal)} allowed"
