"""Bounds and expected times of prefills and decode steps, on many devices at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np

from ..comparing.fleet import Fleet
from ..devices.hardware import Hardware
from ..expectation.expected import ExpectedPass
from ..expectation.kernels import Kernels, Launched
from ..expectation.launches import KernelSequence
from ..forms import Num
from ..graph import Graph
from ..parallel.layout import Layout
from ..roofline import OperatorEstimate, PlannedOperator
from ..techniques import Drafter
from ..workload import Spans, Workload
from .load import Grid, Load, StepTimes
from .stages import among_experts, waiting_ranks
from .step_times import going_on

_AT_ONCE: Final = 1 << 22  # times of operators, of all devices, that are held at once
Key = tuple[Layout, str]  # and the name of a device
_AMOUNTS: Final = tuple(f.name for f in fields(OperatorEstimate) if f.type == "Num")


class Needed(NamedTuple):
    """Memory of a device for each limit of the batch, whole answers cached, [batch]: of one that reads and decodes, of
    one that decodes alone; and of one that only reads, the cache of another prompt on its way. [B]
    """

    whole: Grid
    writing: Grid
    reading: float

    def least(self, load: Load) -> float:
        """That there has to be for anything. [B]"""
        whole = float(np.min(self.whole))
        return min(whole, float(np.min(self.writing)), self.reading) if load.disaggregated else whole


class Run(NamedTuple):
    """What devices run, on fleets whose `devices` are places in Placement, and the graph of each place."""

    fleets: Sequence[Fleet]
    graphs: Sequence[Graph]


class Passes(NamedTuple):
    """Those of a network that read prompts and that decode."""

    prefills: Run
    steps: Run

    def asked(self, read: Spans | None, step: Spans) -> Iterator[tuple[Run, Spans, int]]:
        """What is run, points of all that it is run at, and how many of these, the first, read prompts."""
        if read is None:
            yield self.steps, _joined(step), 0
        elif self.prefills is self.steps:  # one graph: both at once
            yield self.steps, _joined(read, step), np.size(read.q_len)
        else:
            yield self.prefills, read, np.size(read.q_len)
            yield self.steps, _joined(step), 0


class Took(NamedTuple):
    """What passes take, [..., point]. [s]

    slowest     stage of a pipeline, or of what computes and what travels where two batches overlap
    alone       a step in which one rank reads one prompt
    unmodelled  part of it that is a bound, as nothing is expected
    """

    whole: Grid
    slowest: Grid
    alone: Grid
    unmodelled: Grid


class _Part(NamedTuple):
    """What a network has of the steps: passes at some points, of which `reads`, the first, read prompts.

    turns   of a decode step in a pipeline, or halves of one that two batches overlap in, [batch]
    halves  of a step that reads
    beside  whether the network is one beside the model, of which bounds will do where nothing is expected
    """

    run: Run
    points: Spans
    reads: int
    turns: Grid
    halves: int
    beside: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.points.batch)

    def note(self, times: StepTimes, place: Any, took: Took) -> None:
        """Of a device or several, beside what the parts before it took."""

        def after(before: Grid, own: Grid) -> Grid:
            return before + own if self.beside else own

        def steps(each: Grid) -> Grid:
            """[..., pass, batch]"""
            return each[..., self.reads :].reshape(*each.shape[:-1], -1, len(self.turns))

        if self.reads:
            slowest = self.halves * took.slowest
            times.alone[place] = after(times.alone[place], took.alone)
            times.every[place] = after(times.every[place], times.turns * slowest[..., 1] / times.together)
            times.one_by_one[place] = after(times.one_by_one[place], slowest[..., 0])
        if took.whole.shape[-1] > self.reads:
            each = np.maximum(steps(took.whole), self.turns * steps(took.slowest))
            times.step[place] = after(times.step[place], np.sum(each, axis=-2))
            if not self.beside:
                times.unmodelled[place] = np.mean(took.unmodelled[..., self.reads :], axis=-1)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A setting on devices whose graphs differ in links and tiles alone.

    model    the passes of those that run them
    drafter  what proposes tokens before each decode step, and `drafts` its passes; None where nothing does
    wirings  of each, what of its links its graphs depend on
    able     the places of those that have a unit for every data type
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
        """Of a copy that wait for each other."""
        return waiting_ranks(self.layout)

    def key(self, place: int) -> Key:
        """What tells the device at a place from others, and from itself in other layouts."""
        return self.layout, self.devices[place].name

    def unknown(self, load: Load) -> StepTimes:
        """Times of all devices, to be filled in."""
        return StepTimes.unknown(
            len(self.devices), len(load.limits),
            ranks=self.ranks, turns=self.layout.pp, apart=self.layout.dp // self.ranks, together=load.together,
        )  # fmt: skip

    def bounds(self, load: Load) -> StepTimes:
        """Of all devices."""
        times = self.unknown(load)
        for part in self._parts(load):
            for rows, took in self._bounds(part):
                part.note(times, rows, took)
        return times

    def launched(
        self, load: Load, kernels: Callable[[str], Kernels], places: Sequence[int]
    ) -> Iterator[tuple[_Part, int, Launched]]:
        """What the devices at some places run, part by part, of whose kernels anything is known."""
        for part in self._parts(load):
            workload = Workload((part.points,))
            laid: dict[object, Sequence[KernelSequence]] = {}  # alike on many devices
            known: dict[object, dict[object, KernelSequence]] = {}  # and most of them wherever links lead
            for fleet in part.run.fleets:
                wanted = [(row, place) for row, place in enumerate(fleet.devices) if place in places]
                rows = fleet.estimate(workload).operators if wanted else ()
                for row, place in wanted:
                    own = kernels(self.devices[place].name)
                    if isinstance(own.device, str):
                        continue
                    library = own.library, own.half
                    key = library, self.wirings[place]
                    if key not in laid:
                        mine = _of_one(rows, part.run.graphs[place], row)
                        laid[key] = own.laid(mine, workload, known.setdefault(library, {}))
                    bounds = {id(each.busy_s): np.atleast_1d(_row(each.time_s, row)) for each in rows}
                    every = [bounds[id(each.busy_s)] for each in rows]
                    yield part, place, Launched(operators=fleet.operators, launches=laid[key], bounds=every)

    def note(self, times: StepTimes, part: _Part, place: int, found: ExpectedPass) -> None:
        """What a part is expected to take, if anything is."""
        if not (found.modelled or part.beside):
            return
        whole = np.broadcast_to(found.expected_s, part.shape)
        slowest = np.broadcast_to(found.slowest_s, part.shape) if self.layout.cuts else whole
        rows = found.operators if self._tells_apart(part) else ()
        each = [np.broadcast_to(one.expected, part.shape)[None, :] for one in found.launches[: len(rows)]]
        taken = np.broadcast_to(found.taken, part.shape)[None, :]
        alone = self._alone(part, rows, each, whole[None, :], taken)[0]
        part.note(times, place, Took(whole, slowest, alone, np.broadcast_to(found.unmodelled_share, part.shape)))

    def _parts(self, load: Load) -> Iterator[_Part]:
        """All that is run, the model first."""
        layout, batches = self.layout, load.limits
        halves = 2 if layout.two_batch_overlap and load.new > 1 else 1
        reads = self._reads(load).times(1 / halves)
        share, turns = (np.broadcast_to(each, batches.shape) for each in (layout.share(batches), layout.parts(batches)))
        for asked in self.model.asked(reads, load.going_on(share)):
            yield _Part(*asked, turns, halves, beside=False)
        if self.drafter and self.drafts:
            passes = zip(self.drafter.widths, self.drafter.before, strict=True)
            drafting = _joined(*(going_on(width, share, load.middle + before) for width, before in passes))
            for asked in self.drafts.asked(reads if self.drafter.reads else None, drafting):
                yield _Part(*asked, turns, halves, beside=True)

    def _alone(
        self,
        part: _Part,
        rows: Sequence[OperatorEstimate | PlannedOperator],
        each: Sequence[Grid],
        whole: Grid,
        taken: Grid,
    ) -> Grid:
        """A step in which one rank reads one prompt; `whole` and `each` launch are of a half, if it has halves, and so
        is what is `taken` of the cores of the other one. [s]
        """
        if not rows:
            return whole[:, 0]
        found: Grid = whole[:, 0] + _fewer(rows, each) if self.ranks > 1 else whole[:, 0]
        if part.halves == 1:
            return found
        beside = (row.block.repeat * one[:, 0] for row, one in zip(rows, each, strict=True) if row.operator.beside)
        sent = sum(beside, start=np.zeros(len(found)))
        halves: Grid = np.maximum(found, part.halves * np.maximum(found - sent + taken[:, 0], sent))
        return halves

    def _tells_apart(self, part: _Part) -> bool:
        """Whether a step in which one rank reads one prompt takes otherwise than one launch after another."""
        return part.reads > 0 and (self.ranks > 1 or part.halves > 1)

    def _reads(self, load: Load) -> Spans:
        """Steps that read, [read]: one prompt; as many as one step takes; and where ranks wait for each other as many
        tokens as the experts of each have of one prompt.
        """
        new = float(load.new)
        tokens = np.array([new, new, *([new / self.ranks] if self.ranks > 1 else [])])
        batch = np.array([1.0, load.together, 1.0])[: len(tokens)]
        return Spans(batch=batch, q_len=tokens, kv_len=tokens + load.known, logits=np.ones(len(tokens)))

    def _bounds(self, part: _Part) -> Iterator[tuple[list[int], Took]]:
        workload = Workload((part.points,))
        for fleet in part.run.fleets:
            values, shape = fleet.values(workload), (len(fleet.rows), *part.shape)
            whole = np.broadcast_to(fleet.seconds(values), shape)
            slowest = _slowest(fleet, values, shape) if self.layout.cuts else whole
            rows = fleet.estimate(workload).operators if self._tells_apart(part) else ()
            each = [np.broadcast_to(row.time_s, shape) for row in rows]
            alone = self._alone(part, rows, each, whole, np.zeros(shape))
            yield fleet.rows, Took(whole, slowest, alone, np.ones(shape))


def expected(
    several: Sequence[tuple[Placement, Sequence[int]]], load: Load, kernels: Callable[[str], Kernels]
) -> list[StepTimes]:
    """Of each, the devices at some places; nan where nothing is expected above the bound. What a device runs in several
    of them is worked out together.

    kernels  those of a device, by its name
    """
    times = [laid.unknown(load) for laid, _ in several]
    waiting: dict[str, list[tuple[int, _Part, int, Launched]]] = {}  # by device
    held = 0
    for number, (laid, places) in enumerate(several):
        for part, place, launched in laid.launched(load, kernels, places):
            waiting.setdefault(laid.devices[place].name, []).append((number, part, place, launched))
            held += len(launched.bounds) * part.shape[0]
        if held < _AT_ONCE and number < len(several) - 1:
            continue
        for device, own in waiting.items():
            found = kernels(device).passes([launched for *_, launched in own])
            for (which, part, place, _), each in zip(own, found, strict=True):
                several[which][0].note(times[which], part, place, each)
        waiting, held = {}, 0
    return times


def _joined(*several: Spans) -> Spans:
    """The points of all, one after the other."""
    columns: dict[str, list[Grid]] = {"batch": [], "q_len": [], "kv_len": [], "logits": []}
    for one in several:
        whole = np.broadcast_arrays(*(getattr(one, name) for name in columns))
        for column, values in zip(columns.values(), whole, strict=True):
            column.append(values)
    return Spans(**{name: np.concatenate(column) for name, column in columns.items()})


def _fewer(rows: Sequence[OperatorEstimate | PlannedOperator], times: Sequence[Grid]) -> Grid:
    """By how much longer experts work on the tokens of one rank than on those of all, which is less than none. [s]

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
    """The lane that takes longest, [device, point]. [s]"""
    times = (np.broadcast_to(lane.seconds(values), shape) for lane in fleet.lanes)
    return reduce(np.maximum, times)


def _of_one(rows: Sequence[OperatorEstimate], graph: Graph, row: int) -> list[OperatorEstimate]:
    """What one device of a fleet, which runs `graph`, has of an estimate, [device, point]."""
    amounts: dict[int, dict[str, Any]] = {}  # which rows have in common, by identities of one of them
    for each in rows:
        if id(each.busy_s) not in amounts:
            own: dict[str, Any] = {name: _row(getattr(each, name), row) for name in _AMOUNTS}
            busy = {resource: _row(values, row) for resource, values in each.busy_s.items()}
            amounts[id(each.busy_s)] = own | {"busy_s": busy}
    return [replace(each, operator=op, **amounts[id(each.busy_s)]) for each, (_, op) in zip(rows, graph, strict=True)]


def _row(values: Num, row: int) -> Num:
    array = np.asarray(values)
    return values if array.ndim < 2 else array[row if len(array) > 1 else 0]
