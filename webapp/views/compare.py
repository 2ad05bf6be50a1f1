"""Comparison of settings: the pinned ones and the current one on each of its devices."""

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

from ..errors import error_line
from ..results import DeviceResult, device_results
from ..state import State, pin_name
from ..words import LOWER_BOUND_SIGN, UPPER_BOUND_SIGN

LETTERS: Final = "ABCDEF"  # of pins
_MIN_RATIO_DIFFERENCE: Final = 0.005  # ratios nearer to 1 are omitted
_MIN_EXPECTED_DIFFERENCE: Final = 0.02  # between ratios of expected times and of bounds; smaller ones are omitted
_MIN_SHARE: Final = 0.03  # of the bytes or the time of a pass; smaller parts explain no difference
_MIN_SHARE_OF_CHANGE: Final = 0.2  # of the sum of changes by bound; bounds with smaller changes explain no difference
_AS_PUBLISHED: Final = "as published"


class ComparedSetting(NamedTuple):
    """A setting in the comparison.

    name   inputs that differ from the other settings, after the label of a pin
    label  short name in sentences and figures: name or letter of a pin, "now" or device
    pin    index among the pins; -1 for the current setting
    """

    name: str
    label: str
    description: str
    pin: int
    result: DeviceResult


class BoundDifference(NamedTuple):
    """An operator whose bound differs between settings: (bound, share of the phase) in each setting, None without the
    operator.
    """

    operator: str
    bounds: tuple[tuple[str, float] | None, ...]


class _TableNumber(NamedTuple):
    """A line of the table: its label, column in CSV files, value and text."""

    label: str
    key: str
    value_of: Callable[[DeviceResult], float | None]
    text: Callable[[float], str]


def _bytes(value: float) -> str:
    return f"{si(value)}B"


def _count(value: float) -> str:
    return f"{value:,.4g}" if value < 9999.5 else f"{value:,.0f}"


def _count_or_none(value: float) -> str:
    return _count(value) if value else "none"


def _bound_and_expected(label: str, sign: str, key: str, text: Callable[[float], str]) -> Iterator[_TableNumber]:
    """Lines of the bound and the expected value of a quantity."""
    for line, name in ((f"{label} {sign}", key), (f"expected {label}", f"expected_{key}")):
        yield _TableNumber(line, name, attrgetter(f"analysis.generation.{name}"), text)


def _tokens_per_pass(analysis: Analysis) -> float | None:
    """Tokens per sequence and decode pass; None without techniques."""
    return analysis.effect.tokens_per_step if analysis.effect else None


def _chosen_context(analysis: Analysis) -> int | None:
    """Context of the decode step, if the user gave one."""
    request = analysis.request
    return None if request.kv_len in (None, request.prompt + 1) else request.kv_len


class _Input(NamedTuple):
    """An input in which settings can differ: its label and text."""

    label: str
    text: Callable[[Analysis], str]


_INPUTS: Final = (
    _Input("model", lambda a: a.model.name),
    _Input("device", lambda a: a.hardware.name),
    _Input("what-ifs", lambda a: ", ".join(a.inputs["hardware_set"]) or "no what-if"),
    _Input(
        "precision",
        lambda a: (
            a.inputs["quant"]
            if a.inputs["quant"] == _AS_PUBLISHED
            else a.inputs["quant"].replace(f" {_AS_PUBLISHED}", "")
        ),
    ),
    _Input("batch", lambda a: f"batch {a.request.batch:,}"),
    _Input("prompt", lambda a: f"prompt {a.request.prompt:,}"),
    _Input("generated", lambda a: f"{a.request.gen:,} generated" if a.request.gen else "none generated"),
    _Input("decode step", lambda a: f"context {_chosen_context(a):,}" if _chosen_context(a) else "the first step"),
    _Input("layout", lambda a: a.inputs["layout"] or "one device"),
    _Input("attention", lambda a: f"{a.setting.attention} attention"),
    _Input("accounting", lambda a: f"{a.setting.accounting} accounting"),
    _Input("latent attention", lambda a: f"mla {a.setting.mla}"),
    _Input("expert skew", lambda a: f"skew {a.setting.expert_skew:g}"),
    _Input("images", lambda a: f"{a.request.images} images"),
    _Input("offload", lambda a: f"offload {a.inputs['offload']}" if a.inputs["offload"] else "nothing offloaded"),
    _Input("token prediction", lambda a: "token prediction" if a.setting.mtp else "no token prediction"),
    _Input("techniques", lambda a: "; ".join(a.inputs["techniques"]) or "no technique"),
    _Input("engine", lambda a: a.inputs["engine"] or "no engine"),
    _Input(  # an engine implies its own
        "kernel library", lambda a: "" if a.inputs["engine"] else a.setting.library or "most measured library"
    ),
)

