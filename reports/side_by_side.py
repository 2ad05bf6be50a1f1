"""Settings side by side: memory, the inputs in which they differ, their numbers, and why one is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import Phase
from llmviewer.records import frozen
from llmviewer.units import fold, seconds, si

from . import figures
from .operator_table import operator_id
from .page import report_page
from .page_figures import Picture, picture
from .phrases import BOUNDS, largest, memory_margin
from .roofline_points import roofs
from .tables import Item, Table

_MIN_RATIO_DIFFERENCE: Final = 0.005  # ratios nearer to 1 are omitted
_MIN_EXPECTED_DIFFERENCE: Final = 0.02  # between ratios of expected times and of bounds; smaller ones are omitted
_MIN_SHARE: Final = 0.03  # of the bytes or the time of a pass; smaller parts explain no difference
_MIN_SHARE_OF_CHANGE: Final = 0.2  # of the sum of changes by bound; bounds with smaller changes explain no difference
_AS_PUBLISHED: Final = "as published"

_PHASES: Final = ("prefill", "decode")
_MEMORY_COLUMNS: Final = (
    "device", "verdict", "weights", "KV cache", "activations", "total", "device memory", "largest batch",
    "longest context",
)  # fmt: skip


@frozen(kw_only=True)
class ComparedSetting:
    """A setting in a comparison.

    name         inputs that differ from the other settings, after its label
    label        short name in sentences and figures
    description  all inputs
    """

    name: str
    label: str
    description: str
    analysis: Analysis

    def phase(self, name: str) -> Phase:
        """The phase of that name; prefill where the model does not generate."""
        return dict(self.analysis.phases).get(name, self.analysis.phases.prefill)


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
    value_of: Callable[[Analysis], float | None]
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
        yield _TableNumber(line, name, attrgetter(f"generation.{name}"), text)


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
    *_bound_and_expected("TTFT", ">=", "ttft_s", seconds),
    *_bound_and_expected("TPOT", ">=", "tpot_s", seconds),
    *_bound_and_expected("E2E latency", ">=", "latency_s", seconds),
    _TableNumber("tokens per pass and sequence", "tokens_per_step", _tokens_per_pass, _count),
    *_bound_and_expected("tokens/s", "<=", "tokens_per_s", _count),
    _TableNumber("memory", "total_bytes", lambda a: a.memory.total_bytes, _bytes),
    _TableNumber("weights", "weight_bytes", lambda a: a.memory.weight_bytes, _bytes),
    _TableNumber("KV cache", "kv_cache_bytes", lambda a: a.memory.kv_cache_bytes, _bytes),
    _TableNumber("largest batch", "max_batch", lambda a: a.memory.max_batch, _count_or_none),
    _TableNumber("devices", "devices", lambda a: a.setting.layout.devices, _count),
)


def setting_names(labels: Sequence[str], devices: Sequence[str], analyses: Sequence[Analysis]) -> list[str]:
    """Names of settings: label and inputs that differ, which may include the device."""
    return [
        _setting_name(label, difference, device)
        for label, difference, device in zip(labels, _differing_inputs(devices, analyses), devices, strict=True)
    ]


def _setting_name(label: str, differences: str, device: str) -> str:
    """Name of a setting: its label and its differences, which may include its device."""
    between = ", " if label == device else ": "
    return differences if label in differences.split(", ") else between.join(filter(None, (label, differences)))


def _differing_inputs(devices: Sequence[str], analyses: Sequence[Analysis]) -> list[str]:
    """Inputs of the first setting that differ in others, and inputs of each other setting that differ from the first.

    Names of devices if nothing differs.
    """
    differing = [values for _, values in _differing_texts(analyses)] or [list(devices)]
    first = ", ".join(filter(None, (values[0] for values in differing)))
    others = [
        ", ".join(values[i] for values in differing if values[i] and (values[i] != values[0] or len(set(values)) == 1))
        for i in range(1, len(devices))
    ]
    return [first, *others]


def _differing_texts(analyses: Sequence[Analysis]) -> list[tuple[str, list[str]]]:
    """Labels of the inputs that differ between settings, with their texts in each."""
    each = [(one.label, [one.text(analysis) for analysis in analyses]) for one in _INPUTS]
    return [(label, texts) for label, texts in each if len(set(texts)) > 1]


def memory_table(analyses: Mapping[str, Analysis]) -> Table:
    """Sizes, verdict, and largest batch and context of each device, by its name."""
    body = []
    for name, analysis in analyses.items():
        memory = analysis.memory
        margin, word = memory_margin(memory)
        verdict = f"{'fits' if memory.fits else 'does not fit'}, {si(margin)}B {word}"
        sizes = (memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes, memory.total_bytes)
        body.append((
            Item(text=name), Item(text=verdict, alarm=not memory.fits),
            *(Item(text=_bytes(size), key=size) for size in (*sizes, memory.capacity_bytes)),
            Item(text=largest(memory.max_batch)), Item(text=largest(memory.max_context)),
        ))  # fmt: skip
    return Table(
        title="Capacity",
        about="",
        head=_MEMORY_COLUMNS,
        words=("device", "verdict"),
        body=tuple(body),
    )


def inputs_table(settings: Sequence[ComparedSetting]) -> Table:
    """Inputs that differ between settings, one a row."""
    differing = _differing_texts([one.analysis for one in settings])
    return _table("Inputs that differ", "", [one.label for one in settings], [
        [Item(text=label), *(Item(text=text or "-") for text in texts)] for label, texts in differing
    ])  # fmt: skip


def numbers_table(settings: Sequence[ComparedSetting]) -> Table:
    """Numbers of each setting, one a row, with their ratios to the first setting."""
    rows = []
    for number in _NUMBERS:
        values = [number.value_of(one.analysis) for one in settings]
        if any(value is not None for value in values):
            cells = (_number_cell(number, value, values[0], place) for place, value in enumerate(values))
            rows.append([Item(text=number.label), *(Item(text=cell) for cell in cells)])
    for name in _PHASES:
        phases = [dict(one.analysis.phases).get(name) for one in settings]
        if any(phases):
            bounds = (one.total.bound if one else "" for one in phases)
            rows.append([Item(text=f"{name} bound"), *(Item(text=bound or "-", bound=bound) for bound in bounds)])
    fits = (one.analysis.memory.fits for one in settings)
    rows.append([Item(text="fits"), *(Item(text="yes" if each else "no", alarm=not each) for each in fits)])
    return _table("Numbers", f"In brackets: ratio to {settings[0].label}.", [one.name for one in settings], rows)


def bounds_table(settings: Sequence[ComparedSetting], phase: str) -> Table:
    """Operators whose bound differs, with their bound and share of the time in each setting."""
    rows = [
        [Item(text=one.operator), *(Item(text=f"{at[0]} {at[1]:.1%}", bound=at[0]) if at else Item(text="-")
                                    for at in one.bounds)]
        for one in bound_differences(settings, phase)
    ]  # fmt: skip
    title = f"Operators of {phase} whose bound changes"
    about = "Bound of each operator, and its share of the time of the phase."
    return _table(title, about, [one.name for one in settings], rows, first="operator")


def _table(title: str, about: str, columns: Sequence[str], rows: Sequence[Sequence[Item]], *, first: str = "") -> Table:
    """A table with a column for each setting after the first column."""
    head = (first, *columns)
    return Table(title=title, about=about, head=head, words=head, body=tuple(map(tuple, rows)))


def csv_lines(settings: Sequence[ComparedSetting]) -> list[tuple[Any, ...]]:
    """Numbers in SI units for a CSV file: a line of heads, then one per setting."""
    heads = ("setting", "asked", *(number.key for number in _NUMBERS), "prefill_bound", "decode_bound", "fits")
    lines: list[tuple[Any, ...]] = [heads]
    for one in settings:
        analysis, phases = one.analysis, dict(one.analysis.phases)
        bounds = (phases[name].total.bound if name in phases else "" for name in _PHASES)
        values = (number.value_of(analysis) for number in _NUMBERS)
        cells = ("" if value is None else value for value in values)
        lines.append((one.name, one.description, *cells, *bounds, analysis.memory.fits))
    return lines


def difference_sentences(settings: Sequence[ComparedSetting]) -> list[str]:
    """Differences of each setting from the first one, a sentence per phase."""
    first, *others = settings
    return [
        f"{first.label} to {other.label}: {sentence}"
        for other in others
        for sentence in _differences(first.analysis, other.analysis)
    ]


def bound_differences(settings: Sequence[ComparedSetting], phase: str) -> list[BoundDifference]:
    """Operators whose bound differs, in the order of the first setting that has them."""
    bounds = [{operator_id(op): (op.bound, op.share) for op in one.phase(phase).operators} for one in settings]
    entries = dict.fromkeys(key for setting_bounds in bounds for key in setting_bounds)
    differences = [BoundDifference(key, tuple(setting_bounds.get(key) for setting_bounds in bounds)) for key in entries]
    return [one for one in differences if len({place[0] for place in one.bounds if place}) > 1]


def analyses_with_phase(settings: Sequence[ComparedSetting], phase: str) -> dict[str, Analysis]:
    """Analyses of the settings that have the phase, by label."""
    return {one.label: one.analysis for one in settings if phase in dict(one.analysis.phases)}


def yields_several_tokens(settings: Sequence[ComparedSetting], phase: str) -> bool:
    """Whether a pass of the phase yields more than one token per sequence in any setting."""
    return phase == "decode" and any(_tokens_per_pass(one.analysis) not in (None, 1) for one in settings)


def _number_cell(number: _TableNumber, value: float | None, base: float | None, place: int) -> str:
    if value is None:
        return "-"
    ratio = f" ({fold(value / base)})" if place and base and abs(value / base - 1) >= _MIN_RATIO_DIFFERENCE else ""
    return f"{number.text(value)}{ratio}"


def _differences(a: Analysis, b: Analysis) -> Iterator[str]:
    """Sentences on the differences of setting `b` from `a`, one per phase and one on throughput."""
    before, after = dict(a.phases), dict(b.phases)
    for name in (name for name in ("decode", "prefill") if name in before and name in after):
        one, other = before[name], after[name]
        bound_a, expected_a = _comparable_times(a, b, name)
        bound_b, expected_b = _comparable_times(b, a, name)
        ratio = bound_a / bound_b
        sentence = _speed_text(ratio, name)
        if expected_a and expected_b and abs(expected_a / expected_b / ratio - 1) >= _MIN_EXPECTED_DIFFERENCE:
            sentence += f" (expected: {_speed_text(expected_a / expected_b)})"
        reasons = list(_reasons(a, one, b, other, name))
        if one.total.bound != other.total.bound:
            reasons.append(f"{one.total.bound}- to {other.total.bound}-bound")
        yield f"{sentence}{': ' if reasons else ''}{', '.join(reasons)}."
    rates = a.generation.tokens_per_s, b.generation.tokens_per_s
    if a.request.batch != b.request.batch:
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


def _batch_ratio(a: Analysis, b: Analysis) -> float:
    return b.request.batch / a.request.batch


def _reasons(a: Analysis, one: Phase, b: Analysis, other: Phase, name: str) -> Iterator[str]:
    """Changes of amounts and rates per device that limit either pass."""
    pairs: list[tuple[str, float, float]] = []
    devices = a.setting.layout.devices, b.setting.layout.devices
    if devices[0] != devices[1]:
        yield f"{devices[0]} to {devices[1]} devices"
    each = " per device" if devices[0] != devices[1] else ""
    steps = _tokens_per_pass(a) or 1, _tokens_per_pass(b) or 1
    if name == "decode" and steps[0] != steps[1]:
        yield f"{steps[0]:.3g} to {steps[1]:.3g} tokens per pass"
    bounds = _relevant_bounds(one, other)
    if "memory" in bounds:
        for label, key in (("weights", "weight_bytes"), ("KV cache", "kv_bytes"), ("activations", "activation_bytes")):
            parts = getattr(one.total, key), getattr(other.total, key)
            if parts[0] > _MIN_SHARE * one.total.bytes or parts[1] > _MIN_SHARE * other.total.bytes:
                pairs.append((f"{label} {'read' if key == 'weight_bytes' else 'moved'}{each}", *parts))
        pairs.append(("memory bandwidth", a.hardware.bandwidth(), b.hardware.bandwidth()))
    if "compute" in bounds:
        pairs.append((f"OPs{each}", one.total.ops, other.total.ops))
        peaks = [roofs(p, x.setting.linked)[0].rate for p, x in ((one, a), (other, b))]
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


def comparison_page(settings: Sequence[ComparedSetting], phase: str) -> str:
    """An HTML page in one file: differences, numbers, figures of each phase, and operators of one."""
    title = f"Comparison of {len(settings)} settings"
    described = [[Item(text=one.label), Item(text=one.description)] for one in settings]
    tables = (
        _table("Settings", "", ["inputs"], described, first="setting"), inputs_table(settings),
        numbers_table(settings), bounds_table(settings, phase),
    )  # fmt: skip
    return report_page(
        title=title,
        headline=f"{title}: {', '.join(one.name for one in settings)}",
        basis=BOUNDS,
        pictures=list(_pictures(settings)),
        tables=[one for one in tables if one.body],
        remarks=difference_sentences(settings),
        inputs={},
    )


def _pictures(settings: Sequence[ComparedSetting]) -> Iterator[list[Picture]]:
    """Times and rooflines of each phase that several settings have."""
    for phase in _PHASES:
        analyses = analyses_with_phase(settings, phase)
        if len(analyses) > 1:
            drawn = {"times": figures.phase_bars(analyses, phase), "roofline": figures.rooflines(analyses, phase)}
            yield [picture(figure, f"{phase}-{name}") for name, figure in drawn.items()]
