"""A setting that may serve a load, judged in closed form: copies of a model on devices of one kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import reduce
from math import inf, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from ..comparison import hourly
from ..hardware import Hardware
from ..layout import Layout
from ..units import counted, seconds, si
from .service import Goals

Grid = npt.NDArray[np.float64]  # [device, copies] or [device, copies, batch]

_TAIL: Final = 3.09  # deviations above the mean that 999 of 1000 moments stay below, where sequences vary normally
_LEAST: Final = 0.05  # of how steeply it falls: no batch is twenty times as wide


class By(StrEnum):
    """What a plan is to be low in."""

    COST = "cost"
    ENERGY = "energy"
    DEVICES = "devices"

    @property
    def unit(self) -> str:
        """Of what is to be low."""
        return {"cost": "USD/h", "energy": "W at TDP", "devices": "devices"}[self]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Copies of a model on devices of one kind, at the rate asked for shared out among them.

    least        the same devices, precision and layout where steps take as long as their lower bounds; None where the
                 times here are such, as nothing is expected of the kernels
    quant        the precision as it was asked for, PUBLISHED where none was
    copies       of the model, each laid out alike
    limit        sequences at a time for which each copy has room; `batch` is how many there are on average
    utilization  of the time of each copy that prompts are read in
    max_rate     requests that all copies serve at most [1/s]
    usd_per_h    of all devices; nan where a file has no price. `watts` likewise, at TDP
    memory       needed over there is, at `limit`
    unmodelled   part of the time of a decode step that is a bound, as nothing is expected of its kernels
    factor       what rules it out: "", "data type", "layout", "memory", "rate", "batch", "time to first token" or
                 "time per token"
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
    max_rate: float = nan
    memory: float = nan
    usd_per_h: float = nan
    watts: float = nan
    unmodelled: float = nan
    factor: str = ""
    excess: float = 1.0
    reason: str = ""
    least: Candidate | None = None

    @property
    def devices(self) -> int:
        return self.copies * self.layout.devices

    def price(self, by: By) -> float:
        """What is to be low; nan where unknown."""
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
    def middle(self) -> float:
        """What a sequence that decodes attends to on average. [tokens]"""
        return self.prompt + self.gen / 2


@dataclass(frozen=True, kw_only=True)
class Times:
    """A prompt's way through a copy, when another can follow, [device]; a decode step, [device, batch]. [s]

    unmodelled  as of Candidate
    """

    through: Grid
    every: Grid
    step: Grid
    unmodelled: Grid

    @classmethod
    def unknown(cls, devices: int, batches: int) -> Times:
        """To be filled in."""
        names = ("through", "every", "unmodelled")
        return cls(step=np.full((devices, batches), nan), **{name: np.full(devices, nan) for name in names})

    def only(self, rows: Sequence[int]) -> Times:
        return Times(**{f.name: getattr(self, f.name)[list(rows)] for f in fields(Times)})


def judged(
    devices: Sequence[Hardware], asked: tuple[str, Layout], times: Times, needed: Grid, load: Load
) -> Iterator[Candidate]:
    """The closed form of the steady state for every device and number of copies, and what it is to be held to."""
    quant, layout = asked
    copies = np.arange(1.0, load.max_devices // layout.devices + 1)
    rate = load.rate / copies[None, :]
    through, every = times.through[:, None], times.every[:, None]
    wanted = load.gen - 1
    limits = load.limits
    busy = rate * every
    step = times.step[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(busy[..., None] < 1, step / (1 - busy[..., None]), inf)  # by sequences that decode together
        missing = rate[..., None] * wanted * tpot - (limits - 1)  # a sequence has one less than them beside it
        at, stable = _crossing(missing)
        batch = _at(limits - 1, at)
        step_s, tpot_s = _at(np.broadcast_to(step, missing.shape), at), _at(tpot, at)
        decoding = (1 - busy) * (1 - np.exp(-batch))
        residual = rate * every * every / 2 + decoding * step_s / 2
        ttft_s = np.where(stable, through + residual / (1 - busy), inf)
        tpot_s = np.where(stable, tpot_s, inf) if wanted else np.zeros(stable.shape)
        able = 1 / (every[..., None] + wanted * step / (limits - (wanted > 0)))  # by the batch, each beside the others
        # Little's law gives the mean, where `missing` is 0. The steeper it falls there the less they vary around it:
        # with Poisson's variance, the mean, where decode steps are as long for any batch.
        steepness = np.where(stable & (at > 0), np.maximum(_slope(missing, limits, at), _LEAST), 1.0)
        room = np.where(stable, 1 + batch + _TAIL * np.sqrt(batch / steepness), 1.0)
    place = np.minimum(np.searchsorted(limits, room), len(limits) - 1)
    capacity = np.array([[device.capacity] for device in devices])
    most = np.max(able, axis=2)
    fitting = np.max(np.where(needed <= capacity, able[:, 0, :], 0.0), axis=1)
    memory = needed[place] / capacity
    over = {
        "memory": np.where(stable, memory, needed[0] / capacity),
        "rate": np.where(stable, 1.0, rate / most),
        "batch": room / limits[-1],
        "time to first token": np.where(stable, ttft_s, 0.0) / load.goals.ttft_s,
        "time per token": np.where(stable, tpot_s, 0.0) / load.goals.tpot_s,
    }
    worst = reduce(np.maximum, over.values())
    fine = stable & (worst <= 1)
    missed = np.where(stable | ~np.any(stable, axis=1, keepdims=True), worst, inf)  # more copies serve any rate
    first = np.where(np.any(fine, axis=1), np.argmax(fine, axis=1), np.argmin(missed, axis=1))
    for row, device in enumerate(devices):
        at_row = row, int(first[row])
        count = int(copies[at_row[1]])
        factor = "" if fine[at_row] else max(over, key=lambda name: over[name][at_row])
        numbers = {name: float(over[name][at_row]) for name in over}
        one = Candidate(
            hardware=device, quant=quant, layout=layout, copies=count, limit=int(limits[place[at_row]]),
            batch=float(batch[at_row]), utilization=float(busy[at_row]), ttft_s=float(ttft_s[at_row]),
            tpot_s=float(tpot_s[at_row]), max_rate=float(fitting[row] * count), memory=numbers["memory"],
            usd_per_h=count * layout.devices * hourly(device, load.years),
            watts=count * layout.devices * device.numbers.get("power.tdp", nan),
            unmodelled=float(times.unmodelled[row]), factor=factor, excess=numbers[factor] if factor else 1.0,
        )  # fmt: skip
        yield replace(one, reason=_reason(one, load)) if factor else one


def _crossing(missing: Grid) -> tuple[Grid, npt.NDArray[np.bool_]]:
    """Where a row of the last axis falls to 0, as a place with its fraction, and whether it does."""
    place = np.argmax(missing <= 0, axis=-1)
    stable = np.take_along_axis(missing, place[..., None], axis=-1)[..., 0] <= 0
    before = np.maximum(place - 1, 0)
    left, right = (np.take_along_axis(missing, p[..., None], axis=-1)[..., 0] for p in (before, place))
    fraction = np.where(place > 0, left / np.where(left == right, 1.0, left - right), 0.0)
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
    times = f"{one.excess:.3g}x"
    if one.factor == "memory":
        there = one.hardware.capacity
        return f"memory: {si(one.excess * there)}B, {times} the {si(there)}B of each device"
    if one.factor == "batch":
        return f"batch: {one.excess * load.limits[-1]:.0f} sequences at a time, of {load.limits[-1]:.0f} at most"
    if one.factor == "rate":
        on = counted(one.devices, "device")
        return f"rate: {load.rate / one.excess:.4g} requests/s at most on {on}, of {load.rate:.4g} asked"
    value, goal = (
        (one.ttft_s, load.goals.ttft_s) if one.factor == "time to first token" else (one.tpot_s, load.goals.tpot_s)
    )
    return f"{one.factor}: {seconds(value)}, {times} the {seconds(goal)} allowed"
