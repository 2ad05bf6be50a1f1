"""Candidates of a plan: replicas of a model on devices of one kind, evaluated in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import reduce
from math import inf, nan
from typing import Final

import numpy as np

from ..analyzing.costs import Criterion, usd_per_h, watts
from ..devices.hardware import Hardware
from ..parallel.layout import Layout
from ..records import frozen
from ..units import counted, fold, seconds, si
from .fleet_times import StepTimes
from .load import Grid, Load
from .outcome import Goals, percentile_name
from .replicas import Replicas

PRICES: Final = {
    Criterion.COST: "USD/h",
    Criterion.ENERGY: "W at TDP",
    Criterion.DEVICES: "devices",
}  # the default is the first that is known

_FLAT_RATE: Final = 0.95  # share of the rate with half of the batch, from which memory does not limit the rate


@frozen(kw_only=True)
class PrefillWorkers:
    """Replicas of a model that only prefill, for others that only decode.

    copies      number of replicas
    wait_s      mean wait of a prompt for a prefill [s]
    prefill_s   time of a prefill [s]
    transfer_s  time to send the KV cache of a prompt [s]
    memory      required over available
    """

    hardware: Hardware
    layout: Layout
    copies: int
    wait_s: float
    prefill_s: float
    transfer_s: float
    memory: float

    @property
    def devices(self) -> int:
        return self.copies * self.layout.devices


@frozen(kw_only=True)
class Candidate:
    """Replicas of a model on devices of one kind that share an arrival rate.

    prefill_workers  replicas that prefill for them, so that these only decode; None if each replica does both
    at_bound     the candidate with the same devices, precision and layout at lower bounds; None if the times here are
                 bounds, because no expected times of kernels are known
    quant        precision as given; PUBLISHED if none was
    copies       number of replicas, all with the same layout
    limit        batch limit of each replica: the smallest that serves the rate, or the one with the highest rate if
                 none does
    batch        mean number of decoding sequences of each replica
    utilization  fraction of the time in which each replica that prefills does so
    ttft_quantile_s, tpot_quantile_s  times at the percentiles that the targets limit; means for targets of means [s]
    rate_within  highest arrival rate within the targets [1/s]; nan if they are missed at the requested rate
    max_rate     highest arrival rate that is stable, without targets [1/s]
    usd_per_h    price of all devices; nan if unknown
    watts        TDP of all devices; nan if unknown
    memory       required over available on a device that decodes, at `limit`
    unmodelled   share of the time of a decode step for which only a bound is known
    factor       what rules it out: "", "data type", "layout", "link", "memory", "rate", "batch", "time to first
                 token", "time per token", or with prefill workers "devices" or "network"
    excess       required over allowed or available; inf if that is not a quantity
    reason       factor and excess in words; "" with a factor if `excess` is only a lower bound
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
    ttft_quantile_s: float = nan
    tpot_quantile_s: float = nan
    rate_within: float = nan
    max_rate: float = nan
    memory: float = nan
    usd_per_h: float = nan
    watts: float = nan
    unmodelled: float = nan
    factor: str = ""
    excess: float = 1.0
    reason: str = ""
    prefill_workers: PrefillWorkers | None = None
    at_bound: Candidate | None = field(default=None, repr=False)

    @property
    def devices(self) -> int:
        return self.copies * self.layout.devices + (self.prefill_workers.devices if self.prefill_workers else 0)

    @property
    def device_kinds(self) -> tuple[Hardware, ...]:
        """The device that prefills, if that is a separate one, and the device that decodes."""
        prefill = self.prefill_workers
        return (prefill.hardware, self.hardware) if prefill else (self.hardware,)

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of `device_kinds`, by which candidates are grouped."""
        return tuple(device.name for device in self.device_kinds)

    def priced(self, years: float | None) -> Candidate:
        """The candidate with the price and power of all its devices; purchase prices are spread over `years`."""
        counts = [(self.hardware, self.copies * self.layout.devices)]
        if self.prefill_workers:
            counts.append((self.prefill_workers.hardware, self.prefill_workers.devices))
        return replace(self, usd_per_h=usd_per_h(counts, years), watts=watts(counts))

    def price(self, by: Criterion) -> float:
        """The measure to minimize, in the unit of PRICES; nan if unknown."""
        prices = {Criterion.COST: self.usd_per_h, Criterion.ENERGY: self.watts, Criterion.DEVICES: float(self.devices)}
        return prices[by]


def evaluated(
    devices: Sequence[Hardware], quant_layout: tuple[str, Layout], times: StepTimes, memory: Grid, load: Load
) -> Iterator[Candidate]:
    """A candidate for each device: the fewest replicas that meet the targets, or the number that comes closest.

    quant_layout  precision and layout of a replica
    memory        required over available on a device for each limit of the batch, [device, batch]
    """
    quant, layout = quant_layout
    copies = np.arange(1.0, load.max_devices // layout.devices + 1)
    rates = np.broadcast_to(load.rate / copies, (len(devices), len(copies)))
    replicas = Replicas(times=times, memory=memory, load=load)
    state = replicas.steady(rates)
    stable, ratios, fine = state.stable, state.ratios, state.within_targets
    worst = reduce(np.maximum, ratios.values())
    any_stable = np.any(stable, axis=1, keepdims=True)
    worst_stable = np.where(stable | ~any_stable, worst, inf)  # with enough replicas any rate is stable
    first = np.where(np.any(fine, axis=1), np.argmax(fine, axis=1), np.argmin(worst_stable, axis=1))
    chosen = np.arange(len(devices)), first
    first_rates = rates[chosen]
    within = np.full(len(devices), nan)
    rows = np.flatnonzero(np.any(fine, axis=1))
    if len(rows):
        within[rows] = replicas.only(rows).most_within(first_rates[rows])
    max_rates = replicas.max_rate.copy()
    rows = np.flatnonzero(~stable[chosen] & (first_rates <= max_rates))
    if len(rows):
        max_rates[rows] = replicas.only(rows).sustained(first_rates[rows])
    for row, device in enumerate(devices):
        place = row, int(first[row])
        count = int(copies[place[1]])
        factor = "" if fine[place] else max(ratios, key=lambda name: ratios[name][place])
        one = Candidate(
            hardware=device, quant=quant, layout=layout, copies=count, limit=int(load.limits[state.place[place]]),
            batch=float(state.batch[place]), utilization=float(state.busy[place]),
            ttft_s=float(state.ttft_s[place]), tpot_s=float(state.tpot_s[place]),
            ttft_quantile_s=float(state.ttft_quantile_s[place]), tpot_quantile_s=float(state.tpot_quantile_s[place]),
            rate_within=float(within[row] * count), max_rate=float(max_rates[row] * count),
            memory=float(ratios["memory"][place]),
            unmodelled=float(times.unmodelled[row]), factor=factor,
            excess=float(ratios[factor][place]) if factor else 1.0,
        ).priced(load.years)  # fmt: skip
        by_memory = bool(factor) and _limited_by_memory(replicas.max_rates[row], memory[row], load.limits)
        yield replace(one, reason=_reason(one, load, by_memory=by_memory)) if factor else one


def _limited_by_memory(rates: Grid, memory: Grid, limits: Grid) -> bool:
    """Whether more memory would raise the maximum rate: no larger batch fits, and half the batch gives less.

    rates, memory  maximum rate, and memory required over available, by batch limit
    """
    best = int(np.argmax(rates))
    larger_fits = best + 1 == len(limits) or memory[best + 1] <= 1
    return not larger_fits and bool(np.interp(limits[best] / 2, limits, rates) < _FLAT_RATE * rates[best])


def _reason(one: Candidate, load: Load, *, by_memory: bool) -> str:
    """The factor that rules a candidate out, with its amount, in words."""
    max_rate = f"at most {one.max_rate:.4g} requests/s"
    if one.factor == "memory":
        capacity = one.hardware.capacity
        slower = f" (sustains {max_rate})" if 0 < one.max_rate < load.rate else ""
        return (
            f"memory: {si(one.memory * capacity)}B for {counted(one.limit, 'concurrent sequence')}, "
            f"{fold(one.memory)} the {si(capacity)}B of each device{slower}"
        )
    if one.factor == "batch":
        required_batch = one.excess * load.limits[-1]
        return f"batch: needs {required_batch:,.0f} concurrent sequences; at most {load.limits[-1]:,.0f} allowed"
    if one.factor == "rate":
        batch_limit = f" (KV-cache capacity: {counted(one.limit, 'sequence')} per replica)" if by_memory else ""
        return f"rate: {max_rate} on {counted(one.devices, 'device')}{batch_limit}; {load.rate:.4g} requested"
    return time_reason(one, load.goals)


def time_reason(one: Candidate, goals: Goals) -> str:
    """The time that exceeds its target, with its percentile, in words."""
    value, goal, percentile = (
        (one.ttft_quantile_s, goals.ttft_s, goals.ttft_percentile)
        if one.factor == "time to first token"
        else (one.tpot_quantile_s, goals.tpot_s, goals.tpot_percentile)
    )
    statistic = percentile_name(percentile)
    return f"{one.factor}: {statistic} {seconds(value)}, {fold(one.excess)} the {seconds(goal)} allowed"
