"""Bounds and expected times of prefills and decode steps, on many devices at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np

from ..comparing.fleet import Fleet
from ..devices.hardware import Hardware
from ..expectation.expected import ExpectedLaunch, ExpectedPass
from ..expectation.kernels import Kernels, PassLaunches
from ..expectation.launches import KernelSequence
from ..expectation.sources import CALIBRATED
from ..expectation.times import KernelBounds
from ..forms import Num
from ..graph import Graph
from ..parallel.layout import Layout
from ..records import frozen
from ..roofline import OperatorEstimate, PlannedOperator
from ..techniques import Drafter
from ..workload import Spans, Workload
from .load import Grid, Load, StepTimes
from .stages import among_experts, waiting_ranks
from .step_times import decoding_group

_MAX_HELD_TIMES: Final = 1 << 22  # distinct times of operators, of all devices, that are expected together: 32 MiB
Key = tuple[Layout, str]  # and the name of a device
_AMOUNTS: Final = tuple(f.name for f in fields(OperatorEstimate) if f.type == "Num")


class Needed(NamedTuple):
    """Memory of a device for each limit of the batch, with whole requests cached, [batch]. [B]

    whole    of a device that prefills and decodes
    writing  of one that only decodes
    reading  of one that only prefills, with the cache of another prompt on its way
    """

    whole: Grid
    writing: Grid
    reading: float

    def least(self, load: Load) -> float:
        """Minimum memory for any part of the load. [B]"""
        whole = float(np.min(self.whole))
        return min(whole, float(np.min(self.writing)), self.reading) if load.disaggregated else whole


class FleetRun(NamedTuple):
    """The graph of each place of a Placement, and the fleets of devices that run them."""

    fleets: Sequence[Fleet]
    graphs: Sequence[Graph]


class Passes(NamedTuple):
    """Passes of a network that prefill and that decode."""

    prefills: FleetRun
    steps: FleetRun

    def points(self, read: Spans | None, step: Spans) -> Iterator[tuple[FleetRun, Spans, int]]:
        """Each graph with the points to evaluate it at, and the number of these, the first, that are prefills."""
        if read is None:
            yield self.steps, _joined(step), 0
        elif self.prefills is self.steps:  # one graph: both at once
            yield self.steps, _joined(read, step), np.size(read.q_len)
        else:
            yield self.prefills, read, np.size(read.q_len)
            yield self.steps, _joined(step), 0


class PassTimes(NamedTuple):
    """Times of passes, [device, point]. [s]

    slowest     stage of a pipeline, or stream of computation or communication where two micro-batches overlap
    alone       a step in which one rank prefills one prompt
    unmodelled  share of the time for which only a bound is known
    """

    whole: Grid
    slowest: Grid
    alone: Grid
    unmodelled: Grid


class _Part(NamedTuple):
    """Passes of one network at some points, of which `reads`, the first, are prefills.

    turns     micro-batches of a decode step, in a pipeline or of two that overlap, [batch]
    halves    micro-batches of a prefill step
    drafting  whether the network is a draft model, whose bounds count where no kernel is known
    """

    run: FleetRun
    points: Spans
    reads: int
    turns: Grid
    halves: int
    drafting: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.points.batch)

    def add(self, times: StepTimes, places: Sequence[int], took: PassTimes) -> None:
        """Adds the passes of devices to the times of their steps; those of the model come first."""

        def after(before: Grid, own: Grid) -> Grid:
            return before + own if self.drafting else own

        def steps(each: Grid) -> Grid:
            """[device, pass, batch]"""
            return each[..., self.reads :].reshape(*each.shape[:-1], -1, len(self.turns))

        if self.reads:
            slowest = self.halves * took.slowest
            times.alone[places] = after(times.alone[places], took.alone)
            times.every[places] = after(times.every[places], times.turns * slowest[..., 1] / times.together)
            times.one_by_one[places] = after(times.one_by_one[places], slowest[..., 0])
        if took.whole.shape[-1] > self.reads:
            each = np.maximum(steps(took.whole), self.turns * steps(took.slowest))
            times.step[places] = after(times.step[places], np.sum(each, axis=-2))
            if not self.drafting:
                times.unmodelled[places] = np.mean(took.unmodelled[..., self.reads :], axis=-1)


class _Launched(NamedTuple):
    """A pass as equal launches on the devices at some places, [device, point]."""

    part: _Part
    places: Sequence[int]
    kernels: Sequence[Kernels]
    launched: PassLaunches

    def expected(
        self, times: Mapping[str, Iterator[ExpectedLaunch | None]]
    ) -> Iterator[tuple[list[int], ExpectedPass]]:
        """Passes on devices of which as much was measured, with their places.

        times  of asked kernels, by the name of the device
        """
        count = sum(len(same[0].all_kernels) for same, *_ in self.launched.groups)
        groups: dict[object, list[tuple[int, Kernels, list[ExpectedLaunch | None]]]] = {}
        for place, own in zip(self.places, self.kernels, strict=True):
            each = [next(times[own.hardware.name]) for _ in range(count)]
            measured = tuple(time and time.source.startswith(CALIBRATED) for time in each)
            groups.setdefault((own.launcher.per_query, measured), []).append((place, own, each))
        rows = {place: row for row, place in enumerate(self.places)}
        for group in groups.values():
            places, kernels, kernel_times = zip(*group, strict=True)
            cores = np.array([[own.launcher.cores] for own in kernels])
            launcher = replace(kernels[0].launcher, cores=cores)
            launched = self.launched.on_devices([rows[place] for place in places]) if len(groups) > 1 else self.launched
            yield list(places), launcher.launch_all(launched, map(_column, zip(*kernel_times, strict=True)))


@frozen(kw_only=True)
class Placement:
    """A setting on devices whose graphs differ in links and tiles alone.

    model    passes of the model
    drafter  proposes tokens before each decode step, by the passes `drafts`; None without a draft model
    wirings  of each device, the links that its graphs depend on
    able     places of the devices that have a unit for every data type
    """

    devices: tuple[Hardware, ...]
    layout: Layout
    model: Passes
    drafter: Drafter | None
    drafts: Passes | None
    wirings: Sequence[object]
    able: Sequence[int]
    needed: Needed

    @property
    def ranks(self) -> int:
        """Ranks of a copy that wait for each other."""
        return waiting_ranks(self.layout)

    def key(self, place: int) -> Key:
        """Identity of the device at a place in this layout."""
        return self.layout, self.devices[place].name

    def unknown(self, load: Load) -> StepTimes:
        """Times of all devices, to be filled in."""
        return StepTimes.unknown(
            len(self.devices), len(load.limits),
            ranks=self.ranks, turns=self.layout.pp, apart=self.layout.dp // self.ranks, together=load.together,
        )  # fmt: skip

    def bounds(self, load: Load) -> StepTimes:
        """Lower bounds of all devices."""
        times = self.unknown(load)
        for part in self._parts(load):
            workload = Workload((part.points,))
            for fleet in part.run.fleets:
                values, shape = fleet.values(workload), (len(fleet.rows), *part.shape)
                whole = np.broadcast_to(fleet.seconds(values), shape)
                slowest = _slowest(fleet, values, shape) if self.layout.splits_batches else whole
                rows = fleet.estimate(workload).operators if self._differs_alone(part) else ()
                each = [np.broadcast_to(row.time_s, shape) for row in rows]
                alone = self._alone(part, rows, each, whole, np.zeros(shape))
                part.add(times, fleet.rows, PassTimes(whole, slowest, alone, np.ones(shape)))
        return times

    def launched(self, load: Load, kernels: Callable[[str], Kernels], places: Sequence[int]) -> Iterator[_Launched]:
        """Launches of the devices at some places that kernels can be laid out on, part by part."""
        for part in self._parts(load):
            workload = Workload((part.points,))
            laid: dict[object, Sequence[KernelSequence]] = {}
            known: dict[object, dict[object, KernelSequence]] = {}  # most launches do not depend on links
            for fleet in part.run.fleets:
                by_launches: dict[tuple[str, str, object], list[tuple[int, int, Kernels]]] = {}
                for row, place in enumerate(fleet.devices):
                    own = kernels(self.devices[place].name) if place in places else None
                    if own and not isinstance(own.device, str):
                        same = own.library, own.half, self.wirings[place]
                        by_launches.setdefault(same, []).append((row, place, own))
                operators = fleet.estimate(workload).operators if by_launches else ()
                for key, group in by_launches.items():
                    rows, group_places, group_kernels = zip(*group, strict=True)
                    if key not in laid:
                        mine = _of_one(operators, part.run.graphs[group_places[0]], rows[0])
                        laid[key] = group_kernels[0].launches_for(mine, workload, known.setdefault(key[:2], {}))
                    distinct = {id(op.busy_s): op for op in operators}
                    bounds = {same: _rows(op.time_s, list(rows)) for same, op in distinct.items()}
                    every = [bounds[id(op.busy_s)] for op in operators]
                    launched = PassLaunches(operators=fleet.operators, launches=laid[key], bounds=every)
                    yield _Launched(part, group_places, group_kernels, launched)

    def add(self, times: StepTimes, part: _Part, places: Sequence[int], found: ExpectedPass) -> None:
        """Adds the expected time of a part on some devices, if any kernel is known."""
        if not (found.modelled or part.drafting):
            return
        shape = len(places), *part.shape
        whole, taken, unmodelled = (
            np.broadcast_to(each, shape) for each in (found.expected_s, found.core_time_s, found.unmodelled_share)
        )
        slowest = np.broadcast_to(found.slowest_s, shape) if self.layout.splits_batches else whole
        rows = found.operators if self._differs_alone(part) else ()
        each = [np.broadcast_to(one.expected, shape) for one in found.launches[: len(rows)]]
        part.add(times, places, PassTimes(whole, slowest, self._alone(part, rows, each, whole, taken), unmodelled))

    def _parts(self, load: Load) -> Iterator[_Part]:
        """Passes of the model, then of its draft model."""
        layout, batches = self.layout, load.limits
        halves = 2 if layout.two_batch_overlap and load.new > 1 else 1
        reads = self._reads(load).times(1 / halves)
        share, turns = (
            np.broadcast_to(each, batches.shape)
            for each in (layout.micro_batch_size(batches), layout.micro_batch_count(batches))
        )
        for points in self.model.points(reads, load.decoding_group(share)):
            yield _Part(*points, turns, halves, drafting=False)
        if self.drafter and self.drafts:
            passes = zip(self.drafter.widths, self.drafter.before, strict=True)
            drafting = _joined(*(decoding_group(width, share, load.middle + before) for width, before in passes))
            for points in self.drafts.points(reads if self.drafter.reads else None, drafting):
                yield _Part(*points, turns, halves, drafting=True)

    def _alone(
        self,
        part: _Part,
        rows: Sequence[OperatorEstimate | PlannedOperator],
        each: Sequence[Grid],
        whole: Grid,
        taken: Grid,
    ) -> Grid:
        """A step in which one rank prefills one prompt. [s]

        whole, each  of the step and of a launch of each operator; of one micro-batch, if it is cut into two
        taken        core time of the communication of a micro-batch, while the other computes
        """
        if not rows:
            return whole[:, 0]
        found: Grid = whole[:, 0] + _fewer(rows, each) if self.ranks > 1 else whole[:, 0]
        if part.halves == 1:
            return found
        overlapped = (
            row.block.repeat * one[:, 0] for row, one in zip(rows, each, strict=True) if row.operator.overlapped
        )
        sent = sum(overlapped, start=np.zeros(len(found)))
        halves: Grid = np.maximum(found, part.halves * np.maximum(found - sent + taken[:, 0], sent))
        return halves

    def _differs_alone(self, part: _Part) -> bool:
        """Whether a step in which one rank prefills takes another time than its launches one after another."""
        return part.reads > 0 and (self.ranks > 1 or part.halves > 1)

    def _reads(self, load: Load) -> Spans:
        """Prefill steps, [read]: of one prompt; of as many as one step takes; and, where ranks wait for each other, of
        as many tokens as the experts of each receive of one prompt.
        """
        new = float(load.new)
        tokens = np.array([new, new, *([new / self.ranks] if self.ranks > 1 else [])])
        batch = np.array([1.0, load.together, 1.0])[: len(tokens)]
        return Spans(batch=batch, q_len=tokens, kv_len=tokens + load.known, logits=np.ones(len(tokens)))


def expected(
    several: Sequence[tuple[Placement, Sequence[int]]], load: Load, kernels: Callable[[str], Kernels]
) -> Iterator[StepTimes]:
    """Expected times of each placement, at some of its places; nan where no kernel is known. The kernels of a device in
    several of them are evaluated together.

    kernels  of a device, by its name
    """
    times = [placement.unknown(load) for placement, _ in several]
    waiting: list[tuple[int, _Launched]] = []
    first, held = 0, 0
    for number, (placement, places) in enumerate(several):
        for one in placement.launched(load, kernels, places):
            waiting.append((number, one))
            held += len({id(bound) for bound in one.launched.bounds}) * one.part.shape[0] * len(one.places)
        if held < _MAX_HELD_TIMES and number < len(several) - 1:
            continue
        asked: dict[str, list[KernelBounds]] = {}
        for _, one in waiting:
            for row, own in enumerate(one.kernels):
                asked.setdefault(own.hardware.name, []).extend(one.launched.kernel_bounds(row))
        found = {name: kernels(name).times(each) for name, each in asked.items()}
        for which, one in waiting:
            for group, expected_pass in one.expected(found):
                several[which][0].add(times[which], one.part, group, expected_pass)
        yield from times[first : number + 1]
        first, waiting, held = number + 1, [], 0


def _joined(*several: Spans) -> Spans:
    """The points of all, one after the other."""
    columns: dict[str, list[Grid]] = {"batch": [], "q_len": [], "kv_len": [], "logits": []}
    for one in several:
        whole = np.broadcast_arrays(*(getattr(one, name) for name in columns))
        for column, values in zip(columns.values(), whole, strict=True):
            column.append(values)
    return Spans(**{name: np.concatenate(column) for name, column in columns.items()})


def _column(times: tuple[ExpectedLaunch | None, ...]) -> ExpectedLaunch | None:
    """The time of a kernel on several devices, [device, point]; None if it is known on none of them."""
    known = [time for time in times if time]
    if not known:
        return None
    columns: dict[str, Any] = {
        name: np.array([getattr(time, name) for time in known]) for name in ("expected", "low", "high", "latency")
    }
    return replace(known[0], **columns)


def _fewer(rows: Sequence[OperatorEstimate | PlannedOperator], times: Sequence[Grid]) -> Grid:
    """By how much longer experts work on the tokens of one rank than on those of all; negative. [s]

    times  of a launch of each operator, [device, read]
    """
    inside = among_experts([row.operator for row in rows])
    return sum(
        (
            row.block.repeat * (time[:, 2] - time[:, 0])
            for row, time, own in zip(rows, times, inside, strict=True)
            if own
        ),
        start=np.zeros(len(times[0])),
    )


def _slowest(fleet: Fleet, values: Any, shape: tuple[int, ...]) -> Grid:
    """The slowest stream, [device, point]. [s]"""
    times = (np.broadcast_to(lane.seconds(values), shape) for lane in fleet.lanes)
    return reduce(np.maximum, times)


def _of_one(rows: Sequence[OperatorEstimate], graph: Graph, row: int) -> list[OperatorEstimate]:
    """The estimate of one device of a fleet, which runs `graph`."""
    amounts: dict[int, dict[str, Any]] = {}  # shared by operators, by identities of one of them
    for each in rows:
        if id(each.busy_s) not in amounts:
            own: dict[str, Any] = {name: _row(getattr(each, name), row) for name in _AMOUNTS}
            busy = {resource: _row(values, row) for resource, values in each.busy_s.items()}
            amounts[id(each.busy_s)] = own | {"busy_s": busy}
    return [replace(each, operator=op, **amounts[id(each.busy_s)]) for each, (_, op) in zip(rows, graph, strict=True)]


def _row(values: Num, row: int) -> Num:
    array = np.asarray(values)
    return values if array.ndim < 2 else array[row if len(array) > 1 else 0]


def _rows(values: Num, rows: list[int]) -> Grid:
    """[device, point], where devices may have equal values, and points one."""
    array = np.atleast_2d(np.asarray(values, dtype=float))
    return array[rows] if len(array) > 1 else np.repeat(array, len(rows), axis=0)
