"""What techniques do to a whole generation: its passes, and everything that counts, with them and without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .setting import Setting
from .techniques import Run, Schedule
from .workload import Workload

_LARGEST: Final = 4096  # batch that is looked at
_FAN: Final = 16  # batches at a time
_LONG: Final = 512  # tokens of an answer that say enough
_WORTH: Final = 1.001  # less than that is no gain


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Passes of one kind in a generation. `before` says whether they come before the first token.

    passes  how many there are on average
    """

    name: str
    before: bool
    passes: float
    time_s: float
    ops: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A generation in numbers. Times are lower bounds; tpot_s is None where one token is generated.

    ops, bytes    of all passes, on one device of each stage [OP], [B]
    memory_bytes  at the peak [B]
    """

    ttft_s: float
    tpot_s: float | None
    latency_s: float
    tokens_per_s: float
    ops: float
    bytes: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What techniques do. Where a technique says when it pays and when not, `findings` has the number and the words.

    tokens_per_step   of each sequence, after the first, for each pass of the model; None where there is no such pass
    pays_up_to_batch  the largest batch at which tokens after the first come faster: 0 where at none, None where no
                      batch was found at which they do not
    """

    techniques: tuple[str, ...]
    runs: tuple[RunResult, ...]
    tokens_per_step: float | None
    result: Whole
    without: Whole
    pays_up_to_batch: int | None
    findings: dict[str, float | None]
    said: tuple[str, ...]

    @property
    def speed_up(self) -> float:
        """Latency without the techniques over that with them."""
        return self.without.latency_s / self.result.latency_s


def effect(
    setting: Setting, schedule: Schedule, step: Workload | None, *, batch: int, prompt: int, gen: int, images: int
) -> Effect:
    """Of the techniques of `setting`, whose passes are those of `schedule`; `step` is the decode step shown."""
    asked = {"batch": batch, "prompt": prompt, "gen": gen, "images": images}
    bare = setting.bare()
    findings = [f for one in setting.techniques if step for f in one.findings(setting, step)]
    pays = _pays(setting, bare, prompt=prompt, gen=gen) if schedule.rest else 0
    word = (f"tokens after the first come faster up to batch {pays}, if it fits",) if pays else ()
    return Effect(
        techniques=tuple(map(str, setting.techniques)),
        runs=(*(_run(run, before=True) for run in schedule.first), *(_run(run, before=False) for run in schedule.rest)),
        tokens_per_step=float(schedule.tokens_per_step) if schedule.rest else None,
        result=_whole(setting, schedule, **asked),
        without=_whole(bare, bare.schedule(**asked), **asked),
        pays_up_to_batch=pays,
        findings={f.key: f.value for f in findings},
        said=(*(f.text for f in findings), *word),
    )


def _pays(setting: Setting, bare: Setting, *, prompt: int, gen: int) -> int | None:
    """Effect.pays_up_to_batch, found by a few batches at a time."""
    low, high = 0, _LARGEST + 1
    while high - low > 1:
        tried = np.unique(np.geomspace(low + 1, high - 1, _FAN).round())
        batch, length = tried[:, None], min(gen, _LONG)
        ours, theirs = (one.schedule(batch=batch, prompt=prompt, gen=length).decoding_s for one in (setting, bare))
        slower = np.flatnonzero(np.less_equal(theirs, np.multiply(ours, _WORTH)))
        faster = tried[: slower[0]] if slower.size else tried
        low = int(faster[-1]) if faster.size else low
        high = int(tried[slower[0]]) if slower.size else high
    return None if high > _LARGEST else low


def _run(run: Run, *, before: bool) -> RunResult:
    return RunResult(
        name=run.name,
        before=before,
        passes=float(run.passes),
        time_s=float(run.time_s),
        ops=float(run.amount("ops")),
        bytes=float(run.amount("bytes")),
    )


def _whole(setting: Setting, schedule: Schedule, *, batch: int, prompt: int, gen: int, images: int) -> Whole:
    runs = (*schedule.first, *schedule.rest)
    return Whole(
        ttft_s=float(schedule.ttft_s),
        tpot_s=float(schedule.tpot_s) if schedule.rest else None,
        latency_s=float(schedule.latency_s),
        tokens_per_s=float(schedule.answer / schedule.latency_s),
        ops=float(sum(run.amount("ops") for run in runs)),
        bytes=float(sum(run.amount("bytes") for run in runs)),
        memory_bytes=float(setting.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen, images=images)),
    )
