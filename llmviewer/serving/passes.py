"""How long prompts and decode steps take on many devices at once: at the bound, and as expected of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from math import inf
from typing import Any, Final

import numpy as np

from ..errors import InputError
from ..expectation.expected import ExpectedPass
from ..expectation.kernels import Kernels
from ..expectation.launches import Launch
from ..fleet import Fleet, Known, fleets
from ..forms import Num
from ..graph import Graph
from ..hardware import Hardware
from ..layout import Layout, Network
from ..lowering import Attention
from ..memory import Footprint
from ..operators.base import Operator
from ..operators.collectives import Collective
from ..roofline import OperatorEstimate
from ..setting import Setting
from ..transforms.flash_attention import flash_attention
from ..workload import Spans, Workload
from .load import Grid, Load, StepTimes
from .stages import among_experts, waiting_ranks

_AMOUNTS: Final = tuple(f.name for f in fields(OperatorEstimate) if f.type == "Num")


@dataclass(frozen=True, kw_only=True)
class LaidOut:
    """A setting on devices whose links make the same graph.

    prefills, steps  of those that run them, which `devices` of each fleet are the places of here
    refused          why the others cannot, by place
    needed           memory of a device for each limit of the batch, whole answers cached, while one prompt is read [B],
                     [batch]
    """

    devices: tuple[Hardware, ...]
    layout: Layout
    prefills: Sequence[Fleet]
    steps: Sequence[Fleet]
    refused: Mapping[int, str]
    needed: Grid

    @property
    def ranks(self) -> int:
        """Of a copy that wait for each other."""
        return waiting_ranks(self.layout)

    def _unknown(self, load: Load) -> StepTimes:
        ranks = self.ranks
        return StepTimes.unknown(
            len(self.devices), len(load.limits),
            ranks=ranks, turns=self.layout.pp, apart=self.layout.dp // ranks, together=load.together,
        )  # fmt: skip

    def _reads(self, load: Load) -> Spans:
        """Steps that read, [read]: one prompt; as many as one step takes; and where ranks wait for each other as many
        tokens as the experts of each have of one prompt.
        """
        prompt = float(load.prompt)
        tokens = np.array([prompt, prompt, *([prompt / self.ranks] if self.ranks > 1 else [])])
        return Spans(batch=np.array([1.0, load.together, 1.0])[: len(tokens)], q_len=tokens, kv_len=tokens)

    def _have_read(self, times: StepTimes, rows: Any, whole: Grid, slowest: Grid, fewer: Grid | float) -> None:
        """Fill in what steps that read take, [device, read], of all stages and of the slowest. [s]

        fewer  by how much longer experts take for one prompt than if all ranks read one, which is less than none
        """
        times.alone[rows] = whole[..., 0] + fewer
        times.every[rows] = times.turns * slowest[..., 1] / times.together

    def bounds(self, load: Load) -> StepTimes:
        """Of all devices."""
        layout, batches, times = self.layout, np.asarray(load.limits), self._unknown(load)
        times.unmodelled[:] = 1.0
        reads = Workload((self._reads(load),))
        for fleet in self.prefills:
            values, shape = fleet.values(reads), (len(fleet.rows), np.size(reads.groups[0].q_len))
            whole = np.broadcast_to(fleet.seconds(values), shape)
            slowest = _slowest(fleet, values, *shape) if layout.pp > 1 else whole
            fewer: Grid | float = 0.0
            if self.ranks > 1:
                rows = fleet.estimate(reads).operators
                fewer = _fewer(rows, [np.broadcast_to(row.time_s, shape) for row in rows])
            self._have_read(times, fleet.rows, whole, slowest, fewer)
        for fleet in self.steps:
            values = fleet.values(Workload.decode(batch=layout.share(batches[None, :]), kv_len=load.middle))
            shape = (len(fleet.rows), len(batches))
            step = np.broadcast_to(fleet.seconds(values), shape)
            if layout.pp > 1:
                turns = np.broadcast_to(layout.parts(batches), shape)
                step = np.maximum(step, turns * _slowest(fleet, values, *shape))
            times.step[fleet.rows] = step
        return times

    def expected(self, load: Load, kernels: Callable[[str], Kernels], places: Sequence[int]) -> StepTimes:
        """Of the devices at some places; nan where nothing is expected above the bound.

        kernels  those of a device, by its name
        """
        layout, batches, times = self.layout, np.asarray(load.limits), self._unknown(load)
        share, ones = np.broadcast_to(layout.share(batches), batches.shape), np.ones(len(batches))
        read = self._reads(load)
        step = Spans(batch=share, q_len=ones, kv_len=load.middle * ones)
        if self.prefills is self.steps:  # one graph: both at once
            names = ("batch", "q_len", "kv_len")
            both = Spans(**{name: np.concatenate((getattr(read, name), getattr(step, name))) for name in names})
            passes = [(self.prefills, both, np.size(read.q_len))]
        else:
            passes = [(self.prefills, read, np.size(read.q_len)), (self.steps, step, 0)]
        for several, spans, reads in passes:
            for place, found in _expected(several, Workload((spans,)), self.devices, kernels, places):
                points = np.shape(spans.batch)
                whole = np.broadcast_to(found.total.expected, points)
                slowest = np.broadcast_to(found.slowest.expected, points) if layout.pp > 1 else whole
                if reads:
                    fewer: Grid | float = 0.0
                    if self.ranks > 1:
                        each = [np.broadcast_to(one.expected, points)[None, :] for one in found.launches]
                        fewer = _fewer(found.operators, each)[0]
                    self._have_read(times, place, whole, slowest, fewer)
                if len(whole) > reads:
                    turns = np.broadcast_to(layout.parts(batches), batches.shape)
                    times.step[place] = np.maximum(whole[reads:], turns * slowest[reads:])
                    times.unmodelled[place] = np.mean(np.broadcast_to(found.unmodelled_share, points)[reads:])
        return times


@dataclass(frozen=True, kw_only=True)
class Left:
    """A device that a setting is not laid out on: what rules it out, how far it is off at least, and why in words, ""
    where more was not worked out.
    """

    device: Hardware
    factor: str
    excess: float = inf
    reason: str = ""


def laid_out(
    one: Setting, devices: Sequence[Hardware], load: Load, known: Known, *, large: bool
) -> Iterator[LaidOut | Left]:
    """`one` on all devices, those together that run the same graph; and those left whose links or sizes do not allow
    it.

    large  whether it is also laid out where there is no room for the smallest batch
    """
    alike: dict[object, list[tuple[Network, Hardware]]] = {}  # of each device, which with its links
    for device in devices:
        try:
            network = Network.of(device, one.layout)
            linked = network.linked()
        except InputError as error:
            yield Left(device=device, factor="link", reason=str(error))
            continue
        alike.setdefault(_signature(network), []).append((network, linked))
    first: tuple[Graph, Graph] | None = None
    needed: Grid | None = None  # the same on all, as links hold nothing
    flash = one.attention is Attention.FLASH
    for members in alike.values():
        network = members[0][0]
        if large or needed is None or any(_held(needed, other.hardware) <= 1 for other, _ in members):
            try:
                graphs = _relinked(first, network) if first else _lowered(one, network.hardware)
            except InputError as error:
                yield from (Left(device=other.hardware, factor="layout", reason=str(error)) for other, _ in members)
                continue
            if needed is None:
                tiled = [_tiled(graph, flash=flash)(network.hardware.on_chip_bytes) for graph in graphs]
                needed = _needed(Footprint.of(tiled[0], tiled[1], one.layout), one.layout, load)
            first = graphs
        over = [0.0 if large else _held(needed, other.hardware) for other, _ in members]
        own = [pair for pair, excess in zip(members, over, strict=True) if excess <= 1]
        for (other, _), excess in zip(members, over, strict=True):
            if excess > 1:
                yield Left(device=other.hardware, factor="memory", excess=excess)
        if not own:
            continue
        linked_only = [linked for _, linked in own]
        prefills, refused = fleets(_tiled(graphs[0], flash=flash), linked_only, known)
        steps = prefills if graphs[1] is graphs[0] else fleets(_tiled(graphs[1], flash=flash), linked_only, known)[0]
        yield LaidOut(
            devices=tuple(other.hardware for other, _ in own), layout=one.layout, prefills=prefills, steps=steps,
            refused=refused, needed=needed,
        )  # fmt: skip


def _lowered(one: Setting, device: Hardware) -> tuple[Graph, Graph]:
    """What a prefill and a decode step run, the same one where they do not differ; attention is not tiled yet.

    Raises InputError where the layout does not divide the model.
    """
    untiled = replace(one, attention=Attention.EAGER, hardware=device)
    return untiled.graph, untiled.decode_graph


def _relinked(graphs: tuple[Graph, Graph], network: Network) -> tuple[Graph, Graph]:
    """The same on devices with other links, which are all that differs."""
    layout = network.layout
    experts = network.members("ep", layout.ep, 1 if layout.ep <= layout.tp else layout.cp)  # as parallel() places them

    def one(op: Operator) -> Operator:
        if not isinstance(op, Collective):
            return op
        name = op.group.name
        return replace(op, group=experts if name == experts.name else network.group(*name.split("+")))

    prefill = graphs[0].map(one)
    return prefill, prefill if graphs[1] is graphs[0] else graphs[1].map(one)


def _needed(footprint: Footprint, layout: Layout, load: Load) -> Grid:
    """As of LaidOut."""
    gen, prompt = float(load.gen), float(load.prompt)
    weights, cache, _ = footprint.parts(batch=load.limits, prompt=prompt, gen=gen)
    reading = footprint.parts(batch=float(layout.dp * layout.pp * load.together), prompt=prompt, gen=gen)[2]
    writing = footprint.parts(batch=load.limits, prompt=1.0, gen=prompt + gen - 1)[2]
    return np.broadcast_to(weights + cache + np.maximum(reading, writing), load.limits.shape)


def _held(needed: Grid, device: Hardware) -> float:
    """The least that is needed over what there is."""
    return float(np.min(needed) / device.capacity)


def _tiled(graph: Graph, *, flash: bool) -> Callable[[float], Graph]:
    """The graph by the memory on chip, of which the tiles of attention are as large as it allows."""
    return lambda size: flash_attention(size)(graph) if flash else graph


def _signature(network: Network) -> object:
    """What the graph of a device depends on beside its memory on chip."""
    if network.layout.devices == 1:
        return None
    own = {f.key: str(f.value) for f in network.hardware.facts if f.key in ("scale_up.topology", "scale_up.in_network")}
    mesh = own.get("scale_up.topology") == "mesh"  # whose links are as many as its devices
    domain = network.domain if mesh else min(network.domain, network.layout.devices)
    return network.inside, network.outside, domain, tuple(own.items())


def _fewer(rows: Sequence[OperatorEstimate], times: Sequence[Grid]) -> Grid:
    """By how much longer experts work on the tokens of one rank than on those of all, which is less than none. [s]

    times  of a launch of each operator, [device, read]
    """
    inside = among_experts([row.operator for row in rows])
    return sum(
        (row.repeat * (time[:, 2] - time[:, 0]) for row, time, own in zip(rows, times, inside, strict=True) if own),
        start=np.zeros(len(times[0])),
    )


def _slowest(fleet: Fleet, values: Any, devices: int, points: int) -> Grid:
    """The stage of a pipeline that takes longest. [s]"""
    times = (np.broadcast_to(stage.seconds(values), (devices, points)) for stage in fleet.stages)
    return reduce(np.maximum, times)


def _expected(
    several: Sequence[Fleet],
    workload: Workload,
    devices: Sequence[Hardware],
    kernels: Callable[[str], Kernels],
    places: Sequence[int],
) -> Iterator[tuple[int, ExpectedPass]]:
    """(place, what is expected of a pass) of the devices at `places` of which anything is."""
    for fleet in several:
        wanted = [(row, place) for row, place in enumerate(fleet.devices) if place in places]
        rows = fleet.estimate(workload).operators if wanted else ()
        laid: dict[tuple[str, str], Sequence[Launch]] = {}  # alike on many devices
        for row, place in wanted:
            own = kernels(devices[place].name)
            if isinstance(own.device, str):
                continue
            mine, key = [_of_one(each, row) for each in rows], (own.library, own.half)
            laid[key] = laid.get(key) or own.laid(mine, workload)
            found = own.expect(mine, workload, laid[key])
            if found.modelled:
                yield place, found


def _of_one(each: OperatorEstimate, row: int) -> OperatorEstimate:
    """What one device of a fleet has of an estimate, [device, point]."""

    def own(values: Num) -> Num:
        array = np.asarray(values)
        return values if array.ndim < 2 else array[row if len(array) > 1 else 0]

    amounts: dict[str, Any] = {name: own(getattr(each, name)) for name in _AMOUNTS}
    return replace(each, **amounts, busy_s={resource: own(values) for resource, values in each.busy_s.items()})
