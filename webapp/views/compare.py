"""Settings side by side: those that are pinned and the present one on each of its devices, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import Phase
from llmviewer.errors import InputError
from llmviewer.reports import figures
from llmviewer.reports.operator_table import operator_id
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.phrases import headline
from llmviewer.reports.roofline_points import roofs
from llmviewer.units import fold, seconds, si

from ..answers import Answer, answers
from ..state import State

LETTERS: Final = "ABCDEF"
_SAME: Final = 0.005  # ratios nearer to 1 are not told
_ALIKE: Final = 0.02  # what is expected is not told where it agrees with the bound so well
_PART: Final = 0.03  # of the bytes of a pass, below which a part of them explains nothing
_TELLING: Final = 0.2  # of what waits change by in all, below which a wait explains nothing
_USUAL: Final = "as published"


class Compared(NamedTuple):
    """A setting.

    name   what sets it apart from the others, after a pin's letter
    short  what sentences and figures call it
    pin    its place among the pins; -1 for the present one
    """

    name: str
    short: str
    about: str
    pin: int
    answer: Answer


class Moved(NamedTuple):
    """An operator that is not bound by the same thing everywhere: (bound, share of the phase) in each setting; None
    where there is no such operator.
    """

    operator: str
    places: tuple[tuple[str, float] | None, ...]


class _TableNumber(NamedTuple):
    """A line of the table: how it is read, said and called in files."""

    label: str
    key: str
    of: Callable[[Answer], float | None]
    text: Callable[[float], str]


def _bytes(value: float) -> str:
    return f"{si(value)}B"


def _count(value: float) -> str:
    return f"{value:,.4g}" if value < 9999.5 else f"{value:,.0f}"


def _largest(value: float) -> str:
    return _count(value) if value else "none"


def _bound_and_expected(label: str, key: str, text: Callable[[float], str]) -> Iterator[_TableNumber]:
    for said, name in ((label, key), (f"expected {label}", f"expected_{key}")):
        yield _TableNumber(said, name, attrgetter(f"analysis.generation.{name}"), text)


def _tokens_a_pass(found: Analysis) -> float | None:
    """Tokens per sequence and decode pass; None without techniques."""
    return found.effect.tokens_per_step if found.effect else None


def _context(found: Analysis) -> int | None:
    """Context of the decode step, if the user gave one."""
    asked = found.request
    return None if asked.kv_len in (None, asked.prompt + 1) else asked.kv_len


# What can set settings apart, and how it is said.
_APART: Final[tuple[Callable[[Analysis], str], ...]] = (
    lambda a: a.model.name,
    lambda a: a.hardware.name,
    lambda a: ", ".join(a.inputs["hardware_set"]) or "no what-if",
    lambda a: a.inputs["quant"] if a.inputs["quant"] == _USUAL else a.inputs["quant"].replace(f" {_USUAL}", ""),
    lambda a: f"batch {a.request.batch:,}",
    lambda a: f"prompt {a.request.prompt:,}",
    lambda a: f"{a.request.gen:,} generated" if a.request.gen else "none generated",
    lambda a: f"context {_context(a):,}" if _context(a) else "the first step",
    lambda a: a.inputs["layout"] or "one device",
    lambda a: f"{a.setting.attention} attention",
    lambda a: f"{a.setting.accounting} accounting",
    lambda a: f"mla {a.setting.mla}",
    lambda a: f"skew {a.setting.expert_skew:g}",
    lambda a: f"{a.request.images} images",
    lambda a: f"offload {a.inputs['offload']}" if a.inputs["offload"] else "nothing offloaded",
    lambda a: "token prediction" if a.setting.mtp else "no token prediction",
    lambda a: "; ".join(a.inputs["techniques"]) or "no technique",
    lambda a: a.inputs["engine"] or "no engine",
)

_NUMBERS: Final = (
    *_bound_and_expected("time to first token", "ttft_s", seconds),
    *_bound_and_expected("time per output token", "tpot_s", seconds),
    *_bound_and_expected("latency", "latency_s", seconds),
    _TableNumber("tokens a pass, of each sequence", "tokens_per_step", lambda a: _tokens_a_pass(a.analysis), _count),
    *_bound_and_expected("tokens per second", "tokens_per_s", _count),
    _TableNumber("memory", "total_bytes", lambda a: a.analysis.memory.total_bytes, _bytes),
    _TableNumber("weights", "weight_bytes", lambda a: a.analysis.memory.weight_bytes, _bytes),
    _TableNumber("KV cache", "kv_cache_bytes", lambda a: a.analysis.memory.kv_cache_bytes, _bytes),
    _TableNumber("largest batch", "max_batch", lambda a: a.analysis.memory.max_batch, _largest),
    _TableNumber("devices", "devices", lambda a: a.analysis.setting.layout.devices, _count),
)


def compared(found: Sequence[Answer], state: State) -> tuple[list[Compared], tuple[str, ...]]:
    """Pins first, then the present setting on its devices; and what is wrong with pins."""
    pinned: list[tuple[str, int, Answer]] = []
    problems: list[str] = []
    for place, (letter, pin) in enumerate(zip(LETTERS, state.pins, strict=False)):
        asked, notices = State.of_link(pin, state.files)
        problems += [f"{letter}: {notice.removeprefix('link: ')}" for notice in notices]
        try:
            pinned.append((letter, place, answers(asked)[0]))
        except InputError as error:
            problems.append(f"{letter} cannot be answered: {error}")
    alone = state.pins and len(found) == 1
    every = [*pinned, *(("now" if alone else one.name, -1, one) for one in found)]
    apart = _apart([one for *_, one in every])
    settings = [
        Compared(_name(short, said, one.name), short, headline(one.analysis), place, one)
        for (short, place, one), said in zip(every, apart, strict=True)
    ]
    return settings, tuple(problems)


def _name(short: str, apart: str, device: str) -> str:
    """Name of a setting with its differences, which may include its device."""
    between = ", " if short == device else ": "
    return apart if short in apart.split(", ") else between.join(filter(None, (short, apart)))


def _apart(every: Sequence[Answer]) -> list[str]:
    """Arguments of the first setting that differ in others, and those of each other setting that differ from the first.

    Names of devices, if nothing differs.
    """
    each = [[said(one.analysis) for one in every] for said in _APART]
    each.append([one.setting.library or "kernels measured most" for one in every])  # as asked, not what stands in
    own = [values for values in each if len(set(values)) > 1] or [[one.name for one in every]]
    first = ", ".join(values[0] for values in own)
    others = [
        ", ".join(values[i] for values in own if values[i] != values[0] or len(set(values)) == 1)
        for i in range(1, len(every))
    ]
    return [first, *others]


def numbers(settings: Sequence[Compared]) -> list[tuple[str, ...]]:
    """A column for each setting, with what it is of the first: heads, then a line for each number."""
    lines: list[tuple[str, ...]] = [("", *(one.name for one in settings))]
    for number in _NUMBERS:
        values = [number.of(one.answer) for one in settings]
        if any(value is not None for value in values):
            lines.append((number.label, *(_cell(number, value, values[0], i) for i, value in enumerate(values))))
    for phase in ("prefill", "decode"):
        own = [dict(one.answer.analysis.phases).get(phase) for one in settings]
        if any(own):
            lines.append((f"{phase} is bound by", *(one.total.bound if one else "-" for one in own)))
    fits = ("yes" if one.answer.analysis.memory.fits else "no" for one in settings)
    return [*lines, ("fits", *fits)]


def raw(settings: Sequence[Compared]) -> list[tuple[Any, ...]]:
    """The same for a file, in SI units, a line for each setting."""
    heads = ("setting", "asked", *(number.key for number in _NUMBERS), "prefill_bound", "decode_bound", "fits")
    lines: list[tuple[Any, ...]] = [heads]
    for one in settings:
        found = one.answer.analysis
        phases = dict(found.phases)
        bounds = (phases[name].total.bound if name in phases else "" for name in ("prefill", "decode"))
        values = (number.of(one.answer) for number in _NUMBERS)
        known = ("" if value is None else value for value in values)
        lines.append((one.name, one.about, *known, *bounds, found.memory.fits))
    return lines


def words(settings: Sequence[Compared]) -> list[str]:
    """Differences of each setting from the first, a sentence per phase."""
    first, *others = settings
    return [
        f"{first.short} to {other.short}: {said}"
        for other in others
        for said in _differences(first.answer, other.answer)
    ]


def moves(settings: Sequence[Compared], phase: str) -> list[Moved]:
    """Operators that are bound by different things, in the order of the first setting that has them."""
    bounds = [{operator_id(op): (op.bound, op.share) for op in one.answer.phase(phase).operators} for one in settings]
    every = dict.fromkeys(key for own in bounds for key in own)
    found = [Moved(key, tuple(own.get(key) for own in bounds)) for key in every]
    return [one for one in found if len({place[0] for place in one.places if place}) > 1]


def times(settings: Sequence[Compared], phase: str) -> PageFigure:
    return page_figure(figures.phase_bars({one.short: one.answer.analysis for one in settings}, phase))


def several_tokens(settings: Sequence[Compared], phase: str) -> bool:
    """Whether a pass of the phase yields more than one token of a sequence in any of them."""
    return phase == "decode" and any(_tokens_a_pass(one.answer.analysis) not in (None, 1) for one in settings)


def _cell(number: _TableNumber, value: float | None, base: float | None, place: int) -> str:
    if value is None:
        return "-"
    of = f" ({fold(value / base)})" if place and base and abs(value / base - 1) >= _SAME else ""
    return f"{number.text(value)}{of}"


def _differences(a: Answer, b: Answer) -> Iterator[str]:
    before, after = dict(a.analysis.phases), dict(b.analysis.phases)
    for name in (name for name in ("decode", "prefill") if name in before and name in after):
        one, other = before[name], after[name]
        (base, known), (changed, likely) = _paces(a.analysis, b.analysis, name), _paces(b.analysis, a.analysis, name)
        said = _faster(base / changed, name)
        if known and likely and abs(known / likely * changed / base - 1) >= _ALIKE:
            said += f" (expected: {_faster(known / likely)})"
        reasons = list(_reasons(a, one, b, other, name))
        if one.total.bound != other.total.bound:
            reasons.append(f"{one.total.bound}- to {other.total.bound}-bound")
        yield f"{said}{': ' if reasons else ''}{', '.join(reasons)}."
    rates = a.analysis.generation.tokens_per_s, b.analysis.generation.tokens_per_s
    if a.analysis.request.batch != b.analysis.request.batch:
        yield f"{fold(rates[1] / rates[0])} the tokens per second, with {fold(_batches(a, b))} the sequences."


def _faster(speed: float, name: str = "") -> str:
    """Such as "2.3x faster decode" and "decode as fast"."""
    if abs(speed - 1) < _SAME:
        return f"{name} as fast".strip()
    return f"{fold(max(speed, 1 / speed))} {'faster' if speed > 1 else 'slower'} {name}".rstrip()


def _paces(one: Analysis, other: Analysis, name: str) -> tuple[float, float | None]:
    """Times of a phase to compare with those of another setting, at the bound and as expected. [s]

    A token is what counts of decode, for passes may yield several; the step where there is only one, or one was asked
    for.
    """
    whole, phase = one.generation, dict(one.phases)[name]
    if name == "prefill":
        return whole.ttft_s, whole.expected_ttft_s
    if whole.tpot_s is None or other.generation.tpot_s is None or _context(one) or _context(other):
        return phase.time_s, phase.expected_time_s
    return whole.tpot_s, whole.expected_tpot_s


def _batches(a: Answer, b: Answer) -> float:
    return b.analysis.request.batch / a.analysis.request.batch


def _reasons(a: Answer, one: Phase, b: Answer, other: Phase, name: str) -> Iterator[str]:
    """Changes of the amounts and rates that bound either pass, on one device."""
    pairs: list[tuple[str, float, float]] = []
    devices = a.analysis.setting.layout.devices, b.analysis.setting.layout.devices
    if devices[0] != devices[1]:
        yield f"{devices[0]} to {devices[1]} devices"
    each = " on each" if devices[0] != devices[1] else ""
    steps = _tokens_a_pass(a.analysis) or 1, _tokens_a_pass(b.analysis) or 1
    if name == "decode" and steps[0] != steps[1]:
        yield f"{steps[0]:.3g} to {steps[1]:.3g} tokens a pass"
    bounds = _waited(one, other)
    if "memory" in bounds:
        for label, key in (("weights", "weight_bytes"), ("KV cache", "kv_bytes"), ("activations", "activation_bytes")):
            parts = getattr(one.total, key), getattr(other.total, key)
            if parts[0] > _PART * one.total.bytes or parts[1] > _PART * other.total.bytes:
                pairs.append((f"{label} {'read' if key == 'weight_bytes' else 'moved'}{each}", *parts))
        pairs.append(("memory bandwidth", a.analysis.hardware.bandwidth(), b.analysis.hardware.bandwidth()))
    if "compute" in bounds:
        pairs.append((f"OPs{each}", one.total.ops, other.total.ops))
        peaks = [roofs(p, x.analysis.hardware)[0].rate for p, x in ((one, a), (other, b))]
        pairs.append(("peak", peaks[0], peaks[1]))
    for label, before, after in pairs:
        if before and abs(after / before - 1) >= _SAME:
            yield f"{label} {fold(after / before)}"
    links = [p.total.time_by_bound_s.get("link", 0.0) / p.total.bound_time_s for p in (one, other)]
    if abs(links[0] - links[1]) > _PART:
        yield f"{links[0]:.0%} to {links[1]:.0%} of the time for links"


def _waited(one: Phase, other: Phase) -> set[str]:
    """Bounds of both passes, and bounds that make up much of the difference between them."""
    times = [p.total.time_by_bound_s for p in (one, other)]
    changes = {bound: abs(times[0].get(bound, 0) - times[1].get(bound, 0)) for bound in (*times[0], *times[1])}
    much = _TELLING * sum(changes.values())
    return {one.total.bound, other.total.bound} | {bound for bound, change in changes.items() if change > much}
