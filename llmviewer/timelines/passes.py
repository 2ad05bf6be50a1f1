"""A timeline cut into passes of the model, and those of one kind averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .kinds import SUMS_UP, Part, marks_a_layer
from .reading import Launches, Step, Sums

_TELLING: Final = (Part.PRODUCTS, Part.EXPERTS, Part.ATTENTION, Part.STATE)  # whose kernels tell kinds of passes apart


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """A pass as those of a kind are on average.

    launches, kernels_s  by name; of kernels at the same time the first has it [s]
    passes, others       those averaged over, and those that are left out
    each_s               what each of them took, from its first launch to the next one's; none where only sums are known
    step                 one of them as the engine named it, if it did
    products             matrix products in their order and their times, sums of split ones with them, where all passes
                         have the same [s]
    """

    launches: Mapping[str, float] = field(repr=False)
    kernels_s: Mapping[str, float] = field(repr=False)
    passes: int
    others: int
    each_s: NDArray[np.float64] = field(repr=False)
    step: Step | None = None
    products: tuple[tuple[str, float], ...] = field(default=(), repr=False)

    @property
    def busy_s(self) -> float:
        """In which something runs."""
        return sum(self.kernels_s.values())

    @property
    def time_s(self) -> float | None:
        """The mean; None where only sums are known."""
        return float(np.mean(self.each_s)) if len(self.each_s) else None


def averaged(
    found: Launches | Sums, parts: Mapping[str, Part], *, layers: int, passes: int | None, phase: str
) -> Averaged:
    """The passes of a phase, of a model of which `layers` mix tokens: so many launches of attention are a pass.

    passes  in the file, where it is known; else those that the engine named, or as many as layers say
    phase   "decode": of several kinds of passes that of which there are most; "prefill": that of the longest

    Raises InputError where launches make no whole number of passes.
    """
    if isinstance(found, Sums):
        return _of_sums(found, parts, layers, passes)
    named = found.steps if passes is None else ()
    starts, kinds = _of_steps(found) if named else _of_layers(found, parts, layers, passes)
    took, alone = _times(found, starts)
    candidates = _named(named, phase) if named else range(len(starts))
    kept = _inner(_alike(kinds, took, candidates, phase), len(starts))
    launches: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    stops = [*starts[1:], len(found.names)]
    for one in kept:
        for i in range(starts[one], stops[one]):
            launches[found.names[i]] += 1
            kernels[found.names[i]] += alone[i]
    step = named[kept[0]] if named else None
    return Averaged(
        launches={name: n / len(kept) for name, n in launches.items()},
        kernels_s={name: float(s) / len(kept) for name, s in kernels.items()},
        passes=len(kept), others=len(starts) - len(kept), each_s=took[kept], step=step,
        products=_sequence([_products(found, alone, parts, starts[one], stops[one]) for one in kept]),
    )  # fmt: skip


def _products(
    found: Launches, alone: NDArray[np.float64], parts: Mapping[str, Part], start: int, stop: int
) -> tuple[list[str], list[float]]:
    """Kernels and times of the matrix products of a pass. [s]"""
    names: list[str] = []
    times: list[float] = []
    for i in range(start, stop):
        if parts[found.names[i]] is not Part.PRODUCTS:
            continue
        if names and SUMS_UP.search(found.names[i]):
            times[-1] += alone[i]
        else:
            names.append(found.names[i])
            times.append(alone[i])
    return names, times


def _sequence(passes: Sequence[tuple[list[str], list[float]]]) -> tuple[tuple[str, float], ...]:
    """The mean of passes, where all have the same kernels."""
    (names, _), *others = passes
    if any(other != names for other, _ in others):
        return ()
    return tuple(zip(names, np.mean([times for _, times in passes], axis=0).tolist(), strict=True))


def _of_sums(found: Sums, parts: Mapping[str, Part], layers: int, passes: int | None) -> Averaged:
    """The mean of all passes; a name may stand several times, once for each grid."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for name, launches, total_s in zip(found.names, found.launches.tolist(), found.total_s.tolist(), strict=True):
        counts[name] += launches
        times[name] += total_s
    count = passes or _whole({name: n for name, n in counts.items() if marks_a_layer(name, parts[name])}, layers)
    return Averaged(
        launches={name: n / count for name, n in counts.items()},
        kernels_s={name: time_s / count for name, time_s in times.items()},
        passes=count, others=0, each_s=np.empty(0),
    )  # fmt: skip


