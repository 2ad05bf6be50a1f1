"""Prompts of different lengths, packed or padded to the longest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Final, TypeAlias

from ..documents import read_text
from ..errors import InputError
from ..records import frozen
from ..workload import Spans, Workload
from . import technique
from ._parameters import parameter
from ._schedule import Run, Schedule, each
from ._technique import Finding, Kind, Requirement, SettingView, Technique
from .passes import Parallel

_LengthChange: TypeAlias = Callable[[Spans, int], Spans]

_MAX_LENGTHS: Final = 1000  # distinct lengths in a file


@technique("lengths")
@frozen(kw_only=True)
class PromptLengths(Technique):
    """Prompts of the lengths in a file, packed without padding or padded to the longest.

    Effect: a pass has the tokens of all prompts together (packed), or as many for each prompt as for the longest. Each
    length has its share of `batch` prompts. --prompt is not used.
    Formula: tokens = sum of lengths, or batch x the longest; attention is within each sequence.
    Source: arXiv:2210.03052 (ByteTransformer); arXiv:2404.14294, section 6.1.1.
    Use when: lengths differ much, and you want to quantify the cost of padding.
    Limits: how requests are grouped into batches is not modeled. The memory of packed prompts is that of a batch with
    all lengths in their shares.
    """

    kind = Kind.INPUT
    requires = Requirement.NOTHING
    order = -9

    file: str = parameter("text file with one length per line")
    packed: bool = parameter("whether prompts are packed without padding", default=True)

    @cached_property
    def counts(self) -> Counter[int]:
        """Number of lines of the file by length."""
        lines_by_length: Counter[int] = Counter()
        for number, line in enumerate(read_text(Path(self.file)).splitlines(), 1):
            if not line.strip():
                continue
            if not re.fullmatch(r"[1-9]\d{0,8}", line.strip()):
                raise InputError(
                    f"{self.file}:{number}: must be a whole number from 1 to 999999999; got {line.strip()!r}"
                )
            lines_by_length[int(line)] += 1
        if not lines_by_length or len(lines_by_length) > _MAX_LENGTHS:
            raise InputError(
                f"{self.file}: must have from 1 to {_MAX_LENGTHS} different lengths; got {len(lines_by_length)}"
            )
        return lines_by_length

    @property
    def longest(self) -> int:
        return max(self.counts)

    @property
    def mean(self) -> float:
        return sum(length * times for length, times in self.counts.items()) / self.counts.total()

    @property
    def _shown(self) -> int:
        """Prompt length of the pass that is shown operator by operator."""
        return ceil(self.mean) if self.packed else self.longest

    def prefill(self, workload: Workload) -> Workload:
        return each(workload, lambda s: _prefilled(s, self._shown))

    def step(self, workload: Workload) -> Workload:
        return each(workload, lambda s: _extended(s, self._shown))

    def retained_cache(self, workload: Workload) -> Workload:
        if self.packed:
            return self._spread(workload, _extended)
        return each(workload, lambda s: _extended(s, self.longest))

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:
        if not self.packed:
            return super().schedule(schedule, setting)

        def several(run: Run, change: _LengthChange) -> Iterator[Run]:
            yield replace(run, workload=self._spread(run.workload, change))

        return schedule.map(first=lambda run: several(run, _prefilled), rest=lambda run: several(run, _extended))

    def _spread(self, workload: Workload, change: _LengthChange) -> Workload:
        """Each group of sequences split over the lengths, by their shares of the file."""
        counts = sorted(self.counts.items())
        parts = ((length, times / self.counts.total()) for length, times in counts)
        return Workload(tuple(change(s, length).times(part) for length, part in parts for s in workload.groups))

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        wasted = 1 - self.mean / self.longest
        text = f"padding to {self.longest} tokens makes {wasted:.0%} of the prefill's tokens padding"
        return (Finding(key="padding", value=wasted, text=text),)

    def notes(self, setting: SettingView) -> tuple[str, ...]:  # noqa: ARG002
        lengths = f"{min(self.counts)} to {self.longest} tokens, {self.mean:.4g} on average"
        return (f"prompt lengths are from {self.file}: {lengths}; --prompt is not used",)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        conflicting = next(
            (other for other in others if other.kind is Kind.INPUT or isinstance(other, Parallel)),
            None,
        )
        if conflicting:
            return f"{conflicting.name} needs prompts of one length"
        if setting.model.is_encoder_decoder or setting.model.has_tower:
            return f"prompts of {setting.model.name} must have one length"
        return ""


def _prefilled(s: Spans, length: int) -> Spans:
    return replace(s, q_len=length, kv_len=length, source=length)


def _extended(s: Spans, length: int) -> Spans:
    return replace(s, kv_len=s.kv_len - s.source + length, source=length)
