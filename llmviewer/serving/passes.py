"""How long prompts and decode steps take on many devices at once: at the bound, and as expected of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any, Final, NamedTuple

import numpy as np

from ..expectation.expected import ExpectedPass
from ..expectation.kernels import Kernels
from ..expectation.launches import Launch
from ..fleet import Fleet
from ..forms import Num
from ..hardware import Hardware
from ..layout import Layout
from ..roofline import OperatorEstimate, PlannedOperator
from ..techniques import Drafter
from ..workload import Spans, Workload
from .load import Grid, Load, StepTimes
from .paces import going_on
from .stages import among_experts, waiting_ranks

_AMOUNTS: Final = tuple(f.name for f in fields(OperatorEstimate) if f.type == "Num")


class Passes(NamedTuple):
    """Those of a network that read prompts and that decode, on fleets whose `devices` are places in LaidOut."""

    prefills: Sequence[Fleet]
    steps: Sequence[Fleet]

    def asked(self, read: Spans | None, step: Spans) -> Iterator[tuple[Sequence[Fleet], Spans, int]]:
        """Fleets, points of all that they run, and how many of these, the first, read prompts."""
        if read is None:
            yield self.steps, _joined(step), 0
        elif self.prefills is self.steps:  # one graph: both at once
            yield self.steps, _joined(read, step), np.size(read.q_len)
        else:
            yield self.prefills, read, np.size(read.q_len)
            yield self.steps, _joined(step), 0


class Took(NamedTuple):
    """What passes take, [..., point]. [s]

    slowest     stage of a pipeline
    fewer       by how much longer experts take for one prompt than if all ranks read one, which is less than none
    unmodelled  part of it that is a bound, as nothing is expected
    """

    whole: Grid
    slowest: Grid
    fewer: Grid | float
    unmodelled: Grid


_Taking = Callable[[Sequence[Fleet], Spans, int], Iterator[tuple[Any, Took]]]


@dataclass(frozen=True, kw_only=True)
class LaidOut:
    """A setting on devices whose links make the same graph.

    model    the passes of those that run them
    drafter  what proposes tokens before each decode step, and `drafts` its passes; None where nothing does
    refused  why the others cannot, by place
    needed   memory of a device for each limit of the batch, whole answers cached, while one prompt is read [B], [batch]
    """

    devices: tuple[Hardware, ...]
    layout: Layout
    model: Passes
    drafter: Drafter | None
    drafts: Passes | None
    refused: Mapping[int, str]
    needed: Grid

    @property
    def ranks(self) -> int:
        """Of a copy that wait for each other."""
        return waiting_ranks(self.layout)

    def bounds(self, load: Load) -> StepTimes:
        """Of all devices."""
        return self._times(load, self._bounds)

    def expected(self, load: Load, kernels: Callable[[str], Kernels], places: Sequence[int]) -> StepTimes:
        """Of the devices at some places; nan where nothing is expected above the bound.

        kernels  those of a device, by its name
        """
        return self._times(load, partial(self._expected, kernels, places))

    def _times(
        self, load: Load, took: Callable[[Sequence[Fleet], Spans, int], Iterator[tuple[Any, Took]]]
    ) -> StepTimes:
        """What `took` says of points of which so many read, by place or places."""
        layout, batches, ranks = self.layout, np.asarray(load.limits), self.ranks
        times = StepTimes.unknown(
            len(self.devices), len(batches),
            ranks=ranks, turns=layout.pp, apart=layout.dp // ranks, together=load.together,
        )  # fmt: skip
        share, turns = (np.broadcast_to(each, batches.shape) for each in (layout.share(batches), layout.parts(batches)))
        reads = self._reads(load)
        for fleets, points, count in self.model.asked(reads, load.going_on(share)):
            for place, found in took(fleets, points, count):
                if count:
                    times.alone[place] = found.whole[..., 0] + found.fewer
                    times.every[place] = times.turns * found.slowest[..., 1] / times.together
                if np.size(points.batch) > count:
                    times.step[place] = np.maximum(found.whole[..., count:], turns * found.slowest[..., count:])
                    times.unmodelled[place] = np.mean(found.unmodelled[..., count:], axis=-1)
        if self.drafter and self.drafts:
            passes = zip(self.drafter.widths, self.drafter.before, strict=True)
            drafting = _joined(*(going_on(width, share, load.middle + before) for width, before in passes))
            for fleets, points, count in self.drafts.asked(reads if self.drafter.reads else None, drafting):
                for place, found in took(fleets, points, count):
                    if count:
                        times.alone[place] += found.whole[..., 0] + found.fewer
                        times.every[place] += found.whole[..., 1] / times.together
                    if np.size(points.batch) > count:
                        each = found.whole[..., count:]
                        times.step[place] += np.sum(each.reshape(*each.shape[:-1], -1, len(batches)), axis=-2)
        return times

    def _reads(self, load: Load) -> Spans:
        """Steps that read, [read]: one prompt; as many as one step takes; and where ranks wait for each other as many
        tokens as the experts of each have of one prompt.
        """
        new = float(load.new)
        tokens = np.array([new, new, *([new / self.ranks] if self.ranks > 1 else [])])
        batch = np.array([1.0, load.together, 1.0])[: len(tokens)]
        return Spans(batch=batch, q_len=tokens, kv_len=tokens + load.known, logits=np.ones(len(tokens)))

    def _bounds(self, fleets: Sequence[Fleet], points: Spans, reads: int) -> Iterator[tuple[list[int], Took]]:
        workload = Workload((points,))
        for fleet in fleets:
            values, shape = fleet.values(workload), (len(fleet.rows), np.size(points.batch))
            whole = np.broadcast_to(fleet.seconds(values), shape)
            slowest = _slowest(fleet, values, *shape) if self.layout.pp > 1 else whole
            fewer: Grid | float = 0.0
            if reads and self.ranks > 1:
                rows = fleet.estimate(workload).operators
                fewer = _fewer(rows, [np.broadcast_to(row.time_s, shape) for row in rows])
            yield fleet.rows, Took(whole, slowest, fewer, np.ones(shape))

    def _expected(
        self,
        kernels: Callable[[str], Kernels],
        places: Sequence[int],
        fleets: Sequence[Fleet],
        points: Spans,
        reads: int,
    ) -> Iterator[tuple[int, Took]]:
        shape = np.shape(points.batch)
        beside = self.drafts is not None and (fleets is self.drafts.prefills or fleets is self.drafts.steps)
        for place, found in _expected(fleets, Workload((points,)), self.devices, kernels, places, beside=beside):
            whole = np.broadcast_to(found.total.expected, shape)
            slowest = np.broadcast_to(found.slowest.expected, shape) if self.layout.pp > 1 else whole
            fewer: Grid | float = 0.0
            if reads and self.ranks > 1:
                each = [np.broadcast_to(one.expected, shape)[None, :] for one in found.launches]
                fewer = _fewer(found.operators, each)[0]
            yield place, Took(whole, slowest, fewer, np.broadcast_to(found.unmodelled_share, shape))


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
    *,
    beside: bool,
) -> Iterator[tuple[int, ExpectedPass]]:
    """(place, what is expected of a pass) of the devices at `places` of which anything is; `beside` another network of
    which it is, bounds will do.
    """
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
            if found.modelled or beside:
                yield place, found


def _of_one(each: OperatorEstimate, row: int) -> OperatorEstimate:
    """What one device of a fleet has of an estimate, [device, point]."""

    def own(values: Num) -> Num:
        array = np.asarray(values)
        return values if array.ndim < 2 else array[row if len(array) > 1 else 0]

    amounts: dict[str, Any] = {name: own(getattr(each, name)) for name in _AMOUNTS}
    return replace(each, **amounts, busy_s={resource: own(values) for resource, values in each.busy_s.items()})
