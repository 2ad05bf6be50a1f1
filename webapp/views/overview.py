"""Overview: bound and advice of a phase, totals, figures and the operator table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final, NamedTuple

from llmviewer.errors import InputError
from llmviewer.reports import figures
from llmviewer.reports.analysis import memory_cards, time_cards
from llmviewer.reports.drawing import SKY
from llmviewer.reports.operator_table import computed_in, merged, operator_id
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.parts import Card
from llmviewer.reports.phrases import (
    below,
    between,
    effect_lines,
    headline,
    measured_label,
    memory_margin,
    per_device,
    phase_title,
    precision,
    sentence,
    subject,
)
from llmviewer.units import seconds, si

from ..errors import error_line
from ..results import DeviceResult, device_results
from ..state import State
from ..words import LOWER_BOUND_SIGN, page_text

_MAX_DRAWN: Final = 8  # settings in a figure
_SPACE: Final = "\N{NO-BREAK SPACE}"


def heading(results: Sequence[DeviceResult]) -> tuple[str, str]:
    """Title and subtitle: model, first device and number of others; inputs of the request."""
    first = results[0].analysis
    others_text = f" and {len(results) - 1} more" * (len(results) > 1)
    return f"{subject(first)}{others_text}", below(subject(first), headline(first))


def advice(result: DeviceResult, phase: str) -> str:
    """Sentence on the bound of a phase and on changes that help."""
    return page_text(sentence(result.phase(phase).advice))


def notes(result: DeviceResult) -> list[str]:
    """Notes of the analysis, each a sentence."""
    return [page_text(sentence(note)) for note in result.analysis.notes]


def sources(results: Sequence[DeviceResult]) -> str:
    """Sources of the expected times in a line, or the reason why there are none."""
    texts = {one.name: _phase_sources(one) for one in results}
    if len(texts) == 1:
        return f"Expected: {texts.popitem()[1]}"
    return "Expected: " + "; ".join(f"{name}: {source}" for name, source in texts.items())


def _phase_sources(result: DeviceResult) -> str:
    """Sources of one device, such as "calibrated on l40s trtllm (transferred: 11% of prefill, 1% of decode)"."""
    shares_by_source: dict[str, dict[str, list[str]]] = {}
    for name, phase in result.analysis.phases:
        (source, _), *others = phase.total.expectation_sources.items()
        kinds = shares_by_source.setdefault(source, {})
        for kind, share in others:
            kinds.setdefault(kind, []).append(f"{share:.0%} of {name}")
    rests = (
        "; ".join(f"{kind}: {', '.join(phase_shares)}" for kind, phase_shares in kinds.items())
        for kinds in shares_by_source.values()
    )
    return " and ".join(
        f"{source} ({rest})" if rest else source for source, rest in zip(shares_by_source, rests, strict=True)
    )


def step_name(result: DeviceResult, state: State) -> str:
    """The decode step shown, such as "mean step"; a pass if it yields several tokens of a sequence."""
    effect = result.analysis.effect
    noun = "pass" if effect and effect.tokens_per_step not in (None, 1) else "step"
    if state.step:
        return f"{state.step} {noun}"
    return f"{noun} at context {state.context:,}" if state.context else f"first {noun}"


def shown_time(result: DeviceResult, state: State) -> tuple[str, str, str]:
    """Name, bound and expected time, with its interval, of the pass shown: a prefill or a decode step."""
    phase = result.phase_name(state.phase)
    total = result.phase(phase).total
    expected = between(total.expected_time_s, total.expected_low_s, total.expected_high_s)
    name = step_name(result, state) if phase == "decode" else phase_title(result.analysis, phase)
    return name, seconds(total.bound_time_s), expected


def verdict(results: Sequence[DeviceResult], state: State) -> tuple[str, str]:
    """Whether the request fits the first device, with the first change by which it does; and what bounds the phase."""
    first = results[0]
    analysis, phase = first.analysis, first.phase_name(state.phase)
    margin, name = memory_margin(analysis.memory)
    size = f"{si(margin)}B {name}"
    fixes = None if analysis.memory.fits else analysis.memory_fixes
    fix = f"; fits with {page_text(fixes.found[0].typed)}" if fixes and fixes.found else ""
    fit = f"{'Fits' if analysis.memory.fits else 'Does not fit'}: {size}{per_device(analysis)}{fix}."
    pass_name, bound, expected = shown_time(first, state)
    times = f"{pass_name} {LOWER_BOUND_SIGN} {bound}" + (f", expected {expected}" if expected else "")
    title = phase_title(analysis, phase).capitalize()
    where = f"{first.name}: " * (len(results) > 1)
    return f"{where}{fit}", f"{title} is {first.phase(phase).total.bound}-bound; {times}."


def cards(result: DeviceResult, state: State) -> list[Card]:
    """Cards of the totals on one device, with the decode step shown beside the mean of all."""
    times, memory = time_cards(result.analysis), memory_cards(result.analysis)
    if result.phase_name(state.phase) == "decode":
        name, bound, expected = shown_time(result, state)
        about = f"context {result.phase('decode').kv_len:,}"
        times.insert(2, Card(label=name, value=bound, about=about, sign=LOWER_BOUND_SIGN, expected=expected))
    return [*times, *memory]


class TotalCell(NamedTuple):
    """A cell of the totals: value, expected value or other detail, and whether it is a negative verdict."""

    value: str
    detail: str = ""
    alarm: bool = False


def totals(results: Sequence[DeviceResult], state: State) -> list[tuple[TotalCell, ...]]:
    """Totals of several devices, whether each fits first: a line of heads, then one per device."""
    each = [cards(one, state) for one in results]
    heads = [_head(card) for card in each[0]]
    lines = [[TotalCell(card.value, _detail(card), alarm=card.alarm) for card in card_list] for card_list in each]
    rows = [heads, *lines]
    fit = len(each[0]) - len(memory_cards(results[0].analysis))
    names = [
        TotalCell("device"),
        *(TotalCell(one.name, f"{one.phase(state.phase).total.bound}-bound") for one in results),
    ]
    return [(name, row[fit], *row[:fit], *row[fit + 1 :]) for name, row in zip(names, rows, strict=True)]


def _head(card: Card) -> TotalCell:
    return TotalCell(f"{card.label} {card.sign}" if card.sign else card.label, "expected" if card.expected else "")


def _detail(card: Card) -> str:
    return card.expected or card.about.partition(", ")[2] if card.alarm or card.expected else ""


def expected_text(card: Card) -> str:
    """Expected value of a card, in words."""
    return broken_before_interval(f"expected {card.expected}")


def broken_before_interval(text: str) -> str:
    """A text with a value and its interval, with a line break only between them."""
    value, bracket, interval = text.replace(" ", _SPACE).partition("(")
    return f"{value.rstrip(_SPACE)} {bracket}{interval}".rstrip()


def technique_effects(result: DeviceResult) -> tuple[tuple[str, str], ...]:
    """Labels and texts on the passes and gains of techniques."""
    return effect_lines(result.analysis.effect) if result.analysis.effect else ()


def verdicts(results: Sequence[DeviceResult]) -> tuple[tuple[str, str], ...]:
    """Labels and verdicts on the user's measurements, for each device."""
    device_suffixes = [f" on {one.name}" * (len(results) > 1) for one in results]
    return tuple(
        (f"{measured_label(each)}{device}", page_text(sentence(each.said)))
        for one, device in zip(results, device_suffixes, strict=True)
        for each in one.analysis.measured
    )


