"""Placement of a setting on many devices at once: groups of devices that run equal graphs, and excluded devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from ..comparing.fleet import WorkCache, fleets
from ..devices.hardware import Hardware
from ..errors import InputError
from ..graph import Graph
from ..memory import Footprint, Shapes
from ..operators.base import Operator
from ..operators.collectives import Collective
from ..parallel.layout import Layout, Network
from ..parameters import AttentionMode
from ..records import frozen
from ..setting import Setting
from ..techniques import Drafter, overrides
from ..transforms.flash_attention import flash_attention
from .fleet_times import FleetRun, MemoryNeeds, Passes, Placement
from .load import Load


class _Graphs(NamedTuple):
    """The graphs of a prefill and of a decode step; one object if they are equal."""

    prefill: Graph
    step: Graph

    def then(self, change: Callable[[Graph], Graph]) -> _Graphs:
        """The graphs after a transform."""
        prefill = change(self.prefill)
        return _Graphs(prefill, prefill if self.step is self.prefill else change(self.step))


@frozen(kw_only=True)
class Excluded:
    """A device that a setting is not placed on.

    factor  what rules it out
    excess  lower bound of required over available
    reason  factor in words; "" if `excess` was not evaluated further
    """

    device: Hardware
    factor: str
    excess: float = inf
    reason: str = ""


def placements(
    setting: Setting, devices: Sequence[Hardware], load: Load, work_cache: WorkCache, *, include_too_large: bool
) -> Iterator[Placement | Excluded]:
    """Placements of a setting on the devices whose links, memory and units allow it; and the excluded devices.

    work_cache         cache of operators' work, shared between settings
    include_too_large  whether devices without memory for the smallest batch are placed too
    """
    for group in [[device] for device in devices] if _changes_launches(setting) else [devices]:
        yield from _placed_together(setting, group, load, work_cache, include_too_large=include_too_large)


def _changes_launches(setting: Setting) -> bool:
    """Whether techniques change fused attention or other launches, so that each device is placed by itself."""
    return any(overrides(technique, "lowered") for technique in setting.techniques)


def _placed_together(
    setting: Setting, devices: Sequence[Hardware], load: Load, work_cache: WorkCache, *, include_too_large: bool
) -> Iterator[Placement | Excluded]:
    """Placement of devices whose graphs differ in links and tiles alone."""
    linked_devices: list[_DeviceLinks] = []
    for device in devices:
        links = _links(device, setting.layout)
        if isinstance(links, str):
            yield Excluded(device=device, factor="link", reason=links)
        else:
            linked_devices.append(links)
    if not linked_devices:
        return
    first = linked_devices[0].network.hardware
    try:
        lowered = _Lowered.of(setting, first)
    except InputError as error:
        yield from (
            Excluded(device=device_links.network.hardware, factor="layout", reason=str(error))
            for device_links in linked_devices
        )
        return
    needs = _memory_needs(
        setting, lowered.tiled(first.on_chip_bytes), load
    )  # equal on all devices: links need no memory
    fitting = []
    for device_links in linked_devices:
        excess = needs.minimum(load) / device_links.network.hardware.capacity
        if excess > 1 and not include_too_large:
            yield Excluded(device=device_links.network.hardware, factor="memory", excess=excess)
        else:
            fitting.append(device_links)
    if fitting:
        yield from _placement_of(lowered, fitting, needs, work_cache)


class _DeviceLinks(NamedTuple):
    """Links of a device in a layout.

    linked  the device with the rates of these links
    wiring  that of the network
    """

    network: Network
    linked: Hardware
    wiring: object


@lru_cache(maxsize=1 << 12)
def _links(device: Hardware, layout: Layout) -> _DeviceLinks | str:
    """The links of a device, or why it lacks them. Cached, because they are the same in every precision."""
    try:
        network = Network.of(device, layout)
        linked = network.linked()
    except InputError as error:
        return str(error)
    return _DeviceLinks(network, linked, network.wiring)


def _placement_of(
    lowered: _Lowered, linked_devices: Sequence[_DeviceLinks], needs: MemoryNeeds, work_cache: WorkCache
) -> Iterator[Placement | Excluded]:
    """Placement of devices with enough memory; and those of them that lack a unit for a data type.

    lowered  graphs of one of the devices; those of the others differ in links
    """
    networks, devices, wirings = zip(*linked_devices, strict=True)
    distinct = dict(zip(wirings, networks, strict=True))
    lowered_by_wiring = {wiring: lowered.relinked(network) for wiring, network in distinct.items()}
    keys = [(wiring, device.on_chip_bytes) for wiring, device in zip(wirings, devices, strict=True)]
    tiled = {
        (wiring, size): lowered_by_wiring[wiring].tiled(size).then(work_cache.shared)
        for wiring, size in dict.fromkeys(keys)
    }
    device_graphs = [tiled[key] for key in keys]
    model, refused = _passes([one.model for one in device_graphs], devices, work_cache)
    drafts, drafter_refused = (
        _passes([one.drafts for one in device_graphs if one.drafts], devices, work_cache)
        if lowered.drafts
        else (None, {})
    )
    refused = {**drafter_refused, **refused}
    for place, reason in refused.items():
        yield Excluded(device=networks[place].hardware, factor="data type", reason=reason)
    yield Placement(
        devices=tuple(network.hardware for network in networks), layout=networks[0].layout, model=model,
        drafter=lowered.drafter, drafts=drafts, needed=needs, wirings=wirings,
        runnable=[place for place in range(len(networks)) if place not in refused],
    )  # fmt: skip


def _passes(
    graphs: Sequence[_Graphs], devices: Sequence[Hardware], work_cache: WorkCache
) -> tuple[Passes, dict[int, str]]:
    """Passes of a network, by the graphs of each device; and reasons, by place, for devices that lack a unit."""

    def run(device_graphs: Sequence[Graph]) -> tuple[FleetRun, dict[int, str]]:
        groups, refused = fleets(device_graphs, devices, work_cache)
        return FleetRun(groups, device_graphs), refused

    prefills, refused = run([one.prefill for one in graphs])
    if graphs[0].step is graphs[0].prefill:
        return Passes(prefills, prefills), refused
    return Passes(prefills, run([one.step for one in graphs])[0]), refused


@frozen(kw_only=True)
class _Lowered:
    """The graphs of a model, and those of its draft model.

    flash  whether attention is still to be tiled for the on-chip memory of a device
    """

    model: _Graphs
    drafter: Drafter | None
    drafts: _Graphs | None
    flash: bool

    @classmethod
    def of(cls, setting: Setting, device: Hardware) -> _Lowered:
        """Raises InputError where the layout does not divide a model."""
        untouched = not _changes_launches(setting)
        untiled = replace(setting, attention=AttentionMode.EAGER if untouched else setting.attention, hardware=device)
        drafters = (each.drafter(untiled) for each in setting.techniques)
        drafter = next((one for one in drafters if one), None)
        return cls(
            model=_Graphs(untiled.graph, untiled.decode_graph), drafter=drafter,
            drafts=_Graphs(drafter.network.graph, drafter.network.decode_graph) if drafter else None,
            flash=setting.attention is AttentionMode.FLASH and untouched,
        )  # fmt: skip

    def relinked(self, network: Network) -> _Lowered:
        """The graphs on devices that differ in links alone."""
        layout = network.layout
        experts = network.members("ep", layout.ep, 1 if layout.ep <= layout.tp else layout.cp)  # as parallel() places

        def one(op: Operator) -> Operator:
            if not isinstance(op, Collective):
                return op
            name = op.group.name
            return replace(op, group=experts if name == experts.name else network.group(*name.split("+")))

        return self.then(lambda graph: graph.map(one))

    def tiled(self, on_chip: float) -> _Lowered:
        """The graphs with attention tiles for the on-chip memory of a device.

        on_chip  size of that memory [B]
        """
        return self.then(flash_attention(on_chip)) if self.flash else self

    def then(self, change: Callable[[Graph], Graph]) -> _Lowered:
        """The graphs of both networks after a transform."""
        return replace(self, model=self.model.then(change), drafts=self.drafts and self.drafts.then(change))


def _memory_needs(setting: Setting, lowered: _Lowered, load: Load) -> MemoryNeeds:
    """Memory that a device needs. Each rank holds the shared prefix of all prompts once."""
    layout, shapes = setting.layout, Shapes(step=setting.step)
    model, drafts = lowered.model, lowered.drafts
    auxiliary: tuple[Footprint, ...] = ()
    if drafts and any(each.auxiliary_graphs(setting) for each in setting.techniques):
        auxiliary = (replace(Footprint.of(drafts.step, layout=layout), shapes=shapes),)
    footprint = replace(Footprint.of(model.prefill, model.step, layout), shapes=shapes, beside=auxiliary)
    prompt, gen, shared_prefix = float(load.prompt), float(load.gen + load.width - 1), float(load.shared_prefix_tokens)
    weights, cache, _ = footprint.parts(batch=load.limits, prompt=prompt - shared_prefix, gen=gen)
    prefix_cache = footprint.parts(batch=float(layout.dp), prompt=shared_prefix, gen=0.0)[1] if shared_prefix else 0.0
    lanes = float(layout.dp * layout.pp)
    prefill_bytes = footprint.parts(batch=lanes * load.max_prompts, prompt=float(load.new), gen=gen)[2]
    decode_bytes = footprint.parts(batch=load.limits, prompt=1.0, gen=prompt + gen - 1)[2]
    resident = weights + cache + prefix_cache
    fixed, prompt_cache, _ = footprint.parts(batch=lanes, prompt=prompt - shared_prefix, gen=0.0)
    prompt_activations = footprint.parts(batch=lanes, prompt=float(load.new), gen=0.0)[2]
    return MemoryNeeds(
        prefill_and_decode=np.broadcast_to(resident + np.maximum(prefill_bytes, decode_bytes), load.limits.shape),
        decode_only=np.broadcast_to(resident + decode_bytes, load.limits.shape),
        prefill_only=float(fixed + 2 * prompt_cache + prefix_cache + prompt_activations),
    )  # fmt: skip
