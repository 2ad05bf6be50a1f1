"""Bounds and expected times of prefills and decode steps, on many devices at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import nan
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..comparing.fleet import Fleet, device_estimates, rows_of
from ..devices.hardware import Hardware
from ..expectation.expected import ExpectedLaunch, ExpectedPass
from ..expectation.kernels import Kernels, PassLaunches
from ..expectation.launches import KernelSequence
from ..expectation.sources import CALIBRATED
from ..expectation.times import KernelBounds
from ..graph import Graph
from ..parallel.layout import Layout
from ..records import copied, frozen
from ..roofline import OperatorEstimate, PlannedOperator
from ..techniques import Drafter
from ..workload import Spans, Workload
from .load import Grid, Load
from .stages import inside_experts
from .step_times import decoding_group

_MAX_HELD_TIMES: Final = 1 << 22  # distinct times of operators, of all devices, that are expected together: 32 MiB
_BY_DEVICE: Final = ("single_prefill", "packed_prefill", "serial_prefill", "step", "unmodelled")
Key = tuple[Layout, str]  # a layout, and the name of a device


class MemoryNeeds(NamedTuple):
    """Memory that a device needs for each limit of the batch, with the cache of whole requests, [batch]. [B]

    prefill_only  includes the cache of another prompt that is being sent
    """

    prefill_and_decode: Grid
    decode_only: Grid
    prefill_only: float

    def minimum(self, load: Load) -> float:
        """Minimum memory for any passes of the load. [B]"""
        both_bytes = float(np.min(self.prefill_and_decode))
        return min(both_bytes, float(np.min(self.decode_only)), self.prefill_only) if load.disaggregated else both_bytes


@frozen(kw_only=True)
class StepTimes:
    """Times of steps, [device]; of decode steps, [device, batch]. [s]

    A lane is a running batch: that of a rank or, in a pipeline, of one of its micro-batches.

    single_prefill  a step in which one lane prefills one prompt
    packed_prefill  of each prompt, in a step with as many as it takes
    serial_prefill  of each prompt, where lanes prefill one at a time and no sequence decodes
    step            a step that only decodes
    unmodelled      share of decode steps for which only a bound is known
    ranks           of a copy that wait for each other in every step, each with its own sequences
    micro_batches   micro-batches of each rank in a pipeline
    rank_sets       sets of such ranks in a copy
    max_prompts     maximum prompts of one step of all these lanes
    """

    single_prefill: Grid
    packed_prefill: Grid
    serial_prefill: Grid
    step: Grid
    unmodelled: Grid
    ranks: int
    micro_batches: int
    rank_sets: int
    max_prompts: int

    @classmethod
    def unknown(
        cls, devices: int, batches: int, *, ranks: int, micro_batches: int, rank_sets: int, max_prompts: int
    ) -> StepTimes:
        """Times to be filled in.

        max_prompts  maximum prompts of one step of a lane
        """
        single_prefill, packed_prefill, serial_prefill, unmodelled = np.full((4, devices), nan)
        return cls(
            single_prefill=single_prefill, packed_prefill=packed_prefill, serial_prefill=serial_prefill,
            step=np.full((devices, batches), nan), unmodelled=unmodelled, ranks=ranks, micro_batches=micro_batches,
            rank_sets=rank_sets, max_prompts=ranks * micro_batches * max_prompts,
        )  # fmt: skip

    @property
    def lanes(self) -> int:
        return self.ranks * self.micro_batches

    @property
    def writing(self) -> StepTimes:
        """The same with prefills on other devices: all steps only decode, and no lane waits for another's prefill."""
        zeros = np.zeros(self.single_prefill.shape)
        return replace(
            self,
            single_prefill=zeros,
            packed_prefill=zeros,
            serial_prefill=zeros,
            ranks=1,
            micro_batches=1,
            max_prompts=1,
        )

    def only(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> StepTimes:
        return replace(self, **{name: getattr(self, name)[list(rows)] for name in _BY_DEVICE})


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
            yield self.steps, _concatenated(step), 0
        elif self.prefills is self.steps:  # one graph: both at once
            yield self.steps, _concatenated(read, step), np.size(read.q_len)
        else:
            yield self.prefills, read, np.size(read.q_len)
            yield self.steps, _concatenated(step), 0


class PassTimes(NamedTuple):
    """Times of passes, [device, point]. [s]

    total           whole pass
    slowest         slowest stage of a pipeline, or stream of computation or communication if two micro-batches overlap
    single_prefill  a step in which one rank prefills one prompt
    unmodelled      share of the time for which only a bound is known
    """

    total: Grid
    slowest: Grid
    single_prefill: Grid
    unmodelled: Grid


class _NetworkPasses(NamedTuple):
    """Passes of one network at some points: prefills first, then decode steps.

    prefill_count         number of points that are prefills
    microbatches          of a decode step, in a pipeline or of two that overlap, [batch]
    prefill_microbatches  of a prefill step
    is_draft              whether the network is a draft model, whose bounds count if no kernel is known
    """

    run: FleetRun
    points: Spans
    prefill_count: int
    microbatches: Grid
    prefill_microbatches: int
    is_draft: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.points.batch)

    def add(self, times: StepTimes, places: Sequence[int], pass_times: PassTimes) -> None:
        """Adds the passes of devices to the times of their steps; those of the model come first."""

        def after(earlier_s: Grid, pass_s: Grid) -> Grid:
            return earlier_s + pass_s if self.is_draft else pass_s

        def decode_steps(each: Grid) -> Grid:
            """Times of decode steps, [device, pass, batch]. [s]"""
            return each[..., self.prefill_count :].reshape(*each.shape[:-1], -1, len(self.microbatches))

        if self.prefill_count:
            slowest = self.prefill_microbatches * pass_times.slowest
            times.single_prefill[places] = after(times.single_prefill[places], pass_times.single_prefill)
            times.packed_prefill[places] = after(
                times.packed_prefill[places], times.micro_batches * slowest[..., 1] / times.max_prompts
            )
            times.serial_prefill[places] = after(times.serial_prefill[places], slowest[..., 0])
        if pass_times.total.shape[-1] > self.prefill_count:
            each = np.maximum(decode_steps(pass_times.total), self.microbatches * decode_steps(pass_times.slowest))
            times.step[places] = after(times.step[places], np.sum(each, axis=-2))
            if not self.is_draft:
                times.unmodelled[places] = np.mean(pass_times.unmodelled[..., self.prefill_count :], axis=-1)