def drawn_results(results: Sequence[DeviceResult], state: State) -> tuple[dict[str, DeviceResult], tuple[str, ...]]:
    """Results that figures show, by name: each device, in other precisions too if the state lists any; and errors.

    At most _MAX_DRAWN: as many as colors tell apart.
    """
    if not state.quants:
        return {one.name: one for one in results}, ()
    drawn: dict[str, DeviceResult] = {}
    problems: list[str] = []
    for one, quant in product(results, dict.fromkeys((state.quant, *state.quants))):
        if len(drawn) == _MAX_DRAWN:
            break
        where = f"{one.name} " * (len(results) > 1)
        if quant == state.quant:
            drawn[f"{where}{precision(one.analysis)}"] = one
            continue
        try:
            (drawn[f"{where}{quant}"],) = device_results(replace(state, on=(one.name,), quant=quant))
        except InputError as error:
            problems.append(f"{where}{quant}: {error_line(error)}")
    return drawn, tuple(problems)


def roofline_figure(drawn: Mapping[str, DeviceResult], phase: str) -> PageFigure:
    """Operators of a phase under the rooflines of all settings; the first trace marks the selected operator."""
    first, *others = drawn.values()
    name = first.phase_name(phase)
    if others:
        figure = figures.rooflines({title: one.analysis for title, one in drawn.items()}, name)
    else:
        figure = figures.roofline(first.analysis, name)
    figure.add_scatter(
        x=[], y=[], mode="markers", showlegend=False, hoverinfo="skip",
        marker={"symbol": "circle", "size": 44, "color": SKY, "opacity": 0.5},
    )  # fmt: skip
    figure.data = (figure.data[-1], *figure.data[:-1])  # drawn first, below the others
    return page_figure(figure)


