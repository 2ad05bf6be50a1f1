"""A timeline cut into passes of the model, and those of one kind averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .kinds import OPENS, SUMS_UP, Part, marks_a_layer
from .launches import Launches, Operands, Step, Sums

_REPEATS: Final = 3  # passes that repeat each other, at least
_TELLING: Final = (Part.PRODUCTS, Part.EXPERTS, Part.ATTENTION, Part.STATE)  # whose kernels tell kinds of passes apart


class Kind(NamedTuple):
    """What passes that are alike share: kernels that tell, rows of most products, sequences that the engine named."""

    names: frozenset[str] = frozenset()
    rows: int = 0
    sequences: tuple[int, int] = (0, 0)


class Run(NamedTuple):
    """Launches in a row of which each is like that a period before it."""

    start: int = 0
    length: int = 0
    period: int = 0


class Product(NamedTuple):
    """weights: numbers of its matrix of weights, where they are recorded."""

    name: str
    time_s: float
    weights: int | None = None


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """A pass as those of a kind are on average.

    launches, kernels_s  by name; of kernels at the same time the first has it [s]
    passes, others       those averaged over, and those that are left out
    each_s               what each of them took, from its first launch to the next one's; none where only sums are known
    step                 one of them as the engine named it, if it did
    products             matrix products in their order, sums of split ones with them, where all passes have the same
    rows                 of most matrix products; 0 where they are not recorded
    operands             of all matrix products, where they are recorded
    """

    launches: Mapping[str, float] = field(repr=False)
    kernels_s: Mapping[str, float] = field(repr=False)
    passes: int
    others: int
    each_s: NDArray[np.float64] = field(repr=False)
    step: Step | None = None
    products: tuple[Product, ...] = field(default=(), repr=False)
    rows: int = 0
    operands: frozenset[Operands] = field(default=frozenset(), repr=False)

    @property
    def busy_s(self) -> float:
        """In which something runs."""
        return sum(self.kernels_s.values())

    @property
    def time_s(self) -> float | None:
        """The mean; None where only sums are known."""
        return float(np.mean(self.each_s)) if len(self.each_s) else None


def averaged(
    found: Launches | Sums, parts: Mapping[str, Part], *, layers: int, products: int, passes: int | None, phase: str
) -> Averaged:
    """The passes of a phase, of a model of which `layers` mix tokens: so many launches of attention are a pass.

    products  matrix products of a pass at least
    passes    in the file, where it is known; else those that the engine named, as many as layers say, or what repeats
    phase     "decode": of several kinds of passes that of which there are most; "prefill": that of the most rows, where
              they are recorded, then of the longest

    Raises InputError where launches make no whole number of passes.
    """
    if isinstance(found, Sums):
        return _of_sums(found, parts, layers, passes)
    named = found.steps if passes is None else ()
    starts, kinds = _of_steps(found) if named else _of_layers(found, parts, layers, products, passes)
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
    operands = [of for one in kept for of in _operands(found, parts, starts[one], stops[one])]
    return Averaged(
        launches={name: n / len(kept) for name, n in launches.items()},
        kernels_s={name: float(s) / len(kept) for name, s in kernels.items()},
        passes=len(kept), others=len(starts) - len(kept), each_s=took[kept], step=step,
        products=_sequence([_products(found, alone, parts, starts[one], stops[one]) for one in kept]),
        rows=_most_rows(operands), operands=frozenset(operands),
    )  # fmt: skip


def _products(
    found: Launches, alone: NDArray[np.float64], parts: Mapping[str, Part], start: int, stop: int
) -> list[Product]:
    """The matrix products of a pass; where operands are recorded, those with weights."""
    products: list[Product] = []
    known = any(found.operands[start:stop])
    for i in range(start, stop):
        name, operands = found.names[i], found.operands[i]
        if parts[name] is not Part.PRODUCTS or (known and not operands):
            continue
        if products and SUMS_UP.search(name):
            products[-1] = products[-1]._replace(time_s=products[-1].time_s + alone[i])
        else:
            products.append(Product(name, alone[i], operands.weights if operands else None))
    return products


def _sequence(passes: Sequence[Sequence[Product]]) -> tuple[Product, ...]:
    """The mean of passes, where all have the same kernels."""
    if len({tuple((one.name, one.weights) for one in own) for own in passes}) > 1:
        return ()
    return tuple(
        each[0]._replace(time_s=float(np.mean([one.time_s for one in each]))) for each in zip(*passes, strict=True)
    )


def _operands(found: Launches, parts: Mapping[str, Part], start: int, stop: int) -> Iterator[Operands]:
    """Of the matrix products, where they are recorded."""
    every = (found.operands[i] for i in range(start, stop) if parts[found.names[i]] is Part.PRODUCTS)
    return (operands for operands in every if operands)


def _of_sums(found: Sums, parts: Mapping[str, Part], layers: int, passes: int | None) -> Averaged:
    """The mean of all passes; a name may stand several times, once for each grid."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for name, launches, total_s in zip(found.names, found.launches.tolist(), found.total_s.tolist(), strict=True):
        counts[name] += launches
        times[name] += total_s
    marks = {name: n for name, n in counts.items() if marks_a_layer(name, parts[name])}
    count = passes or found.passes or _whole(marks, layers)
    return Averaged(
        launches={name: n / count for name, n in counts.items()},
        kernels_s={name: time_s / count for name, time_s in times.items()},
        passes=count, others=0, each_s=np.empty(0),
    )  # fmt: skip


