"""A setting on many devices at once: groups of devices that run equal graphs, and why others cannot run it."""

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
from ..memory import Footprint, Shapes
from ..operators.base import Operator
from ..operators.collectives import Collective
from ..parallel.layout import Network
from ..parameters import Attention
from ..setting import Setting
from ..techniques import Drafter, altered
from ..transforms.flash_attention import flash_attention
from .fleet_times import Needed, Passes, Placement, Run
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
    """`one` on those devices whose links, sizes and units allow it, all at once; and the others.

    large  whether it is also laid out where there is no room for the smallest batch
    """
    for some in [[device] for device in devices] if _apart(one) else [devices]:
        yield from _together(one, some, load, known, large=large)


def _apart(one: Setting) -> bool:
    """Whether techniques see launches, and attention as it is fused, so that each device is one by itself."""
    return any(altered(each, "lowered") for each in one.techniques)


def _together(
    one: Setting, devices: Sequence[Hardware], load: Load, known: Known, *, large: bool
) -> Iterator[Placement | Excluded]:
    """Of devices whose graphs differ in links and tiles alone."""
    networks: list[Network] = []
    for device in devices:
        try:
            network = Network.of(device, one.layout)
            network.linked()
        except InputError as error:
            yield Excluded(device=device, factor="link", reason=str(error))
        else:
            networks.append(network)
    if not networks:
        return
    try:
        lowered = _Lowered.of(one, networks[0].hardware)
    except InputError as error:
        yield from (Excluded(device=each.hardware, factor="layout", reason=str(error)) for each in networks)
        return
    tiled = lowered.tiled(networks[0].hardware.on_chip_bytes)
    needed = _needed(one, tiled, load)  # the same on all, as links hold nothing
    able = []
    for network in networks:
        excess = needed.least(load) / network.hardware.capacity
        if excess > 1 and not large:
            yield Excluded(device=network.hardware, factor="memory", excess=excess)
        else:
            able.append(network)
    if able:
        yield from _placed(lowered, able, needed, known)


def _placed(
    first: _Lowered, networks: Sequence[Network], needed: Needed, known: Known
) -> Iterator[Placement | Excluded]:
    """Devices that have room; and those of them that lack a unit for a data type.

    first  what those run that have the links of one of them
    """
    devices = [network.linked() for network in networks]
    wirings = [_wiring(network) for network in networks]
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
    """Those of a network of which each device runs such graphs; and why those cannot that lack a unit, by place."""

    def run(own: Sequence[Graph]) -> tuple[Run, dict[int, str]]:
        found, refused = fleets(own, devices, known)
        return Run(found, own), refused

    prefills, refused = run([one.prefill for one in graphs])
    if graphs[0].step is graphs[0].prefill:
        return Passes(prefills, prefills), refused
    return Passes(prefills, run([one.step for one in graphs])[0]), refused


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

        return self.then(lambda graph: graph.map(one))

    def tiled(self, on_chip: float) -> _Lowered:
        """The same with tiles of attention as large as the memory on chip of a device. [B]"""
        return self.then(flash_attention(on_chip)) if self.flash else self

    def then(self, change: Callable[[Graph], Graph]) -> _Lowered:
        return replace(self, model=self.model.then(change), drafts=self.drafts and self.drafts.then(change))


def _needed(one: Setting, lowered: _Lowered, load: Load) -> Needed:
    """What prompts have in common is held once by each rank."""
    layout, shapes = one.layout, Shapes(step=one.step)
    model, drafts = lowered.model, lowered.drafts
    beside: tuple[Footprint, ...] = ()
    if drafts and any(each.beside(one) for each in one.techniques):
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


def _wiring(network: Network) -> object:
    """What of its links the graph of a device depends on."""
    devices = network.layout.devices
    domain, every = min(network.domain, devices), network.members("", devices, 1)
    return domain, every if domain < devices else replace(every, outside="")
