"""The overview: bound and advice of a phase, totals, figures and the operator table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from llmviewer.reports import figures
from llmviewer.reports.analysis import memory_cards, time_cards
from llmviewer.reports.drawing import SKY
from llmviewer.reports.operator_table import computed_in, merged, operator_id
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.parts import Card
from llmviewer.reports.phrases import below, effect_lines, headline, measured_label, sentence, subject

from ..answers import Answer

_SPACE: Final = "\N{NO-BREAK SPACE}"


def asked(found: Sequence[Answer]) -> tuple[str, str]:
    """The request: its first device with the number of others, and its arguments."""
    first = found[0].analysis
    more = f" and {len(found) - 1} more" * (len(found) > 1)
    return f"{subject(first)}{more}", below(subject(first), headline(first))


def advice(answer: Answer, phase: str) -> str:
    """The sentence on what bounds it, and what would help, in words of controls in place of options."""
    said = re.sub(r"(?<=--tp )(\d+) --with ", r"\1 and technique ", answer.phase(phase).advice)
    return _in_controls(sentence(said))


def _in_controls(said: str) -> str:
    return said.replace("--engine NAME", "an engine").replace("--with ", "technique ").replace("--", "")


def sources(found: Sequence[Answer]) -> str:
    """Sources of expected times in a line, or why only bounds are known."""
    said = {one.name: _source(one) for one in found}
    if len(said) == 1:
        return f"Expected: {said.popitem()[1]}"
    return "Expected: " + "; ".join(f"{name}: {source}" for name, source in said.items())


def _source(answer: Answer) -> str:
    """Such as "calibrated on l40s trtllm (transferred: 11% of prefill, 1% of decode)"."""
    told: dict[str, dict[str, list[str]]] = {}
    for name, phase in answer.analysis.phases:
        (most, _), *others = phase.total.expectation_sources.items()
        kinds = told.setdefault(most, {})
        for kind, share in others:
            kinds.setdefault(kind, []).append(f"{share:.0%} of {name}")
    rests = ("; ".join(f"{kind}: {', '.join(of)}" for kind, of in kinds.items()) for kinds in told.values())
    return " and ".join(f"{most} ({rest})" if rest else most for most, rest in zip(told, rests, strict=True))


def cards(answer: Answer) -> list[Card]:
    """The totals of one device."""
    return [*time_cards(answer.analysis), *memory_cards(answer.analysis)]


class TotalCell(NamedTuple):
    """A cell of the totals: what it says, what is to be expected or known beside it, and whether it is a verdict
    against the setting.
    """

    value: str
    more: str = ""
    alarm: bool = False


def totals(found: Sequence[Answer], phase: str) -> list[tuple[TotalCell, ...]]:
    """The totals of several devices: a line of heads, then one for each device."""
    each = [cards(one) for one in found]
    heads = (
        TotalCell("device"), TotalCell(f"{found[0].phase_name(phase)} bound by"),
        *(TotalCell(f"{card.label} {card.sign}" if card.sign else card.label) for card in each[0]),
    )  # fmt: skip
    lines = [
        (
            TotalCell(one.name),
            TotalCell(one.phase(phase).total.bound),
            *(TotalCell(card.value, _more(card), card.alarm) for card in own),
        )
        for one, own in zip(found, each, strict=True)
    ]
    return [heads, *lines]


def _more(card: Card) -> str:
    return f"expected {card.expected}" if card.expected else card.about.partition("; ")[2]


def expected(card: Card) -> str:
    """The expected value of a card; a line may break only before its interval."""
    value, bracket, interval = f"expected {card.expected}".replace(" ", _SPACE).partition("(")
    return f"{value.rstrip(_SPACE)} {bracket}{interval}".rstrip()


def effects(answer: Answer) -> tuple[tuple[str, str], ...]:
    """Passes and gains of techniques."""
    return effect_lines(answer.analysis.effect) if answer.analysis.effect else ()


def verdicts(found: Sequence[Answer]) -> tuple[tuple[str, str], ...]:
    """Verdicts on the measurements of the user, for each device."""
    of = [f" on {one.name}" * (len(found) > 1) for one in found]
    return tuple(
        (f"{measured_label(each)}{device}", _in_controls(sentence(each.said)))
        for one, device in zip(found, of, strict=True)
        for each in one.analysis.measured
    )


def roofline(found: Sequence[Answer], phase: str) -> PageFigure:
    """The operators of a phase, under the roofs of all devices; the first trace is to mark the operator selected."""
    name = found[0].phase_name(phase)
    if len(found) == 1:
        figure = figures.roofline(found[0].analysis, name)
    else:
        figure = figures.rooflines({one.name: one.analysis for one in found}, name)
    figure.add_scatter(
        x=[], y=[], mode="markers", showlegend=False, hoverinfo="skip",
        marker={"symbol": "circle", "size": 44, "color": SKY, "opacity": 0.5},
    )  # fmt: skip
    figure.data = (figure.data[-1], *figure.data[:-1])  # below all others
    return page_figure(figure)


def marked(found: Sequence[Answer], phase: str, op: str) -> tuple[list[float], list[float]]:
    """Intensity and performance of an operator on each device where it is under a roof."""
    results = [one for each in found for one in each.phase(phase).operators if operator_id(one) == op]
    under = [one for one in results if one.ops and one.bound != "link"]
    return [one.intensity for one in under], [one.attainable_ops_per_s for one in under]


def times(found: Sequence[Answer], phase: str) -> PageFigure:
    """Times of the operators of a phase: bars for each on one device, parts of a bar on several."""
    name = found[0].phase_name(phase)
    if len(found) == 1:
        return page_figure(figures.operator_bars(found[0].analysis, name))
    return page_figure(figures.phase_bars({one.name: one.analysis for one in found}, name))


def operators(found: Sequence[Answer], phase: str) -> list[dict[str, Any]]:
    """A row for each device and operator, in OPs, bytes and seconds; `called` so that no other of the device is.

    Those that are alike in several blocks have one row.
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
        for one in found
        for total in [one.phase(phase).total.expected_time_s]
        for row in merged(one.phase(phase))
        for op in [row.whole]
    ]  # fmt: skip


def names(found: Sequence[Answer], phase: str) -> dict[str, str]:
    """Names of the operators of a phase by BLOCK.NAME, the largest share of time first."""
    ranked = sorted(merged(found[0].phase(phase)), key=lambda row: -row.whole.share)
    return {operator_id(part): row.title for row in ranked for part in row.parts}