class _FleetLaunches(NamedTuple):
    """A pass as equal launches on the devices at some places, [device, point]."""

    passes: _NetworkPasses
    places: Sequence[int]
    kernels: Sequence[Kernels]
    launched: PassLaunches

    def expected(
        self, times: Mapping[str, Iterator[ExpectedLaunch | None]]
    ) -> Iterator[tuple[list[int], ExpectedPass]]:
        """Passes on groups of devices on which the same kernels were measured, with the places of the devices.

        times  of the kernels in the order of PassLaunches.kernel_bounds(), by the name of the device
        """
        count = sum(len(same[0].all_kernels) for same, *_ in self.launched.groups)
        groups: dict[object, list[tuple[int, Kernels, list[ExpectedLaunch | None]]]] = {}
        for place, kernels_of_device in zip(self.places, self.kernels, strict=True):
            each = [next(times[kernels_of_device.hardware.name]) for _ in range(count)]
            measured = tuple(time and time.source.startswith(CALIBRATED) for time in each)
            groups.setdefault((kernels_of_device.launcher.per_query, measured), []).append(
                (place, kernels_of_device, each)
            )
        rows = {place: row for row, place in enumerate(self.places)}
        for group in groups.values():
            places, kernels, kernel_times = zip(*group, strict=True)
            cores = np.array([[kernels_of_device.launcher.cores] for kernels_of_device in kernels])
            launcher = replace(kernels[0].launcher, cores=cores)
            launched = self.launched.on_devices([rows[place] for place in places]) if len(groups) > 1 else self.launched
            yield list(places), launcher.launch_all(launched, map(_device_columns, zip(*kernel_times, strict=True)))


