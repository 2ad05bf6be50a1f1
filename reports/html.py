"""The report of an analysis as one HTML file that asks for nothing else: to read, to mail, to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import OperatorResult, Phase
from llmviewer.units import fold, seconds, si

from .operator_table import COLUMNS, LEGEND, computed_in, expected_s, merged, rate, rows, shows_calls
from .page import Card, Picture, below, picture, rendered
from .roofline_points import memory_margin
from .text import (
    called,
    effect_lines,
    expectation,
    headline,
    made_for,
    measured_label,
    of_each,
    phase_line,
    sentence,
    subject,
    unbeaten,
)

_WORDS: Final = frozenset({"operator", "bound", "in"})  # columns of words; the others are of numbers
_HEADS: Final = {  # names and meanings of columns where there is room for them
    "x": ("\N{MULTIPLICATION SIGN}", "launches in one pass"),
    "OPs": ("OPs", "arithmetic; a multiply-add is two OPs"),
    "weights": ("weights [B]", "bytes of weights moved"),
    "activ.": ("activations [B]", "bytes of activations moved"),
    "KV": ("KV cache [B]", "bytes of KV cache moved"),
    "OP/B": ("OP/B", "arithmetic intensity"),
    "OP/s": ("attainable [OP/s]", "arithmetic over the least time"),
    "in": ("computed in", "data type that this device computes in"),
    "time": ("time", "least time"),
    "expect": ("expected", "time to expect of real kernels"),
    "share": ("share", "of the phase's time"),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A text of a table, and the number behind it, by which the table is sorted."""

    text: str
    key: float | str
    css: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the page says of a phase."""

    name: str
    title: str
    bound: str
    advice: str
    roofline: Picture
    body: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...]


def render_html(analysis: Analysis) -> str:
    """The whole page. It holds plotly.js, so it is some five megabytes long."""
    return page(
        analysis,
        {name: analysis for name, _ in analysis.phases},
        title=subject(analysis),
        setting=below(subject(analysis), headline(analysis)),
        cards=time_cards(analysis) + effect_cards(analysis) + memory_cards(analysis),
        inputs=inputs(analysis),
    )


def page(
    analysis: Analysis,
    sides: Mapping[str, Analysis],
    *,
    title: str,
    setting: str,
    cards: Sequence[Card],
    inputs: Mapping[str, object],
) -> str:
    """The page of `analysis`, whose phases run where `sides` says."""
    from . import figures

    distinct = list({id(side): side for side in sides.values()}.values())
    return rendered(
        "analysis.html.j2",
        name=f"{analysis.model.name} on {' and '.join(dict.fromkeys(side.hardware.name for side in distinct))}",
        title=title,
        setting=setting,
        cards=cards,
        remarks=[sentence(note) for note in analysis.remarks],
        inputs=inputs,
        measured=[(measured_label(one), sentence(one.said)) for one in analysis.measured],
        sections=[_section(sides[name], name, phase) for name, phase in analysis.phases],
        columns=[(*_HEADS.get(name, (name, "")), name not in _WORDS) for name in COLUMNS],
        legend=sentence(LEGEND),
        time_bars=picture(figures.time_bars(analysis), "time-bars"),
        memories=[
            (picture(figures.memory_bar(side), f"memory-bar{index or ''}"), _memory_rows(side))
            for index, side in enumerate(distinct)
        ],
        expected=any(phase.total.expected_time_s is not None for _, phase in analysis.phases),
        unbeaten=unbeaten(analysis),
        devices=list({side.hardware.name: side.hardware for side in distinct}.values()),
    )


def time_cards(analysis: Analysis) -> list[Card]:
    asked, whole = analysis.inputs, analysis.generation
    waits = {name: phase.total.bound for name, phase in analysis.phases}
    pace = rate(whole.expected_tokens_per_s) if whole.expected_tokens_per_s else ""
    throughput, latency = (rate(whole.tokens_per_s), pace), (whole.latency_s, expectation(whole, "latency"))
    if not asked.gen:
        return [
            _time("one pass", *latency, about=f"over {asked.batch} × {asked.prompt} tokens", bound=waits["prefill"]),
            _pace(*throughput, about="read, of all sequences"),
        ]
    steps = f"mean of {asked.gen - 1} decode steps" if asked.gen > 1 else "no decode step is taken"
    first, each = (expectation(whole, what) for what in ("ttft", "tpot"))
    return [
        _time(
            "time to first token", whole.ttft_s, first, about=f"prefill of {asked.batch} × {asked.prompt}",
            bound=waits["prefill"],
        ),
        _time("time per output token", whole.tpot_s, each, about=steps, bound=waits.get("decode", "")),
        _pace(*throughput, about="generated, of all sequences"),
        _time("latency", *latency, about=f"until token {asked.gen}"),
    ]  # fmt: skip


def _time(label: str, time_s: float | None, expected: str, *, about: str, bound: str = "") -> Card:
    if time_s is None:
        return Card(label=label, value=seconds(time_s), about=about)
    sign = "\N{GREATER-THAN OR EQUAL TO}"
    return Card(label=label, value=seconds(time_s), about=about, sign=sign, bound=bound, expected=expected)


def _pace(value: str, expected: str, *, about: str) -> Card:
    return Card(
        label="tokens per second", value=value, about=about, sign="\N{LESS-THAN OR EQUAL TO}", expected=expected
    )


def effect_cards(analysis: Analysis) -> list[Card]:
    """What techniques do, where any were asked for."""
    if not analysis.effect:
        return []
    passes, gain, *pays = (value for _, value in effect_lines(analysis.effect))
    about = "; ".join((gain, *pays))
    return [
        Card(label="techniques", value=f"{fold(analysis.effect.speed_up)} as fast", about=about),
        Card(label="passes", value=str(len(analysis.effect.runs)), about=passes),
    ]


def memory_cards(analysis: Analysis) -> list[Card]:
    asked, memory = analysis.inputs, analysis.memory
    rest, word = memory_margin(memory)
    return [
        Card(
            label="memory",
            value="fits" if memory.fits else "does not fit",
            about=f"{si(memory.total_bytes)}B of {si(memory.capacity_bytes)}B{of_each(analysis)}, {si(rest)}B {word}",
            alarm=not memory.fits,
        ),
        Card(
            label="largest batch",
            value=_largest(memory.max_batch),
            about=f"sequences of {asked.longest:,} tokens",
            alarm=memory.max_batch == 0,
        ),
        Card(
            label="longest context",
            value=_largest(memory.max_context),
            about=f"tokens, at batch {asked.batch}{made_for(analysis)}",
            alarm=memory.max_context == 0,
        ),
    ]


def _largest(number: int | None) -> str:
    if number is None:
        return "no limit"
    return f"{number:,}" if number else "none"


def _section(analysis: Analysis, name: str, phase: Phase) -> Section:
    from . import figures

    calls = shows_calls(analysis, None)
    *lines, total = rows(phase, per_call=calls)
    keys = [_keys(one.whole, place, calls=calls) for place, one in enumerate(merged(phase))]
    return Section(
        name=called(analysis, name),
        title=phase_line(called(analysis, name), phase, per_call=calls),
        bound=phase.total.bound,
        advice=sentence(phase.advice),
        roofline=picture(figures.roofline(analysis, name), f"roofline-{name}"),
        body=tuple(_cells(line.cells, key, line.bound) for line, key in zip(lines, keys, strict=True)),
        total=_cells(total.cells, total.cells, total.bound),
    )


def _keys(op: OperatorResult, place: int, *, calls: bool) -> tuple[float | str, ...]:
    """The numbers of a row of the table, in the order of COLUMNS; for the operator, its place in launch order."""
    amounts = op.per_call if calls else op
    return (
        place, op.repeat, amounts.ops, amounts.weight_bytes, amounts.activation_bytes, amounts.kv_bytes, op.intensity,
        op.attainable_ops_per_s, op.bound, computed_in(op), amounts.bound_time_s, expected_s(op, per_call=calls) or 0,
        op.share,
    )  # fmt: skip


def _cells(texts: Sequence[str], keys: Sequence[float | str], bound: str) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            text=text,
            key=key,
            css=" ".join(filter(None, ("" if name in _WORDS else "number", bound if name == "bound" else ""))),
        )
        for name, text, key in zip(COLUMNS, texts, keys, strict=True)
    )


def _memory_rows(analysis: Analysis) -> list[tuple[str, str, str]]:
    """(what, bytes, share of the memory)"""
    memory = analysis.memory
    rest, word = memory_margin(memory)
    elsewhere = (("besides, in host memory", memory.host_bytes), ("besides, on storage", memory.storage_bytes))
    sizes = (
        ("weights", memory.weight_bytes),
        ("KV cache" + " of prompt and generated tokens" * analysis.model.generates, memory.kv_cache_bytes),
        ("live activations, at most", memory.activation_bytes),
        ("in all", memory.total_bytes),
        ("memory of the device", memory.capacity_bytes),
        (word, rest),
        *((name, size) for name, size in elsewhere if size),
    )
    return [(name, f"{si(size)}B", f"{size / memory.capacity_bytes:.1%}") for name, size in sizes]


def inputs(analysis: Analysis) -> dict[str, object]:
    document = analysis.to_dict()
    return {
        "model": document["model"]["name"],
        "hardware": document["hardware"]["name"],
        **document["inputs"],
    }