_NUMBERS: Final = (
    *_bound_and_expected("TTFT", LOWER_BOUND_SIGN, "ttft_s", seconds),
    *_bound_and_expected("TPOT", LOWER_BOUND_SIGN, "tpot_s", seconds),
    *_bound_and_expected("E2E latency", LOWER_BOUND_SIGN, "latency_s", seconds),
    _TableNumber("tokens per pass and sequence", "tokens_per_step", lambda a: _tokens_per_pass(a.analysis), _count),
    *_bound_and_expected("tokens/s", UPPER_BOUND_SIGN, "tokens_per_s", _count),
    _TableNumber("memory", "total_bytes", lambda a: a.analysis.memory.total_bytes, _bytes),
    _TableNumber("weights", "weight_bytes", lambda a: a.analysis.memory.weight_bytes, _bytes),
    _TableNumber("KV cache", "kv_cache_bytes", lambda a: a.analysis.memory.kv_cache_bytes, _bytes),
    _TableNumber("largest batch", "max_batch", lambda a: a.analysis.memory.max_batch, _count_or_none),
    _TableNumber("devices", "devices", lambda a: a.analysis.setting.layout.devices, _count),
)


def compared_settings(results: Sequence[DeviceResult], state: State) -> tuple[list[ComparedSetting], tuple[str, ...]]:
    """The pinned settings, then the current one on each device; and errors of pins."""
    pinned: list[tuple[str, int, DeviceResult]] = []
    problems: list[str] = []
    for place, (letter, pin) in enumerate(zip(LETTERS, state.pins, strict=False)):
        pinned_state, notices = State.of_link(pin, state.files)
        problems += [f"{letter}: {notice.removeprefix('link: ')}" for notice in notices]
        try:
            label = f"{letter} {pin_name(pin)}".strip()
            pinned.append((label, place, device_results(pinned_state)[0]))
        except InputError as error:
            problems.append(f"{letter}: {error_line(error)}")
    has_unpinned_rival = state.pins and len(results) == 1
    entries = [*pinned, *(("now" if has_unpinned_rival else one.name, -1, one) for one in results)]
    differences = _differing_inputs([one for *_, one in entries])
    settings = [
        ComparedSetting(_setting_name(label, difference, one.name), label, headline(one.analysis), place, one)
        for (label, place, one), difference in zip(entries, differences, strict=True)
    ]
    return settings, tuple(problems)


def _setting_name(label: str, differences: str, device: str) -> str:
    """Name of a setting: its label and its differences, which may include its device."""
    between = ", " if label == device else ": "
    return differences if label in differences.split(", ") else between.join(filter(None, (label, differences)))


def _differing_inputs(entries: Sequence[DeviceResult]) -> list[str]:
    """Inputs of the first setting that differ in others, and inputs of each other setting that differ from the first.

    Names of devices if nothing differs.
    """
    differing = [values for _, values in _differing_texts(entries)] or [[one.name for one in entries]]
    first = ", ".join(filter(None, (values[0] for values in differing)))
    others = [
        ", ".join(values[i] for values in differing if values[i] and (values[i] != values[0] or len(set(values)) == 1))
        for i in range(1, len(entries))
    ]
    return [first, *others]


def _differing_texts(entries: Sequence[DeviceResult]) -> list[tuple[str, list[str]]]:
    """Labels of the inputs that differ between settings, with their texts in each."""
    each = [(one.label, [one.text(entry.analysis) for entry in entries]) for one in _INPUTS]
    return [(label, texts) for label, texts in each if len(set(texts)) > 1]


def inputs_table(settings: Sequence[ComparedSetting]) -> list[tuple[str, ...]]:
    """Inputs that differ between settings: a line of heads, then one per input; empty if none differs."""
    lines = [
        (label, *(text or "-" for text in texts)) for label, texts in _differing_texts([one.result for one in settings])
    ]
    return [("", *(one.label for one in settings)), *lines] if lines else []


