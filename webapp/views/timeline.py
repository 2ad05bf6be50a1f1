"""A profiler trace, uploaded or given at the start of the page, compared with the analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.report import Report
from llmviewer.reports.server_steps import REPORT as SERVER
from llmviewer.reports.timeline import REPORT as TIMELINE
from llmviewer.reports.timeline_figures import part_bars, rank_bars
from llmviewer.reports.timeline_lanes import lane_figure
from llmviewer.reports.trace_pairs import REPORT as PAIR
from llmviewer.reports.trace_ranks import REPORT as RANKS
from llmviewer.timelines.against import Timeline, compare_recording
from llmviewer.timelines.launches import KernelSums, RecordedLaunches
from llmviewer.timelines.pairs import pair
from llmviewer.timelines.ranks import RankedTimeline, compare_ranks
from llmviewer.timelines.reading import parse_timeline, read_timeline
from llmviewer.timelines.server_metrics import TelemetryFile, is_telemetry_text, parse_telemetry
from llmviewer.timelines.server_steps import ServerSteps, compare_server, request_of

from ..errors import error_line
from ..results import DeviceResult, device_results
from ..state import State

MAX_TRACE_BYTES: Final = 50_000_000  # of an uploaded trace
MAX_UNPACKED_BYTES: Final = 500_000_000  # of all uploaded traces
MAX_TELEMETRY_BYTES: Final = 5_000_000  # of metrics or a log of a server
_HEAD_BYTES: Final = 100_000
_REQUEST_FIELDS: Final = {"kv_len": "context"}  # fields of the state, where the request has another name


@frozen
class DroppedTrace:
    """An uploaded trace."""

    name: str
    data: bytes


def timeline_of(trace: DroppedTrace | Path, result: DeviceResult, state: State, *, uploaded: int = 1) -> Timeline:
    """A pass of the trace, one of some `uploaded` together, compared with its analysis.

    Raises InputError with the name of the file and the problem.
    """
    phase = result.phase_name(state.phase)
    try:
        if isinstance(trace, Path):
            timeline = _read_from_disk(trace, trace.stat().st_mtime_ns, phase)
        else:
            timeline = _read_dropped(trace, phase, MAX_UNPACKED_BYTES // uploaded)
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


def recorded(
    traces: Sequence[DroppedTrace] | Path, results: Sequence[DeviceResult], state: State
) -> tuple[Report[Any], Any]:
    """The report on a trace or several, or on metrics or logs of a server; and its result.

    Several traces are those of ranks, or two recordings of one model, the second on the second device if there is one.

    Raises InputError with the name of the file and the problem.
    """
    if isinstance(traces, Path):
        return TIMELINE, timeline_of(traces, results[0], state)
    telemetry = [text for text in map(_telemetry, traces) if text]
    if telemetry:
        if len(telemetry) < len(traces):
            raise InputError(f"{telemetry[0].name}: is of a server, but other files are traces; drop them separately")
        return SERVER, _server_steps(telemetry, state)
    if len(traces) == 1:
        return TIMELINE, timeline_of(traces[0], results[0], state)
    if state.recordings == "pair":
        if len(traces) != 2:
            raise InputError(f"the traces before and after a change must be two; got {len(traces)}")
        before, after = (
            timeline_of(one, result, state, uploaded=2)
            for one, result in zip(traces, (results[0], results[:2][-1]), strict=True)
        )
        return PAIR, pair(before, after)
    return RANKS, _ranked(traces, results[0], state)


def _ranked(traces: Sequence[DroppedTrace], result: DeviceResult, state: State) -> RankedTimeline:
    """The ranks of a run.

    Raises InputError with the name of the file and the problem.
    """
    names = [one.name for one in traces]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise InputError(f"{repeated}: is given more than once; give one file for each rank")
    phase = result.phase_name(state.phase)
    try:
        recordings = {one.name: _read_dropped(one, phase, MAX_UNPACKED_BYTES // len(traces)) for one in traces}
        return compare_ranks(recordings, result.analysis, phase=phase, passes=state.passes or None)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the page stays
        raise InputError(f"{names[0]}: {error_line(error, 'traces of ranks')}") from None


def _telemetry(trace: DroppedTrace) -> TelemetryFile | None:
    """An uploaded file as metrics or log of a server; None if it is another one.

    Raises InputError if it is too large.
    """
    if not is_telemetry_text(trace.data[:_HEAD_BYTES].decode(errors="replace")):
        return None
    if len(trace.data) > MAX_TELEMETRY_BYTES:
        raise InputError(f"{trace.name}: must have at most {MAX_TELEMETRY_BYTES:,} bytes; got {len(trace.data):,}")
    return TelemetryFile(trace.name, trace.data.decode(errors="replace"))


def _server_steps(files: Sequence[TelemetryFile], state: State) -> ServerSteps:
    """Steps of a server, since it started or between two files; batch and lengths are those that it counted.

    Raises InputError with the name of the file and the problem.
    """
    *earlier, last = files
    if len(earlier) > 1:
        raise InputError(f"metrics of a server are one file, or an earlier and a later one; got {len(files)}")
    try:
        load = parse_telemetry(last, *earlier)
        counted: dict[str, Any] = {_REQUEST_FIELDS.get(name, name): value for name, value in request_of(load).items()}
        counted_state = replace(state, on=state.on[:1], step="", **counted).with_files(state.files)
        return compare_server(load, device_results(counted_state)[0].analysis, file=last.name)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the page stays
        raise InputError(f"{last.name}: {error_line(error, 'metrics')}") from None


def part_figure(timeline: Timeline) -> PageFigure:
    """Bars of the groups of operators: recorded, expected and bound."""
    return page_figure(part_bars(timeline))


def rank_figure(result: RankedTimeline) -> PageFigure:
    """Bars of the ranks of a run."""
    return page_figure(rank_bars(result))


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
def _read_dropped(trace: DroppedTrace, phase: str, max_bytes: int) -> RecordedLaunches | KernelSums:
    if len(trace.data) > MAX_TRACE_BYTES:
        raise InputError(f"{trace.name}: must have at most {MAX_TRACE_BYTES:,} bytes; got {len(trace.data):,}")
    try:
        return parse_timeline(trace.data, trace.name, phase, max_bytes=max_bytes)
    except InputError as error:
        raise InputError(error.reason) from None  # without its hint, which names a command-line option
