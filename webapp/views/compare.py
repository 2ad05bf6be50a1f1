"""Settings side by side: those that are pinned and the present one on each of its devices, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from llmviewer.analysis import Phase
from llmviewer.errors import InputError
from llmviewer.reports import figures
from llmviewer.reports.marks import identity, roofs
from llmviewer.reports.text import headline
from llmviewer.units import seconds, si

from ..answers import Answer, answers
from ..state import State
from .shown import Shown, shown

LETTERS: Final = "ABCDEF"
_SAME: Final = 0.005  # ratios nearer to 1 are not told
_PART: Final = 0.03  # of the bytes of a pass, below which a part of them explains nothing


class Compared(NamedTuple):
    """A setting under its name.

    short  what sentences call it
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


class _Number(NamedTuple):
    """A line of the table: how it is read, said and called in files."""

    label: str
    key: str
    of: Callable[[Answer], float | None]
    text: Callable[[float], str]


def _bytes(value: float) -> str:
    return f"{si(value)}B"


def _count(value: float) -> str:
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


_NUMBERS: Final = (
    _Number("time to first token", "ttft_s", lambda a: a.analysis.generation.ttft_s, seconds),
    _Number(
        "expected time to first token", "expected_ttft_s", lambda a: a.analysis.generation.expected_ttft_s, seconds
    ),
    _Number("time per output token", "tpot_s", lambda a: a.analysis.generation.tpot_s, seconds),
    _Number(
        "expected time per output token", "expected_tpot_s", lambda a: a.analysis.generation.expected_tpot_s, seconds
    ),
    _Number("latency", "latency_s", lambda a: a.analysis.generation.latency_s, seconds),
    _Number("tokens per second", "tokens_per_s", lambda a: a.analysis.generation.tokens_per_s, _count),
    _Number("memory", "total_bytes", lambda a: a.analysis.memory.total_bytes, _bytes),
    _Number("weights", "weight_bytes", lambda a: a.analysis.memory.weight_bytes, _bytes),
    _Number("KV cache", "kv_cache_bytes", lambda a: a.analysis.memory.kv_cache_bytes, _bytes),
    _Number("largest batch", "max_batch", lambda a: a.analysis.memory.max_batch, _count),
    _Number("devices", "devices", lambda a: a.analysis.inputs.devices, _count),
)


def compared(found: Sequence[Answer], state: State) -> tuple[list[Compared], tuple[str, ...]]:
    """Pins first, then the present setting on its devices; and what is wrong with pins."""
    settings: list[Compared] = []
    problems: list[str] = []
    for place, (letter, pin) in enumerate(zip(LETTERS, state.pins, strict=False)):
        asked, notices = State.of_link(pin, state.files)
        problems += [f"{letter}: {notice.removeprefix('link: ')}" for notice in notices]
        try:
            first = answers(asked)[0]
        except InputError as error:
            problems.append(f"{letter} cannot be answered: {error}")
        else:
            settings.append(Compared(f"{letter}: {first.name}", letter, headline(first.analysis), place, first))
    now, alone = "now: " if state.pins else "", state.pins and len(found) == 1
    settings += [
        Compared(f"{now}{one.name}", "now" if alone else one.name, headline(one.analysis), -1, one) for one in found
    ]
    return settings, tuple(problems)


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
    """How each differs from the first, a sentence for each pass."""
    first, *others = settings
    return [
        f"{first.short} to {other.short}: {said}"
        for other in others
        for said in _differences(first.answer, other.answer)
    ]


def moves(settings: Sequence[Compared], phase: str) -> list[Moved]:
    """Operators that are bound by different things, in the order of the first setting that has them."""
    bounds = [{identity(op): (op.bound, op.share) for op in one.answer.phase(phase).operators} for one in settings]
    every = dict.fromkeys(key for own in bounds for key in own)
    found = [Moved(key, tuple(own.get(key) for own in bounds)) for key in every]
    return [one for one in found if len({place[0] for place in one.places if place}) > 1]


def times(settings: Sequence[Compared], phase: str) -> Shown:
    return shown(figures.phase_bars({one.name: one.answer.analysis for one in settings}, phase))


def _cell(number: _Number, value: float | None, base: float | None, place: int) -> str:
    if value is None:
        return "-"
    of = f" ({_ratio(value / base)})" if place and base else ""
    return f"{number.text(value)}{of}"


def _ratio(value: float) -> str:
    return f"{value:.3g}x" if value < 1000 else f"{value:,.0f}x"


def _differences(a: Answer, b: Answer) -> Iterator[str]:
    before, after = dict(a.analysis.phases), dict(b.analysis.phases)
    for name in (name for name in ("decode", "prefill") if name in before and name in after):
        one, other = before[name], after[name]
        speed = one.time_s / other.time_s
        how = "as fast" if abs(speed - 1) < _SAME else f"{_ratio(max(speed, 1 / speed))} {_faster(speed)}"
        reasons = list(_reasons(a, one, b, other))
        moved = "" if one.total.bound == other.total.bound else f"{one.total.bound}- to {other.total.bound}-bound"
        why = ", ".join([*reasons, *([moved] if moved else [])])
        yield f"{how} {name}{': ' if why else ''}{why}."
    rates = a.analysis.generation.tokens_per_s, b.analysis.generation.tokens_per_s
    if a.analysis.inputs.batch != b.analysis.inputs.batch:
        yield f"{_ratio(rates[1] / rates[0])} the tokens per second, of {_ratio(_batches(a, b))} the sequences."


def _faster(speed: float) -> str:
    return "faster" if speed > 1 else "slower"


def _batches(a: Answer, b: Answer) -> float:
    return b.analysis.inputs.batch / a.analysis.inputs.batch


def _reasons(a: Answer, one: Phase, b: Answer, other: Phase) -> Iterator[str]:
    """What changes of that which bounds either pass, on one device."""
    bounds = {one.total.bound, other.total.bound}
    pairs: list[tuple[str, float, float]] = []
    devices = a.analysis.inputs.devices, b.analysis.inputs.devices
    if devices[0] != devices[1]:
        yield f"{devices[0]} to {devices[1]} devices"
    if "memory" in bounds:
        for label, key in (("weights", "weight_bytes"), ("KV cache", "kv_bytes"), ("activations", "activation_bytes")):
            parts = getattr(one.total, key), getattr(other.total, key)
            if parts[0] > _PART * one.total.bytes or parts[1] > _PART * other.total.bytes:
                pairs.append((f"{label} {'read' if key == 'weight_bytes' else 'moved'}", parts[0], parts[1]))
        pairs.append(("memory bandwidth", a.analysis.hardware.bandwidth(), b.analysis.hardware.bandwidth()))
    if "compute" in bounds:
        pairs.append(("OPs", one.total.ops, other.total.ops))
        peaks = [roofs(p, x.analysis.hardware)[0].rate for p, x in ((one, a), (other, b))]
        pairs.append(("peak", peaks[0], peaks[1]))
    for label, before, after in pairs:
        if before and abs(after / before - 1) >= _SAME:
            yield f"{label} {_ratio(after / before)}"
    links = [p.total.time_by_bound_s.get("link", 0.0) / p.total.bound_time_s for p in (one, other)]
    if abs(links[0] - links[1]) > _PART:
        yield f"{links[0]:.0%} to {links[1]:.0%} of the time for links"
