"""Cuts a timeline into passes of the model, and averages those of one phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..records import frozen
from ..workload import Spans, Workload
from .boundaries import whole_passes
from .kinds import OPENS, SUMS_UP, Part, marks_a_layer
from .launches import EngineStep, KernelSums, Operands, RecordedLaunches, RecordedSequences
from .modules import is_one_product

MIXED: Final = "mixed"  # phase of passes that prefill some sequences and decode others
_MIN_REPEATS: Final = 3  # least number of repeating passes
_MAX_NAMED_PASSES: Final = 3  # named passes in an error
_DISTINGUISHING_PARTS: Final = (
    Part.PRODUCTS,
    Part.EXPERTS,
    Part.ATTENTION,
    Part.STATE,
)  # parts that distinguish kinds of passes


class PassKind(NamedTuple):
    """Properties that equal passes share: kernels of _TELLING parts, rows of most matrix products, and sequences named
    by the engine.
    """

    names: frozenset[str] = frozenset()
    rows: int = 0
    sequences: tuple[int, int] = (0, 0)


Span: TypeAlias = tuple[int, int]  # first launch of a pass, and the one after its last


class LaunchRun(NamedTuple):
    """A run of launches each of which equals the one a period before it."""

    start: int = 0
    length: int = 0
    period: int = 0


class MatrixProduct(NamedTuple):
    """A matrix product.

    weights   elements of its weight matrix, if recorded
    launches  its launches in the recording, one in each pass averaged
    module    modules of torch around its call, as modules.modules_of() reads them; "" if not recorded
    """

    name: str
    time_s: float
    weights: int | None = None
    launches: tuple[int, ...] = ()
    module: str = ""


@frozen(kw_only=True)
class MeanPass:
    """The mean of equal passes.

    launches, kernels_s  launches and time by kernel name; overlapping time counts for the earlier kernel [s]
    passes, others       number of passes averaged, and of passes left out
    spans                launches of each pass averaged; empty if the file has only sums by kernel
    each_s               time of each pass, from its first launch to that of the next one; empty if the file has only
                         sums by kernel [s]
    steps                the passes as named by the engine, if it names them
    products             matrix products before, between and after launches that mix tokens, of the passes that have
                         the most frequent kernels
    rows                 rows of most matrix products; 0 if not recorded
    operands             operands of all matrix products, if recorded
    """

    launches: Mapping[str, float] = field(repr=False)
    kernels_s: Mapping[str, float] = field(repr=False)
    passes: int
    others: int
    each_s: NDArray[np.float64] = field(repr=False)
    steps: tuple[EngineStep, ...] = field(default=(), repr=False)
    products: tuple[tuple[MatrixProduct, ...], ...] = field(default=(), repr=False)
    spans: tuple[Span, ...] = field(default=(), repr=False)
    rows: int = 0
    operands: frozenset[Operands] = field(default=frozenset(), repr=False)

    @property
    def busy_s(self) -> float:
        """Time in which a kernel runs. [s]"""
        return sum(self.kernels_s.values())

    @property
    def time_s(self) -> float | None:
        """Mean time of a pass; None if the file has only sums by kernel. [s]"""
        return float(np.mean(self.each_s)) if len(self.each_s) else None


def mean_pass(
    recording: RecordedLaunches | KernelSums,
    parts: Mapping[str, Part],
    *,
    layers: int,
    products: int,
    passes: int | None,
    phase: str,
) -> MeanPass:
    """The mean pass of a phase.

    layers    layers of the model that mix tokens, which is the number of such launches in a pass
    products  least number of matrix products in a pass
    passes    number of passes in the file, if known; else found by names of the engine, by layers, or by repetition
    phase     "decode", "mixed": the most frequent kind of pass; "prefill": the kind of most rows, if recorded, else the
              longest

    Raises InputError if the launches are not a whole number of passes.
    """
    if isinstance(recording, KernelSums):
        if phase == MIXED:
            raise InputError("phase mixed needs launches in time; the file has sums by kernel")
        return _of_sums(recording, parts, layers, passes)
    named = recording.steps if passes is None else ()
    if phase == MIXED and not named:
        raise InputError(
            "phase mixed needs passes that the engine named, with their prompts and decodes; here are none"
        )
    spans, kinds = _of_steps(recording) if named else _of_layers(recording, parts, layers, products, passes)
    pass_s, exclusive_s = _times(recording, spans)
    candidates = _named(named, phase) if named else range(len(spans))
    averaged_places = _complete_passes(_equal_passes(kinds, pass_s, candidates, phase), spans, len(recording.names))
    launches: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for place in averaged_places:
        for i in range(*spans[place]):
            launches[recording.names[i]] += 1
            kernels[recording.names[i]] += exclusive_s[i]
    operands = [operand for place in averaged_places for operand in _operands(recording, parts, *spans[place])]
    return MeanPass(
        launches={name: n / len(averaged_places) for name, n in launches.items()},
        kernels_s={name: float(s) / len(averaged_places) for name, s in kernels.items()},
        passes=len(averaged_places), others=len(spans) - len(averaged_places), each_s=pass_s[averaged_places],
        steps=tuple(named[place] for place in averaged_places) if named else (),
        products=_common([_segments(recording, exclusive_s, parts, *spans[place]) for place in averaged_places]),
        rows=_most_rows(operands), operands=frozenset(operands), spans=tuple(spans[place] for place in averaged_places),
    )  # fmt: skip


def sole_phase(recording: RecordedLaunches | KernelSums) -> str | None:
    """The phase of all passes that the engine named; None if it named none, or passes of several phases."""
    steps = recording.steps if isinstance(recording, RecordedLaunches) else ()
    phases = _phases(steps)
    return phases[0] if len(phases) == 1 and not any(step.undivided for step in steps) else None


def _phases(steps: Iterable[EngineStep]) -> list[str]:
    """The phases of named passes: prefill, decode or mixed, in order of their first pass."""
    of_steps = (step.phases for step in steps if step.phases and not step.undivided)
    return list(dict.fromkeys(MIXED if len(phases) > 1 else phases[0] for phases in of_steps))


def named_request(recording: RecordedLaunches | KernelSums, phase: str) -> dict[str, int]:
    """Batch and lengths of the passes of a phase that the engine named: of their most frequent number of sequences.

    Keys are arguments of an analysis: batch, and prompt or kv_len where the names have tokens. Empty without names.
    """
    steps = recording.steps if isinstance(recording, RecordedLaunches) else ()
    named = [step.decodes if phase == "decode" else step.prefills for step in steps if step.phases == (phase,)]
    if not named:
        return {}
    (number, _), *_ = Counter(one.number for one in named).most_common(1)
    tokens = [one.context_tokens if phase == "decode" else one.new for one in named if one.number == number]
    token_counts = [count for count in tokens if count is not None]
    length = round(sum(token_counts) / (number * len(token_counts))) if token_counts else 0
    return {"batch": number} | ({"kv_len" if phase == "decode" else "prompt": length} if length else {})


def mixed_workload(steps: Sequence[EngineStep], *, prompt: int, kv_len: int) -> Workload:
    """The mean of passes that prefill and decode: sequences of each phase, of equal lengths.

    prompt, kv_len  new tokens of a prompt and context of a decode, where names of passes have none
    """
    prefills, decodes = [step.prefills for step in steps], [step.decodes for step in steps]
    new = _mean_tokens([one.new for one in prefills], prefills) or float(prompt)
    context = _mean_tokens([one.context_tokens for one in prefills], prefills) or new
    attended = _mean_tokens([one.context_tokens for one in decodes], decodes) or float(kv_len)
    generated = _mean_tokens([one.new for one in decodes], decodes) or 1.0
    return Workload((
        Spans(batch=_mean_number(prefills), q_len=new, kv_len=max(context, new)),
        Spans(batch=_mean_number(decodes), q_len=generated, kv_len=max(attended, generated), logits=generated),
    ))  # fmt: skip


def _mean_number(phases: Sequence[RecordedSequences]) -> float:
    return sum(one.number for one in phases) / len(phases)


def _mean_tokens(counts: Sequence[int | None], phases: Sequence[RecordedSequences]) -> float | None:
    """Tokens per sequence; None if a pass does not name them."""
    tokens = [count for count in counts if count]
    return sum(tokens) / sum(one.number for one in phases) if len(tokens) == len(phases) else None


def _segments(
    recording: RecordedLaunches, exclusive_s: NDArray[np.float64], parts: Mapping[str, Part], start: int, stop: int
) -> list[list[MatrixProduct]]:
    """The matrix products of a pass before, between and after launches that mix tokens.

    Kernels that one operator or linear module called, and sums of split products, count with the product before them.
    Products without weights, as in eager attention, are left out.
    """
    segments: list[list[MatrixProduct]] = [[]]
    call = -1
    for i in range(start, stop):
        name, operands, module = recording.names[i], recording.operands[i], recording.modules[i]
        if marks_a_layer(name, parts[name]) and (segments[-1] or len(segments) == 1):
            segments.append([])
        if parts[name] is not Part.PRODUCTS or (operands and not operands.weights):
            continue
        segment = segments[-1]
        same_call = operands is not None and operands.call == call >= 0
        if segment and (SUMS_UP.search(name) or same_call or _same_linear(module, segment[-1].module)):
            segment[-1] = segment[-1]._replace(time_s=segment[-1].time_s + exclusive_s[i])
        else:
            segment.append(MatrixProduct(name, exclusive_s[i], operands.weights if operands else None, (i,), module))
        call = operands.call if operands else -1
    return segments


def _same_linear(module: str, before: str) -> bool:
    return module == before and is_one_product(module)


def _common(passes: Sequence[Sequence[Sequence[MatrixProduct]]]) -> tuple[tuple[MatrixProduct, ...], ...]:
    """The mean of the passes that have the most frequent kernels, in equal order."""
    groups: dict[object, list[Sequence[Sequence[MatrixProduct]]]] = {}
    for pass_segments in passes:
        groups.setdefault(tuple(tuple((one.name, one.weights) for one in each) for each in pass_segments), []).append(
            pass_segments
        )
    equal_passes = max(groups.values(), key=len, default=[])
    return tuple(
        tuple(
            each[0]._replace(
                time_s=float(np.mean([one.time_s for one in each])),
                launches=tuple(launch for one in each for launch in one.launches),
            )
            for each in zip(*segments, strict=True)
        )
        for segments in zip(*equal_passes, strict=True)
    )


def _operands(recording: RecordedLaunches, parts: Mapping[str, Part], start: int, stop: int) -> Iterator[Operands]:
    """Operands of the matrix products with weights, if recorded."""
    all_operands = (recording.operands[i] for i in range(start, stop) if parts[recording.names[i]] is Part.PRODUCTS)
    return (operands._replace(call=-1) for operands in all_operands if operands and operands.weights)


def _of_sums(sums: KernelSums, parts: Mapping[str, Part], layers: int, passes: int | None) -> MeanPass:
    """The mean of all passes; a name may occur several times, once per grid."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for name, launches, total_s in zip(sums.names, sums.launches.tolist(), sums.total_s.tolist(), strict=True):
        counts[name] += launches
        times[name] += total_s
    marks = {name: n for name, n in counts.items() if marks_a_layer(name, parts[name])}
    count = passes or sums.passes or _count_passes(marks, layers)
    return MeanPass(
        launches={name: n / count for name, n in counts.items()},
        kernels_s={name: time_s / count for name, time_s in times.items()},
        passes=count, others=0, each_s=np.empty(0),
    )  # fmt: skip


