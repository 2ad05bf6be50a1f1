"""Candidates of a plan: copies of a model on devices of one kind, evaluated in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import reduce
from math import inf, nan
from typing import Final

import numpy as np

from ..analyzing.costs import By, usd_per_h, watts
from ..devices.hardware import Hardware
from ..parallel.layout import Layout
from ..records import frozen
from ..units import counted, fold, seconds, si
from .load import Grid, Load, StepTimes
from .steady_grid import FleetSteadyState, able_rates, most_within, sustained

PRICES: Final = {By.COST: "USD/h", By.ENERGY: "W at TDP", By.DEVICES: "devices"}  # the first that is known is usual


@frozen(kw_only=True)
class Readers:
    """Copies of a model that read prompts for those that write the answers.

    read_s  of a prompt, after it has waited `wait_s` on average; its cache travels for `transfer_s`
    memory  needed over there is
    """

    hardware: Hardware
    layout: Layout
    copies: int
    wait_s: float
    read_s: float
    transfer_s: float
    memory: float

    @property
    def devices(self) -> int:
        return self.copies * self.layout.devices


@frozen(kw_only=True)
class Candidate:
    """Copies of a model on devices of one kind, at the rate asked for shared out among them.

    readers      those that read prompts for them, so that they write answers alone; None where they do both
    least        the same devices, precision and layout where steps take as long as their lower bounds; None where the
                 times here are such, as nothing is expected of the kernels
    quant        the precision as it was asked for, PUBLISHED where none was
    copies       of the model, each laid out alike
    limit        sequences at a time for which each copy has room: what it takes, or what serves most where no number
                 serves the rate; `batch` is how many there are on average
    utilization  of the time of each copy that reads prompts that it does so
    rate_within  up to which all copies keep to what is asked of them [1/s]; nan where they do not at the rate asked for
    max_rate     requests that all copies serve at most, however long they take; nearly so many wait for ever [1/s]
    usd_per_h    of all devices; nan where a file has no price. `watts` likewise, at TDP
    memory       needed over there is, at `limit`, where answers are written
    unmodelled   part of the time of a decode step that is a bound, as nothing is expected of its kernels
    factor       what rules it out: "", "data type", "layout", "link", "memory", "rate", "batch", "time to first
                 token", "time per token", or with readers "devices" or "network"
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
    readers: Readers | None = None
    least: Candidate | None = field(default=None, repr=False)

    @property
    def devices(self) -> int:
        return self.copies * self.layout.devices + (self.readers.devices if self.readers else 0)

    @property
    def kinds(self) -> tuple[Hardware, ...]:
        """Of device: what reads prompts, where others do, and what writes answers."""
        return (self.readers.hardware, self.hardware) if self.readers else (self.hardware,)

    @property
    def kind(self) -> tuple[str, ...]:
        """What tells it from candidates on other devices, or with readers."""
        return tuple(one.name for one in self.kinds)

    def price(self, by: By) -> float:
        """What is to be low, in PRICES; nan where unknown."""
        return {By.COST: self.usd_per_h, By.ENERGY: self.watts, By.DEVICES: float(self.devices)}[by]


def judged(
    devices: Sequence[Hardware], asked: tuple[str, Layout], times: StepTimes, needed: Grid, load: Load
) -> Iterator[Candidate]:
    """The closed form of the steady state for every device and number of copies, and what it is to be held to."""
    quant, layout = asked
    copies = np.arange(1.0, load.max_devices // layout.devices + 1)
    memory = needed / np.array([[device.capacity] for device in devices])
    rates = np.broadcast_to(load.rate / copies, (len(devices), len(copies)))
    able = able_rates(times, memory, load)
    found = FleetSteadyState.of(rates, times, able, memory, load)
    stable, over, fine = found.stable, found.over, found.fine
    worst = reduce(np.maximum, over.values())
    missed = np.where(stable | ~np.any(stable, axis=1, keepdims=True), worst, inf)  # more copies serve any rate
    first = np.where(np.any(fine, axis=1), np.argmax(fine, axis=1), np.argmin(missed, axis=1))
    within = np.full(len(devices), nan)
    rows = np.flatnonzero(np.any(fine, axis=1))
    if len(rows):
        own = rates[rows, first[rows]]
        within[rows] = most_within(own, times.only(rows), able[rows], memory[rows], load)
    chosen = np.arange(len(devices)), first
    most = found.most[:, 0].copy()
    rows = np.flatnonzero(~stable[chosen] & (rates[chosen] <= most))
    if len(rows):
        most[rows] = sustained(rates[rows, first[rows]], times.only(rows), able[rows], memory[rows], load)
    for row, device in enumerate(devices):
        at_row = row, int(first[row])
        count = int(copies[at_row[1]])
        taken = [(device, count * layout.devices)]
        factor = "" if fine[at_row] else max(over, key=lambda name: over[name][at_row])
        one = Candidate(
            hardware=device, quant=quant, layout=layout, copies=count, limit=int(load.limits[found.place[at_row]]),
            batch=float(found.batch[at_row]), utilization=float(found.busy[at_row]),
            ttft_s=float(found.ttft_s[at_row]), tpot_s=float(found.tpot_s[at_row]),
            rate_within=float(within[row] * count), max_rate=float(most[row] * count),
            memory=float(over["memory"][at_row]),
            usd_per_h=usd_per_h(taken, load.years), watts=watts(taken),
            unmodelled=float(times.unmodelled[row]), factor=factor,
            excess=float(over[factor][at_row]) if factor else 1.0,
        )  # fmt: skip
        yield replace(one, reason=_reason(one, load)) if factor else one


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
        return f"batch: {one.excess * load.limits[-1]:,.0f} sequences at a time, of {load.limits[-1]:,.0f} at most"
    if one.factor == "rate":
        room = f" (memory for {one.limit:,} at a time on each copy)" if one.limit < load.limits[-1] else ""
        return f"rate: {most} on {counted(one.devices, 'device')}{room}, of {load.rate:.4g} asked"
    value, goal = (
        (one.ttft_s, load.goals.ttft_s) if one.factor == "time to first token" else (one.tpot_s, load.goals.tpot_s)
    )
    return f"{one.factor}: {seconds(value)}, {fold(one.excess)} the {seconds(goal)} allowed"
