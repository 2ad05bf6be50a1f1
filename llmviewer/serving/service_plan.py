"""A service plan: the settings that serve a load, and the cheapest of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from math import inf, isnan
from typing import Any, ClassVar, Final

import numpy as np

from .. import __version__
from ..analyzing.costs import By
from ..analyzing.facts import finite
from ..model import Model
from ..parameters import KvLink, KvTransfer
from ..records import frozen
from ..rows import Rows
from ..transforms.quantize import PUBLISHED
from .candidates import PRICES, Candidate, Readers
from .load import POLICY
from .outcome import Goals

SCHEMA_VERSION: Final = 1  # of to_dict()
_NUMBERS: Final = (
    "copies", "limit", "batch", "utilization", "ttft_s", "tpot_s", "rate_within", "max_rate", "memory", "usd_per_h",
    "watts", "unmodelled", "excess",
)  # fmt: skip
_WAYS: Final = {"together": False, "apart": True}  # of reading prompts and writing answers
_BOUND: Final = ("copies", "ttft_s", "tpot_s", "rate_within", "max_rate", "usd_per_h", "watts")


@frozen(kw_only=True, repr=False)
class ServicePlan(Rows):
    """The result of plan(). Every candidate has the fewest copies that meet the goals, or come closest to them.

    kernels      kernel library of expected times; "": the one with most measurements on each device; None: bounds only
    able         candidates that meet the goals, cheapest first; at equal prices the published precision, then the one
                 with the most bits; candidates without a price last
    unmeasured   candidates that meet the goals at the bound, without expected times
    lowest       the cheapest candidates at the bound, without and with separate prefill copies
    rejected     for each other device, the candidate that comes closest to the goals; closest first
    considered   number of devices considered; `priced` of them have a price
    left_out     devices left out, as they were not named and are not for sale
    kv_transfer  when caches are sent from prefill copies to decode copies, over `kv_link`; None: no separate copies
    asked_by     the measure to minimize, as given; None if it was not given
    tried        number of combinations of devices, layouts, precisions, copies and batches
    common       arguments of plan() that simulate() has too
    """

    report: ClassVar = "plans"

    model: Model = field(repr=False)
    rate: float
    prompt: int
    gen: int
    goals: Goals
    by: By
    asked_by: By | None
    years: float | None
    max_devices: int
    kv_transfer: KvTransfer | None
    kv_link: KvLink
    considered: int
    priced: int
    left_out: tuple[str, ...]
    quants: tuple[str, ...]
    kernels: str | None
    able: tuple[Candidate, ...] = field(repr=False)
    unmeasured: tuple[Candidate, ...] = field(repr=False)
    lowest: tuple[Candidate, ...] = field(repr=False)
    rejected: tuple[Candidate, ...] = field(repr=False)
    tried: int
    common: Mapping[str, Any] = field(repr=False)

    @property
    def unit(self) -> str:
        """Unit of the measure to minimize."""
        return PRICES[self.by]

    @property
    def best(self) -> Candidate | None:
        """The cheapest; None where none keeps to the goals, or none of them has a price."""
        return next((one for one in self.able if not isnan(one.price(self.by))), None)

    @property
    def disaggregated(self) -> bool:
        """Whether copies that only read prompts, beside others that only write answers, were tried too."""
        return self.kv_transfer is not None

    @property
    def least(self) -> Candidate | None:
        """The cheapest where steps take as long as their lower bounds: no kernels need less."""
        return min(self.lowest, key=lambda one: unknown_last(one.price(self.by)), default=None)

    def best_of(self, *, apart: bool) -> Candidate | None:
        """The cheapest of those with readers, or of those without."""
        return next((one for one in self.able if bool(one.readers) is apart and not isnan(one.price(self.by))), None)

    def per_dollar(self, one: Candidate) -> float:
        """Tokens written at the rate asked for; nan where a file has no price. [1/USD]"""
        return 3600 * self.rate * self.gen / one.usd_per_h

    def per_joule(self, one: Candidate) -> float:
        """Likewise, at the TDP of all devices all the time. [1/J]"""
        return self.rate * self.gen / one.watts

    @property
    def each(self) -> tuple[Candidate, ...]:
        """The cheapest of every device, and of every pair, that keeps to the goals."""
        return first_of_each(self.able)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Devices that keep to the goals and have no price."""
        kinds = (kind for one in self.each if isnan(one.price(self.by)) for kind in one.kinds)
        return tuple(dict.fromkeys(kind.name for kind in kinds if not self.by.known(kind, self.years)))

    @property
    def front(self) -> tuple[Candidate, ...]:
        """Pareto front of cost, power, devices, both times and the rate within the goals."""
        if not self.able:
            return ()
        least = np.array([
            [*(unknown_last(one.price(by)) for by in PRICES), one.ttft_s, one.tpot_s, -one.rate_within]
            for one in self.able
        ])  # fmt: skip
        kept = []
        for place, own in enumerate(least):
            beaten = np.all(least <= own, axis=1) & np.any(least < own, axis=1)
            same = np.all(least[:place] == own, axis=1)
            if not np.any(beaten) and not np.any(same):
                kept.append(self.able[place])
        return tuple(kept)

    def simulation(self, one: Candidate) -> dict[str, Any]:
        """The arguments of simulate() for a candidate: of one copy, with its part of the requests, or of all copies
        where others read the prompts.
        """
        asked: dict[str, Any] = {
            "rate": self.rate / one.copies, "prompt_lengths": str(self.prompt), "gen_lengths": str(self.gen),
            "policy": POLICY, "max_batch": int(one.layout.rank_batch(one.limit)),
            "quant": None if one.quant == PUBLISHED else one.quant,
            "layout": str(one.layout) if one.layout.devices > 1 else None, "ttft": self.goals.ttft_s,
            "tpot": self.goals.tpot_s, **self.common, "hardware_set": one.hardware.changes,
        }  # fmt: skip
        if one.readers:
            asked |= self._readers(one, one.readers)
        given = {name: value for name, value in asked.items() if value not in (None, "", (), inf)}
        return {"hardware": one.hardware.name, **given}

    def _readers(self, one: Candidate, readers: Readers) -> dict[str, Any]:
        """Arguments of simulate() that differ with separate prefill copies."""
        others = {}
        if readers.hardware.name != one.hardware.name:
            changes = tuple(f"{kind.name}:{change}" for kind in one.kinds for change in kind.changes)
            others = {"prefill_hardware": readers.hardware.name, "hardware_set": changes}
        laid = str(readers.layout) if readers.layout.devices > 1 else "tp=1"
        return {
            "rate": self.rate, "policy": None, "copies": one.copies, "readers": readers.copies,
            "prefill_layout": None if readers.layout == one.layout else laid,
            "kv_transfer": str(self.kv_transfer) if self.kv_transfer is KvTransfer.OVERLAPPED else None,
            "kv_link": str(self.kv_link) if self.kv_link is KvLink.SCALE_UP else None, **others,
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each candidate that keeps to the goals, cheapest first, then those that do at the bound alone, and
        those that do not.
        """
        front = {id(one) for one in self.front}
        for rank, one in enumerate((*self.able, *self.unmeasured, *self.rejected), 1):
            least = one.least or one
            yield finite({
                "rank": rank if rank <= len(self.able) else None, "pareto": id(one) in front,
                "expected": one.least is not None, "hardware": one.hardware.name,
                "quant": one.quant, "layout": str(one.layout), "devices": one.devices or None,
                **{name: getattr(one, name) for name in _NUMBERS},
                **{f"bound_{name}": getattr(least, name) for name in _BOUND},
                "factor": one.factor or None, "reason": one.reason or None,
                **(self._ways(one, least) if self.disaggregated else {}),
            })  # fmt: skip

    def _ways(self, one: Candidate, least: Candidate) -> dict[str, Any]:
        """Columns of a row if prefills may run on separate copies."""
        return {
            **_of_readers(one), "bound_readers_copies": least.readers and least.readers.copies,
            "tokens_per_dollar": self.per_dollar(one), "tokens_per_joule_at_tdp": self.per_joule(one),
        }  # fmt: skip

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        return finite({
            "rate": self.rate, "prompt": self.prompt, "gen": self.gen, "by": str(self.by), "years": self.years,
            "max_devices": self.max_devices, "quants": list(self.quants),
            "techniques": list(self.common["techniques"]), "kernels": self.kernels,
            **asdict(self.goals),
            **({"kv_transfer": self.kv_transfer, "kv_link": self.kv_link} if self.disaggregated else {}),
        })  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        rows = list(self.rows())
        able, known = len(self.able), len(self.able) + len(self.unmeasured)

        def row_of(best: Candidate | None) -> dict[str, Any] | None:
            return next((row for row, one in zip(rows, self.able, strict=False) if one is best), None)

        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.model.name,
            "inputs": self.inputs,
            "tried": self.tried, "considered": self.considered, "priced": self.priced, "left_out": list(self.left_out),
            "best": row_of(self.best),
            **({f"best_{name}": row_of(self.best_of(apart=apart)) for name, apart in _WAYS.items()}
               if self.disaggregated else {}),
            "least": None if self.least is None else {
                "hardware": self.least.hardware.name, "quant": self.least.quant, "layout": str(self.least.layout),
                "devices": self.least.devices, **{name: getattr(self.least, name) for name in _BOUND},
                **(_of_readers(self.least) if self.disaggregated else {}),
            },
            "candidates": rows[:able],
            "unmeasured": rows[able:known],
            "rejected": rows[known:],
        })  # fmt: skip


def _of_readers(one: Candidate) -> dict[str, Any]:
    """Prefill copies of a candidate, and the parts of its time to first token; None without separate ones."""
    read = one.readers
    own = (read.hardware.name, str(read.layout), read.copies, read.memory) if read else (None,) * 4
    times = (read.wait_s, read.read_s, read.transfer_s) if read else (None,) * 3
    names = ("readers_hardware", "readers_layout", "readers_copies", "readers_memory", "wait_s", "read_s", "transfer_s")
    return dict(zip(names, (*own, *times), strict=True))


def first_of_each(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first of every device, and of every pair."""
    found: dict[tuple[str, ...], Candidate] = {}
    for one in candidates:
        found.setdefault(one.kind, one)
    return tuple(found.values())


def unknown_last(price: float) -> float:
    """Sort key that puts unknown prices last."""
    return inf if isnan(price) else price
