"""Boundaries between passes in a file that begins or ends anywhere.

Between two launches that mix tokens lie the same kernels in every layer, but other ones at the end of a pass: the head,
sampling and the next embedding. Passes are cut where these other kernels are, a number of layers apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from .kinds import EMBEDS, Part
from .launches import RecordedLaunches

Names: TypeAlias = tuple[str, ...]

_ENDS: Final = (Part.PRODUCTS, Part.SAMPLING)  # parts of kernels between the last layer and the next pass


def whole_passes(
    found: RecordedLaunches, parts: Mapping[str, Part], marks: Sequence[int], layers: int
) -> list[tuple[int, int]]:
    """(first launch, launch after the last) of each whole pass; empty if none can be told.

    marks   places of the launches that mix tokens
    layers  number of them in a pass
    """
    if len(marks) < layers or layers < 1:
        return []
    gaps = [found.names[a + 1 : b] for a, b in pairwise(marks)]
    often = Counter(gaps)
    offset = _offset(gaps, often, len(marks), layers)
    if offset is None:
        return []
    bounds = range(offset - 1, len(gaps), layers)  # gaps at the ends of passes; -1: the beginning of the file
    inner = {gap for place, gap in enumerate(gaps) if place not in bounds}
    cuts = {place: _cut(found, parts, marks[place], gaps[place], inner) for place in bounds if place >= 0}
    starts = [marks[place] + 1 + cut for place, cut in cuts.items()]
    ends, begins = (
        {gaps[place][:cut] for place, cut in cuts.items()},
        {gaps[place][cut:] for place, cut in cuts.items()},
    )
    if offset == 0:
        before = found.names[: marks[0]]
        known = next((len(before) - len(own) for own in begins if _ends_with(before, own)), None)
        starts.insert(0, _begin(before, parts, inner) if known is None else known)
    after = found.names[marks[-1] + 1 :]
    stop = next((len(own) for own in ends if after[: len(own)] == own), len(after))
    spans = list(zip(starts, [*starts[1:], marks[-1] + 1 + stop], strict=True))
    return [span for span in spans if sum(span[0] <= mark < span[1] for mark in marks) == layers]


def _begin(before: Names, parts: Mapping[str, Part], inner: set[Names]) -> int:
    """The first launch of a pass that is the first of its file, behind kernels of the end of another one."""
    others = before[: len(before) - max((_shared(before[::-1], gap[::-1]) for gap in inner), default=0)]
    return max((place + 1 for place, name in enumerate(others) if parts[name] is Part.SAMPLING), default=0)


def _ends_with(names: Names, others: Names) -> bool:
    return len(others) <= len(names) and names[len(names) - len(others) :] == others


def _offset(gaps: Sequence[Names], often: Mapping[Names, int], marks: int, layers: int) -> int | None:
    """Launches that mix tokens before the first whole pass; None if no gap differs from those within passes."""
    if marks == layers:
        return 0
    rarest: dict[int, tuple[float, float]] = {}
    for offset in range(min(layers, marks - layers + 1)):
        ends = [gaps[place] for place in range(offset - 1, len(gaps), layers) if place >= 0]
        if ends:
            rarest[offset] = (
                float(np.mean([often[gap] for gap in ends])) / len(ends),
                -float(np.mean([*map(len, ends)])),
            )
    best = min(rarest, key=lambda offset: (rarest[offset], offset), default=None)
    return best if best is not None and rarest[best][0] <= 1 else None


def _cut(found: RecordedLaunches, parts: Mapping[str, Part], mark: int, gap: Names, inner: set[Names]) -> int:
    """How many launches of the gap after `mark` still belong to the pass before.

    Kernels at its beginning and end that layers have too are those of the last and of the first layer. Of the others,
    a pass begins with the first behind sampling that looks up rows, as the embedding does, and without sampling with
    the last: rows are also chosen before the head. Without such a kernel, it begins after the longest pause behind the
    head and sampling.
    """
    before = max((_shared(gap, other) for other in inner), default=0)
    after = max((_shared(gap[::-1], other[::-1]) for other in inner), default=0)
    after = min(after, len(gap) - before)
    others = range(before, len(gap) - after + 1)
    sampled = max((place for place in others[:-1] if parts[gap[place]] is Part.SAMPLING), default=None)
    lookups = [
        place for place in others[:-1] if EMBEDS.search(gap[place]) and place > (-1 if sampled is None else sampled)
    ]
    if lookups:
        return lookups[-1 if sampled is None else 0]
    last = max((place + 1 for place in others[:-1] if parts[gap[place]] in _ENDS), default=others.start)
    first = mark + 1
    ends = np.maximum.accumulate(found.start_s[mark : first + len(gap)] + found.duration_s[mark : first + len(gap)])
    pauses = found.start_s[first : first + len(gap) + 1] - ends[: len(found.start_s[first : first + len(gap) + 1])]
    candidates = range(last, others.stop)
    return max(candidates, key=lambda place: (pauses[place], -place))


def _shared(names: Names, others: Names) -> int:
    """The length of the beginning that two sequences share."""
    return next(
        (n for n, (a, b) in enumerate(zip(names, others, strict=False)) if a != b), min(len(names), len(others))
    )
