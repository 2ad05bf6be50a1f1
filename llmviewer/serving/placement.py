"""A setting laid out on many devices at once: those together that run the same graphs, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from ..comparing.fleet import Known, fleets
from ..devices.hardware import Hardware
from ..errors import InputError
from ..graph import Graph
from ..lowering import Attention
from ..memory import Footprint, Shapes
from ..operators.base import Operator
from ..operators.collectives import Collective
from ..parallel.layout import Network
from ..setting import Setting
from ..techniques import Drafter, altered
from ..transforms.flash_attention import flash_attention
from .fleet_times import Needed, Passes, Placement
from .load import Load


class _Graphs(NamedTuple):
    """What a prefill and a decode step run, the same one where they do not differ."""

    prefill: Graph
    step: Graph

    def then(self, change: Callable[[Graph], Graph]) -> _Graphs:
        prefill = change(self.prefill)
        return _Graphs(prefill, prefill if self.step is self.prefill else change(self.step))


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """A device that a setting is not laid out on: what rules it out, how far it is off at least, and why in words, ""
    where more was not worked out.
    """

    device: Hardware
    factor: str
    excess: float = inf
    reason: str = ""


def placements(
    one: Setting, devices: Sequence[Hardware], load: Load, known: Known, *, large: bool
) -> Iterator[Placement | Excluded]:
    """`one` on all devices, those together that run the same graph; and those left whose links, sizes or units do not
    allow it.

    large  whether it is also laid out where there is no room for the smallest batch
    """
    apart = _apart(one)
    alike: dict[object, list[tuple[Network, Hardware]]] = {}  # of each device, which with its links
    for device in devices:
        try:
            network = Network.of(device, one.layout)
            linked = network.linked()
        except InputError as error:
            yield Excluded(device=device, factor="link", reason=str(error))
            continue
        alike.setdefault(device.name if apart else _signature(network), []).append((network, linked))
    first: _Lowered | None = None
    needed: Needed | None = None  # the same on all, as links hold nothing
    for members in alike.values():
        network = members[0][0]
        if large or needed is None or any(_held(needed, other.hardware, load) <= 1 for other, _ in members):
            try:
                lowered = first.relinked(network) if first and not apart else _Lowered.of(one, network.hardware)
            except InputError as error:
                yield from (Excluded(device=other.hardware, factor="layout", reason=str(error)) for other, _ in members)
                continue
            if needed is None:
                needed = _needed(one, lowered, network.hardware.on_chip_bytes, load)
            first = lowered
        over = [0.0 if large else _held(needed, other.hardware, load) for other, _ in members]
        for (other, _), excess in zip(members, over, strict=True):
            if excess > 1:
                yield Excluded(device=other.hardware, factor="memory", excess=excess)
        if own := [pair for pair, excess in zip(members, over, strict=True) if excess <= 1]:
            yield from _placed(lowered, own, needed, known)


def _placed(
    lowered: _Lowered, members: Sequence[tuple[Network, Hardware]], needed: Needed, known: Known
) -> Iterator[Placement | Excluded]:
    """Devices that have room; and those of them that lack a unit for a data type."""
    devices = [linked for _, linked in members]
    model, refused = lowered.fleets(lowered.model, devices, known)
    drafts, others = lowered.fleets(lowered.drafts, devices, known) if lowered.drafts else (None, {})
    refused = {**others, **refused}
    for place, reason in refused.items():
        yield Excluded(device=members[place][0].hardware, factor="data type", reason=reason)
    yield Placement(
        devices=tuple(network.hardware for network, _ in members), layout=members[0][0].layout, model=model,
        drafter=lowered.drafter, drafts=drafts, needed=needed,
        able=[place for place in range(len(members)) if place not in refused],
    )  # fmt: skip


def _apart(one: Setting) -> bool:
    """Whether techniques see launches, and attention as it is fused, so that each device is one by itself."""
    return any(altered(each, "lowered") for each in one.techniques)


@dataclass(frozen=True, kw_only=True)
class _Lowered:
    """What is run: the model's graphs, and those of what drafts for it.

    flash  attention is to be tiled yet, as the memory on chip of a device allows
    """

    model: _Graphs
    drafter: Drafter | None
    drafts: _Graphs | None
    flash: bool

    @classmethod
    def of(cls, one: Setting, device: Hardware) -> _Lowered:
        """Raises InputError where the layout does not divide a model."""
        apart = _apart(one)
        untiled = replace(one, attention=one.attention if apart else Attention.EAGER, hardware=device)
        drafter = next((found for each in one.techniques if (found := each.drafter(untiled))), None)
        return cls(
            model=_Graphs(untiled.graph, untiled.decode_graph), drafter=drafter,
            drafts=_Graphs(drafter.network.graph, drafter.network.decode_graph) if drafter else None,
            flash=one.attention is Attention.FLASH and not apart,
        )  # fmt: skip

    def relinked(self, network: Network) -> _Lowered:
        """The same on devices with other links, which are all that differs."""
        layout = network.layout
        experts = network.members("ep", layout.ep, 1 if layout.ep <= layout.tp else layout.cp)  # as parallel() places

        def one(op: Operator) -> Operator:
            if not isinstance(op, Collective):
                return op
            name = op.group.name
            return replace(op, group=experts if name == experts.name else network.group(*name.split("+")))

        def every(graph: Graph) -> Graph:
            return graph.map(one)

        return replace(self, model=self.model.then(every), drafts=self.drafts and self.drafts.then(every))

    def tiled(self, graphs: _Graphs, on_chip: float) -> _Graphs:
        return graphs.then(flash_attention(on_chip)) if self.flash else graphs

    def fleets(self, graphs: _Graphs, devices: Sequence[Hardware], known: Known) -> tuple[Passes, dict[int, str]]:
        prefills, refused = fleets(lambda size: self.tiled(graphs, size).prefill, devices, known)
        if graphs.step is graphs.prefill:
            return Passes(prefills, prefills), refused
        return Passes(prefills, fleets(lambda size: self.tiled(graphs, size).step, devices, known)[0]), refused


def _needed(one: Setting, lowered: _Lowered, on_chip: float, load: Load) -> Needed:
    """What prompts have in common is held once by each rank."""
    layout, shapes = one.layout, Shapes(step=one.step)
    own, drafts = lowered.tiled(lowered.model, on_chip), lowered.drafts
    beside: tuple[Footprint, ...] = ()
    if drafts and any(each.beside(one) for each in one.techniques):
        held = Footprint.of(lowered.tiled(drafts, on_chip).step, layout=layout)
        beside = (replace(held, shapes=shapes),)
    footprint = replace(Footprint.of(own.prefill, own.step, layout), shapes=shapes, beside=beside)
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


def _held(needed: Needed, device: Hardware, load: Load) -> float:
    """The least that is needed over what there is."""
    return needed.least(load) / device.capacity


def _signature(network: Network) -> object:
    """What the graph of a device depends on beside its memory on chip."""
    if network.layout.devices == 1:
        return None
    own = {f.key: str(f.value) for f in network.hardware.facts if f.key in ("scale_up.topology", "scale_up.in_network")}
    mesh = own.get("scale_up.topology") == "mesh"  # whose links are as many as its devices
    domain = network.domain if mesh else min(network.domain, network.layout.devices)
    return network.inside, network.outside, domain, tuple(own.items())
