"""The time of a pass by group of operators and resource, on one device or on many with the same graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..devices.hardware import Hardware
from ..forms import Num
from ..operators.kinds import OperatorGroup, kind_of
from ..parallel.overlap import overlapped
from ..parameters import AttentionMode
from ..records import frozen
from ..setting import Setting
from ..transforms.flash_attention import flash_attention
from ..workload import Workload
from .fleet import Fleet, Known, fleets

Column = npt.NDArray[Any]
Waits = Mapping[tuple[str, str], Num]  # (group, resource) -> time of the group bound by the resource [s]

GROUPS: Final = tuple(group.value for group in OperatorGroup)
RESOURCES: Final = ("memory", "matrix", "vector", "link")
BOUNDS: Final = ("memory", "compute", "link")
ALL: Final = "all"  # all groups together


@frozen(kw_only=True)
class Breakdown:
    """The time of a prefill, or of the decode step in the middle of the answer, by group and resource, for every batch.

    In a pipeline: all stages for one micro-batch, and the slowest stage for each further one.

    length  tokens of each prompt, or context of the decode step
    """

    length: int
    waits: Waits

    @cached_property
    def time_s(self) -> Column:
        return np.asarray(self.spent())

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that take time."""
        return tuple(g for g in GROUPS if np.any(np.greater(self.spent(group=g), 0)))

    def spent(self, *, group: str = ALL, resource: str = "", bound: str = "") -> Num:
        """Time of a group bound by a resource, or by the resources of a bound; by any if neither is given. [s]"""
        return spent(self.waits, group=group, resource=resource, bound=bound)

    def shares(self, **of: str) -> Column:
        """Fraction of the time that `spent(**of)` is, at every batch."""
        return np.broadcast_to(self.spent(**of) / self.time_s, self.time_s.shape)

    def share(self, at: int = 0, **of: str) -> float:
        """Fraction of the time at batch number `at`."""
        return float(self.shares(**of)[at])

    def bounds(self, group: str = ALL) -> list[str]:
        """What bounds most of the time of a group, at every batch."""
        times = np.stack([self.shares(group=group, bound=bound) for bound in BOUNDS])
        return [BOUNDS[place] for place in np.argmax(times, axis=0)]

    def bound(self, at: int = 0, group: str = ALL) -> str:
        """What bounds most of the time of a group at batch number `at`."""
        return self.bounds(group)[at]

    def sensitivity(self, at: int = 0) -> dict[str, float]:
        """-d log time / d log rate of each resource: the fraction of the time that it bounds. They sum to 1."""
        return {resource: self.share(at, resource=resource) for resource in RESOURCES}


def fleets_of(
    one: Setting, phase: str, devices: Mapping[int, Hardware], known: Known | None = None
) -> tuple[list[Fleet], dict[int, str]]:
    """`devices`, by index, as fleets that run a pass of `one`; and why other devices cannot, by index.

    Each device has its own links, and attention tiles of the size of its on-chip memory. A device cannot run the pass
    if it has no unit for a data type.
    """
    apart = bool(one.techniques)  # they may depend on the fused attention and on other facts of a device
    alike: dict[object, list[int]] = {}
    for place, device in devices.items():
        wiring = _wiring(device) if one.layout.devices > 1 else None
        alike.setdefault(place if apart else wiring, []).append(place)
    after = (overlapped,) if one.layout.overlap else ()
    bare = one if apart else replace(one, attention=AttentionMode.EAGER, layout=replace(one.layout, overlap=False))
    found: list[Fleet] = []
    refused: dict[int, str] = {}
    for places in alike.values():
        own = replace(bare, hardware=devices[places[0]])
        graph = own.decode_graph if phase == "decode" else own.graph
        sizes = {devices[place].on_chip_bytes for place in places}
        tiled = {size: graph if apart else graph.then(flash_attention(size), *after) for size in sizes}
        graphs = [tiled[devices[place].on_chip_bytes] for place in places]
        together, others = fleets(graphs, [devices[place] for place in places], known)
        found += [replace(fleet, devices=tuple(places[n] for n in fleet.devices)) for fleet in together]
        refused |= {places[n]: why for n, why in others.items()}
    return found, refused


def _wiring(device: Hardware) -> object:
    """Facts on the links of a device except rates: what a collective sends depends only on them."""
    return tuple(
        (f.key, None if f.key.endswith((".bandwidth", ".latency")) else f.value)
        for f in device.facts
        if f.key.startswith(("scale_up.", "scale_out.", "host."))
    )


def waits_of(fleet: Fleet, setting: Setting, phase: str, *, batch: Num, length: Num, prompt: Num) -> Waits:
    """Time of a pass by group and resource on every device of a fleet. [s], [device, point]

    In a pipeline: all stages for one micro-batch, and the slowest stage for the others. With two overlapping batches:
    that of the lane that takes longer.
    """
    workload, layout = workload_of(setting, phase, batch=batch, length=length, prompt=prompt), setting.layout
    if not layout.splits_batches:
        return _by_group(fleet, workload)
    lanes, parts = [_by_group(lane, workload) for lane in fleet.lanes], layout.micro_batch_count(batch)
    through, slowest = reduce(partial(_joined, times=1.0), lanes), reduce(_longer, lanes)
    if phase == "prefill" and not layout.two_batch_overlap:
        return _joined(through, slowest, times=parts - 1)
    return _longer(through, _joined({}, slowest, times=parts))


def workload_of(setting: Setting, phase: str, *, batch: Num, length: Num, prompt: Num) -> Workload:
    share = setting.layout.micro_batch_size(batch)
    if phase == "prefill":
        return setting.prefill(Workload.prefill(batch=share, prompt=length))
    read = np.minimum(prompt, length) if setting.techniques else prompt  # techniques need the answer's start
    return setting.step(Workload.decode(batch=share, kv_len=length, prompt=read))


def _by_group(fleet: Fleet, workload: Workload) -> Waits:
    found: dict[tuple[str, str], Num] = {}
    for (kind, unit), time_s in fleet.waits(workload).items():
        key = kind_of(kind).group.value, str(unit)
        found[key] = found.get(key, 0.0) + time_s
    return found


def _joined(one: Waits, other: Waits, *, times: Num) -> Waits:
    """`one` plus `times` `other`."""
    return {key: one.get(key, 0.0) + times * other.get(key, 0.0) for key in {**one, **other}}


def _longer(one: Waits, other: Waits) -> Waits:
    """The one that takes longer, at each point."""
    first = np.greater_equal(spent(one), spent(other))
    return {key: np.where(first, one.get(key, 0.0), other.get(key, 0.0)) for key in {**one, **other}}


def spent(waits: Waits, *, group: str = ALL, resource: str = "", bound: str = "") -> Num:
    """Time of a group bound by a resource, or by the resources of a bound; by any if neither is given. [s]"""
    chosen = (
        time_s
        for (own, unit), time_s in waits.items()
        if group in (ALL, own) and resource in ("", unit) and bound in ("", _bound(unit))
    )
    return sum(chosen, start=0.0)


def _bound(resource: str) -> str:
    return resource if resource in BOUNDS else "compute"
