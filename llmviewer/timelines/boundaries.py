"""Boundaries between passes in a file that begins or ends anywhere.

Between two launches that mix tokens lie the same kernels in every layer, but other ones at the end of a pass: the head,
sampling and the next embedding. Passes are cut where these other kernels are, a number of layers apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Final, TypeAlias

import numpy as np

from .kinds import EMBEDS, Part
from .launches import RecordedLaunches

Names: TypeAlias = tuple[str, ...]

_ENDS: Final = (Part.PRODUCTS, Part.SAMPLING)  # parts of kernels between the last layer and the next pass


def whole_passes(
    recording: RecordedLaunches, parts: Mapping[str, Part], marks: Sequence[int], layers: int
) -> list[tuple[int, int]]:
    """(first launch, launch after the last) of each whole pass; empty if no boundary is recognized.

    marks   places of the launches that mix tokens
    layers  number of them in a pass
    """
    if len(marks) < layers or layers < 1:
        return []
    names = recording.names
    gaps = [names[a + 1 : b] for a, b in pairwise(marks)]
    offset = _offset(gaps, len(marks), layers)
    if offset is None:
        return []
    at_ends = range(offset - 1, len(gaps), layers)  # gaps at the ends of passes; -1: the beginning of the file
    inner = {gap for place, gap in enumerate(gaps) if place not in at_ends}
    cuts = {place: _cut(recording, parts, marks[place], gaps[place], inner) for place in at_ends if place >= 0}
    starts = [marks[place] + 1 + cut for place, cut in cuts.items()]
    if offset == 0:
        beginnings = {gaps[place][cut:] for place, cut in cuts.items()}
        starts.insert(0, _first_start(names[: marks[0]], parts, inner, beginnings))
    endings = {gaps[place][:cut] for place, cut in cuts.items()}
    after = names[marks[-1] + 1 :]
    rest = next((len(ending) for ending in endings if after[: len(ending)] == ending), len(after))
    spans = list(zip(starts, [*starts[1:], marks[-1] + 1 + rest], strict=True))
    return [(start, stop) for start, stop in spans if bisect_left(marks, stop) - bisect_left(marks, start) == layers]


def _offset(gaps: Sequence[Names], marks: int, layers: int) -> int | None:
    """Launches that mix tokens before the first whole pass; None if no gap differs from those within passes.

    Of all offsets, the one whose gaps are the rarest, and among those the longest.
    """
    if marks == layers:
        return 0
    counts = Counter(gaps)
    ranks: list[tuple[float, float, int]] = []
    for offset in range(min(layers, marks - layers + 1)):
        at_ends = [gaps[place] for place in range(offset - 1, len(gaps), layers) if place >= 0]
        if at_ends:
            rarity = fmean(counts[gap] for gap in at_ends) / len(at_ends)  # 1: equal, and nowhere else
            ranks.append((rarity, -fmean(map(len, at_ends)), offset))
    rarity, _, offset = min(ranks, default=(inf, 0.0, 0))
    return offset if rarity <= 1 else None


def _first_start(
    before: Names, parts: Mapping[str, Part], inner: Collection[Names], beginnings: Iterable[Names]
) -> int:
    """The first launch of a pass at the beginning of a file, behind launches of the end of another pass.

    before      launches before the first that mixes tokens
    beginnings  launches with which other passes of the file begin
    """
    for beginning in beginnings:
        if before[len(before) - len(beginning) :] == beginning:
            return len(before) - len(beginning)
    shared_length = _shared_end(before, inner)
    return max(
        (n + 1 for n, name in enumerate(before[: len(before) - shared_length]) if parts[name] is Part.SAMPLING),
        default=0,
    )


def _cut(
    recording: RecordedLaunches, parts: Mapping[str, Part], mark: int, gap: Names, inner: Collection[Names]
) -> int:
    """Number of launches in the gap after `mark` that still belong to the pass before.

    Kernels at its beginning and end that layers have too are those of the last and of the first layer. Of the others,
    a pass begins with the first behind sampling that looks up rows, as the embedding does, and without sampling with
    the last: rows are also chosen before the head. Without such a kernel, it begins after the longest pause behind the
    head and sampling.
    """
    first = max((_shared(gap, other) for other in inner), default=0)
    last = max(len(gap) - _shared_end(gap, inner), first)
    between = range(first, last)
    sampling = max((n for n in between if parts[gap[n]] is Part.SAMPLING), default=-1)
    lookups = [n for n in between if n > sampling and EMBEDS.search(gap[n])]
    if lookups:
        return lookups[-1 if sampling < 0 else 0]
    ended = max((n + 1 for n in between if parts[gap[n]] in _ENDS), default=first)
    return ended + int(np.argmax(recording.pauses_s[mark + 1 + ended : mark + 2 + last]))


def _shared(names: Names, others: Names) -> int:
    """The length of the beginning that two sequences share."""
    pairs = enumerate(zip(names, others, strict=False))
    return next((n for n, (name, other) in pairs if name != other), min(len(names), len(others)))


def _shared_end(names: Names, others: Iterable[Names]) -> int:
    """The length of the longest end that `names` shares with one of `others`."""
    return max((_shared(names[::-1], other[::-1]) for other in others), default=0)
