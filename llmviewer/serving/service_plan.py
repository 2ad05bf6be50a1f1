"""The result of plan(): the settings that serve a load, and the cheapest of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import inf, isnan
from typing import Any, ClassVar, Final

import numpy as np

from .. import __version__
from ..analyzing.costs import Criterion
from ..analyzing.facts import finite
from ..model import Model
from ..options import ServedOptions, only
from ..parameters import KvLink, KvTransfer
from ..records import frozen
from ..rows import Rows
from ..setting import Setting
from ..transforms.quantize import PUBLISHED
from .candidates import PRICES, Candidate, PrefillWorkers
from .confirmation import Confirmation
from .load import POLICY
from .outcome import DEFAULT_MAX_BATCH, Goals, percentile_name, summary

SCHEMA_VERSION: Final = 2  # of to_dict()
_NUMBER_NAMES: Final = (
    "copies", "limit", "batch", "utilization", "ttft_s", "tpot_s", "ttft_quantile_s", "tpot_quantile_s", "rate_within",
    "max_rate", "memory", "usd_per_h", "watts", "unmodelled", "excess",
)  # fmt: skip
_DISAGGREGATED_KEYS: Final = {"together": False, "apart": True}  # whether prefill workers are separate
_BOUND_NAMES: Final = ("copies", "ttft_s", "tpot_s", "rate_within", "max_rate", "usd_per_h", "watts")


@frozen(kw_only=True, repr=False)
class ServicePlan(Rows):
    """The result of plan(). Each candidate has the fewest replicas that meet the targets, or come closest to them.

    kernels      kernel library of expected times; "": the one with most measurements on each device; None: bounds only
    within_targets     candidates that meet the targets, cheapest first; at equal prices the published precision, then
                       the one with the most bits; candidates without a price last
    unmeasured         candidates that meet the targets at the bound, without expected times
    lowest_at_bound    the cheapest candidates at the bound, without and with separate prefill workers
    rejected           for each other device, the candidate that comes closest to the targets; closest first
    considered         number of devices considered; `priced` of them have a price
    unavailable        devices that were not considered because they are not for sale and were not named
    without_price      devices that were not considered because they have no price, where plans are ranked by price
    kv_transfer        when KV caches are sent from prefill to decode workers, over `kv_link`; None: no separate workers
    requested_measure  the measure to minimize, as given; None if it was not given
    top                number of the cheapest candidates to show, of any device and layout; 0: those of each device
    simulations        candidates as simulated, cheapest first; only the last may meet the targets
    combinations       number of combinations of devices, layouts, precisions, replicas and batches
    shared_arguments   arguments of plan() that simulate() has too
    """

    report: ClassVar = "plans"

    model: Model = field(repr=False)
    rate: float
    prompt: int
    gen: int
    goals: Goals
    by: Criterion
    requested_measure: Criterion | None
    years: float | None
    max_devices: int
    kv_transfer: KvTransfer | None
    kv_link: KvLink
    considered: int
    priced: int
    unavailable: tuple[str, ...]
    without_price: tuple[str, ...]
    quants: tuple[str, ...]
    kernels: str | None
    within_targets: tuple[Candidate, ...] = field(repr=False)
    unmeasured: tuple[Candidate, ...] = field(repr=False)
    lowest_at_bound: tuple[Candidate, ...] = field(repr=False)
    rejected: tuple[Candidate, ...] = field(repr=False)
    combinations: int
    top: int = 0
    simulations: tuple[Confirmation, ...] = field(default=(), repr=False)
    shared_arguments: Mapping[str, Any] = field(repr=False)

    @property
    def unit(self) -> str:
        """Unit of the measure to minimize."""
        return PRICES[self.by]

    @property
    def best(self) -> Candidate | None:
        """The cheapest candidate; None if none that meets the targets has a price."""
        return next((one for one in self.within_targets if not isnan(one.price(self.by))), None)

    @property
    def recommended(self) -> Confirmation | None:
        """The cheapest candidate as simulated, if it meets the targets."""
        return next((one for one in self.simulations if one.within), None)

    @property
    def disaggregated(self) -> bool:
        """Whether separate prefill workers were tried too."""
        return self.kv_transfer is not None

    @property
    def cheapest_at_bound(self) -> Candidate | None:
        """The cheapest candidate at lower bounds; no kernels need less."""
        return min(self.lowest_at_bound, key=lambda one: unknown_last(one.price(self.by)), default=None)

    def best_of(self, *, disaggregated: bool) -> Candidate | None:
        """The cheapest candidate with separate prefill workers, or without them."""
        return next(
            (
                one
                for one in self.within_targets
                if bool(one.prefill_workers) is disaggregated and not isnan(one.price(self.by))
            ),
            None,
        )

    def per_dollar(self, one: Candidate) -> float:
        """Output tokens per dollar at the requested rate; nan if a price is unknown. [1/USD]"""
        return 3600 * self.rate * self.gen / one.usd_per_h

    def per_joule(self, one: Candidate) -> float:
        """Output tokens per joule at the requested rate and the TDP of all devices; nan if unknown. [1/J]"""
        return self.rate * self.gen / one.watts

    @property
    def best_by_device(self) -> tuple[Candidate, ...]:
        """The cheapest candidate of every device, and of every pair, that meets the targets."""
        return first_of_each(self.within_targets)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Devices that meet the targets and have no price."""
        kinds = (kind for one in self.best_by_device if isnan(one.price(self.by)) for kind in one.device_kinds)
        return tuple(dict.fromkeys(kind.name for kind in kinds if not self.by.known(kind, self.years)))

    @property
    def front(self) -> tuple[Candidate, ...]:
        """Pareto front of cost, power, devices, both times and the rate within the targets."""
        if not self.within_targets:
            return ()
        objectives = np.array([
            [*(unknown_last(one.price(by)) for by in PRICES), one.ttft_s, one.tpot_s, -one.rate_within]
            for one in self.within_targets
        ])  # fmt: skip
        optimal = []
        for place, point in enumerate(objectives):
            dominated = np.all(objectives <= point, axis=1) & np.any(objectives < point, axis=1)
            duplicate = np.all(objectives[:place] == point, axis=1)
            if not np.any(dominated) and not np.any(duplicate):
                optimal.append(self.within_targets[place])
        return tuple(optimal)

    def simulation(self, candidate: Candidate) -> dict[str, Any]:
        """The arguments of simulate() for a candidate: one replica with its share of the arrival rate, or all replicas
        if prefill workers are separate.
        """
        arguments: dict[str, Any] = {
            "rate": self.rate / candidate.copies, "prompt_lengths": str(self.prompt), "gen_lengths": str(self.gen),
            **({} if self.shared_arguments["engine"] else self._scheduling(candidate)),
            "quant": None if candidate.quant == PUBLISHED else candidate.quant,
            "layout": str(candidate.layout) if candidate.layout.devices > 1 else None, "ttft": self.goals.ttft_s,
            "tpot": self.goals.tpot_s, **self.shared_arguments, "hardware_set": candidate.hardware.changes,
        }  # fmt: skip
        if candidate.prefill_workers:
            arguments |= self._prefill_arguments(candidate, candidate.prefill_workers)
        nonempty = {name: value for name, value in arguments.items() if value not in (None, "", (), inf)}
        return {"hardware": candidate.hardware.name, **nonempty}

    def replica_setting(self, candidate: Candidate) -> Setting:
        """The setting of one replica of a candidate."""
        shared = {
            name: value for name, value in only(self.shared_arguments, ServedOptions).items() if value is not None
        }
        options: dict[str, Any] = {**shared, "layout": candidate.layout, "hardware_set": ()}
        options["quant"] = None if candidate.quant == PUBLISHED else candidate.quant
        return Setting.of(self.shared_arguments["model"], candidate.hardware, **options)

    def _scheduling(self, candidate: Candidate) -> dict[str, Any]:
        """Policy and batch limit without an engine: as the closed forms have them, and more than is ever needed."""
        return {
            "policy": POLICY,
            "max_batch": max(int(candidate.layout.rank_batch(candidate.limit)), DEFAULT_MAX_BATCH),
        }

    def _prefill_arguments(self, candidate: Candidate, workers: PrefillWorkers) -> dict[str, Any]:
        """Arguments of simulate() that differ with separate prefill workers."""
        device_arguments = {}
        if workers.hardware.name != candidate.hardware.name:
            changes = tuple(f"{kind.name}:{change}" for kind in candidate.device_kinds for change in kind.changes)
            device_arguments = {"prefill_hardware": workers.hardware.name, "hardware_set": changes}
        layout = str(workers.layout) if workers.layout.devices > 1 else "tp=1"
        return {
            "rate": self.rate, "policy": None, "replicas": candidate.copies, "prefill_replicas": workers.copies,
            "prefill_layout": None if workers.layout == candidate.layout else layout,
            "kv_transfer": str(self.kv_transfer) if self.kv_transfer is KvTransfer.OVERLAPPED else None,
            "kv_link": str(self.kv_link) if self.kv_link is KvLink.SCALE_UP else None, **device_arguments,
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each candidate: those that meet the targets, cheapest first, those that do at the bound without
        expected times, and those that do not.
        """
        front = {id(one) for one in self.front}
        for rank, one in enumerate((*self.within_targets, *self.unmeasured, *self.rejected), 1):
            at_bound = one.at_bound or one
            yield finite({
                "rank": rank if rank <= len(self.within_targets) else None, "pareto": id(one) in front,
                "expected": one.at_bound is not None, "hardware": one.hardware.name,
                "quant": one.quant, "layout": str(one.layout), "devices": one.devices or None,
                **{name: getattr(one, name) for name in _NUMBER_NAMES},
                **{f"bound_{name}": getattr(at_bound, name) for name in _BOUND_NAMES},
                "factor": one.factor or None, "reason": one.reason or None,
                **(self._prefill_worker_columns(one, at_bound) if self.disaggregated else {}),
            })  # fmt: skip

    def _prefill_worker_columns(self, one: Candidate, at_bound: Candidate) -> dict[str, Any]:
        """Columns of a row if prefills may run on separate workers."""
        return {
            **_prefill_columns(one),
            "bound_readers_copies": at_bound.prefill_workers and at_bound.prefill_workers.copies,
            "tokens_per_dollar": self.per_dollar(one), "tokens_per_joule_at_tdp": self.per_joule(one),
        }  # fmt: skip

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        return finite({
            "rate": self.rate, "prompt": self.prompt, "gen": self.gen, "by": str(self.by), "years": self.years,
            "max_devices": self.max_devices, "quants": list(self.quants),
            "techniques": list(self.shared_arguments["techniques"]), "kernels": self.kernels,
            "ttft_s": self.goals.ttft_s, "tpot_s": self.goals.tpot_s,
            "ttft_statistic": percentile_name(self.goals.ttft_percentile),
            "tpot_statistic": percentile_name(self.goals.tpot_percentile),
            **({"kv_transfer": self.kv_transfer, "kv_link": self.kv_link} if self.disaggregated else {}),
        })  # fmt: skip

    def _simulated(self, one: Confirmation) -> dict[str, Any]:
        """A simulation, as in the JSON document."""
        candidate, workers = one.candidate, one.candidate.prefill_workers
        prefill = {"readers_hardware": workers.hardware.name, "readers_copies": workers.copies} if workers else {}
        return {
            "hardware": candidate.hardware.name, "quant": candidate.quant, "layout": str(candidate.layout),
            "copies": candidate.copies, **prefill, "devices": candidate.devices, "policy": str(one.run.policy),
            "max_batch": one.run.max_batch, "requests": len(one.run.traffic), "within": one.within,
            "within_share": one.run.good, "ttft_at_target_s": one.ttft_s, "tpot_at_target_s": one.tpot_s,
            "times": {name: summary(values) for name, values in one.run.metrics.items()}, "limit": one.run.limit,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        rows = list(self.rows())
        within_targets, with_bounds = len(self.within_targets), len(self.within_targets) + len(self.unmeasured)

        def row_of(best: Candidate | None) -> dict[str, Any] | None:
            return next((row for row, one in zip(rows, self.within_targets, strict=False) if one is best), None)

        cheapest, kinds = self.cheapest_at_bound, _DISAGGREGATED_KEYS.items()
        best_of_kinds = {f"best_{name}": row_of(self.best_of(disaggregated=separate)) for name, separate in kinds}
        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.model.name,
            "inputs": self.inputs,
            "tried": self.combinations, "considered": self.considered, "priced": self.priced,
            "left_out": list(self.unavailable), "without_price": list(self.without_price),
            "best": row_of(self.best),
            **(best_of_kinds if self.disaggregated else {}),
            "least": None if cheapest is None else {
                "hardware": cheapest.hardware.name, "quant": cheapest.quant, "layout": str(cheapest.layout),
                "devices": cheapest.devices, **{name: getattr(cheapest, name) for name in _BOUND_NAMES},
                **(_prefill_columns(cheapest) if self.disaggregated else {}),
            },
            "candidates": rows[:within_targets],
            "unmeasured": rows[within_targets:with_bounds],
            "rejected": rows[with_bounds:],
            "simulated": [self._simulated(one) for one in self.simulations],
        })  # fmt: skip


def _prefill_columns(one: Candidate) -> dict[str, Any]:
    """Prefill workers of a candidate, and the parts of its time to first token; None without separate workers."""
    prefill = one.prefill_workers
    workers = (prefill.hardware.name, str(prefill.layout), prefill.copies, prefill.memory) if prefill else (None,) * 4
    times = (prefill.wait_s, prefill.prefill_s, prefill.transfer_s) if prefill else (None,) * 3
    names = ("readers_hardware", "readers_layout", "readers_copies", "readers_memory", "wait_s", "read_s", "transfer_s")
    return dict(zip(names, (*workers, *times), strict=True))


def first_of_each(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first candidate of every device, and of every pair."""
    first: dict[tuple[str, ...], Candidate] = {}
    for one in candidates:
        first.setdefault(one.device_names, one)
    return tuple(first.values())


def unknown_last(price: float) -> float:
    """Sort key that puts unknown prices last."""
    return inf if isnan(price) else price
