"""Idle time of a recorded device: gaps in which nothing runs, and what the device waits for in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from .kinds import Part
from .launches import RecordedLaunches
from .passes import Span

_LATENCY_QUANTILE: Final = 0.01  # of times from call to start: the latency of a launch on an idle device


class IdleCause(StrEnum):
    """Cause for which a device is idle.

    HOST             the host, which calls for the next launch after the device is idle
    SYNCHRONIZATION  the host, which itself waited for the device before it called
    COMMUNICATION    a dependency between communication and computation; the launch was queued before
    QUEUED           the start of a launch that was queued before: dependencies, and the time to start a kernel
    UNKNOWN          the file has no calls of the host
    """

    HOST = "host"
    SYNCHRONIZATION = "synchronization"
    COMMUNICATION = "communication"
    QUEUED = "queued launches"
    UNKNOWN = "unknown"


class IdleGap(NamedTuple):
    """A gap before a launch.

    launch             number of the launch
    start, duration    [s]
    """

    launch: int
    start: float
    duration: float
    cause: IdleCause


def idle_gaps(recording: RecordedLaunches, parts: Mapping[str, Part]) -> list[IdleGap]:
    """All gaps of a recording, in order.

    parts  part of each kernel
    """
    places = np.flatnonzero(recording.pauses_s > 0)
    ends_s = recording.ended_s[places - 1]
    called_s = recording.called_s[places] if len(recording.called_s) else np.full(len(places), np.nan)
    latency_s = _launch_latency_s(recording)
    last_waits = np.searchsorted(recording.waits_s[:, 0], called_s, side="right") - 1
    gaps = []
    for place, end_s, call_s, wait in zip(
        places.tolist(), ends_s.tolist(), called_s.tolist(), last_waits.tolist(), strict=True
    ):
        wait_end_s = recording.waits_s[wait, 1] if wait >= 0 else -np.inf
        if recording.host:
            cause = IdleCause.HOST
        elif np.isnan(call_s):
            cause = IdleCause.UNKNOWN
        elif call_s + latency_s > end_s:
            cause = IdleCause.SYNCHRONIZATION if end_s <= wait_end_s <= call_s else IdleCause.HOST
        elif Part.COMMUNICATION in (parts[recording.names[place]], parts[recording.names[place - 1]]):
            cause = IdleCause.COMMUNICATION
        else:
            cause = IdleCause.QUEUED
        gaps.append(IdleGap(launch=place, start=end_s, duration=float(recording.pauses_s[place]), cause=cause))
    return gaps


def idle_by_cause(gaps: Iterable[IdleGap], spans: Sequence[Span]) -> dict[IdleCause, float]:
    """Mean idle time of passes by cause, the longest first; a gap belongs to the pass before its launch. [s]"""
    ordered = list(gaps)
    places = np.array([gap.launch for gap in ordered], int)
    sums_s: dict[IdleCause, float] = {}
    for start, stop in spans:
        first, last = np.searchsorted(places, [start, stop], side="right").tolist()
        for gap in ordered[first:last]:
            sums_s[gap.cause] = sums_s.get(gap.cause, 0.0) + gap.duration
    return {cause: time_s / len(spans) for cause, time_s in sorted(sums_s.items(), key=lambda each: -each[1])}


def _launch_latency_s(recording: RecordedLaunches) -> float:
    """Time from a call to the start of its launch if the device is idle. [s]"""
    if not len(recording.called_s):
        return 0.0
    delays_s = recording.start_s - recording.called_s
    delays_s = delays_s[delays_s > 0]  # nan is not
    return float(np.quantile(delays_s, _LATENCY_QUANTILE)) if len(delays_s) else 0.0
