"""Recordings of all ranks of a run: the slowest one, waiting in collectives, imbalance, overlap, pipeline bubbles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..analyzing.analysis import Analysis
from ..errors import InputError
from ..records import frozen
from .against import Timeline, compare_recording, default_phase
from .kinds import Part
from .launches import KernelSums, RecordedLaunches

SCHEMA_VERSION: Final = 1
MAX_RANKS: Final = 1024
_SUFFIXES: Final = (".json", ".json.gz", ".sqlite", ".csv")
_RANK_IN_NAME: Final = re.compile(r"(?:rank|\btp|device)[-_ ]?(\d{1,6})(?!\d)", re.IGNORECASE)


@frozen(kw_only=True)
class RankOfRun:
    """Times of one rank in a mean pass. [s]

    stage            pipeline stage, from 1; None without a pipeline
    compute_s        time in which a kernel other than of communication runs
    experts_s        of it, kernels of experts; 0 without
    communication_s  time in which communication runs
    overlapped_s     of it, time in which other kernels run as well
    waiting_s        time in collectives that other ranks entered later; None if ranks differ in their collectives
    idle_s           time in which nothing runs
    expected_idle_share  expected idle share of a stage; None without a pipeline
    """

    rank: int
    file: str
    stage: int | None
    pass_s: float
    compute_s: float
    experts_s: float
    communication_s: float
    overlapped_s: float
    waiting_s: float | None
    idle_s: float
    expected_idle_share: float | None = None

    @property
    def exposed_s(self) -> float:
        """Communication during which nothing else runs. [s]"""
        return self.communication_s - self.overlapped_s


@frozen(kw_only=True)
class RankedTimeline:
    """Recordings of the ranks of a run, in order of rank.

    timelines  each rank compared with its analysis
    ranks      times of each
    """

    timelines: tuple[Timeline, ...] = field(repr=False)
    ranks: tuple[RankOfRun, ...]

    @property
    def analysis(self) -> Analysis:
        """The analysis, which all ranks share."""
        return self.timelines[0].analysis

    @property
    def phase(self) -> str:
        return self.timelines[0].phase

    @cached_property
    def slowest(self) -> int:
        """Place of the rank with the most computation; in a pipeline, of the slowest stage."""
        return max(range(len(self.ranks)), key=lambda place: self.ranks[place].compute_s)

    @property
    def pass_s(self) -> float:
        """Time of a pass on the rank where it takes longest. [s]"""
        return max(rank.pass_s for rank in self.ranks)

    @property
    def mean_waiting_s(self) -> float | None:
        """Mean time in collectives that other ranks entered later; None if unknown. [s]"""
        times_s = [rank.waiting_s for rank in self.ranks if rank.waiting_s is not None]
        return fmean(times_s) if len(times_s) == len(self.ranks) else None

    @property
    def compute_imbalance(self) -> float:
        """Largest computing time of a rank over the mean of its stage; 1 if all are equal."""
        return max(self._over_mean(lambda rank: rank.compute_s))

    @property
    def expert_imbalance(self) -> float | None:
        """The same of kernels of experts; None without."""
        return max(self._over_mean(lambda rank: rank.experts_s)) if any(rank.experts_s for rank in self.ranks) else None

    @property
    def balanced_speed_up(self) -> float:
        """Time of a pass over its time if the slowest rank computed as long as the mean of its stage."""
        slowest = self.ranks[self.slowest]
        mean_s = fmean(rank.compute_s for rank in self.ranks if rank.stage == slowest.stage)
        return self.pass_s / (self.pass_s - (slowest.compute_s - mean_s))

    def _over_mean(self, time_of: Callable[[RankOfRun], float]) -> Iterator[float]:
        """Time of each rank over the mean of its stage."""
        for rank in self.ranks:
            mean_s = fmean(time_of(other) for other in self.ranks if other.stage == rank.stage)
            yield time_of(rank) / mean_s if mean_s else 1.0

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        first = self.timelines[0].inputs
        return {**first, "file": [timeline.file for timeline in self.timelines], "stage": None}

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each rank."""
        for rank in self.ranks:
            yield {**asdict(rank), "exposed_s": rank.exposed_s}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/timeline.md lists its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.analysis.model.name,
            "hardware": self.analysis.hardware.name,
            "inputs": self.inputs,
            "pass_time_s": self.pass_s,
            "ranks": list(self.rows()),
            "slowest_rank": self.ranks[self.slowest].rank,
            "mean_waiting_s": self.mean_waiting_s,
            "compute_imbalance": self.compute_imbalance,
            "expert_imbalance": self.expert_imbalance,
            "balanced_speed_up": self.balanced_speed_up,
            "slowest": self.timelines[self.slowest].to_dict(),
        }