def selected_points(results: Iterable[DeviceResult], phase: str, op: str) -> tuple[list[float], list[float]]:
    """Intensity and attainable performance of an operator in each setting; none where a link bounds it."""
    operators = [one for each in results for one in each.phase(phase).operators if operator_id(one) == op]
    on_roofline = [one for one in operators if one.ops and one.bound != "link"]
    return [one.intensity for one in on_roofline], [one.attainable_ops_per_s for one in on_roofline]


def times_figure(drawn: Mapping[str, DeviceResult], phase: str) -> PageFigure:
    """Times of the operators of a phase: bars of a single setting, a stacked bar for each of several."""
    first, *others = drawn.values()
    name = first.phase_name(phase)
    if not others:
        return page_figure(figures.operator_bars(first.analysis, name))
    return page_figure(figures.phase_bars({title: one.analysis for title, one in drawn.items()}, name))


def operator_rows(results: Sequence[DeviceResult], phase: str) -> list[dict[str, Any]]:
    """A row per device and operator, in OPs, bytes and seconds; `called` is a title unique on the device.

    Equal operators of several blocks share a row.
    """
    return [
        {
            "id": f"{one.name} {operator_id(op)}", "op": operator_id(op), "device": one.name, "operator": op.name,
            "called": row.title, "block": ", ".join(part.block for part in row.parts), "kind": op.kind,
            "repeat": op.repeat, "ops": op.ops, "weights": op.weight_bytes,
            "activations": op.activation_bytes, "kv": op.kv_bytes, "intensity": op.intensity,
            "attainable": op.attainable_ops_per_s, "bound": op.bound, "dtype": computed_in(op),
            "time": op.bound_time_s, "share": op.share, "expected": op.expected_time_s,
            "expected_share": op.expected_time_s / total if op.expected_time_s is not None and total else None,
        }
        for one in results
        for total in [one.phase(phase).total.expected_time_s]
        for row in merged(one.phase(phase))
        for op in [row.total]
    ]  # fmt: skip


def operator_titles(results: Sequence[DeviceResult], phase: str) -> dict[str, str]:
    """Titles of the operators of a phase by BLOCK.NAME, the largest share of time first."""
    ranked = sorted(merged(results[0].phase(phase)), key=lambda row: -row.total.share)
    return {operator_id(part): row.title for row in ranked for part in row.parts}