def _of_steps(found: Launches) -> tuple[list[int], list[Hashable]]:
    """The first launches of passes that the engine named, and their kinds."""
    starts = np.searchsorted(found.start_s, [step.start_s for step in found.steps]).tolist()
    if sorted(set(starts)) != starts or starts[-1] >= len(found.names):
        raise InputError("passes that the engine named must have launches, each its own; these have not")
    return starts, [(step.reads, step.writes) for step in found.steps]


def _of_layers(
    found: Launches, parts: Mapping[str, Part], layers: int, passes: int | None
) -> tuple[list[int], list[Hashable]]:
    """The same of passes of so many layers that mix tokens: each begins after the longest pause between two such."""
    where = np.flatnonzero([marks_a_layer(name, parts[name]) for name in found.names])
    count = passes or _whole(Counter(found.names[i] for i in where), layers)
    if not len(where) or len(where) % count:
        raise InputError(f"passes must divide the {len(where)} launches that mix tokens; got {count}")
    each = len(where) // count
    ends = np.maximum.accumulate(found.start_s + found.duration_s)
    pause = np.concatenate(([0.0], found.start_s[1:] - ends[:-1]))
    starts = [0]
    for last, first in zip(where[each - 1 : -1 : each], where[each::each], strict=True):
        starts.append(int(last) + 1 + int(np.argmax(pause[last + 1 : first + 1])))
    stops = [*starts[1:], len(found.names)]
    return starts, [
        frozenset(name for name in found.names[a:b] if parts[name] in _TELLING)
        for a, b in zip(starts, stops, strict=True)
    ]


def _times(found: Launches, starts: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each pass until the next one begins; of each launch that in which none before it runs. [s]"""
    ends = np.maximum.accumulate(found.start_s + found.duration_s)
    before = np.concatenate(([found.start_s[0]], ends[:-1]))
    alone = np.maximum(ends - np.maximum(found.start_s, before), 0.0)
    return np.append(found.start_s[starts[1:]], ends[-1]) - found.start_s[starts], alone


def _whole(marks: Mapping[str, float], layers: int) -> int:
    total = int(sum(marks.values()))
    if not total:
        raise InputError("passes must be given: no kernel of attention or of a state is known by its name")
    if total % layers:
        told = ", ".join(f"{name[:40]} {n:.0f}" for name, n in list(marks.items())[:3])
        raise InputError(
            f"passes must be given: {total} launches mix tokens ({told}), no multiple of the {layers} layers that do"
        )
    return total // layers


def _named(steps: Sequence[Step], phase: str) -> list[int]:
    found = [place for place, step in enumerate(steps) if bool(step.reads) == (phase == "prefill")]
    if not found:
        does = "reads prompts" if phase == "prefill" else "decodes alone"
        raise InputError(f"phase: none of the {len(steps)} passes {does}, as the engine named them")
    return found


def _alike(kinds: Sequence[Hashable], took: NDArray[np.float64], candidates: Iterable[int], phase: str) -> list[int]:
    """The passes of a phase, all of one kind."""
    groups: dict[Hashable, list[int]] = {}
    for place in candidates:
        groups.setdefault(kinds[place], []).append(place)
    if phase == "decode":
        return max(groups.values(), key=lambda group: (len(group), -float(took[group].mean())))
    return max(groups.values(), key=lambda group: float(took[group].mean()))


def _inner(group: list[int], count: int) -> list[int]:
    """Without the first and the last of the file, whose ends are not known, where others are left."""
    return [place for place in group if 0 < place < count - 1] or group
