"""choose(): which device for this use: those that qualify, ranked, and the others with what disqualifies them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf, isnan
from typing import Any, Final

import numpy as np

from . import __version__
from .comparison import PUBLISHED, Cell, Comparison, compare
from .errors import InputError
from .hardware import Hardware
from .hardware_files import hardware_names
from .model import Model
from .resource import Unit
from .units import seconds, si

# What is allowed where nothing is said: the model as it is; weights and activations in the two 8-bit types that
# devices multiply; and 4-bit weights alone, the smallest that is in common use (arXiv:2210.17323, arXiv:2306.00978).
QUANTS: Final = (PUBLISHED, "fp8", "W8A8", "W4A16g128")
SCHEMA_VERSION: Final = 1  # of to_dict()
_LEAST: Final = 3  # devices from which on a correlation says something


class By(StrEnum):
    """What devices are ranked by, most first."""

    SPEED = "speed"
    COST = "cost"
    ENERGY = "energy"


_MERIT: Final = {By.SPEED: "tokens/s", By.COST: "tokens/USD", By.ENERGY: "tokens/J at TDP"}


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A device in the best precision that qualifies there, by `merit`."""

    cell: Cell
    merit: float


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A device that does not qualify, in the precision that comes closest.

    factor  "data type", "memory", "price", "budget", "power", "time to first token" or "time per token"
    excess  what it takes over what is there or allowed; inf where that is no matter of degree
    reason  both, in words
    """

    cell: Cell
    factor: str
    excess: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a device has to keep to; None where anything goes. [USD], [W], [s]"""

    budget: float | None = None
    power: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    native: bool = False

    def __post_init__(self) -> None:
        for name in ("budget", "power", "ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise InputError(f"{name.removesuffix('_s')} must be a positive number; got {value:g}")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The answer. `comparison` has a cell for every device in every precision that is allowed."""

    model: Model
    users: int
    quants: tuple[str, ...]
    by: By
    limits: Limits
    comparison: Comparison
    ranked: tuple[Ranked, ...]
    rejected: tuple[Rejected, ...]

    @property
    def merit(self) -> str:
        """The unit of what is ranked by."""
        return _MERIT[self.by]

    def follows(self) -> dict[str, float]:
        """Spearman's rank correlation of the ranking with bandwidth, matrix peak and capacity of the devices.

        Empty where fewer than three devices qualify, or all are alike.
        """
        if len(self.ranked) < _LEAST:
            return {}
        merit = [r.merit for r in self.ranked]
        numbers = {
            "memory bandwidth": [r.cell.hardware.bandwidth() for r in self.ranked],
            "peak OP/s": [r.cell.peak for r in self.ranked],
            "memory capacity": [r.cell.hardware.capacity for r in self.ranked],
        }
        found = {name: _correlation(merit, values) for name, values in numbers.items()}
        return {name: value for name, value in found.items() if not isnan(value)}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each device: those that qualify by rank, then the others."""
        facts = {id(cell): row for cell, row in zip(self.comparison.cells, self.comparison.rows(), strict=True)}
        for rank, one in enumerate(self.ranked, 1):
            yield {"rank": rank, **_facts(facts[id(one.cell)]), "merit": one.merit, "factor": None, "reason": None}
        for other in self.rejected:
            yield {
                "rank": None, **_facts(facts[id(other.cell)]), "merit": None,
                "factor": other.factor, "reason": other.reason,
            }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/compare.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.model.name,
            "inputs": {
                "users": self.users, "prompt": self.comparison.prompt, "gen": self.comparison.gen,
                "quants": list(self.quants), "by": str(self.by), "merit": self.merit, "years": self.comparison.years,
                **asdict(self.limits),
            },
            "follows": self.follows(),
            "devices": list(self.rows()),
        }  # fmt: skip


def choose(
    model: str | Model,
    *,
    users: int = 1,
    prompt: int = 1024,
    gen: int = 128,
    quants: Sequence[str] = QUANTS,
    hardware: Sequence[str | Hardware] | None = None,
    by: str = "speed",
    budget: float | None = None,
    power: float | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    native: bool = False,
    years: float | None = None,
) -> Choice:
    """Ranks single devices for `users` who each send `prompt` tokens at once and are written `gen`.

    quants    precisions that may be used; a device is ranked in its best one
    hardware  those that ship and those of the user's folder, if None
    by        "speed": tokens of all users per second, from their prompts to their last tokens; "cost": per dollar;
              "energy": per joule at TDP
    budget    at most so many dollars to buy one, power so many watts of TDP, ttft and tpot so many seconds
    native    only precisions whose products the device's matrix units multiply as they are
    years     over which a purchase is spread where `by` is "cost", used all the time

    Raises InputError where something given cannot be used, or where the model does not generate.
    """
    try:
        wanted = By(by)
    except ValueError:
        raise InputError(f"by must be one of {', '.join(By)}; got {by!r}") from None
    limits = Limits(budget=budget, power=power, ttft_s=ttft, tpot_s=tpot, native=native)
    devices = hardware_names() if hardware is None else hardware
    comparison = compare(model, devices, quants=quants, batch=users, prompt=prompt, gen=gen, years=years)
    found = comparison.cells[0].model
    if not found.generates:
        raise InputError(f"{found.name} does not generate, so there is no answer to be fast at; use llmviewer compare")
    by_device: dict[str, list[Cell]] = {}
    for cell in comparison.cells:
        by_device.setdefault(cell.hardware.name, []).append(cell)
    ranked, rejected = [], []
    for cells in by_device.values():
        faults = {cell.asked: _faults(cell, comparison, limits, wanted) for cell in cells}
        able = [Ranked(cell=cell, merit=_merit(cell, comparison, wanted)) for cell in cells if not faults[cell.asked]]
        if able:
            ranked.append(max(able, key=lambda one: one.merit))
        else:
            worst = [max(own, key=lambda fault: fault.excess) for own in faults.values()]
            rejected.append(min(worst, key=lambda fault: (len(faults[fault.cell.asked]), fault.excess)))
    return Choice(
        model=found,
        users=comparison.batches[0],
        quants=tuple(quants),
        by=wanted,
        limits=limits,
        comparison=comparison,
        ranked=tuple(sorted(ranked, key=lambda one: -one.merit)),
        rejected=tuple(sorted(rejected, key=lambda one: (one.factor, one.excess))),
    )


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """What a comparison says of a cell, without what all cells here share."""
    left = {"model", "batch", "refused", "capacity_elasticity"}
    return {key: value for key, value in row.items() if key not in left}


def _merit(cell: Cell, of: Comparison, by: By) -> float:
    rate = float(cell.tokens_per_s[0])
    if by is By.COST:
        return float(cell.per_dollar(rate, of.years))
    return float(cell.per_joule(rate)) if by is By.ENERGY else rate


def _faults(cell: Cell, of: Comparison, limits: Limits, by: By) -> list[Rejected]:
    """All that disqualifies a device in a precision."""

    def fault(factor: str, excess: float, reason: str) -> Rejected:
        return Rejected(cell=cell, factor=factor, excess=excess, reason=f"{factor}: {reason}")

    def over(factor: str, value: float, limit: float | None, shown: Any) -> list[Rejected]:
        if limit is None or value <= limit:
            return []
        if isnan(value):
            return [fault(factor, inf, "not known for it")]
        most = "there is" if factor == "memory" else "allowed"
        return [fault(factor, value / limit, f"{shown(value)}, {value / limit:.3g}x the {shown(limit)} {most}")]

    if cell.refused:
        return [fault("data type", inf, cell.refused)]
    numbers = cell.hardware.numbers
    unknown = float("nan")
    found = [
        *over("memory", float(cell.total_bytes[0]), cell.hardware.capacity, lambda v: f"{si(v)}B"),
        *over("budget", numbers.get("price.purchase", unknown), limits.budget, lambda v: f"{v:,.0f} USD"),
        *over("power", numbers.get("power.tdp", unknown), limits.power, lambda v: f"{v:.0f} W"),
        *over("time to first token", float(cell.ttft_s[0]), limits.ttft_s, seconds),
        *over("time per token", float(cell.tpot_s[0]), limits.tpot_s if of.gen > 1 else None, seconds),
    ]
    foreign = _foreign(cell) if limits.native else ()
    if foreign:
        found.append(fault("data type", inf, f"no {' or '.join(foreign)} matrix units"))
    if isnan(_merit(cell, of, by)):
        bought = by is By.COST and "price.purchase" in numbers
        reason = "no cloud price, and no years to spread the purchase over" if bought else "not known for it"
        found.append(fault("price" if by is By.COST else "power", inf, reason))
    return found


def _foreign(cell: Cell) -> tuple[str, ...]:
    """Types of matrix products that the device has no matrix units for."""
    rates = cell.hardware.rates
    wanted = (row.work.wanted for row in cell.setting.plan.operators)
    return tuple(dict.fromkeys(w.dtype for w in wanted if w.unit is Unit.MATRIX and w not in rates))


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: Pearson's of the ranks, equals sharing the mean of theirs."""
    ranks = [_ranks(values) for values in (one, other)]
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> Any:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[inverse]