@frozen(kw_only=True)
class Placement:
    """A setting on devices whose graphs differ in links and tiles alone.

    model     passes of the model
    drafter   proposes tokens before each decode step, by the passes `drafts`; None without a draft model
    wirings   the links that the graphs of each device depend on
    runnable  places of the devices that have a unit for every data type
    """

    devices: tuple[Hardware, ...]
    layout: Layout
    model: Passes
    drafter: Drafter | None
    drafts: Passes | None
    wirings: Sequence[object]
    runnable: Sequence[int]
    needed: MemoryNeeds

    @property
    def ranks(self) -> int:
        """Ranks of a replica that wait for each other."""
        return self.layout.waiting_ranks

    def key(self, place: int) -> Key:
        """Identity of the device at a place in this layout."""
        return self.layout, self.devices[place].name

    def unknown(self, load: Load) -> StepTimes:
        """Times of all devices, to be filled in."""
        return StepTimes.unknown(
            len(self.devices), len(load.limits),
            ranks=self.ranks, micro_batches=self.layout.pp,
            rank_sets=self.layout.dp // self.ranks, max_prompts=load.max_prompts,
        )  # fmt: skip

    def bounds(self, load: Load) -> StepTimes:
        """Lower bounds of all devices."""
        times = self.unknown(load)
        for passes in self._network_passes(load):
            workload = Workload((passes.points,))
            for fleet in passes.run.fleets:
                values, shape = fleet.values(workload), (len(fleet.rows), *passes.shape)
                total_s = np.broadcast_to(fleet.seconds(values), shape)
                slowest = _slowest_lane_s(fleet, values, shape) if self.layout.splits_batches else total_s
                rows = fleet.estimate(workload).operators if self._single_prefill_differs(passes) else ()
                operator_times = [np.broadcast_to(row.time_s, shape) for row in rows]
                single_prefill_s = self._single_prefill_s(passes, rows, operator_times, total_s, np.zeros(shape))
                passes.add(times, fleet.rows, PassTimes(total_s, slowest, single_prefill_s, np.ones(shape)))
        return times

    def launched(
        self, load: Load, kernels: Callable[[str], Kernels], places: Sequence[int]
    ) -> Iterator[_FleetLaunches]:
        """Launches of the devices at some places whose kernels are known, network by network."""
        for passes in self._network_passes(load):
            workload = Workload((passes.points,))
            reading = np.arange(np.size(passes.points.q_len)) < passes.prefill_count
            sequences: dict[object, Sequence[KernelSequence]] = {}
            shared_sequences: dict[object, dict[object, KernelSequence]] = {}  # most launches do not depend on links
            for fleet in passes.run.fleets:
                by_launches: dict[tuple[object, ...], list[tuple[int, int, Kernels]]] = {}
                for row, place in enumerate(fleet.devices):
                    device_kernels = kernels(self.devices[place].name) if place in places else None
                    if device_kernels and not isinstance(device_kernels.device, str):
                        launch_key = *device_kernels.launch_key, self.wirings[place]
                        by_launches.setdefault(launch_key, []).append((row, place, device_kernels))
                operators = fleet.estimate(workload).operators if by_launches else ()
                for key, group in by_launches.items():
                    rows, group_places, group_kernels = zip(*group, strict=True)
                    if key not in sequences:
                        estimates = device_estimates(operators, passes.run.graphs[group_places[0]], rows[0])
                        sequences[key] = group_kernels[0].launches_for(
                            estimates, workload, shared_sequences.setdefault(key[:-1], {})
                        )
                    distinct = {id(op.busy_s): op for op in operators}
                    bounds = {launch_key: rows_of(op.time_s, list(rows)) for launch_key, op in distinct.items()}
                    every = [bounds[id(op.busy_s)] for op in operators]
                    launched = PassLaunches(
                        operators=fleet.operators,
                        launches=sequences[key],
                        bounds=every,
                        prefills=False,
                        prefilling=reading,
                    )
                    yield _FleetLaunches(passes, group_places, group_kernels, launched)

    def add(self, times: StepTimes, passes: _NetworkPasses, places: Sequence[int], expected_pass: ExpectedPass) -> None:
        """Adds the expected time of passes on some devices, if any kernel is known."""
        if not (expected_pass.modelled or passes.is_draft):
            return
        shape = len(places), *passes.shape
        total_s, core_s, unmodelled = (
            np.broadcast_to(each, shape)
            for each in (expected_pass.expected_s, expected_pass.core_time_s, expected_pass.unmodelled_share)
        )
        slowest = np.broadcast_to(expected_pass.slowest_s, shape) if self.layout.splits_batches else total_s
        rows = expected_pass.operators if self._single_prefill_differs(passes) else ()
        operator_times = [np.broadcast_to(one.expected, shape) for one in expected_pass.launches[: len(rows)]]
        passes.add(
            times,
            places,
            PassTimes(
                total_s, slowest, self._single_prefill_s(passes, rows, operator_times, total_s, core_s), unmodelled
            ),
        )

    def _network_passes(self, load: Load) -> Iterator[_NetworkPasses]:
        """Passes of the model, then of its draft model."""
        layout, batches = self.layout, load.limits
        prefill_microbatches = 2 if layout.two_batch_overlap and load.new > 1 else 1
        prefill_steps = self._prefill_points(load).times(1 / prefill_microbatches)
        share, microbatches = (
            np.broadcast_to(each, batches.shape)
            for each in (layout.micro_batch_size(batches), layout.micro_batch_count(batches))
        )
        for points in self.model.points(prefill_steps, load.decoding_group(share)):
            yield _NetworkPasses(*points, microbatches, prefill_microbatches, is_draft=False)
        if self.drafter and self.drafts:
            passes = zip(self.drafter.widths, self.drafter.before, strict=True)
            steps = (decoding_group(width, share, load.middle + before) for width, before in passes)
            drafting = _concatenated(*steps)
            for points in self.drafts.points(prefill_steps if self.drafter.reads else None, drafting):
                yield _NetworkPasses(*points, microbatches, prefill_microbatches, is_draft=True)

    def _single_prefill_s(
        self,
        passes: _NetworkPasses,
        rows: Sequence[OperatorEstimate | PlannedOperator],
        operator_times: Sequence[Grid],
        total_s: Grid,
        core_s: Grid,
    ) -> Grid:
        """A step in which one rank prefills one prompt. [s]

        total_s         time of the step; of one micro-batch if it has two
        operator_times  time of a launch of each operator
        core_s          core time of the communication of a micro-batch, while the other computes
        """
        if not rows:
            return total_s[:, 0]
        single_s: Grid = total_s[:, 0] + _expert_excess_s(rows, operator_times) if self.ranks > 1 else total_s[:, 0]
        if passes.prefill_microbatches == 1:
            return single_s
        overlapped = (
            row.block.repeat * one[:, 0]
            for row, one in zip(rows, operator_times, strict=True)
            if row.operator.overlapped
        )
        communication_s = sum(overlapped, start=np.zeros(len(single_s)))
        both_s: Grid = np.maximum(
            single_s,
            passes.prefill_microbatches * np.maximum(single_s - communication_s + core_s[:, 0], communication_s),
        )
        return both_s

    def _single_prefill_differs(self, passes: _NetworkPasses) -> bool:
        """Whether a step in which one rank prefills takes another time than the sum of its launches."""
        return passes.prefill_count > 0 and (self.ranks > 1 or passes.prefill_microbatches > 1)

    def _prefill_points(self, load: Load) -> Spans:
        """Prefill steps, [point]: of one prompt; of as many as one step takes; and, if ranks wait for each other, of
        as many tokens as the experts of each rank receive of one prompt.
        """
        new = float(load.new)
        tokens = np.array([new, new, *([new / self.ranks] if self.ranks > 1 else [])])
        batch = np.array([1.0, load.max_prompts, 1.0])[: len(tokens)]
        return Spans(batch=batch, q_len=tokens, kv_len=tokens + load.cached_tokens, logits=np.ones(len(tokens)))


