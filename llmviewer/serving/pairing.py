"""Disaggregated prefill and decode in closed form, for many pairs of settings at once.

Prefill workers are a queue of several servers with equal service times: M/D/c, in the approximation of Sakasegawa 1977,
which is exact for one worker, as in DistServe (arXiv:2401.09670).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import ceil, inf, log2, nan
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..analyzing.disaggregation import in_one_domain, link_bytes_per_s
from ..devices.hardware import Hardware
from ..errors import InputError
from ..forms import Num
from ..parallel.layout import Layout
from ..parameters import KvLink
from ..records import frozen
from ..units import fold, si
from .candidates import Candidate, PrefillWorkers, time_reason
from .fleet_times import Key, Placement, StepTimes
from .flow import waiting
from .load import Grid, Load

_MAX_PAIRS: Final = 1 << 20  # pairs that are evaluated together
_BISECTIONS: Final = 40  # halvings of the interval of rates
Places = npt.NDArray[np.intp]


@frozen(kw_only=True)
class Pairing:
    """Devices that prefill and that decode, and how KV caches are sent between them.

    prefill_devices  names; if empty, each kind of device prefills for itself
    decode_devices   names
    overlapped  whether a cache is sent during its prefill, layer by layer
    link        over which caches are sent
    """

    prefill_devices: frozenset[str]
    decode_devices: frozenset[str]
    overlapped: bool
    link: KvLink

    def prefills_on(self, device: Hardware) -> bool:
        """Whether the device may prefill."""
        return device.name in (self.prefill_devices or self.decode_devices)

    def decodes_on(self, device: Hardware) -> bool:
        """Whether the device may decode."""
        return device.name in self.decode_devices


class PrefillWorker(NamedTuple):
    """A replica that only prefills.

    servers     prefills that it runs at a time
    prefill_s   time of a prefill [s]
    interval_s  time until a server may start the next prefill [s]
    memory      required over available
    """

    device: Hardware
    layout: Layout
    servers: int
    prefill_s: float
    interval_s: float
    memory: float

    @classmethod
    def of_placement(cls, placement: Placement, places: Iterable[int], times: StepTimes) -> Iterator[PrefillWorker]:
        """Replicas of a placement; none if ranks wait for each other, as each prefill would delay the others."""
        for place in places if placement.ranks == 1 else ():
            device = placement.devices[place]
            yield cls(
                device=device, layout=placement.layout, servers=times.rank_sets,
                prefill_s=float(times.single_prefill[place]),
                interval_s=float(times.serial_prefill[place]), memory=placement.needed.prefill_only / device.capacity,
            )  # fmt: skip


def waited_s(rate: Num, interval_s: Num, servers: Num, percentile: float | None = None) -> Grid:
    """Wait of a prompt for one of `servers`, in the mean or at a percentile; inf if overloaded. [s]

    interval_s  time for which a prompt occupies a server [s]
    """
    utilization = rate * interval_s / servers
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wait_s = interval_s / 2 / (servers * (1 - utilization)) * waiting(utilization, servers, percentile)
        return np.where(utilization < 1, wait_s, inf)


def paired_candidates(
    workers: Sequence[PrefillWorker], decoders: Sequence[Candidate], pairing: Pairing, *, cache_bytes: float, load: Load
) -> tuple[dict[tuple[object, ...], Candidate], set[Key]]:
    """The fewest prefill workers that meet the targets, or those that come closest, for each setting that decodes and
    each kind of device that may prefill for it, in the layout with the fewest devices; and the settings in any pair
    that meets them.

    decoders     replicas that only decode, evaluated by themselves
    cache_bytes  cache of a prompt to send [B]
    """
    rows: dict[str, list[int]] = {}
    for row, worker in enumerate(workers):
        rows.setdefault(worker.device.name, []).append(row)
    pairs = [
        (np.full(len(places), place), np.array(places))
        for place, decoder in enumerate(decoders)
        for places in (rows.values() if pairing.prefill_devices else (rows.get(decoder.hardware.name, []),))
    ]
    candidates: dict[tuple[object, ...], Candidate] = {}
    used_keys: set[Key] = set()
    pairs_per_batch = max(_MAX_PAIRS // max(len(workers), 1), 1)
    for start in range(0, len(pairs), pairs_per_batch):
        decode_places, prefill_places = (
            np.concatenate(each).astype(int) for each in zip(*pairs[start : start + pairs_per_batch], strict=True)
        )
        if not len(decode_places):
            continue
        batch_of_pairs = _Pairs.of(
            workers, decoders, prefill_places, decode_places, pairing=pairing, cache_bytes=cache_bytes, load=load
        )
        candidates |= {(one.layout, *one.device_names): one for one in batch_of_pairs.best_candidates()}
        used_prefill, used_decode = (
            np.unique(each[batch_of_pairs.within_targets]) for each in (prefill_places, decode_places)
        )
        used_keys |= {(workers[place].layout, workers[place].device.name) for place in used_prefill}
        used_keys |= {(decoders[place].layout, decoders[place].hardware.name) for place in used_decode}
    return candidates, used_keys


def _send_bytes_per_s(device: Hardware, link: KvLink) -> float:
    """Bandwidth of one device; 0 if unknown. [B/s]"""
    try:
        return link_bytes_per_s(device, link)
    except InputError:
        return 0.0


@frozen(kw_only=True)
class _Pairs:
    """Pairs of prefill and decode settings, with the fewest prefill workers that meet the targets, or the maximum.
    All arrays are [pair].

    prefill_places  index of the prefill setting in `workers`
    decode_places   index of the decode setting in `decoders`
    copies      number of prefill workers
    servers     prefills that all of them run at a time
    interval_s  time until a server may start the next prefill [s]
    wait_s      mean wait for a server [s]
    unqueued_s  time of prefill and transfer; with `wait_s` the time to first token [s]
    ttft_quantile_s  time to first token at the percentile of its target [s]
    max_rate    lowest of the rates of prefill, network and decode [1/s]
    ratios      required over allowed or available, by name, without those of the decode setting
    """

    workers: Sequence[PrefillWorker]
    decoders: Sequence[Candidate]
    load: Load
    prefill_places: Places
    decode_places: Places
    copies: Grid
    servers: Grid
    interval_s: Grid
    wait_s: Grid
    unqueued_s: Grid
    ttft_quantile_s: Grid
    transfer_s: Grid
    max_rate: Grid
    ratios: dict[str, Grid]

    @classmethod
    def of(
        cls,
        workers: Sequence[PrefillWorker],
        decoders: Sequence[Candidate],
        prefill_places: Places,
        decode_places: Places,
        *,
        pairing: Pairing,
        cache_bytes: float,
        load: Load,
    ) -> _Pairs:
        devices = {*(one.device for one in workers), *(one.hardware for one in decoders)}
        device_bytes_per_s = {device: _send_bytes_per_s(device, pairing.link) for device in devices}
        prefill_facts = np.array([
            (one.servers, one.prefill_s, one.interval_s, one.memory, one.layout.devices, device_bytes_per_s[one.device])
            for one in workers
        ])  # fmt: skip
        decode_facts = np.array(
            [(one.devices, one.layout.devices, one.max_rate, device_bytes_per_s[one.hardware]) for one in decoders]
        )
        servers, prefill_s, interval_s, memory, size, prefill_link = prefill_facts[prefill_places].T
        decode_devices, decode_size, decode_rate, decode_link = decode_facts[decode_places].T
        if pairing.link is KvLink.SCALE_UP:
            sides = zip((workers[row] for row in prefill_places), (decoders[row] for row in decode_places), strict=True)
            prefill_link = prefill_link * [
                in_one_domain((r.device, r.layout.devices), (w.hardware, w.layout.devices)) for r, w in sides
            ]
        with np.errstate(divide="ignore"):
            transfer_s = cache_bytes / np.minimum(size * prefill_link, decode_size * decode_link)
        unqueued_s = np.maximum(prefill_s, transfer_s) if pairing.overlapped else prefill_s + transfer_s

        def meets_targets(copies: Grid) -> npt.NDArray[np.bool_]:
            first_s = waited_s(load.rate, interval_s, copies * servers, load.goals.ttft_percentile) + unqueued_s
            within_bandwidth = load.rate * cache_bytes <= copies * size * prefill_link
            return np.asarray(np.isfinite(first_s) & (first_s <= load.goals.ttft_s) & within_bandwidth)

        copies = _fewest_replicas(np.maximum((load.max_devices - decode_devices) // size, 1), meets_targets)
        with np.errstate(divide="ignore"):
            transfer_rate = np.minimum(copies * size * prefill_link, decode_devices * decode_link) / cache_bytes
            wait_s = waited_s(load.rate, interval_s, copies * servers)
            ttft_s = unqueued_s + waited_s(load.rate, interval_s, copies * servers, load.goals.ttft_percentile)
            ratios = {
                "memory": memory,
                "devices": (decode_devices + copies * size) / load.max_devices,
                "rate": load.rate * interval_s / (copies * servers),
                "network": load.rate / transfer_rate,
                "time to first token": np.where(np.isfinite(ttft_s), ttft_s, 0.0) / load.goals.ttft_s,
            }
        return cls(
            workers=workers, decoders=decoders, load=load, prefill_places=prefill_places, decode_places=decode_places,
            copies=copies, servers=copies * servers, interval_s=interval_s, wait_s=wait_s, unqueued_s=unqueued_s,
            ttft_quantile_s=ttft_s, transfer_s=transfer_s,
            max_rate=np.minimum(np.minimum(copies * servers / interval_s, transfer_rate), decode_rate), ratios=ratios,
        )  # fmt: skip

    @property
    def worst_ratio(self) -> Grid:
        """Highest ratio of required to allowed or available, decode setting included."""
        decode_ratios = np.array([one.excess for one in self.decoders])[self.decode_places]
        return reduce(np.maximum, self.ratios.values(), decode_ratios)

    @property
    def within_targets(self) -> npt.NDArray[np.bool_]:
        """Whether nothing required exceeds what is allowed or available."""
        return np.asarray((self.ratios["rate"] < 1) & (self.worst_ratio <= 1))

    def best_candidates(self) -> Iterator[Candidate]:
        """The pair with fewest devices, or the closest one, for each decode setting and kind of prefill device."""
        names: dict[str, int] = {}
        kind = np.array([names.setdefault(one.device.name, len(names)) for one in self.workers])
        group = self.decode_places * len(names) + kind[self.prefill_places]
        fine, size = self.within_targets, np.array([one.layout.devices for one in self.workers])
        rank = np.where(fine, self.copies * size[self.prefill_places], self.worst_ratio)
        order = np.lexsort((self.wait_s + self.unqueued_s, rank, ~fine, group))
        places = order[np.unique(group[order], return_index=True)[1]]
        ttft_rates = self._ttft_rates(places)
        for place, ttft_rate in zip(places.tolist(), ttft_rates.tolist(), strict=True):
            yield self._candidate(place, ttft_rate, fine=bool(fine[place]))

    def _ttft_rates(self, places: Places) -> Grid:
        """Highest rate at which prefill workers meet the target of the time to first token, [place]. [1/s]"""
        interval_s, servers = self.interval_s[places], self.servers[places]
        low, high = np.zeros(len(places)), servers / interval_s
        if self.load.goals.ttft_s == inf:
            return high
        left_s = self.load.goals.ttft_s - self.unqueued_s[places]
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            wait_s = waited_s(middle, interval_s, servers, self.load.goals.ttft_percentile)
            in_time = wait_s <= left_s
            low, high = np.where(in_time, middle, low), np.where(in_time, high, middle)
        return low

    def _candidate(self, place: int, within: float, *, fine: bool) -> Candidate:
        load, worker = self.load, self.workers[int(self.prefill_places[place])]
        decoder = self.decoders[int(self.decode_places[place])]
        wait_s, max_rate = float(self.wait_s[place]), float(self.max_rate[place])
        workers = PrefillWorkers(
            hardware=worker.device, layout=worker.layout, copies=int(self.copies[place]),
            wait_s=wait_s, prefill_s=worker.prefill_s, transfer_s=float(self.transfer_s[place]), memory=worker.memory,
        )  # fmt: skip
        candidate = replace(
            decoder, prefill_workers=workers, utilization=float(self.ratios["rate"][place]),
            ttft_s=wait_s + float(self.unqueued_s[place]), ttft_quantile_s=float(self.ttft_quantile_s[place]),
            max_rate=max_rate,
            rate_within=min(within, max_rate, decoder.rate_within) if fine else nan,
        ).priced(load.years)  # fmt: skip
        factor = max(self.ratios, key=lambda name: self.ratios[name][place])
        excess = float(self.ratios[factor][place])
        if fine or (decoder.factor and decoder.excess >= excess):
            return candidate
        rejected = replace(candidate, factor=factor, excess=excess)
        return replace(rejected, reason=_reason(rejected, load))


def _fewest_replicas(limits: Grid, holds: Callable[[Grid], npt.NDArray[np.bool_]]) -> Grid:
    """The fewest replicas for which a condition holds, which more replicas never break; `limits` if none suffices."""
    low, high = np.ones(limits.shape), limits
    for _ in range(ceil(log2(float(np.max(limits)))) + 1):
        middle = np.floor((low + high) / 2)
        enough = holds(middle)
        low, high = np.where(enough, low, np.minimum(middle + 1, limits)), np.where(enough, middle, high)
    return high


def _reason(one: Candidate, load: Load) -> str:
    """The factor that rules a pair out, with its amount, in words."""
    assert one.prefill_workers
    if one.factor == "memory":
        capacity = one.prefill_workers.hardware.capacity
        return (
            f"memory: {si(one.prefill_workers.memory * capacity)}B for a prefill while another prompt's cache is sent, "
            f"{fold(one.excess)} the {si(capacity)}B of each device"
        )
    if one.factor == "devices":
        return f"devices: needs at least {one.devices}; at most {load.max_devices} allowed"
    if one.factor == "rate":
        return f"rate: prefills at most {load.rate / one.excess:.4g} requests/s; {load.rate:.4g} requested"
    if one.factor == "network":
        if one.excess == inf:
            return "network: no known link joins prefill and decode workers"
        return f"network: sends KV caches of at most {load.rate / one.excess:.4g} requests/s; {load.rate:.4g} requested"
    return time_reason(one, load.goals)
