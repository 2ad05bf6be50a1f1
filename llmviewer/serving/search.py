"""The search space of a plan: a model in every precision and layout, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import count, groupby
from math import isfinite
from typing import Any, Final, NamedTuple

import numpy as np

from ..comparing.fleet import WorkCache
from ..devices.hardware import Hardware
from ..expectation.engines import Engine
from ..expectation.kernels import Kernels
from ..parallel.layout import Layout
from ..records import frozen
from ..server_memory import server_of
from ..setting import Setting
from .candidates import Candidate, evaluated
from .fleet_times import Key, Placement, StepTimes, expected
from .load import Grid, Load
from .pairing import Pairing, PrefillWorker, paired_candidates
from .placement import Excluded, placements
from .prefill_pool import moved_bytes

_MAX_EVALUATED: Final = 1 << 22  # points (devices x replicas x batches) that are evaluated together


class Timed(NamedTuple):
    """Times of steps on the devices of a placement, and the places of the devices to evaluate."""

    placement: Placement
    places: Sequence[int]
    times: StepTimes


@frozen(kw_only=True)
class _Precision:
    """A model in one precision, in some layouts on some devices.

    candidates  by layout and names of devices
    bounds      placements with their lower bounds
    paired      settings that prefill or decode in a pair that meets the targets at the bound
    """

    quant: str
    settings: Sequence[Setting]
    candidates: dict[Any, Candidate]
    bounds: Sequence[Timed]
    paired: set[Key]

    def within_targets(self) -> Iterator[tuple[Placement, list[int]]]:
        """Places of each placement that meet the targets at the bound."""
        for placement, places, _ in self.bounds:
            keys = map(placement.key, places)
            yield (
                placement,
                [
                    p
                    for p, key in zip(places, keys, strict=True)
                    if not self.candidates[key].factor or key in self.paired
                ],
            )


@frozen(kw_only=True)
class Search:
    """Every setting on every device.

    settings  by precision, as given, and layout
    kernels   of a device by its name; None for bounds only
    engine    of the servers, by whose rules they divide memory; None: all of it is available
    pairing   of prefill with decode replicas; None if all replicas do both
    """

    load: Load
    devices: Sequence[Hardware]
    settings: Mapping[tuple[str, Layout], Setting]
    kernels: Callable[[str], Kernels] | None
    engine: Engine | None = None
    pairing: Pairing | None = None
    known: WorkCache = field(default_factory=WorkCache)

    @property
    def combinations(self) -> int:
        """Number of combinations of devices, layouts, precisions, replicas and batches."""
        copies = sum(self.load.max_devices // layout.devices for _, layout in self.settings)
        return len(self.devices) * copies * len(self.load.limits)

    def candidates(self, progress: Callable[[int, int], object]) -> Iterator[Candidate]:
        """Candidates of every setting on every device: the fewest replicas that meet the targets, or the closest.

        progress  called with the number of finished settings, and of all
        """
        finished = count(1)
        by_quant = groupby(self.settings.items(), key=lambda item: item[0][0])
        groups = [(quant, [precision for _, precision in same], self.devices) for quant, same in by_quant]
        for precision in self._searched(groups, include_too_large=False):
            for _ in precision.settings:
                progress(next(finished), len(self.settings))
            yield from precision.candidates.values()

    def _searched(
        self, groups: Sequence[tuple[str, Sequence[Setting], Sequence[Hardware]]], *, include_too_large: bool
    ) -> Iterator[_Precision]:
        """Candidates of each precision. Those that meet the targets at the bound are evaluated by expected times too.

        The kernels of a device are evaluated for all precisions together.

        include_too_large  whether devices without memory for the smallest batch are evaluated too
        """
        bounds = [
            self._bounded(quant, settings, devices, include_too_large=include_too_large)
            for quant, settings, devices in groups
        ]
        if not self.kernels:
            yield from bounds
            return
        within_targets = [list(one.within_targets()) for one in bounds]
        times = expected([pair for pairs in within_targets for pair in pairs], self.load, self.kernels)
        for one, pairs in zip(bounds, within_targets, strict=True):
            timed_placements = [(placement, places, next(times)) for placement, places in pairs]
            expected_times = [
                Timed(laid, [p for p in places if isfinite(step_times.single_prefill[p])], step_times)
                for laid, places, step_times in timed_placements
            ]
            expected_candidates = {
                key: candidate
                for timed in expected_times
                for key, candidate in self._evaluated(one.quant, timed).items()
            }
            if self.pairing and not include_too_large:
                expected_candidates |= self._paired(one.quant, one.settings[0], expected_times, self.pairing)[0]
            bound_candidates = one.candidates
            replaced = {
                key: replace(candidate, at_bound=bound_candidates[key])
                for key, candidate in expected_candidates.items()
                if not bound_candidates[key].factor
            }
            yield replace(one, candidates=bound_candidates | replaced)

    def _bounded(
        self, quant: str, settings: Sequence[Setting], devices: Sequence[Hardware], *, include_too_large: bool
    ) -> _Precision:
        candidates: dict[Any, Candidate] = {}
        bounds: list[Timed] = []
        for one in settings:
            for each in placements(one, devices, self.load, self.known, include_too_large=include_too_large):
                if isinstance(each, Excluded):
                    candidates[one.layout, each.device.name] = _excluded(each, quant, one.layout)
                else:
                    bounds.append(Timed(each, each.runnable, each.bounds(self.load)))
                    candidates |= self._evaluated(quant, bounds[-1])
        pair_keys: set[Key] = set()
        if self.pairing and not include_too_large:
            pairs, pair_keys = self._paired(quant, settings[0], bounds, self.pairing)
            candidates |= pairs
        return _Precision(quant=quant, settings=settings, candidates=candidates, bounds=bounds, paired=pair_keys)

    def _evaluated(self, quant: str, timed: Timed, *, decode_only: bool = False) -> dict[Any, Candidate]:
        """Candidates of each device, whose replicas prefill and decode, or only decode."""
        placement, places, times = timed
        load = self.load.writing if decode_only else self.load
        times = times.writing if decode_only else times
        devices_per_batch = max(1, _MAX_EVALUATED * placement.layout.devices // (load.max_devices * len(load.limits)))
        candidates: dict[Any, Candidate] = {}
        for start in range(0, len(places), devices_per_batch):
            batch_places = places[start : start + devices_per_batch]
            devices = [placement.devices[place] for place in batch_places]
            memory = self._memory(quant, placement, devices, decode_only=decode_only)
            each = evaluated(devices, (quant, placement.layout), times.only(batch_places), memory, load)
            candidates.update(zip(map(placement.key, batch_places), each, strict=True))
        return candidates

    def _memory(self, quant: str, placement: Placement, devices: Sequence[Hardware], *, decode_only: bool) -> Grid:
        """Memory required over available for each limit of the batch, [device, batch]; with an engine, of its cache."""
        needed_bytes = placement.needed.decode_only if decode_only else placement.needed.prefill_and_decode
        if self.engine is None or self.engine.memory is None:
            return np.asarray(needed_bytes / np.array([[device.capacity] for device in devices]))
        setting = replace(self.settings[quant, placement.layout], engine=self.engine, hardware=devices[0])
        servers = [server_of(setting, device) for device in devices]
        max_requests = np.array([[max(server.requests(self.load.tokens), 1e-9)] for server in servers])
        pool, fixed = np.array([[(server.pool.size, server.fixed_bytes)] for server in servers]).transpose(2, 0, 1)
        cache = np.where(pool > 0, self.load.limits / max_requests * pool, needed_bytes - np.min(needed_bytes))
        return np.asarray((fixed + cache) / np.array([[server.budget.used] for server in servers]))

    def _paired(
        self, quant: str, setting: Setting, timed_placements: Sequence[Timed], pairing: Pairing
    ) -> tuple[dict[Any, Candidate], set[Key]]:
        """Pairs of prefill and decode replicas; and the settings of those that meet the targets."""
        decoders: dict[Any, Candidate] = {}
        prefillers: list[PrefillWorker] = []
        for placement, places, times in timed_placements:
            decoding = [place for place in places if pairing.decodes_on(placement.devices[place])]
            decoders |= self._evaluated(quant, Timed(placement, decoding, times), decode_only=True)
            prefilling = [place for place in places if pairing.prefills_on(placement.devices[place])]
            prefillers += PrefillWorker.of_placement(placement, prefilling, times)
        cache_bytes = float(moved_bytes(setting, float(self.load.prompt)))
        return paired_candidates(prefillers, list(decoders.values()), pairing, cache_bytes=cache_bytes, load=self.load)

    def closest(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidate that comes closest for each device or pair that misses the targets in every setting; closest
        first.

        A candidate without a reason is evaluated if none comes closer: the others are then at least as far off.
        """
        within_targets = {one.device_names for one in candidates if not one.factor}
        missed: dict[tuple[str, ...], dict[tuple[str, Layout], Candidate]] = {}
        for one in candidates:
            if one.device_names not in within_targets:
                missed.setdefault(one.device_names, {})[one.quant, one.layout] = one
        while True:
            closest = [min(by_setting.values(), key=_closeness_key) for by_setting in missed.values()]
            incomplete: dict[tuple[str, Layout], list[Hardware]] = {}
            for one in closest:
                if not one.reason:
                    incomplete.setdefault((one.quant, one.layout), []).append(one.hardware)
            if not incomplete:
                return sorted(closest, key=_closeness_key)
            groups = [
                (quant, [self.settings[quant, layout]], by_setting)
                for (quant, layout), by_setting in incomplete.items()
            ]
            for (quant, layout), each in zip(incomplete, self._searched(groups, include_too_large=True), strict=True):
                for one in each.candidates.values():
                    missed[one.device_names][quant, layout] = one


def _excluded(one: Excluded, quant: str, layout: Layout) -> Candidate:
    reason = one.reason and f"{one.factor}: {one.reason}"
    return Candidate(
        hardware=one.device, quant=quant, layout=layout, factor=one.factor, excess=one.excess, reason=reason
    )


def _closeness_key(one: Candidate) -> tuple[bool, bool, float]:
    """Sort key by distance from the targets: candidates that meet them at the bound come first, then those with enough
    memory.
    """
    return one.at_bound is None, not one.max_rate > 0, one.excess
