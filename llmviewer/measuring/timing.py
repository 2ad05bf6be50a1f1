"""Timing of launches, repeated until the median is known precisely enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from math import ceil, sqrt
from time import monotonic, perf_counter, process_time, sleep
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..records import frozen

Call = Callable[[], Any]
_MIN_REPEATS, _MIN_LONG_REPEATS = 5, 3  # least repetitions; those of launches longer than the time limit
_MAX_REPEATS: Final = 1024  # most repetitions
_MEDIAN_TOLERANCE: Final = 0.01  # half the confidence interval over the median, at which repetitions stop
_LONG_S: Final = 1e-3  # launches from this time on are timed without a graph, as gaps between them do not matter
_SLICE_S: Final = 0.01  # assumed time slice of other programs
_MAX_LOST_SHARE: Final = 0.1  # share of a launch's time that may be lost to others without counting as disturbed
_PATIENCE: Final = 4  # times the time limit, to wait for undisturbed repetitions
_MIN_GRAPH_LAUNCHES: Final = 32  # least launches in a graph
_ENQUEUE_CYCLES: Final = 400_000  # GPU cycles, 0.2 ms, of a wait during which the host enqueues launches
_BATCH_S: Final = 0.02  # time of launches without a graph between two events
_HOT_S: Final = 0.2  # warm-up until clocks settle at the power limit
_HEATS_S: Final = 5e-5  # shortest launches that need this warm-up
_HUNG_S: Final = 30.0  # time after which a launch counts as hung; a sample takes 1 s, 10 s on a small GPU
_POLL_S: Final = 1e-4


class TimingSample(NamedTuple):
    """The time of one launch [s], and whether other programs may have used much of it."""

    seconds: float
    disturbed: bool = False


class BusyError(Exception):
    """Other programs use the cores, so that launches cannot be timed."""


class HungError(Exception):
    """A launch does not end. The device is unusable for this process, and freeing device memory may block."""


@frozen(kw_only=True)
class LaunchTimes:
    """Times of one launch: median, 20th and 80th percentile. [s]

    repeats    undisturbed repetitions
    disturbed  share of repetitions that were disturbed and do not count
    """

    median: float
    p20: float
    p80: float
    repeats: int
    disturbed: float


def settled(sample: Callable[[], TimingSample], limit_s: float) -> LaunchTimes:
    """Repeats `sample` until its median is known to 1 %, or for `limit_s` seconds.

    Raises BusyError if too few repetitions are undisturbed within _PATIENCE times that time.
    """
    start = monotonic()
    every: list[TimingSample] = []
    clean: list[float] = []
    while True:
        every.append(sample())
        if not every[-1].disturbed:
            clean.append(every[-1].seconds)
        spent = monotonic() - start
        min_repeats = _MIN_REPEATS if every[0].seconds < limit_s else _MIN_LONG_REPEATS
        if len(clean) >= min_repeats and (spent > limit_s or len(clean) >= _MAX_REPEATS or _is_median_known(clean)):
            break
        if len(every) >= min_repeats and spent > _PATIENCE * limit_s:
            raise BusyError("other programs use the cores")
    p20, median, p80 = map(float, np.quantile(clean, (0.2, 0.5, 0.8)))
    return LaunchTimes(median=median, p20=p20, p80=p80, repeats=len(clean), disturbed=1 - len(clean) / len(every))


def fastest(sample: Callable[[], TimingSample], limit_s: float) -> TimingSample:
    """The shortest of all repetitions within `limit_s` seconds; disturbances can only lengthen one.

    With too few undisturbed repetitions it goes on up to _PATIENCE times that time; the result counts as disturbed if
    there are still too few.
    """
    start, samples, clean = monotonic(), [], 0
    while clean < _MAX_REPEATS:
        samples.append(sample())
        clean += not samples[-1].disturbed
        limit = limit_s if clean >= _MIN_LONG_REPEATS else _PATIENCE * limit_s
        if len(samples) >= _MIN_LONG_REPEATS and monotonic() - start > limit:
            break
    return TimingSample(min(one.seconds for one in samples), disturbed=clean < _MIN_LONG_REPEATS)


def _is_median_known(samples: Sequence[float]) -> bool:
    """Whether the 95 % confidence interval of the median, by order statistics, is within _KNOWN; evaluated only for
    powers of two of samples.
    """
    n = len(samples)
    if n & (n - 1):
        return False
    half = 0.98 * sqrt(n)
    low, high = int(n / 2 - half), ceil(n / 2 + half)
    if low < 0 or high >= n:
        return False
    ordered = sorted(samples)
    return ordered[high] - ordered[low] <= 2 * _MEDIAN_TOLERANCE * ordered[n // 2]


class Clock(Protocol):
    """Times launches on one kind of device."""

    def sampler(self, calls: Sequence[Call]) -> Callable[[], TimingSample]:
        """A function that times one of `calls`, in turn, so that tensors of none are cached. [s]"""

    def wait(self) -> None:
        """Waits until all launches have ended.

        Raises HungError if that takes far longer than any launch.
        """


class HostClock:
    """Times synchronous launches."""

    def sampler(self, calls: Sequence[Call]) -> Callable[[], TimingSample]:
        turn = cycle(calls)

        def sample() -> TimingSample:
            call, before, worked = next(turn), _interruptions(), process_time()
            start = perf_counter()
            call()
            seconds = perf_counter() - start
            worked = process_time() - worked  # of all threads
            lost = max(_SLICE_S * (_interruptions() - before), seconds - worked)
            return TimingSample(seconds, disturbed=lost > _MAX_LOST_SHARE * seconds)

        return sample

    def wait(self) -> None:
        """Returns at once, as launches are synchronous."""


def _interruptions() -> int:
    """Number of involuntary context switches of this process."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class GpuClock:
    """Times launches on a GPU by events, around the replay of a graph of launches, or around long launches."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def sampler(self, calls: Sequence[Call]) -> Callable[[], TimingSample]:
        side = self._cuda.Stream()
        side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(side):  # compile and allocate before the capture
            for call in calls:
                call()
        self._cuda.current_stream().wait_stream(side)
        one = self._between(calls)
        if one > _LONG_S:
            launches = list(calls) * ceil(_BATCH_S / (one * len(calls)))
            self._heat(calls, one)
            return lambda: TimingSample(self._between(launches))
        graph = self._cuda.CUDAGraph()
        launches = list(calls) * ceil(_MIN_GRAPH_LAUNCHES / len(calls))
        with self._cuda.graph(graph):
            for call in launches:
                call()
        graph.replay()
        replays = (graph.replay,)
        each = self._between(replays)
        if each > _HEATS_S * len(launches):
            self._heat(replays, each)
        return lambda: TimingSample(self._between(replays) / len(launches))

    def _heat(self, calls: Sequence[Call], seconds: float) -> None:
        """Warms up with `calls` of `seconds` each on average, without a wait before the first sample."""
        for _ in range(ceil(_HOT_S / (seconds * len(calls)))):
            for call in calls:
                call()

    def wait(self) -> None:
        event = self._cuda.Event()
        event.record()
        self._await(event)

    def _await(self, event: Any) -> None:
        end = monotonic() + _HUNG_S
        while not event.query():
            if monotonic() > end:
                raise HungError(f"a launch did not end within {_HUNG_S:g} s")
            sleep(_POLL_S)

    def _between(self, calls: Sequence[Call]) -> float:
        """Mean time of `calls`, run one after another. [s]"""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        self._cuda._sleep(_ENQUEUE_CYCLES)  # noqa: SLF001 - no public name; lets the host enqueue launches ahead of the GPU
        start.record()
        for call in calls:
            call()
        end.record()
        self._await(end)
        return float(start.elapsed_time(end)) * 1e-3 / len(calls)