def rank_files(paths: Sequence[Path]) -> list[Path]:
    """The files of a run: those given, and of a folder those that may be traces, by name.

    Raises InputError if a folder has none, a file is given twice, or there are too many.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(_SUFFIXES))
            if not inside:
                raise InputError(f"{path}: has no file of a profiler ({', '.join(_SUFFIXES)})")
            files += inside
        else:
            files.append(path)
    if len(files) > MAX_RANKS:
        raise InputError(f"at most {MAX_RANKS:,} files of ranks are read; got {len(files):,}")
    counts = Counter(file.resolve() for file in files)
    repeated = next((file for file in files if counts[file.resolve()] > 1), None)
    if repeated:
        raise InputError(f"{repeated}: is given more than once; give one file for each rank")
    return files


def devices_of(path: Path, recording: RecordedLaunches | KernelSums) -> dict[str, RecordedLaunches | KernelSums]:
    """Each device of a recording, by its name in reports."""
    if isinstance(recording, KernelSums):
        return {str(path): recording}
    devices = sorted((recording, *recording.others), key=lambda device: device.device)
    return {f"{path} device {one.device}": one for one in devices}


def compare_ranks(
    recordings: Mapping[str, RecordedLaunches | KernelSums],
    analysis: Analysis,
    *,
    phase: str | None,
    passes: int | None,
) -> RankedTimeline:
    """Compares the recordings of ranks with an analysis and with each other.

    recordings  by name of their file, or of their device in it
    phase       as in `timeline`; None: of the first recording

    Raises InputError if a recording has only sums by kernel, or is invalid.
    """
    for name, recording in recordings.items():
        if isinstance(recording, KernelSums):
            raise InputError(f"{name}: has sums by kernel; ranks are compared by their launches in time")
    phase = phase or default_phase(next(iter(recordings.values())), analysis)
    numbers = _rank_numbers(recordings)
    stages = analysis.setting.layout.pp
    ranks_in_run = max(analysis.setting.layout.devices, max(numbers) + 1)
    ordered = sorted(zip(numbers, recordings.items(), strict=True), key=lambda rank: rank[0])
    timelines = tuple(
        compare_recording(
            recording, analysis, file=name, phase=phase, passes=passes,
            stage=1 + number * stages // ranks_in_run if stages > 1 else None,
        )
        for number, (name, recording) in ordered
    )  # fmt: skip
    waiting_s = _waiting_s(timelines)
    return RankedTimeline(
        timelines=timelines,
        ranks=tuple(
            _rank(number, timeline, wait_s)
            for (number, _), timeline, wait_s in zip(ordered, timelines, waiting_s, strict=True)
        ),
    )


def _rank_numbers(recordings: Mapping[str, RecordedLaunches | KernelSums]) -> list[int]:
    """The rank of each recording: as the file has it, else as its name has it, else by order."""
    in_files = [
        recording.rank if isinstance(recording, RecordedLaunches) else None for recording in recordings.values()
    ]
    in_names = [int(match[1]) if (match := _RANK_IN_NAME.search(Path(name).name)) else None for name in recordings]
    for numbers in (in_files, in_names):
        distinct = [number for number in numbers if number is not None]
        if len(set(distinct)) == len(recordings):
            return distinct
    return list(range(len(recordings)))


def _rank(number: int, timeline: Timeline, waiting_s: float | None) -> RankOfRun:
    recording = timeline.recording
    assert isinstance(recording, RecordedLaunches)
    communicates = _communicates(timeline, recording)
    compute_s = communication_s = busy_s = 0.0
    for start, stop in timeline.passes.spans:
        of_pass = np.zeros(len(recording.names), bool)
        of_pass[start:stop] = True
        compute_s += _covered_s(recording, of_pass & ~communicates)
        communication_s += _covered_s(recording, of_pass & communicates)
        busy_s += _covered_s(recording, of_pass)
    count = len(timeline.passes.spans)
    return RankOfRun(
        rank=number,
        file=timeline.file,
        stage=timeline.stage,
        pass_s=timeline.time_s,
        compute_s=compute_s / count,
        experts_s=sum(part.measured_s for part in timeline.parts if part.part == Part.EXPERTS),
        communication_s=communication_s / count,
        overlapped_s=max(round(compute_s + communication_s - busy_s, 12), 0.0) / count,  # clocks count nanoseconds
        waiting_s=waiting_s,
        idle_s=timeline.idle_s or 0.0,
        expected_idle_share=_expected_idle_share(timeline),
    )


def _communicates(timeline: Timeline, recording: RecordedLaunches) -> NDArray[np.bool_]:
    """Whether each launch is one of communication."""
    return np.array([timeline.part_by_name[name] is Part.COMMUNICATION for name in recording.names], bool)


def _covered_s(recording: RecordedLaunches, chosen: NDArray[np.bool_]) -> float:
    """Time in which any of the chosen launches runs. [s]"""
    starts_s = recording.start_s[chosen]
    if not len(starts_s):
        return 0.0
    ends_s = np.maximum.accumulate(starts_s + recording.duration_s[chosen])
    free_s = np.maximum(starts_s[1:] - ends_s[:-1], 0.0)
    return float(ends_s[-1] - starts_s[0] - free_s.sum())


def _waiting_s(timelines: Sequence[Timeline]) -> list[float | None]:
    """Time of each rank in collectives that other ranks of its stage entered later; None if they differ in number. [s]

    Of all ranks, the last to enter a collective is the shortest time in it, whatever the clocks of their hosts show.
    """
    durations = [_collectives_s(timeline) for timeline in timelines]
    waiting: list[float | None] = []
    for timeline, own_s in zip(timelines, durations, strict=True):
        stage = [each for other, each in zip(timelines, durations, strict=True) if other.stage == timeline.stage]
        if own_s is None or not own_s.size or any(each is None or each.shape != own_s.shape for each in stage):
            waiting.append(None)
            continue
        shortest_s = np.min([each for each in stage if each is not None], axis=0)
        waiting.append(float((own_s - shortest_s).sum(axis=1).mean()))
    return waiting


def _collectives_s(timeline: Timeline) -> NDArray[np.float64] | None:
    """Times of the launches of communication, a row for each pass; None if passes differ in their number. [s]"""
    recording = timeline.recording
    assert isinstance(recording, RecordedLaunches)
    communicates = _communicates(timeline, recording)
    passes = [recording.duration_s[start:stop][communicates[start:stop]] for start, stop in timeline.passes.spans]
    return np.array(passes) if len({len(each) for each in passes}) == 1 else None


def _expected_idle_share(timeline: Timeline) -> float | None:
    """Share of a pass of all micro-batches in which a stage is expected to wait; None without a pipeline."""
    if timeline.stage is None:
        return None
    phase = timeline.of_phase
    if phase.expected_time_s is not None and timeline.expected_s is not None:
        return max(1 - phase.micro_batches * timeline.expected_s / phase.expected_time_s, 0.0)
    return max(1 - phase.micro_batches * timeline.bound_s / phase.time_s, 0.0)
