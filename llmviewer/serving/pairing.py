"""Disaggregated prefill and decode in closed form, for many pairs of settings at once.

Copies that run prefills are a queue of several servers with equal service times: M/D/c, in the approximation of
Sakasegawa 1977, which is exact for one copy, as in DistServe (arXiv:2401.09670).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import ceil, inf, log2, nan
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..analyzing.costs import usd_per_h, watts
from ..analyzing.disaggregation import joined, sent_bytes_per_s
from ..devices.hardware import Hardware
from ..errors import InputError
from ..forms import Num
from ..parallel.layout import Layout
from ..parameters import KvLink
from ..records import frozen
from ..units import fold, seconds, si
from .candidates import Candidate, Readers
from .fleet_times import Key, Placement
from .load import Grid, Load, StepTimes

_MAX_PAIRS: Final = 1 << 20  # pairs that are evaluated together
_BISECTIONS: Final = 40  # of the interval of rates
Places = npt.NDArray[np.intp]


@frozen(kw_only=True)
class Pairing:
    """Devices that prefill and that decode, and how caches are sent between them.

    readers     names of devices that prefill; if empty, each kind of device prefills for itself
    writers     names of devices that decode
    overlapped  whether a cache is sent during its prefill, layer by layer
    link        over which caches are sent
    """

    readers: frozenset[str]
    writers: frozenset[str]
    overlapped: bool
    link: KvLink

    def reads(self, device: Hardware) -> bool:
        return device.name in (self.readers or self.writers)

    def writes(self, device: Hardware) -> bool:
        return device.name in self.writers


class Reader(NamedTuple):
    """A copy that only prefills.

    read_s  time of a prefill, and `each_s` until one of its `servers` may start the next [s]
    memory  required over available
    """

    device: Hardware
    layout: Layout
    servers: int
    read_s: float
    each_s: float
    memory: float

    @classmethod
    def each(cls, laid: Placement, places: Iterable[int], times: StepTimes) -> Iterator[Reader]:
        """The copies of a placement; none if ranks wait for each other, as each prefill would delay the others."""
        for place in places if laid.ranks == 1 else ():
            device = laid.devices[place]
            yield cls(
                device=device, layout=laid.layout, servers=times.apart, read_s=float(times.alone[place]),
                each_s=float(times.one_by_one[place]), memory=laid.needed.reading / device.capacity,
            )  # fmt: skip


def waited_s(rate: Num, each_s: Num, servers: Num) -> Grid:
    """Mean wait of a prompt for one of `servers` that take `each_s`; inf if they are overloaded. [s]"""
    busy = rate * each_s / servers
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        waits = each_s / 2 * busy ** (np.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - busy))
        return np.where(busy < 1, waits, inf)


def paired(
    readers: Sequence[Reader], writers: Sequence[Candidate], pairing: Pairing, *, moved: float, load: Load
) -> tuple[dict[tuple[object, ...], Candidate], set[Key]]:
    """For each setting that decodes, and each kind of device that may prefill for it, the fewest prefill copies that
    keep to the goals, in the layout with fewest devices, or those that come closest; and the settings in any pair that
    keeps to them.

    writers  copies that only decode, judged by themselves
    moved    cache of a prompt to send [B]
    """
    rows: dict[str, list[int]] = {}
    for row, reader in enumerate(readers):
        rows.setdefault(reader.device.name, []).append(row)
    pairs = [
        (np.full(len(own), place), np.array(own))
        for place, writer in enumerate(writers)
        for own in (rows.values() if pairing.readers else (rows.get(writer.hardware.name, []),))
    ]
    found: dict[tuple[object, ...], Candidate] = {}
    used: set[Key] = set()
    most = max(_MAX_PAIRS // max(len(readers), 1), 1)
    for start in range(0, len(pairs), most):
        writes, reads = (np.concatenate(each).astype(int) for each in zip(*pairs[start : start + most], strict=True))
        if not len(writes):
            continue
        several = _Pairs.of(readers, writers, reads, writes, pairing=pairing, moved=moved, load=load)
        found |= {(one.layout, *one.kind): one for one in several.chosen()}
        used |= {(readers[place].layout, readers[place].device.name) for place in np.unique(reads[several.fine])}
        used |= {(writers[place].layout, writers[place].hardware.name) for place in np.unique(writes[several.fine])}
    return found, used


def _sent(device: Hardware, link: KvLink) -> float:
    """Bandwidth of one device; 0 if unknown. [B/s]"""
    try:
        return sent_bytes_per_s(device, link)
    except InputError:
        return 0.0


@frozen(kw_only=True)
class _Pairs:
    """Pairs of prefill and decode settings, with the fewest prefill copies that keep up, or the maximum. [pair]

    servers   of all prefill copies
    wait_s    for a server; with `own_s`, of prefill and network, the time to first token [s]
    max_rate  lowest of prefill, network and decode [1/s]
    over      required over allowed or available, by name, without that of the decode setting
    """

    readers: Sequence[Reader]
    writers: Sequence[Candidate]
    load: Load
    reads: Places
    writes: Places
    copies: Grid
    servers: Grid
    each_s: Grid
    wait_s: Grid
    own_s: Grid
    transfer_s: Grid
    max_rate: Grid
    over: dict[str, Grid]

    @classmethod
    def of(
        cls,
        readers: Sequence[Reader],
        writers: Sequence[Candidate],
        reads: Places,
        writes: Places,
        *,
        pairing: Pairing,
        moved: float,
        load: Load,
    ) -> _Pairs:
        both = {*(one.device for one in readers), *(one.hardware for one in writers)}
        sent = {device: _sent(device, pairing.link) for device in both}
        own = np.array([
            (one.servers, one.read_s, one.each_s, one.memory, one.layout.devices, sent[one.device]) for one in readers
        ])  # fmt: skip
        others = np.array([(one.devices, one.layout.devices, one.max_rate, sent[one.hardware]) for one in writers])
        servers, read_s, each_s, memory, size, link = own[reads].T
        written_on, writer_size, written, writer_link = others[writes].T
        if pairing.link is KvLink.SCALE_UP:
            sides = zip((readers[row] for row in reads), (writers[row] for row in writes), strict=True)
            link = link * [joined((r.device, r.layout.devices), (w.hardware, w.layout.devices)) for r, w in sides]
        with np.errstate(divide="ignore"):
            transfer_s = moved / np.minimum(size * link, writer_size * writer_link)
        own_s = np.maximum(read_s, transfer_s) if pairing.overlapped else read_s + transfer_s

        def keeps(copies: Grid) -> npt.NDArray[np.bool_]:
            first_s = waited_s(load.rate, each_s, copies * servers) + own_s
            sends = load.rate * moved <= copies * size * link
            return np.asarray(np.isfinite(first_s) & (first_s <= load.goals.ttft_s) & sends)

        copies = _fewest(np.maximum((load.max_devices - written_on) // size, 1), keeps)
        with np.errstate(divide="ignore"):
            carried = np.minimum(copies * size * link, written_on * writer_link) / moved
            wait_s = waited_s(load.rate, each_s, copies * servers)
            ttft_s = wait_s + own_s
            over = {
                "memory": memory,
                "devices": (written_on + copies * size) / load.max_devices,
                "rate": load.rate * each_s / (copies * servers),
                "network": load.rate / carried,
                "time to first token": np.where(np.isfinite(ttft_s), ttft_s, 0.0) / load.goals.ttft_s,
            }
        return cls(
            readers=readers, writers=writers, load=load, reads=reads, writes=writes, copies=copies,
            servers=copies * servers, each_s=each_s, wait_s=wait_s, own_s=own_s, transfer_s=transfer_s,
            max_rate=np.minimum(np.minimum(copies * servers / each_s, carried), written), over=over,
        )  # fmt: skip

    @property
    def worst(self) -> Grid:
        """Highest ratio of required to allowed or available, with that of the decode setting."""
        return reduce(np.maximum, self.over.values(), np.array([one.excess for one in self.writers])[self.writes])

    @property
    def fine(self) -> npt.NDArray[np.bool_]:
        """Whether nothing required exceeds what is allowed or available."""
        return np.asarray((self.over["rate"] < 1) & (self.worst <= 1))

    def chosen(self) -> Iterator[Candidate]:
        """For each decode setting and kind of prefill device, the pair with fewest devices, or the closest one."""
        names: dict[str, int] = {}
        kind = np.array([names.setdefault(one.device.name, len(names)) for one in self.readers])
        group = self.writes * len(names) + kind[self.reads]
        fine, size = self.fine, np.array([one.layout.devices for one in self.readers])
        taken = np.where(fine, self.copies * size[self.reads], self.worst)
        order = np.lexsort((self.wait_s + self.own_s, taken, ~fine, group))
        places = order[np.unique(group[order], return_index=True)[1]]
        within = self._within(places)
        for place, most in zip(places.tolist(), within.tolist(), strict=True):
            yield self._candidate(place, most, fine=bool(fine[place]))

    def _within(self, places: Places) -> Grid:
        """Highest rate at which prefill copies keep to the time to first token. [1/s]"""
        each_s, servers = self.each_s[places], self.servers[places]
        low, high = np.zeros(len(places)), servers / each_s
        if self.load.goals.ttft_s == inf:
            return high
        left_s = self.load.goals.ttft_s - self.own_s[places]
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            kept = waited_s(middle, each_s, servers) <= left_s
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
        return low

    def _candidate(self, place: int, within: float, *, fine: bool) -> Candidate:
        load, reader, writer = self.load, self.readers[int(self.reads[place])], self.writers[int(self.writes[place])]
        wait_s, most = float(self.wait_s[place]), float(self.max_rate[place])
        readers = Readers(
            hardware=reader.device, layout=reader.layout, copies=int(self.copies[place]),
            wait_s=wait_s, read_s=reader.read_s, transfer_s=float(self.transfer_s[place]), memory=reader.memory,
        )  # fmt: skip
        taken = [(readers.hardware, readers.devices), (writer.hardware, writer.devices)]
        one = replace(
            writer, readers=readers, utilization=float(self.over["rate"][place]),
            ttft_s=wait_s + float(self.own_s[place]), max_rate=most,
            rate_within=min(within, most, writer.rate_within) if fine else nan,
            usd_per_h=usd_per_h(taken, load.years), watts=watts(taken),
        )  # fmt: skip
        factor = max(self.over, key=lambda name: self.over[name][place])
        excess = float(self.over[factor][place])
        if fine or (writer.factor and writer.excess >= excess):
            return one
        missed = replace(one, factor=factor, excess=excess)
        return replace(missed, reason=_reason(missed, load))


def _fewest(most: Grid, keeps: Callable[[Grid], npt.NDArray[np.bool_]]) -> Grid:
    """The fewest copies for which a condition holds, which more copies never break; `most` if none suffices."""
    low, high = np.ones(most.shape), most
    for _ in range(ceil(log2(float(np.max(most)))) + 1):
        middle = np.floor((low + high) / 2)
        kept = keeps(middle)
        low, high = np.where(kept, low, np.minimum(middle + 1, most)), np.where(kept, middle, high)
    return high


def _reason(one: Candidate, load: Load) -> str:
    assert one.readers
    if one.factor == "memory":
        there = one.readers.hardware.capacity
        return (
            f"memory: {si(one.readers.memory * there)}B to read a prompt while another travels, "
            f"{fold(one.excess)} the {si(there)}B of each device"
        )
    if one.factor == "devices":
        return f"devices: {one.devices} at least, of {load.max_devices} at most"
    if one.factor == "rate":
        return f"rate: prompts of {load.rate / one.excess:.4g} requests/s are read at most, of {load.rate:.4g} asked"
    if one.factor == "network":
        known = f"caches of {load.rate / one.excess:.4g} requests/s travel at most, of {load.rate:.4g} asked"
        return f"network: {known if one.excess < inf else 'no links that are known join those that read and write'}"
    return f"time to first token: {seconds(one.ttft_s)}, {fold(one.excess)} the {seconds(load.goals.ttft_s)} allowed"
