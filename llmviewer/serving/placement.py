"""A setting on many devices at once: groups of devices that run equal graphs, and why others cannot run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from ..comparing.fleet import Known, fleets
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
from .fleet_times import FleetRun, Needed, Passes, Placement
from .load import Load


class _Graphs(NamedTuple):
    """The graphs of a prefill and of a decode step; one object if they are equal."""

    prefill: Graph
    step: Graph

    def then(self, change: Callable[[Graph], Graph]) -> _Graphs:
        prefill = change(self.prefill)
        return _Graphs(prefill, prefill if self.step is self.prefill else change(self.step))


@frozen(kw_only=True)
class Excluded:
    """A device that a setting is not laid out on.

    factor  what rules it out
    excess  lower bound of required over available
    reason  in words; "" if it was not worked out further
    """

    device: Hardware
    factor: str
    excess: float = inf
    reason: str = ""


def placements(
    one: Setting, devices: Sequence[Hardware], load: Load, known: Known, *, large: bool
) -> Iterator[Placement | Excluded]:
    """A setting on the devices whose links, memory and units allow it, all at once; and the excluded devices.

    large  whether devices without memory for the smallest batch are laid out too
    """
    for some in [[device] for device in devices] if _changes_launches(one) else [devices]:
        yield from _together(one, some, load, known, large=large)


def _changes_launches(one: Setting) -> bool:
    """Whether techniques change fused attention or other launches, so that each device is placed by itself."""
    return any(overrides(each, "lowered") for each in one.techniques)


def _together(
    one: Setting, devices: Sequence[Hardware], load: Load, known: Known, *, large: bool
) -> Iterator[Placement | Excluded]:
    """Placement of devices whose graphs differ in links and tiles alone."""
    joined: list[_Joined] = []
    for device in devices:
        links = _links(device, one.layout)
        if isinstance(links, str):
            yield Excluded(device=device, factor="link", reason=links)
        else:
            joined.append(links)
    if not joined:
        return
    first = joined[0].network.hardware
    try:
        lowered = _Lowered.of(one, first)
    except InputError as error:
        yield from (Excluded(device=each.network.hardware, factor="layout", reason=str(error)) for each in joined)
        return
    needed = _needed(one, lowered.tiled(first.on_chip_bytes), load)  # the same on all, as links hold nothing
    able = []
    for each in joined:
        excess = needed.least(load) / each.network.hardware.capacity
        if excess > 1 and not large:
            yield Excluded(device=each.network.hardware, factor="memory", excess=excess)
        else:
            able.append(each)
    if able:
        yield from _placed(lowered, able, needed, known)


class _Joined(NamedTuple):
    """The links of a device in a layout, the device with their rates, and what its graphs depend on of them."""

    network: Network
    linked: Hardware
    wiring: object


@lru_cache(maxsize=1 << 12)
def _links(device: Hardware, layout: Layout) -> _Joined | str:
    """The links of a device, or why it lacks them; cached, as every precision has the same."""
    try:
        network = Network.of(device, layout)
        linked = network.linked()
    except InputError as error:
        return str(error)
    domain, every = min(network.domain, layout.devices), network.members("", layout.devices, 1)
    return _Joined(network, linked, (domain, every if domain < layout.devices else replace(every, outside="")))


def _placed(first: _Lowered, joined: Sequence[_Joined], needed: Needed, known: Known) -> Iterator[Placement | Excluded]:
    """Placement of devices with enough memory; and those of them that lack a unit for a data type.

    first  graphs of one of the devices, on which those of others differ in links
    """
    networks, devices, wirings = zip(*joined, strict=True)
    distinct = dict(zip(wirings, networks, strict=True))
    linked = {wiring: first.relinked(network) for wiring, network in distinct.items()}
    keys = [(wiring, device.on_chip_bytes) for wiring, device in zip(wirings, devices, strict=True)]
    tiled = {(wiring, size): linked[wiring].tiled(size).then(known.shared) for wiring, size in dict.fromkeys(keys)}
    own = [tiled[key] for key in keys]
    model, refused = _passes([one.model for one in own], devices, known)
    drafts, others = _passes([one.drafts for one in own if one.drafts], devices, known) if first.drafts else (None, {})
    refused = {**others, **refused}
    for place, reason in refused.items():
        yield Excluded(device=networks[place].hardware, factor="data type", reason=reason)
    yield Placement(
        devices=tuple(network.hardware for network in networks), layout=networks[0].layout, model=model,
        drafter=first.drafter, drafts=drafts, needed=needed, wirings=wirings,
        able=[place for place in range(len(networks)) if place not in refused],
    )  # fmt: skip


def _passes(graphs: Sequence[_Graphs], devices: Sequence[Hardware], known: Known) -> tuple[Passes, dict[int, str]]:
    """Passes of a network, by the graphs of each device; and reasons, by place, for devices that lack a unit."""

    def run(own: Sequence[Graph]) -> tuple[FleetRun, dict[int, str]]:
        found, refused = fleets(own, devices, known)
        return FleetRun(found, own), refused

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
    def of(cls, one: Setting, device: Hardware) -> _Lowered:
        """Raises InputError where the layout does not divide a model."""
        untouched = not _changes_launches(one)
        untiled = replace(one, attention=AttentionMode.EAGER if untouched else one.attention, hardware=device)
        drafter = next((found for each in one.techniques if (found := each.drafter(untiled))), None)
        return cls(
            model=_Graphs(untiled.graph, untiled.decode_graph), drafter=drafter,
            drafts=_Graphs(drafter.network.graph, drafter.network.decode_graph) if drafter else None,
            flash=one.attention is AttentionMode.FLASH and untouched,
        )  # fmt: skip

    def relinked(self, network: Network) -> _Lowered:
        """The same on devices that differ in links alone."""
        layout = network.layout
        experts = network.members("ep", layout.ep, 1 if layout.ep <= layout.tp else layout.cp)  # as parallel() places

        def one(op: Operator) -> Operator:
            if not isinstance(op, Collective):
                return op
            name = op.group.name
            return replace(op, group=experts if name == experts.name else network.group(*name.split("+")))

        return self.then(lambda graph: graph.map(one))

    def tiled(self, on_chip: float) -> _Lowered:
        """The same with tiles of attention as large as the on-chip memory of a device. [B]"""
        return self.then(flash_attention(on_chip)) if self.flash else self

    def then(self, change: Callable[[Graph], Graph]) -> _Lowered:
        return replace(self, model=self.model.then(change), drafts=self.drafts and self.drafts.then(change))


def _needed(one: Setting, lowered: _Lowered, load: Load) -> Needed:
    """Memory of a device. Each rank holds the shared prefix of all prompts once."""
    layout, shapes = one.layout, Shapes(step=one.step)
    model, drafts = lowered.model, lowered.drafts
    beside: tuple[Footprint, ...] = ()
    if drafts and any(each.auxiliary_graphs(one) for each in one.techniques):
        beside = (replace(Footprint.of(drafts.step, layout=layout), shapes=shapes),)
    footprint = replace(Footprint.of(model.prefill, model.step, layout), shapes=shapes, beside=beside)
    prompt, gen, common = float(load.prompt), float(load.gen + load.width - 1), float(load.common)
    weights, cache, _ = footprint.parts(batch=load.limits, prompt=prompt - common, gen=gen)
    once = footprint.parts(batch=float(layout.dp), prompt=common, gen=0.0)[1] if common else 0.0
    lanes = float(layout.dp * layout.pp)
    reading = footprint.parts(batch=lanes * load.together, prompt=float(load.new), gen=gen)[2]
    writing = footprint.parts(batch=load.limits, prompt=1.0, gen=prompt + gen - 1)[2]
    kept = weights + cache + once
    fixed, read, _ = footprint.parts(batch=lanes, prompt=prompt - common, gen=0.0)
    live = footprint.parts(batch=lanes, prompt=float(load.new), gen=0.0)[2]
    return Needed(
        whole=np.broadcast_to(kept + np.maximum(reading, writing), load.limits.shape),
        writing=np.broadcast_to(kept + writing, load.limits.shape),
        reading=float(fixed + 2 * read + once + live),
    )  # fmt: skip
