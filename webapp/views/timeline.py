"""A profiler trace, uploaded or given at the start of the page, compared with the analysis."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.timeline_figures import part_bars
from llmviewer.reports.timeline_lanes import lane_figure
from llmviewer.timelines.against import Timeline, compare_recording
from llmviewer.timelines.launches import KernelSums, RecordedLaunches
from llmviewer.timelines.reading import parse_timeline, read_timeline

from ..errors import error_line
from ..results import DeviceResult
from ..state import State

MAX_TRACE_BYTES: Final = 50_000_000  # of an uploaded trace
MAX_UNPACKED_BYTES: Final = 500_000_000


@frozen
class DroppedTrace:
    """An uploaded trace."""

    name: str
    data: bytes


def timeline_of(trace: DroppedTrace | Path, result: DeviceResult, state: State) -> Timeline:
    """A pass of the trace compared with its analysis.

    Raises InputError with the name of the file and the problem.
    """
    phase = result.phase_name(state.phase)
    try:
        if isinstance(trace, Path):
            timeline = _read_from_disk(trace, trace.stat().st_mtime_ns, phase)
        else:
            timeline = _read_dropped(trace, phase)
        return compare_recording(
            timeline, result.analysis, file=trace.name, phase=phase, passes=state.passes or None,
            stage=state.stage or None,
        )  # fmt: skip
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{trace.name}: the file no longer exists") from None
    except Exception as error:  # noqa: BLE001 - the page stays
        raise InputError(f"{trace.name}: {error_line(error, 'a trace')}") from None


def part_figure(timeline: Timeline) -> PageFigure:
    """Bars of the groups of operators: recorded, expected and bound."""
    return page_figure(part_bars(timeline))


def launch_figure(timeline: Timeline) -> PageFigure | None:
    """Launches in time; None if the file has only sums by kernel."""
    figure = lane_figure(timeline)
    return None if figure is None else page_figure(figure)


@lru_cache(maxsize=2)
def _read_from_disk(path: Path, _changed: int, phase: str) -> RecordedLaunches | KernelSums:
    """Launches of a file, cached by its path and time of modification."""
    try:
        return read_timeline(path, phase)
    except InputError as error:
        raise InputError(str(error).replace(str(path), path.name)) from None


@lru_cache(maxsize=2)
def _read_dropped(trace: DroppedTrace, phase: str) -> RecordedLaunches | KernelSums:
    if len(trace.data) > MAX_TRACE_BYTES:
        raise InputError(f"{trace.name}: must have at most {MAX_TRACE_BYTES:,} bytes; got {len(trace.data):,}")
    try:
        return parse_timeline(trace.data, trace.name, phase, max_bytes=MAX_UNPACKED_BYTES)
    except InputError as error:
        raise InputError(error.reason) from None  # without its hint, which names a command-line option