def _of_steps(recording: RecordedLaunches) -> tuple[list[Span], list[PassKind]]:
    """(launches of passes, kinds of passes), as named by the engine."""
    starts = np.searchsorted(recording.start_s, [step.start_s for step in recording.steps]).tolist()
    if sorted(set(starts)) != starts or starts[-1] >= len(recording.names):
        raise InputError("each pass that the engine named must have kernels of its own; here some have none")
    kinds = [PassKind(sequences=(step.prefills.number, step.decodes.number)) for step in recording.steps]
    return _until_next(starts, len(recording.names)), kinds


def _until_next(starts: Sequence[int], end: int) -> list[Span]:
    """Passes each of which ends where the next begins."""
    return list(zip(starts, [*starts[1:], end], strict=True))


def _of_layers(
    recording: RecordedLaunches, parts: Mapping[str, Part], layers: int, products: int, passes: int | None
) -> tuple[list[Span], list[PassKind]]:
    """(launches of passes, kinds of passes), by embeddings, number of layers, repetition or number of passes."""
    marks = [i for i, name in enumerate(recording.names) if marks_a_layer(name, parts[name])]
    opens = _openings(recording, parts)
    if passes in (None, len(opens)) and opens and _evenly_spaced(opens, marks):
        spans = _until_next([0, *opens[1:]], len(recording.names))
    elif passes is None and (cut := whole_passes(recording, parts, marks, layers)):
        spans = cut
    elif (
        passes is None
        and (not marks or len(marks) % layers)
        and (repeated_starts := _repeated(recording, parts, products))
    ):
        spans = _until_next(repeated_starts, len(recording.names))
    else:
        count = passes or _count_passes(Counter(recording.names[i] for i in marks), layers)
        where = marks or opens
        if not where or len(where) % count:
            raise InputError(f"passes must divide the {len(where)} recorded launches of attention; got {count}")
        each = len(where) // count
        starts = [0, *_between(recording, where[each - 1 : -1 : each], where[each::each])]
        spans = _until_next(starts, len(recording.names))
    if recording.host and len(spans) > 1 and not any(recording.operands):
        raise InputError(
            "prefill and decode passes look alike, as the operators were recorded without shapes; "
            "record with record_shapes=True, or name each pass as vLLM does"
        )
    return spans, [_kind(recording, parts, *span) for span in spans]


