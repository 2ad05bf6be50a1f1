"""Expected times of kernels one after another, and the interval of their sum.

Errors of kernels of one implementation come from the same parameters, so they add; those of different implementations
are independent, so their squares add. An operator without a known kernel takes its bound and does not widen the
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from itertools import groupby
from typing import Final

import numpy as np

from ..forms import Num
from ..operators.attention import Attention
from ..operators.collectives import AllToAll
from ..records import frozen
from ..roofline import Lane, OperatorEstimate, PlannedOperator, lane, overlapping, pipelined_s
from .engines import IDLE, Host
from .families.base import Array
from .profile import Error
from .sources import CALIBRATED, CLASSES, STAND_IN_DTYPE, stand_in_label
from .transfer import Expectation

_LATENCY_SHARE: Final = 0.5  # share of the expected time from which fixed costs dominate
_MIN_SOURCE_SHARE: Final = 0.01
_EXCHANGES: Final = 2  # of tokens with their experts in a layer
LATENCY: Final = "latency"  # a regime besides those that resources limit


@frozen(kw_only=True)
class Interval:
    """An expected time, and the interval that contains 80 % of measured times. [s]"""

    expected: Num
    low: Num
    high: Num

    def numbers(self) -> tuple[float, float, float]:
        """(expected, low, high) of a single workload. [s]"""
        expected, low, high = (float(np.sum(side)) for side in (self.expected, self.low, self.high))
        return expected, low, high

    def map(self, f: Callable[[Num], Num]) -> Interval:
        return Interval(expected=f(self.expected), low=f(self.low), high=f(self.high))

    def join(self, other: Interval, f: Callable[[Num, Num], Num]) -> Interval:
        names = ("expected", "low", "high")
        return Interval(**{name: f(getattr(self, name), getattr(other, name)) for name in names})


@frozen(kw_only=True)
class ExpectedLaunch:
    """Expected time of a launch of an operator, or of its share of a launch for several operators.

    high             infinite if only the bound is known
    latency          whether launch and other fixed costs dominate
    implementations  kernels and sources whose errors it has
    run_probability  share of passes in which it runs; times are means over all passes
    core_time_s      core time of a collective, as time of all cores [s]
    slowdown_s       time by which a product is slower as it leaves the cores of overlapping collectives free [s]
    """

    expected: Array
    low: Array
    high: Array
    latency: Array
    source: str
    implementations: tuple[str, ...]
    run_probability: Num = 1.0
    core_time_s: Num = 0.0
    slowdown_s: Num = 0.0

    @classmethod
    def of(cls, expectation: Expectation, implementations: tuple[str, ...]) -> ExpectedLaunch:
        return cls(
            expected=expectation.expected,
            low=expectation.low,
            high=expectation.high,
            latency=expectation.fixed > _LATENCY_SHARE * expectation.expected,
            source=expectation.source,
            implementations=implementations,
        )

    @property
    def modelled(self) -> bool:
        return bool(self.implementations)

    def share(self, bound: Array, total_bound: Array) -> ExpectedLaunch:
        """The share of an operator, in proportion to its `bound` of the `whole` bound of all its operators."""
        if bound is total_bound:
            return self
        part = np.divide(bound, total_bound, out=np.zeros_like(total_bound), where=total_bound > 0)
        high = np.multiply(part, self.high, out=np.zeros_like(total_bound), where=part > 0)  # which may have no end
        return self.with_times(part * self.expected, part * self.low, high, self.run_probability)

    def with_times(self, expected: Array, low: Array, high: Array, run_probability: Num) -> ExpectedLaunch:
        """Copies the launch with other times; faster than replace(), as a plan makes many."""
        return ExpectedLaunch(
            expected=expected,
            low=low,
            high=high,
            latency=self.latency,
            source=self.source,
            implementations=self.implementations,
            run_probability=run_probability,
        )

    def or_faster(self, other: ExpectedLaunch, able: Num) -> ExpectedLaunch:
        """The faster of both launches in each workload in which `other` is `able` to do the work."""
        second = np.broadcast_to(able, self.expected.shape) & (other.expected < self.expected)
        if not np.any(second):
            return self
        names = ("expected", "low", "high", "latency")
        best = {name: np.where(second, getattr(other, name), getattr(self, name)) for name in names}
        result = other if np.all(second) else combined_launches([self, other], np.add)
        return replace(result, source=stand_in_label("few queries as further heads", result.source), **best)

    def spanning(self, other: ExpectedLaunch) -> ExpectedLaunch:
        """Widens the interval to that of another launch."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return self.with_times(self.expected, low, high, self.run_probability)

    def capped_by(self, larger: ExpectedLaunch, able: Num) -> ExpectedLaunch:
        """Caps the time by that of a larger launch, in workloads in which it is `able` to do the work."""
        shorter = np.broadcast_to(able, self.expected.shape) & (larger.expected < self.expected)
        expected = np.where(shorter, larger.expected, self.expected)
        return self.with_times(
            expected, np.where(shorter, np.minimum(self.low, larger.low), self.low), self.high, self.run_probability
        )

    def widened(self, error: Error) -> ExpectedLaunch:
        """Widens the interval to at least that of an error."""
        low, high = error.interval(self.expected)
        return self.with_times(
            self.expected, np.minimum(self.low, low), np.maximum(self.high, high), self.run_probability
        )