def numbers_table(settings: Sequence[ComparedSetting]) -> list[tuple[str, ...]]:
    """Numbers of each setting with their ratios to the first one: a line of heads, then one per number."""
    lines: list[tuple[str, ...]] = [("", *(one.name for one in settings))]
    for number in _NUMBERS:
        values = [number.value_of(one.result) for one in settings]
        if any(value is not None for value in values):
            lines.append((number.label, *(_number_cell(number, value, values[0], i) for i, value in enumerate(values))))
    for phase in ("prefill", "decode"):
        phases = [dict(one.result.analysis.phases).get(phase) for one in settings]
        if any(phases):
            lines.append((f"{phase} bound", *(one.total.bound if one else "-" for one in phases)))
    fits = ("yes" if one.result.analysis.memory.fits else "no" for one in settings)
    return [*lines, ("fits", *fits)]


def csv_rows(settings: Sequence[ComparedSetting]) -> list[tuple[Any, ...]]:
    """Numbers in SI units for a CSV file: a line of heads, then one per setting."""
    heads = ("setting", "asked", *(number.key for number in _NUMBERS), "prefill_bound", "decode_bound", "fits")
    lines: list[tuple[Any, ...]] = [heads]
    for one in settings:
        analysis = one.result.analysis
        phases = dict(analysis.phases)
        bounds = (phases[name].total.bound if name in phases else "" for name in ("prefill", "decode"))
        values = (number.value_of(one.result) for number in _NUMBERS)
        cells = ("" if value is None else value for value in values)
        lines.append((one.name, one.description, *cells, *bounds, analysis.memory.fits))
    return lines


def difference_sentences(settings: Sequence[ComparedSetting]) -> list[str]:
    """Differences of each setting from the first one, a sentence per phase."""
    first, *others = settings
    return [
        f"{first.label} to {other.label}: {sentence}"
        for other in others
        for sentence in _differences(first.result, other.result)
    ]


def bound_differences(settings: Sequence[ComparedSetting], phase: str) -> list[BoundDifference]:
    """Operators whose bound differs, in the order of the first setting that has them."""
    bounds = [{operator_id(op): (op.bound, op.share) for op in one.result.phase(phase).operators} for one in settings]
    entries = dict.fromkeys(key for setting_bounds in bounds for key in setting_bounds)
    differences = [BoundDifference(key, tuple(setting_bounds.get(key) for setting_bounds in bounds)) for key in entries]
    return [one for one in differences if len({place[0] for place in one.bounds if place}) > 1]


def times_figure(settings: Sequence[ComparedSetting], phase: str) -> PageFigure:
    """Bars of the time of a phase, one per setting."""
    return page_figure(figures.phase_bars({one.label: one.result.analysis for one in settings}, phase))


def analyses_with_phase(settings: Sequence[ComparedSetting], phase: str) -> dict[str, Analysis]:
    """Analyses of the settings that have the phase, by label."""
    return {one.label: one.result.analysis for one in settings if phase in dict(one.result.analysis.phases)}


def roofline_figure(settings: Sequence[ComparedSetting], phase: str) -> PageFigure | None:
    """Operators of the phase under the roofs of all settings that have it; None if fewer than two have."""
    analyses = analyses_with_phase(settings, phase)
    return page_figure(figures.rooflines(analyses, phase)) if len(analyses) > 1 else None


def yields_several_tokens(settings: Sequence[ComparedSetting], phase: str) -> bool:
    """Whether a pass of the phase yields more than one token per sequence in any setting."""
    return phase == "decode" and any(_tokens_per_pass(one.result.analysis) not in (None, 1) for one in settings)


def _number_cell(number: _TableNumber, value: float | None, base: float | None, place: int) -> str:
    if value is None:
        return "-"
    ratio = f" ({fold(value / base)})" if place and base and abs(value / base - 1) >= _MIN_RATIO_DIFFERENCE else ""
    return f"{number.text(value)}{ratio}"


def _differences(a: DeviceResult, b: DeviceResult) -> Iterator[str]:
    """Sentences on the differences of setting `b` from `a`, one per phase and one on throughput."""
    before, after = dict(a.analysis.phases), dict(b.analysis.phases)
    for name in (name for name in ("decode", "prefill") if name in before and name in after):
        one, other = before[name], after[name]
        bound_a, expected_a = _comparable_times(a.analysis, b.analysis, name)
        bound_b, expected_b = _comparable_times(b.analysis, a.analysis, name)
        ratio = bound_a / bound_b
        sentence = _speed_text(ratio, name)
        if expected_a and expected_b and abs(expected_a / expected_b / ratio - 1) >= _MIN_EXPECTED_DIFFERENCE:
            sentence += f" (expected: {_speed_text(expected_a / expected_b)})"
        reasons = list(_reasons(a, one, b, other, name))
        if one.total.bound != other.total.bound:
            reasons.append(f"{one.total.bound}- to {other.total.bound}-bound")
        yield f"{sentence}{': ' if reasons else ''}{', '.join(reasons)}."
    rates = a.analysis.generation.tokens_per_s, b.analysis.generation.tokens_per_s
    if a.analysis.request.batch != b.analysis.request.batch:
        yield f"{fold(rates[1] / rates[0])} tokens/s at {fold(_batch_ratio(a, b))} the batch."


