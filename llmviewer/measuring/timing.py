"""How long a launch takes: repeated until its median is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, sqrt
from time import monotonic, perf_counter, process_time, sleep
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

Call = Callable[[], Any]
_LEAST, _LEAST_LONG = 5, 3  # repetitions; of a launch that takes longer than its row may
_MOST: Final = 1024
_KNOWN: Final = 0.01  # of the median, to either side
_LONG_S: Final = 1e-3  # a launch beside which the gap to the next one does not count
_SLICE_S: Final = 0.01  # what another program may take at a time
_SHARE: Final = 0.1  # of a launch's time, that does not disturb it
_PATIENCE: Final = 4  # times the time of a row
_GRAPH: Final = 32  # launches of a graph, at least
_AHEAD: Final = 400_000  # cycles of a GPU, 0.2 ms, in which the host gets ahead of it
_BATCH_S: Final = 0.02  # of launches without a graph, between two events
_HOT_S: Final = 0.2  # of launches before the first that counts, so that clocks are those that power allows for long
_HEATS_S: Final = 5e-5  # what a launch takes, from which on clocks follow what it does
_HUNG_S: Final = 30.0  # after which what was launched will not end: a sample takes a second, on a small GPU ten
_POLL_S: Final = 1e-4


class Sample(NamedTuple):
    """The time of one launch [s], and whether other programs may have taken a good part of it."""

    seconds: float
    disturbed: bool = False


class BusyError(Exception):
    """Other programs take the cores, so that no time is the launch's own."""


class HungError(Exception):
    """What was launched does not end. The device does nothing more for this process, which may wait for it in whatever
    frees its memory.
    """


@dataclass(frozen=True, kw_only=True)
class Times:
    """Of one launch: the median, and what a fifth of the repetitions stay below and above. [s]

    repeats    those that count
    disturbed  the part of all that does not
    """

    median: float
    p20: float
    p80: float
    repeats: int
    disturbed: float


def settled(sample: Callable[[], Sample], limit_s: float) -> Times:
    """Repeats `sample` until its median is known to 1 %, or `limit_s` seconds have passed.

    Raises BusyError where after some more time there are still too few that were not disturbed.
    """
    start = monotonic()
    every: list[Sample] = []
    clean: list[float] = []
    while True:
        every.append(sample())
        if not every[-1].disturbed:
            clean.append(every[-1].seconds)
        spent = monotonic() - start
        least = _LEAST if every[0].seconds < limit_s else _LEAST_LONG
        if len(clean) >= least and (spent > limit_s or len(clean) >= _MOST or _known(clean)):
            break
        if len(every) >= least and spent > _PATIENCE * limit_s:
            raise BusyError("other programs take the cores")
    p20, median, p80 = map(float, np.quantile(clean, (0.2, 0.5, 0.8)))
    return Times(median=median, p20=p20, p80=p80, repeats=len(clean), disturbed=1 - len(clean) / len(every))


def fastest(sample: Callable[[], Sample], limit_s: float) -> Sample:
    """The least of all repetitions in a time, which nothing can make too small.

    Where too few were left alone it takes some more time; it is disturbed where there still are.
    """
    start, found, clean = monotonic(), [], 0
    while clean < _MOST:
        found.append(sample())
        clean += not found[-1].disturbed
        limit = limit_s if clean >= _LEAST_LONG else _PATIENCE * limit_s
        if len(found) >= _LEAST_LONG and monotonic() - start > limit:
            break
    return Sample(min(one.seconds for one in found), disturbed=clean < _LEAST_LONG)


def _known(samples: Sequence[float]) -> bool:
    """Whether order statistics say with 95 % certainty where the median is; looked at whenever samples have doubled."""
    n = len(samples)
    if n & (n - 1):
        return False
    half = 0.98 * sqrt(n)
    low, high = int(n / 2 - half), ceil(n / 2 + half)
    if low < 0 or high >= n:
        return False
    ordered = sorted(samples)
    return ordered[high] - ordered[low] <= 2 * _KNOWN * ordered[n // 2]


class Clock(Protocol):
    """Tells how long launches take on one kind of device."""

    def sampler(self, calls: Sequence[Call]) -> Callable[[], Sample]:
        """What gives the time of one of `calls`, going round them so that none finds its tensors in the cache. [s]"""

    def wait(self) -> None:
        """Until all that was launched has ended.

        Raises HungError where that takes far longer than any launch.
        """


class HostClock:
    """Of launches that end before they return."""

    def sampler(self, calls: Sequence[Call]) -> Callable[[], Sample]:
        turn = cycle(calls)

        def sample() -> Sample:
            call, before, worked = next(turn), _interruptions(), process_time()
            start = perf_counter()
            call()
            seconds = perf_counter() - start
            worked = process_time() - worked  # of all threads
            lost = max(_SLICE_S * (_interruptions() - before), seconds - worked)
            return Sample(seconds, disturbed=lost > _SHARE * seconds)

        return sample

    def wait(self) -> None:
        """It has."""


def _interruptions() -> int:
    """How often a thread of this process had to make room for others."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class GpuClock:
    """Of launches on a GPU: events around the replay of a graph of them, or around them where they are long."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def sampler(self, calls: Sequence[Call]) -> Callable[[], Sample]:
        side = self._cuda.Stream()
        side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(side):  # compiles, and takes what memory it needs, before the capture
            for call in calls:
                call()
        self._cuda.current_stream().wait_stream(side)
        one = self._between(calls)
        if one > _LONG_S:
            launches = list(calls) * ceil(_BATCH_S / (one * len(calls)))
            self._heat(calls, one)
            return lambda: Sample(self._between(launches))
        graph = self._cuda.CUDAGraph()
        launches = list(calls) * ceil(_GRAPH / len(calls))
        with self._cuda.graph(graph):
            for call in launches:
                call()
        graph.replay()
        whole = (graph.replay,)
        each = self._between(whole)
        if each > _HEATS_S * len(launches):
            self._heat(whole, each)
        return lambda: Sample(self._between(whole) / len(launches))

    def _heat(self, calls: Sequence[Call], seconds: float) -> None:
        """Enough of `calls`, which take so long on average. No wait is between them and the first sample's own."""
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
        """The mean of `calls`, one after the other. [s]"""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        self._cuda._sleep(_AHEAD)  # noqa: SLF001 - has no public name; the first launch is not to be waited for
        start.record()
        for call in calls:
            call()
        end.record()
        self._await(end)
        return float(start.elapsed_time(end)) * 1e-3 / len(calls)