def _of_steps(found: Launches) -> tuple[list[int], list[Kind]]:
    """The first launches of passes that the engine named, and their kinds."""
    starts = np.searchsorted(found.start_s, [step.start_s for step in found.steps]).tolist()
    if sorted(set(starts)) != starts or starts[-1] >= len(found.names):
        raise InputError("each pass that the engine named must have kernels of its own; here some have none")
    return starts, [Kind(sequences=(step.reads, step.writes)) for step in found.steps]


def _of_layers(
    found: Launches, parts: Mapping[str, Part], layers: int, products: int, passes: int | None
) -> tuple[list[int], list[Kind]]:
    """The same of passes that begin with an embedding, have so many layers that mix tokens or repeat, or are given."""
    marks = [i for i, name in enumerate(found.names) if marks_a_layer(name, parts[name])]
    opens = _openings(found, parts)
    if passes in (None, len(opens)) and opens and _even(opens, marks):
        starts = [0, *opens[1:]]
    elif passes is None and (not marks or len(marks) % layers) and (again := _repeated(found, parts, products)):
        starts = again
    else:
        count = passes or _whole(Counter(found.names[i] for i in marks), layers)
        where = marks or opens
        if not where or len(where) % count:
            raise InputError(f"passes must divide the {len(where)} recorded launches of attention; got {count}")
        each = len(where) // count
        starts = [0, *_between(found, where[each - 1 : -1 : each], where[each::each])]
    if found.host and len(starts) > 1 and not any(found.operands):
        raise InputError(
            "passes that read prompts cannot be told from decode steps, as the operators were recorded without shapes; "
            "record with record_shapes=True, or name each pass as vLLM does"
        )
    stops = [*starts[1:], len(found.names)]
    return starts, [_kind(found, parts, a, b) for a, b in zip(starts, stops, strict=True)]


def _openings(found: Launches, parts: Mapping[str, Part]) -> list[int]:
    """Embeddings that passes begin with: those of tokens and of positions have no matrix product between them."""
    opens: list[int] = []
    multiplied = True
    for i, name in enumerate(found.names):
        if OPENS.match(name) and multiplied:
            opens.append(i)
            multiplied = False
        multiplied = multiplied or parts[name] in (Part.PRODUCTS, Part.EXPERTS)
    return opens


def _even(opens: Sequence[int], marks: Sequence[int]) -> bool:
    """Whether as many launches mix tokens in each pass but the last, which may be cut off."""
    return len(set(np.diff(np.searchsorted(marks, opens)).tolist())) <= 1