def _speed_text(speed: float, name: str = "") -> str:
    """A ratio of speeds in words, such as "2.3x faster decode" and "decode as fast"."""
    if abs(speed - 1) < _MIN_RATIO_DIFFERENCE:
        return f"{name} as fast".strip()
    return f"{fold(max(speed, 1 / speed))} {'faster' if speed > 1 else 'slower'} {name}".rstrip()


def _comparable_times(one: Analysis, other: Analysis, name: str) -> tuple[float, float | None]:
    """Bound and expected time of a phase, to compare with another setting. [s]

    Decode is compared by TPOT, as passes may yield several tokens; by a single step if either setting has no TPOT or
    shows a chosen context.
    """
    generation, phase = one.generation, dict(one.phases)[name]
    if name == "prefill":
        return generation.ttft_s, generation.expected_ttft_s
    if generation.tpot_s is None or other.generation.tpot_s is None or _chosen_context(one) or _chosen_context(other):
        return phase.time_s, phase.expected_time_s
    return generation.tpot_s, generation.expected_tpot_s


def _batch_ratio(a: DeviceResult, b: DeviceResult) -> float:
    return b.analysis.request.batch / a.analysis.request.batch


def _reasons(a: DeviceResult, one: Phase, b: DeviceResult, other: Phase, name: str) -> Iterator[str]:
    """Changes of amounts and rates per device that limit either pass."""
    pairs: list[tuple[str, float, float]] = []
    devices = a.analysis.setting.layout.devices, b.analysis.setting.layout.devices
    if devices[0] != devices[1]:
        yield f"{devices[0]} to {devices[1]} devices"
    each = " per device" if devices[0] != devices[1] else ""
    steps = _tokens_per_pass(a.analysis) or 1, _tokens_per_pass(b.analysis) or 1
    if name == "decode" and steps[0] != steps[1]:
        yield f"{steps[0]:.3g} to {steps[1]:.3g} tokens per pass"
    bounds = _relevant_bounds(one, other)
    if "memory" in bounds:
        for label, key in (("weights", "weight_bytes"), ("KV cache", "kv_bytes"), ("activations", "activation_bytes")):
            parts = getattr(one.total, key), getattr(other.total, key)
            if parts[0] > _MIN_SHARE * one.total.bytes or parts[1] > _MIN_SHARE * other.total.bytes:
                pairs.append((f"{label} {'read' if key == 'weight_bytes' else 'moved'}{each}", *parts))
        pairs.append(("memory bandwidth", a.analysis.hardware.bandwidth(), b.analysis.hardware.bandwidth()))
    if "compute" in bounds:
        pairs.append((f"OPs{each}", one.total.ops, other.total.ops))
        peaks = [roofs(p, x.analysis.setting.linked)[0].rate for p, x in ((one, a), (other, b))]
        pairs.append(("peak", peaks[0], peaks[1]))
    for label, before, after in pairs:
        if before and abs(after / before - 1) >= _MIN_RATIO_DIFFERENCE:
            yield f"{label} {fold(after / before)}"
    links = [p.total.time_by_bound_s.get("link", 0.0) / p.total.bound_time_s for p in (one, other)]
    if abs(links[0] - links[1]) > _MIN_SHARE:
        yield f"{links[0]:.0%} to {links[1]:.0%} of the time in link transfers"


def _relevant_bounds(one: Phase, other: Phase) -> set[str]:
    """Bounds of both passes, and those that make up a large part of their difference."""
    times = [p.total.time_by_bound_s for p in (one, other)]
    changes = {bound: abs(times[0].get(bound, 0) - times[1].get(bound, 0)) for bound in (*times[0], *times[1])}
    threshold = _MIN_SHARE_OF_CHANGE * sum(changes.values())
    return {one.total.bound, other.total.bound} | {bound for bound, change in changes.items() if change > threshold}