@frozen(kw_only=True)
class ExpectedPass:
    """Expected times of all operators of a pass, in order; `host` adds the host time of the engine.

    staged  workloads in which halves of a batch that overlap take turns in fixed stages: a dispatch to experts travels
            while the other half is between experts and attention, and their results while it is in attention
    """

    operators: tuple[OperatorEstimate | PlannedOperator, ...]
    launches: tuple[ExpectedLaunch, ...]
    host: Host = IDLE
    staged: Num = False

    @cached_property
    def total(self) -> Interval:
        return self._whole(range(len(self.operators)))

    @cached_property
    def kernels(self) -> Interval:
        """The time of kernels, without host time."""
        return self._sum(range(len(self.operators)))

    @cached_property
    def lanes(self) -> dict[Lane, Interval]:
        """Expected times of Plan.lanes, each with its own host time. Computation also waits for the cores that
        overlapping collectives take.
        """
        if len(self._lanes) == 1:
            return dict.fromkeys(self._lanes, self.total)
        times_by_lane = {one: self._whole(places) for one, places in self._lanes.items()}
        return {
            one: time if one[1] else time.map(lambda time_s: time_s + self.core_time_s)
            for one, time in times_by_lane.items()
        }

    @cached_property
    def core_time_s(self) -> Num:
        """Time by which computation is longer where collectives overlap with it: their core time, as time of all cores,
        but not beside products that leave those cores free, which take longer by themselves; and waits for them. [s]
        """
        if len(self._lanes) == 1 or not np.any(self.staged):
            return self._occupied_s
        return self._occupied_s + np.where(self.staged, self._waiting_s, 0.0)

    @property
    def _occupied_s(self) -> Num:
        """Time of computation that the cores of overlapping collectives take. [s]"""
        rows = [(row.operator, row.block.repeat, one) for row, one in zip(self.operators, self.launches, strict=True)]
        shared_s: Num = sum((count * one.core_time_s for op, count, one in rows if op.overlapped), start=np.zeros(1))
        products = [(count, one) for _, count, one in rows if np.any(one.slowdown_s)]
        if not products:
            return shared_s
        slowdown_s: Num = sum((count * one.slowdown_s for count, one in products), start=np.zeros(1))
        products_s: Num = sum((count * one.expected for count, one in products), start=slowdown_s)
        computing_s: Num = sum((count * one.expected for op, count, one in rows if not op.overlapped), start=slowdown_s)
        others_share = np.where(np.greater(slowdown_s, 0), 1 - np.divide(products_s, computing_s), 1.0)
        return slowdown_s + shared_s * others_share

    @property
    def _waiting_s(self) -> Num:
        """Time for which one half waits for its tokens in stages that the other half does not fill. [s]"""
        waiting_s: Num = np.zeros(1)
        rows = list(zip(self.operators, self.launches, strict=True))
        for _, layer in groupby(rows, key=lambda row: id(row[0].block)):
            layer_rows = list(layer)
            sends = [place for place, (row, _) in enumerate(layer_rows) if _is_overlapping_exchange(row)]
            attention = [place for place, (row, _) in enumerate(layer_rows) if isinstance(row.operator, Attention)]
            if len(sends) != _EXCHANGES or not attention:
                continue
            dispatch, collect = sends
            computing = [
                (place, one.expected) for place, (row, one) in enumerate(layer_rows) if not row.operator.overlapped
            ]
            in_attention_s = sum((time for place, time in computing if attention[0] <= place < dispatch), np.zeros(1))
            between_s = sum(
                (time for place, time in computing if not attention[0] <= place < collect), start=np.zeros(1)
            )
            traveling_s = [layer_rows[place][1].expected - layer_rows[place][1].core_time_s for place in sends]
            for travel_s, meanwhile_s in zip(traveling_s, (between_s, in_attention_s), strict=True):
                waiting_s = waiting_s + layer_rows[0][0].block.repeat * np.maximum(travel_s - meanwhile_s, 0)
        return waiting_s

    @cached_property
    def _lanes(self) -> dict[Lane, list[int]]:
        places: dict[Lane, list[int]] = {}
        for place, row in enumerate(self.operators):
            places.setdefault(lane(row), []).append(place)
        return places

    @cached_property
    def expected_s(self) -> Num:
        """Expected total without an interval, which takes less time. [s]"""
        return self._expected_s(range(len(self.operators)))

    @cached_property
    def slowest_s(self) -> Num:
        """Time of the slowest lane without an interval. [s]"""
        times = (
            self._expected_s(places) + (0.0 if one[1] else self.core_time_s) for one, places in self._lanes.items()
        )
        return reduce(np.maximum, times)

    @cached_property
    def unmodelled_share(self) -> Array:
        """Share of the expected time of operators of which only the bound is known."""
        rows = zip(self.operators, self.launches, strict=True)
        unmodelled_s: Num = sum((row.block.repeat * e.expected for row, e in rows if not e.modelled), start=np.zeros(1))
        return np.asarray(np.divide(unmodelled_s, self.expected_s))

    def pipelined_s(self, parts: Num, *, autoregressive: bool) -> Interval:
        """Expected time of a batch cut into micro-batches, whose lower bound is Plan.pipelined_s()."""
        pipelined = partial(pipelined_s, parts=parts, autoregressive=autoregressive or overlapping(self.lanes))
        return self.total.join(self.slowest, pipelined)

    @property
    def slowest(self) -> Interval:
        """The time of the slowest lane."""
        first, *rest = self.lanes.values()
        for one in rest:
            first = first.join(one, np.maximum)
        return first

    @property
    def modelled(self) -> bool:
        """Whether more than the bound is known for any operator."""
        return any(each.modelled for each in self.launches)

    @cached_property
    def sources(self) -> dict[str, float]:
        """Shares of the expected time by source: the main source, then kinds of other sources."""
        times: dict[str, float] = {}
        for row, each in zip(self.operators, self.launches, strict=True):
            first = each.source.partition("; ")[0]
            name = _without_versions(first) if first.startswith(CALIBRATED) else first
            times[name] = times.get(name, 0.0) + float(np.sum(row.block.repeat * each.expected))
        total_s, main = sum(times.values()), max(times, key=times.__getitem__)
        others = {
            kind: sum(time for name, time in times.items() if name.startswith(kind) and name != main) / total_s
            for kind in CLASSES
            if not main.startswith(kind)
        }
        return {main: times[main] / total_s} | {
            kind: share for kind, share in others.items() if share >= _MIN_SOURCE_SHARE
        }

    @property
    def source(self) -> str:
        """The sources as text."""
        (main, _), *others = self.sources.items()
        return main + "".join(f", {share:.0%} {kind}" for kind, share in others)

    def _expected_s(self, places: Sequence[int]) -> Num:
        kernels_s = self._kernels_s(places)
        return kernels_s if self.host == IDLE else self.host.time_s(kernels_s, self._launch_count(places))

    def _whole(self, places: Sequence[int]) -> Interval:
        kernels = self._sum(places)
        if self.host == IDLE:
            return kernels
        count, (least, most) = self._launch_count(places), self.host.launch_range
        return Interval(
            expected=self.host.time_s(kernels.expected, count),
            low=self.host.time_s(kernels.low, least * count),
            high=self.host.time_s(kernels.high, most * count),
        )

    def _launch_count(self, places: Sequence[int]) -> Num:
        """Launches by the host."""
        rows = ((self.operators[place].block, self.launches[place]) for place in places)
        return sum((block.repeat * one.run_probability * (one.expected > 0) for block, one in rows), start=np.zeros(1))

    def _kernels_s(self, places: Sequence[int]) -> Num:
        """Time of kernels one after another. [s]"""
        each = (self.operators[place].block.repeat * self.launches[place].expected for place in places)
        return sum(each, start=np.zeros(1))

    def _sum(self, places: Sequence[int]) -> Interval:
        expected = self._kernels_s(places)
        deviations: dict[tuple[str, ...], tuple[Num, Num]] = {}
        for place in places:
            count, each = self.operators[place].block.repeat, self.launches[place]
            if each.modelled:
                below, above = deviations.get(each.implementations, (0.0, 0.0))
                deviations[each.implementations] = (
                    below + count * (each.expected - each.low),
                    above + count * (each.high - each.expected),
                )
        below, above = (np.sqrt(sum((side[i] ** 2 for side in deviations.values()), start=0.0)) for i in (0, 1))
        return Interval(expected=expected, low=expected - below, high=expected + above)


def _is_overlapping_exchange(row: OperatorEstimate | PlannedOperator) -> bool:
    return isinstance(row.operator, AllToAll) and row.operator.overlapped


def _without_versions(source: str) -> str:
    """Such as "calibrated on a100-sxm-80gb sglang and vllm, kernels for int4_wo"."""
    kernels, *dtype = source.split(STAND_IN_DTYPE)
    first, *others = kernels.split(" and ")
    return STAND_IN_DTYPE.join(
        (" and ".join((" ".join(first.split()[:4]), *(one.split()[0] for one in others))), *dtype)
    )


def combined_launches(parts: Sequence[ExpectedLaunch], f: Callable[[Array, Array], Array]) -> ExpectedLaunch:
    """Combines several launches into one, with times combined by `f`, and the errors of all."""
    first, *rest = parts
    for part in rest:
        first = ExpectedLaunch(
            expected=f(first.expected, part.expected),
            low=f(first.low, part.low),
            high=f(first.high, part.high),
            latency=np.where(first.expected >= part.expected, first.latency, part.latency),
            source="; ".join(dict.fromkeys((first.source, part.source))),
            implementations=tuple(dict.fromkeys((*first.implementations, *part.implementations))),
        )
    return first