def _repeated(found: Launches, parts: Mapping[str, Part], products: int) -> list[int]:
    """The first launches of passes that repeat each other, and of what stands before them; none where fewer than three
    do, as layers of one pass repeat each other too.

    A pass has `products` matrix products at least.
    """
    _, ids = np.unique(found.names, return_inverse=True)
    before = np.cumsum([0, *(parts[name] is Part.PRODUCTS for name in found.names)])
    best = Run()
    for period in _periods(ids):
        run = _longest(ids, period)
        if run.length >= _REPEATS * period and before[run.start + period] - before[run.start] >= products:
            best = max(best, run, key=lambda one: (one.length, -one.period))
    if not best.length:
        return []
    _, pause = _pauses(found)
    shape = (best.length // best.period, best.period)
    each = pause[best.start : best.start + shape[0] * shape[1]].reshape(shape).mean(axis=0)
    starts = range(best.start + int(np.argmax(each)), best.start + best.length, best.period)
    return sorted({0, *starts})


def _periods(ids: NDArray[np.int64]) -> set[int]:
    """After how many launches most of those of a name follow each other: of what a pass has once, that is the pass."""
    gaps = (np.diff(np.flatnonzero(ids == one)) for one in range(int(ids.max()) + 1))
    return {Counter(each.tolist()).most_common(1)[0][0] for each in gaps if len(each)}


def _longest(ids: NDArray[np.int64], period: int) -> Run:
    """Where the most launches in a row are like those a period later, with that last period."""
    breaks = np.flatnonzero(np.concatenate(([True], ids[:-period] != ids[period:], [True])))
    longest = int(np.argmax(np.diff(breaks)))
    length = int(breaks[longest + 1] - breaks[longest]) - 1
    return Run(int(breaks[longest]), length + period, period) if length else Run()


def _between(found: Launches, lasts: Sequence[int], firsts: Sequence[int]) -> Iterator[int]:
    """The first launch of each pass but the first, between the last of one that mixes tokens and the first of the next:
    that of the embedding, where it is known by its name, else that after the longest pause.
    """
    _, pause = _pauses(found)
    for last, first in zip(lasts, firsts, strict=True):
        after = last + 1
        opening = next((i for i in range(after, first + 1) if OPENS.match(found.names[i])), None)
        yield after + int(np.argmax(pause[after : first + 1])) if opening is None else opening


def _pauses(found: Launches) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When all launches up to each one have ended, and the pause before it. [s]"""
    ends = np.maximum.accumulate(found.start_s + found.duration_s)
    return ends, np.concatenate(([0.0], found.start_s[1:] - ends[:-1]))


def _kind(found: Launches, parts: Mapping[str, Part], start: int, stop: int) -> Kind:
    """Kernels of the parts that tell; of an operator that a CPU has for all sizes, the rows too."""
    names = frozenset(name for name in found.names[start:stop] if parts[name] in _TELLING)
    return Kind(names=names, rows=_most_rows(_operands(found, parts, start, stop)))


def _most_rows(operands: Iterable[Operands]) -> int:
    counts = Counter(of.rows for of in operands)
    return max(counts, key=counts.__getitem__, default=0)


def _times(found: Launches, starts: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each pass until the next one begins; of each launch that in which none before it runs. [s]"""
    ends, _ = _pauses(found)
    before = np.concatenate(([found.start_s[0]], ends[:-1]))
    alone = np.maximum(ends - np.maximum(found.start_s, before), 0.0)
    return np.append(found.start_s[starts[1:]], ends[-1]) - found.start_s[starts], alone


def _whole(marks: Mapping[str, float], layers: int) -> int:
    total = int(sum(marks.values()))
    if not total:
        raise InputError(
            "how many passes were recorded cannot be told: no kernel has a name of attention or of a state update; "
            "give their number (--passes N)"
        )
    if total % layers:
        told = ", ".join(f"{name[:40]} {n:.0f}" for name, n in list(marks.items())[:3])
        raise InputError(
            f"how many passes were recorded cannot be told: {total} launches of attention or of a state update "
            f"({told}) are no multiple of {layers} layers; give their number (--passes N)"
        )
    return total // layers


def _named(steps: Sequence[Step], phase: str) -> list[int]:
    found = [place for place, step in enumerate(steps) if bool(step.reads) == (phase == "prefill")]
    if not found:
        does = "reads prompts" if phase == "prefill" else "decodes alone"
        raise InputError(
            f"phase must be of passes that were recorded; none of the {len(steps)} that the engine named {does}"
        )
    return found


def _alike(kinds: Sequence[Kind], took: NDArray[np.float64], candidates: Iterable[int], phase: str) -> list[int]:
    """The passes of a phase, all of one kind."""
    groups: dict[Kind, list[int]] = {}
    for place in candidates:
        groups.setdefault(kinds[place], []).append(place)
    if phase == "decode":
        return max(groups.values(), key=lambda group: (len(group), -float(took[group].mean())))
    return max(groups.values(), key=lambda group: (kinds[group[0]].rows, float(took[group].mean())))


def _inner(group: list[int], count: int) -> list[int]:
    """Without the first and the last of the file, whose ends are not known, where others are left."""
    return [place for place in group if 0 < place < count - 1] or group