def expected(
    placed: Sequence[tuple[Placement, Sequence[int]]], load: Load, kernels: Callable[[str], Kernels]
) -> Iterator[StepTimes]:
    """Expected times of each placement, at some of its places; nan if no kernel is known. The kernels of a device in
    several placements are evaluated together.

    kernels  kernels of a device, by its name
    """
    times = [placement.unknown(load) for placement, _ in placed]
    pending: list[tuple[int, _FleetLaunches]] = []
    first, held_times = 0, 0
    for number, (placement, places) in enumerate(placed):
        for one in placement.launched(load, kernels, places):
            pending.append((number, one))
            held_times += len({id(bound) for bound in one.launched.bounds}) * one.passes.shape[0] * len(one.places)
        if held_times < _MAX_HELD_TIMES and number < len(placed) - 1:
            continue
        kernels_by_device: dict[str, list[KernelBounds]] = {}
        for _, one in pending:
            for row, device_kernels in enumerate(one.kernels):
                kernels_by_device.setdefault(device_kernels.hardware.name, []).extend(one.launched.kernel_bounds(row))
        kernel_times = {name: kernels(name).times(each) for name, each in kernels_by_device.items()}
        for place, one in pending:
            for group, expected_pass in one.expected(kernel_times):
                placed[place][0].add(times[place], one.passes, group, expected_pass)
        yield from times[first : number + 1]
        first, pending, held_times = number + 1, [], 0