def _openings(recording: RecordedLaunches, parts: Mapping[str, Part]) -> list[int]:
    """Indices of embeddings that start a pass: the first of each group without a matrix product between them."""
    opens: list[int] = []
    multiplied = True
    for i, name in enumerate(recording.names):
        if OPENS.match(name) and multiplied:
            opens.append(i)
            multiplied = False
        multiplied = multiplied or parts[name] in (Part.PRODUCTS, Part.EXPERTS)
    return opens


def _evenly_spaced(opens: Sequence[int], marks: Sequence[int]) -> bool:
    """Whether all passes have equally many launches that mix tokens; the last one may be cut off."""
    return len(set(np.diff(np.searchsorted(marks, opens)).tolist())) <= 1


def _repeated(recording: RecordedLaunches, parts: Mapping[str, Part], products: int) -> list[int]:
    """Indices of the first launches of repeating passes, and of launches before them.

    Empty with fewer than three repetitions, or fewer than `products` matrix products in each, as layers within a pass
    repeat too.
    """
    _, ids = np.unique(recording.names, return_inverse=True)
    before = np.cumsum([0, *(parts[name] is Part.PRODUCTS for name in recording.names)])
    best = LaunchRun()
    for period in _periods(ids):
        run = _longest(ids, period)
        if run.length >= _MIN_REPEATS * period and before[run.start + period] - before[run.start] >= products:
            best = max(best, run, key=lambda one: (one.length, -one.period))
    if not best.length:
        return []
    pause = recording.pauses_s
    shape = (best.length // best.period, best.period)
    each = pause[best.start : best.start + shape[0] * shape[1]].reshape(shape).mean(axis=0)
    starts = range(best.start + int(np.argmax(each)), best.start + best.length, best.period)
    return sorted({0, *starts})


def _periods(ids: NDArray[np.int64]) -> set[int]:
    """The most frequent distance between launches of each name: for one launched once per pass, the pass."""
    gaps = (np.diff(np.flatnonzero(ids == one)) for one in range(int(ids.max()) + 1))
    return {Counter(each.tolist()).most_common(1)[0][0] for each in gaps if len(each)}


def _longest(ids: NDArray[np.int64], period: int) -> LaunchRun:
    """The longest run of launches that equal those a period later, including the last period."""
    breaks = np.flatnonzero(np.concatenate(([True], ids[:-period] != ids[period:], [True])))
    longest = int(np.argmax(np.diff(breaks)))
    length = int(breaks[longest + 1] - breaks[longest]) - 1
    return LaunchRun(int(breaks[longest]), length + period, period) if length else LaunchRun()


def _between(recording: RecordedLaunches, lasts: Sequence[int], firsts: Sequence[int]) -> Iterator[int]:
    """Indices of the first launch of each pass but the first.

    It lies between the last launch that mixes tokens in one pass and the first in the next: the embedding, if known by
    name, else the launch after the longest pause.
    """
    pause = recording.pauses_s
    for last, first in zip(lasts, firsts, strict=True):
        after = last + 1
        opening = next((i for i in range(after, first + 1) if OPENS.match(recording.names[i])), None)
        yield after + int(np.argmax(pause[after : first + 1])) if opening is None else opening


def _kind(recording: RecordedLaunches, parts: Mapping[str, Part], start: int, stop: int) -> PassKind:
    """The kind of a pass; rows count only for operators of a CPU, which has one for all sizes."""
    names = frozenset(name for name in recording.names[start:stop] if parts[name] in _DISTINGUISHING_PARTS)
    return PassKind(names=names, rows=_most_rows(_operands(recording, parts, start, stop)))


def _most_rows(operands: Iterable[Operands]) -> int:
    counts = Counter(operand.rows for operand in operands)
    return max(counts, key=counts.__getitem__, default=0)


def _times(recording: RecordedLaunches, spans: Sequence[Span]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(time of each pass until the next launch after it, time of each launch in which no earlier one runs). [s]"""
    ends = recording.ended_s
    before = np.concatenate(([recording.start_s[0]], ends[:-1]))
    exclusive_s = np.maximum(ends - np.maximum(recording.start_s, before), 0.0)
    until = np.append(recording.start_s, ends[-1])
    return np.array([until[stop] - until[start] for start, stop in spans]), exclusive_s


def _count_passes(marks: Mapping[str, float], layers: int) -> int:
    total = int(sum(marks.values()))
    if not total:
        raise InputError(
            "the number of recorded passes is unknown: no kernel has a name of attention or of a state update; "
            "give it (--passes N)"
        )
    if total % layers:
        examples = ", ".join(f"{name[:40]} {n:.0f}" for name, n in list(marks.items())[:3])
        raise InputError(
            f"the number of recorded passes is unknown: {total} launches of attention or of a state update "
            f"({examples}) are no multiple of {layers} layers; give it (--passes N)"
        )
    return total // layers


def _named(steps: Sequence[EngineStep], phase: str) -> list[int]:
    """Places of the named passes of a phase.

    Raises InputError if there are none, such as where all passes with prompts also decode.
    """
    phases = ("prefill", "decode") if phase == MIXED else (phase,)
    places = [place for place, step in enumerate(steps) if step.phases == phases and not step.undivided]
    if not places:
        recorded = _phases(steps)
        hint = f"; --phase {' or '.join(recorded)} compares those that were recorded" if recorded else ""
        description = "prefills and decodes" if phase == MIXED else f"is a {phase} alone"
        kinds = "; ".join(dict.fromkeys(map(str, steps[:_MAX_NAMED_PASSES])))
        raise InputError(
            f"phase must be of recorded passes; none of the {len(steps)} that the engine named {description}: "
            f"{kinds}{', ...' * (len(steps) > _MAX_NAMED_PASSES)}{hint}"
        )
    return places


def _equal_passes(
    kinds: Sequence[PassKind], pass_s: NDArray[np.float64], candidates: Iterable[int], phase: str
) -> list[int]:
    """The indices of equal passes of a phase."""
    groups: dict[PassKind, list[int]] = {}
    for place in candidates:
        groups.setdefault(kinds[place], []).append(place)
    if phase in ("decode", MIXED):
        return max(groups.values(), key=lambda group: (len(group), -float(pass_s[group].mean())))
    return max(groups.values(), key=lambda group: (kinds[group[0]].rows, float(pass_s[group].mean())))


def _complete_passes(group: list[int], spans: Sequence[Span], end: int) -> list[int]:
    """Drops passes at the beginning and the end of the file, which may be cut off, unless no other is left."""
    return [place for place in group if spans[place][0] > 0 and spans[place][1] < end] or group
