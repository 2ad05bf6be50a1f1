"""The time of a pass by group of operators and resource, on one device or on many with the same graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Final

import numpy as np

from ..devices.hardware import Hardware
from ..forms import Num
from ..operators.kinds import OperatorGroup, kind_of
from ..parallel.layout import Network
from ..parallel.overlap import overlapped
from ..parameters import AttentionMode
from ..records import frozen
from ..setting import Setting
from ..transforms.flash_attention import flash_attention
from ..workload import Workload
from .fleet import Column, Fleet, WorkCache, fleets

BoundTimes = Mapping[tuple[str, str], Num]  # (group, resource) -> time of the group bound by the resource [s]

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
    waits: BoundTimes

    @cached_property
    def time_s(self) -> Column:
        return np.asarray(self.spent())

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that take time."""
        return tuple(g for g in GROUPS if np.any(np.greater(self.spent(group=g), 0)))

    def spent(self, *, group: str = ALL, resource: str = "", bound: str = "") -> Num:
        """Time of a group bound by a resource, or by the resources of a bound; by any if neither is given. [s]"""
        return time_bound_by(self.waits, group=group, resource=resource, bound=bound)

    def shares(self, **selection: str) -> Column:
        """Fraction of the time that `spent(**selection)` is, at every batch."""
        return np.broadcast_to(self.spent(**selection) / self.time_s, self.time_s.shape)

    def share(self, place: int = 0, **selection: str) -> float:
        """Fraction of the time at batch number `place`."""
        return float(self.shares(**selection)[place])

    def bounds(self, group: str = ALL) -> list[str]:
        """The bound of most of the time of a group, at every batch."""
        times = np.stack([self.shares(group=group, bound=bound) for bound in BOUNDS])
        return [BOUNDS[place] for place in np.argmax(times, axis=0)]

    def bound(self, place: int = 0, group: str = ALL) -> str:
        """The bound of most of the time of a group at batch number `place`."""
        return self.bounds(group)[place]

    def sensitivity(self, place: int = 0) -> dict[str, float]:
        """-d log time / d log rate of each resource: the fraction of the time that it bounds. They sum to 1."""
        return {resource: self.share(place, resource=resource) for resource in RESOURCES}


def fleets_of(
    setting: Setting, phase: str, devices: Mapping[int, Hardware], work_cache: WorkCache | None = None
) -> tuple[list[Fleet], dict[int, str]]:
    """`devices`, by index, as fleets that run a pass of a setting; and why other devices cannot, by index.

    Each device has its own links, and attention tiles of the size of its on-chip memory. A device cannot run the pass
    if it has no unit for a data type.
    """
    separately = bool(setting.techniques)  # techniques may depend on fused attention and on other facts of a device
    groups: dict[object, list[int]] = {}
    for place, device in devices.items():
        wiring = Network.of(device, setting.layout).wiring if setting.layout.devices > 1 else None
        groups.setdefault(place if separately else wiring, []).append(place)
    after = (overlapped,) if setting.layout.overlap else ()
    bare = (
        setting
        if separately
        else replace(setting, attention=AttentionMode.EAGER, layout=replace(setting.layout, overlap=False))
    )
    fleet_list: list[Fleet] = []
    refused: dict[int, str] = {}
    for places in groups.values():
        device_setting = replace(bare, hardware=devices[places[0]])
        graph = device_setting.decode_graph if phase == "decode" else device_setting.graph
        sizes = {devices[place].on_chip_bytes for place in places}
        tiled = {size: graph if separately else graph.then(flash_attention(size), *after) for size in sizes}
        graphs = [tiled[devices[place].on_chip_bytes] for place in places]
        same_graph, without_unit = fleets(graphs, [devices[place] for place in places], work_cache)
        fleet_list += [replace(fleet, devices=tuple(places[n] for n in fleet.devices)) for fleet in same_graph]
        refused |= {places[n]: why for n, why in without_unit.items()}
    return fleet_list, refused


def bound_times(fleet: Fleet, setting: Setting, phase: str, *, batch: Num, length: Num, prompt: Num) -> BoundTimes:
    """Time of a pass by group and resource on every device of a fleet. [s], [device, point]

    In a pipeline: all stages for one micro-batch, and the slowest stage for the others. With two overlapping batches:
    the time of the slower lane.
    """
    workload, layout = workload_of(setting, phase, batch=batch, length=length, prompt=prompt), setting.layout
    if not layout.splits_batches:
        return _by_group(fleet, workload)
    lane_times, microbatches = [_by_group(lane, workload) for lane in fleet.lanes], layout.micro_batch_count(batch)
    all_stages, slowest = reduce(partial(_joined, times=1.0), lane_times), reduce(_slower, lane_times)
    if phase == "prefill" and not layout.two_batch_overlap:
        return _joined(all_stages, slowest, times=microbatches - 1)
    return _slower(all_stages, _joined({}, slowest, times=microbatches))


def workload_of(setting: Setting, phase: str, *, batch: Num, length: Num, prompt: Num) -> Workload:
    """A pass as one device runs it: a prefill of `length` tokens, or a decode step at context `length`."""
    share = setting.layout.micro_batch_size(batch)
    if phase == "prefill":
        return setting.prefill(Workload.prefill(batch=share, prompt=length))
    prompt_tokens = (
        np.minimum(prompt, length) if setting.techniques else prompt
    )  # techniques need the start of the output
    return setting.step(Workload.decode(batch=share, kv_len=length, prompt=prompt_tokens))


def _by_group(fleet: Fleet, workload: Workload) -> BoundTimes:
    times: dict[tuple[str, str], Num] = {}
    for (kind, unit), time_s in fleet.waits(workload).items():
        key = kind_of(kind).group.value, str(unit)
        times[key] = times.get(key, 0.0) + time_s
    return times


def _joined(first: BoundTimes, second: BoundTimes, *, times: Num) -> BoundTimes:
    """Times of `first` plus `times` those of `second`."""
    return {key: first.get(key, 0.0) + times * second.get(key, 0.0) for key in {**first, **second}}


def _slower(one: BoundTimes, other: BoundTimes) -> BoundTimes:
    """Times of the pass that takes longer, at each point."""
    first = np.greater_equal(time_bound_by(one), time_bound_by(other))
    return {key: np.where(first, one.get(key, 0.0), other.get(key, 0.0)) for key in {**one, **other}}


def time_bound_by(times: BoundTimes, *, group: str = ALL, resource: str = "", bound: str = "") -> Num:
    """Time of a group bound by a resource, or by the resources of a bound; by any if neither is given. [s]"""
    selected = (
        time_s
        for (group_of_time, unit), time_s in times.items()
        if group in (ALL, group_of_time) and resource in ("", unit) and bound in ("", _bound(unit))
    )
    return sum(selected, start=0.0)


def _bound(resource: str) -> str:
    return resource if resource in BOUNDS else "compute"