def _concatenated(*several: Spans) -> Spans:
    """Concatenated points of several sequences."""
    columns: dict[str, list[Grid]] = {"batch": [], "q_len": [], "kv_len": [], "logits": []}
    for one in several:
        columns_of_points = np.broadcast_arrays(*(getattr(one, name) for name in columns))
        for column, values in zip(columns.values(), columns_of_points, strict=True):
            column.append(values)
    return Spans(**{name: np.concatenate(column) for name, column in columns.items()})


def _device_columns(times: tuple[ExpectedLaunch | None, ...]) -> ExpectedLaunch | None:
    """The time of a kernel on several devices, [device, point]; None if it is known on none of them."""
    known_times = [time for time in times if time]
    if not known_times:
        return None
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(time, name) for time in known_times]).reshape(len(known_times), -1)
        for name in ("expected", "low", "high", "latency")
    }
    return copied(known_times[0], **columns)


def _expert_excess_s(rows: Sequence[OperatorEstimate | PlannedOperator], times: Sequence[Grid]) -> Grid:
    """Excess time of experts on the tokens of one rank over their time on those of all ranks; negative. [s]

    times  time of a launch of each operator, [device, point]
    """
    inside = inside_experts([row.operator for row in rows])
    return sum(
        (
            row.block.repeat * (time[:, 2] - time[:, 0])
            for row, time, between in zip(rows, times, inside, strict=True)
            if between
        ),
        start=np.zeros(len(times[0])),
    )


def _slowest_lane_s(fleet: Fleet, values: Any, shape: tuple[int, ...]) -> Grid:
    """Time of the slowest stream, [device, point]. [s]"""
    times = (np.broadcast_to(lane.seconds(values), shape) for lane in fleet.lanes)
    return reduce(np.maximum, times)
