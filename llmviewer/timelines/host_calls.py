"""Kernels of a trace traced back to the host: the operator and modules that launched each, and the range that an engine
named.

A kernel and the call that launched it share a correlation. Where calls are missing, a kernel may name its operator by
an "External id". Kernels of a CUDA graph share the one call that launched the graph, so they have no operator.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import isfinite
from operator import attrgetter
from typing import Any, Final, NamedTuple

from .launches import EngineStep, Operands, RecordedLaunch, steps_of

CALLS: Final = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")  # categories of calls that launch kernels
_MULTIPLIES: Final = re.compile(r"::\w*(mm|linear|matmul|gemm|gemv|addmv)(_|\d|\b)", re.IGNORECASE)
_MAX_MODULES: Final = 8  # innermost modules of a path
WAIT_CALLS: Final = re.compile(r"(cuda|hip|cu)\w*Synchronize", re.IGNORECASE)


class Origin(NamedTuple):
    """Numbers by which the host's call and operator of a kernel are found; None if not recorded."""

    correlation: int | None
    external: int | None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Origin:
        return cls(
            _int_or_none(args.get("correlation")), _int_or_none(args.get("External id", args.get("external id")))
        )


class HostCall(NamedTuple):
    """A call that launched kernels: its thread and when it began. [s]"""

    thread: str
    start: float


class HostCalls(NamedTuple):
    """Calls by correlation, and the operators of the host with their numbers.

    externals  operators by "External id"
    modules    ranges of modules of torch
    """

    calls: Mapping[int, HostCall]
    operators: Sequence[RecordedLaunch]
    externals: Mapping[int, RecordedLaunch]
    modules: Sequence[RecordedLaunch] = ()

    def calls_of(self, origins: Iterable[Origin]) -> list[HostCall | None]:
        """The call that launched each kernel; None if it is unknown."""
        return list(map(self._call, origins))

    def operands(self, origins: Sequence[Origin]) -> list[Operands | None]:
        """The operands of the product that launched each kernel; None if it is unknown."""
        operands: list[Operands | None] = [None] * len(origins)
        products = [one for one in self.operators if one.operands and _MULTIPLIES.search(one.name)]
        for place, running in _running(self._calls_by_place(origins), products):
            operands[place] = running[-1].operands
        for place, origin in enumerate(origins):
            operator = self._operator(origin)
            if operator and self._call(origin) is None and _MULTIPLIES.search(operator.name):
                operands[place] = operator.operands
        return operands

    def modules_of(self, origins: Sequence[Origin]) -> list[str]:
        """The path of modules around the call of each kernel, as modules.modules_of() reads it; "" if unknown."""
        paths = [""] * len(origins)
        calls = self._calls_by_place(origins)
        named = [one for one in self.operators if one.module]
        for place, running in _running(calls, named):
            paths[place] = running[-1].module
        called_places = {place for place, _ in calls}
        for place, origin in enumerate(origins):
            if place not in called_places and (operator := self._operator(origin)):
                calls.append((place, HostCall(operator.device, operator.start)))
                paths[place] = operator.module
        for place, running in _running(calls, self.modules):
            paths[place] = paths[place] or _path(running)
        return paths

    def steps(
        self, kernels: Sequence[RecordedLaunch], origins: Sequence[Origin], named: Iterable[RecordedLaunch]
    ) -> tuple[EngineStep, ...]:
        """The passes that ranges of the host name, from the start of the first kernel that each launched.

        Ranges whose kernels are unknown start with the first kernel after their begin.
        """
        ranges = sorted(named, key=attrgetter("start"))
        steps = steps_of(ranges)
        if not steps:
            return ()
        starts = [kernel.start for kernel in kernels]
        launched = sorted(
            (call.start, start) for origin, start in zip(origins, starts, strict=True) if (call := self._call(origin))
        )
        if not launched:
            return steps
        times = [time for time, _ in launched]
        places = [*(bisect_left(times, step.start_s) for step in steps), len(launched)]
        return tuple(
            replace(step, start_s=min(start for _, start in launched[first:stop]))
            for step, (first, stop) in zip(steps, pairwise(places), strict=True)
            if first < stop
        )

    def _call(self, origin: Origin) -> HostCall | None:
        return None if origin.correlation is None else self.calls.get(origin.correlation)

    def _operator(self, origin: Origin) -> RecordedLaunch | None:
        return None if origin.external is None else self.externals.get(origin.external)

    def _calls_by_place(self, origins: Iterable[Origin]) -> list[tuple[int, HostCall]]:
        """Places of kernels with known calls."""
        return [(place, call) for place, origin in enumerate(origins) if (call := self._call(origin))]


def with_modules(operators: Iterable[RecordedLaunch], modules: Sequence[RecordedLaunch]) -> list[RecordedLaunch]:
    """Operators of the host with the modules around them."""
    work = list(operators)
    calls = ((place, HostCall(one.device, one.start)) for place, one in enumerate(work) if not one.module)
    for place, running in _running(calls, modules):
        work[place] = work[place]._replace(module=_path(running))
    return work


def _path(modules: Sequence[RecordedLaunch]) -> str:
    return sys.intern(".".join(one.name for one in modules[-_MAX_MODULES:]))


def _running(
    calls: Iterable[tuple[int, HostCall]], ranges: Iterable[RecordedLaunch]
) -> Iterator[tuple[int, Sequence[RecordedLaunch]]]:
    """(place, ranges of its thread that run at its call, the outermost first) of each call within a range."""
    threads: dict[str, list[RecordedLaunch]] = {}
    for one in ranges:
        threads.setdefault(one.device, []).append(one)
    for thread, group in groupby(sorted(calls, key=lambda each: each[1]), lambda each: each[1].thread):
        waiting = iter(sorted(threads.get(thread, ()), key=lambda one: (one.start, -one.duration)))
        following = next(waiting, None)
        running: list[RecordedLaunch] = []
        for place, call in group:
            while following is not None and following.start <= call.start:
                while running and running[-1].start + running[-1].duration < following.start:
                    running.pop()
                running.append(following)
                following = next(waiting, None)
            while running and running[-1].start + running[-1].duration < call.start:
                running.pop()
            if running:
                yield place, running


def parse_wait(event: Mapping[str, Any]) -> tuple[float, float] | None:
    """(start, end) of a call in which the host waits for a device; None for other calls, and without times. [s]"""
    if not WAIT_CALLS.search(str(event.get("name", ""))):
        return None
    start, duration = event.get("ts"), event.get("dur")
    if any(isinstance(time, bool) or not isinstance(time, int | float) for time in (start, duration)):
        return None
    assert start is not None
    assert duration is not None
    begin, end = 1e-6 * float(start), 1e-6 * (float(start) + float(duration))
    return (begin, end) if isfinite(begin) and isfinite(end) else None


def parse_call(event: Mapping[str, Any]) -> tuple[int, HostCall] | None:
    """The correlation of a call and the call; None if it has none, or no time."""
    args = event.get("args")
    correlation = _int_or_none(args.get("correlation")) if isinstance(args, dict) else None
    start = event.get("ts")
    if correlation is None or isinstance(start, bool) or not isinstance(start, int | float):
        return None
    return correlation, HostCall(sys.intern(f"{event.get('pid')}, {event.get('tid')}"), 1e-6 * float(start))


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
