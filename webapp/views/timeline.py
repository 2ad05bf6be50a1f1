"""A trace that a user drops in, or that the page was started with, beside the analysis of what is asked."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.timeline_figures import part_bars
from llmviewer.timelines.against import Timeline, compare_recording
from llmviewer.timelines.launches import KernelSums, RecordedLaunches
from llmviewer.timelines.reading import parse_timeline, read_timeline

from ..answers import Answer, fault
from ..state import State

LARGEST: Final = 50_000_000  # of a trace that is dropped in [B]
LARGEST_UNPACKED: Final = 500_000_000  # [B]


@frozen
class Dropped:
    """A file that the browser holds."""

    name: str
    data: bytes


def found_in(trace: Dropped | Path, answer: Answer, state: State) -> Timeline:
    """A pass of the trace beside its analysis.

    Raises InputError, which names the file and what is wrong with it.
    """
    phase = answer.phase_name(state.phase)
    try:
        if isinstance(trace, Path):
            timeline = _on_disk(trace, trace.stat().st_mtime_ns, phase)
        else:
            timeline = _dropped(trace, phase)
        return compare_recording(
            timeline, answer.analysis, file=trace.name, phase=phase, passes=state.passes or None,
            stage=state.stage or None,
        )  # fmt: skip
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{trace.name}: is no longer there") from None
    except Exception:  # noqa: BLE001 - the page stays
        raise InputError(f"{trace.name}: {fault('a trace')}") from None


def bars(found: Timeline) -> PageFigure:
    return page_figure(part_bars(found))


# Read anew only where the file or the phase is another.


@lru_cache(maxsize=2)
def _on_disk(path: Path, _changed: int, phase: str) -> RecordedLaunches | KernelSums:
    try:
        return read_timeline(path, phase)
    except InputError as error:
        raise InputError(str(error).replace(str(path), path.name)) from None


@lru_cache(maxsize=2)
def _dropped(trace: Dropped, phase: str) -> RecordedLaunches | KernelSums:
    if len(trace.data) > LARGEST:
        raise InputError(f"{trace.name}: must have at most {LARGEST:,} bytes; got {len(trace.data):,}")
    try:
        return parse_timeline(trace.data, trace.name, phase, max_bytes=LARGEST_UNPACKED)
    except InputError as error:
        raise InputError(error.reason) from None  # its hint names an option of the command line
