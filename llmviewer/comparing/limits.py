"""Limits of a use, and the reasons that disqualify devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isnan, nan
from typing import Any, Final

import numpy as np

from .. import arguments
from ..analyzing.costs import Criterion
from ..records import frozen
from ..resource import Unit
from ..units import fold, seconds, si
from .breakdown import Breakdown
from .cells import DATA_TYPE, ENGINE, LINK, WHAT_IF, Cell, ExpectedTimes

MEMORY: Final = "memory"
_UNKNOWN: Final = {  # by factor: what a device file lacks, and how to give it
    factor: f"no {missing_number} is known; --hardware-set NAME:{key}=VALUE gives one"
    for factor, missing_number, key in (
        ("budget", "purchase price", "price.purchase"),
        ("price", "price", "price.cloud"),
        ("power", "TDP", "power.tdp"),
    )
}


@frozen(kw_only=True)
class Rejected:
    """A device that does not qualify, in the precision and number that come closest.

    factor  "data type", "what-if", "memory", "price", "budget", "power", "time to first token", "time per token", or
            "link" if several devices would qualify without the time of links
    excess  amount needed over amount available or allowed; inf if it is not a quantity
    reason  factor and excess in words
    """

    cell: Cell
    factor: str
    excess: float
    reason: str


@frozen(kw_only=True)
class Limits:
    """Limits for a device, or for all devices of a layout together; None: no limit. [USD], [W], [s]"""

    budget: float | None = None
    power: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    native: bool = False

    def __post_init__(self) -> None:
        arguments.check_positive(budget=self.budget, power=self.power, ttft=self.ttft_s, tpot=self.tpot_s)


def closest(faults: Sequence[Sequence[Rejected]]) -> Rejected:
    """The worst fault of the setting with the fewest faults; among equals of links, then of the least excess."""
    worst = [(len(cell_faults), max(cell_faults, key=lambda fault: fault.excess)) for cell_faults in faults]
    nearest = min(worst, key=lambda one: (one[0], one[1].factor != LINK, one[1].excess))[1]
    return (
        replace(nearest, reason=nearest.reason + _activation_note(nearest.cell))
        if nearest.factor == MEMORY
        else nearest
    )


def _activation_note(cell: Cell) -> str:
    """A note on the memory for one prefill of all prompts, if the cell would fit without it; else ""."""
    if cell.footprint is None or cell.result.server:
        return ""
    lengths = {"batch": float(cell.batches[0]), "prompt": cell.prompt, "gen": cell.gen if cell.decode else 0}
    weights, cache, live = (float(part) for part in cell.footprint.parts(**lengths))
    if weights + cache > cell.hardware.capacity:
        return ""
    return f"; {si(live)}B of it are activations of one prefill of all prompts; plan prefills in chunks"


def faults(cell: Cell, single: Cell, limits: Limits, *, by: Criterion, years: float | None) -> list[Rejected]:
    """All reasons that disqualify a device in a precision and number.

    single  the cell of a single device in that precision
    by      the ranking, whose facts must be known; a purchase price is spread over `years`
    """
    several, numbers = cell.layout.devices, cell.hardware.numbers
    layout_note = f", with {several} devices" if several > 1 else ""

    def fault(factor: str, excess: float, reason: str) -> Rejected:
        return Rejected(cell=cell, factor=factor, excess=excess, reason=f"{factor}: {reason}")

    def over(factor: str, value: float, limit: float | None, text_of: Any, unlinked: float = inf) -> list[Rejected]:
        if limit is None or value <= limit:
            return []
        if isnan(value):
            return [fault(factor, inf, _UNKNOWN[factor])]
        limit_note = "available" if factor == MEMORY else "allowed"
        excess = value / limit
        times = f"{excess:.3g}" if excess < 1000 else f"{excess:,.0f}"
        amounts = f"{text_of(value)}, {times}x the {text_of(limit)} {limit_note}{layout_note}"
        if unlinked <= limit:
            return [fault(LINK, excess, f"{factor} {amounts}; {text_of(unlinked)} without the time of links")]
        return [fault(factor, excess, amounts)]

    if cell.obstacle in (DATA_TYPE, WHAT_IF, ENGINE):
        return [fault(cell.obstacle, inf, cell.refused)]
    timed, share = (single, several) if cell.refused else (cell, 1)  # links only add time
    needed_bytes = float(timed.total_bytes[0]) / share
    price, tdp = (several * numbers.get(key, nan) for key in ("price.purchase", "power.tdp"))
    reasons = [
        *over(MEMORY, needed_bytes, timed.result.capacity_bytes, lambda v: f"{si(v)}B"),
        *over("budget", price, limits.budget, lambda v: f"{v:,.0f} USD"),
        *over("power", tdp, limits.power, lambda v: f"{v:.0f} W"),
    ]
    if cell.refused:
        reasons.append(fault(LINK, inf, f"no known link joins {several} of them"))
    if timed.prefill:
        ttft = float(timed.ttft_s[0]) / share
        reasons += over("time to first token", ttft, limits.ttft_s, seconds, _unlinked_s(ttft, timed.prefill, several))
    if timed.decode:
        tpot = float(timed.tpot_s[0]) / share
        reasons += over("time per token", tpot, limits.tpot_s, seconds, _unlinked_s(tpot, timed.decode, several))
    foreign = _emulated_types(single) if limits.native else ()
    if foreign:
        reasons.append(fault(DATA_TYPE, inf, f"no {' or '.join(foreign)} matrix units"))
    if not by.known(cell.hardware, years):
        bought = by is Criterion.COST and "price.purchase" in numbers
        factor = "price" if by is Criterion.COST else "power"
        reason = "no cloud price; --depreciation YEARS counts the purchase price" if bought else _UNKNOWN[factor]
        reasons.append(fault(factor, inf, reason))
    return reasons


def expected_faults(cell: Cell, times: ExpectedTimes, limits: Limits) -> list[Rejected]:
    """Expected times that exceed the limits."""
    reasons = []
    for factor, interval, limit in (
        ("time to first token", times.ttft, limits.ttft_s), ("time per token", times.tpot, limits.tpot_s),
    ):  # fmt: skip
        time_s = float(np.ravel(interval.expected)[0]) if interval else 0.0
        if limit is not None and time_s > limit:
            amounts = f"{seconds(time_s)} expected, {fold(time_s / limit)} the {seconds(limit)} allowed"
            several = f", with {cell.layout.devices} devices" if cell.layout.devices > 1 else ""
            reason = f"{factor}: {amounts}{several}"
            reasons.append(Rejected(cell=cell, factor=factor, excess=time_s / limit, reason=reason))
    return reasons


def _unlinked_s(time_s: float, breakdown: Breakdown, devices: int) -> float:
    """Time without the part that links bound; inf for a single device. [s]"""
    return time_s * (1 - breakdown.share(resource="link")) if devices > 1 else inf


def _emulated_types(cell: Cell) -> tuple[str, ...]:
    """Data types of matrix products that the device's matrix units lack."""
    rates = cell.hardware.rates
    operand_units = (row.work.operand_unit for row in cell.setting.plan.operators)
    return tuple(dict.fromkeys(w.dtype for w in operand_units if w.unit is Unit.MATRIX and w not in rates))
