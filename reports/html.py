"""The report of an analysis as one HTML file that asks for nothing else: to read, to mail, to print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jinja2
from markupsafe import Markup

from llmviewer import __version__
from llmviewer.analysis import Analysis, Phase
from llmviewer.units import seconds, si

from .marks import spare
from .table import COLUMNS, LEGEND, flat_rows, shows_calls
from .text import headline, phase_line, sentence

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TEMPLATES: Final = Path(__file__).with_name("templates")
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
    "time": ("time", "least time of all launches"),
    "share": ("share", "of the phase's time"),
}
_CLEAR: Final = "rgba(0,0,0,0)"
_CONFIG: Final = {
    "displaylogo": False,
    "displayModeBar": "hover",
    "doubleClick": "reset",  # which a tap can count as: it must not change what is shown
    "responsive": True,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "toImage"],
}
_MODE_BAR, _NOTE = 30, 18  # heights of what stands above a plot: the mode bar, and words there [px]


@dataclass(frozen=True, kw_only=True)
class Card:
    """A number to see first. `alarm` marks one that is a verdict against the setting."""

    label: str
    value: str
    about: str
    alarm: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure whose words are the page's: they wrap where the page is narrow."""

    title: str
    subtitle: str
    drawing: Markup


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


def render(analysis: Analysis) -> str:
    """The whole page. It holds plotly.js, so it is some five megabytes long."""
    from plotly.offline import get_plotlyjs

    from . import drawing, figures

    return _template().render(
        analysis=analysis,
        title=(title := f"{analysis.model.title} on {analysis.hardware.title}"),
        setting=headline(analysis).removeprefix(f"{title}: "),
        cards=_time_cards(analysis) + _memory_cards(analysis),
        sections=[_section(analysis, name, phase) for name, phase in analysis.phases],
        columns=[(*_HEADS.get(name, (name, "")), name not in _WORDS) for name in COLUMNS],
        legend=sentence(LEGEND),
        time_bars=_picture(figures.time_bars(analysis), "time-bars"),
        memory_bar=_picture(figures.memory_bar(analysis), "memory-bar"),
        memory_rows=_memory_rows(analysis),
        notes=[sentence(note) for note in analysis.notes],
        facts=analysis.hardware.facts,
        sources=analysis.hardware.sources,
        device_notes=analysis.hardware.notes,
        inputs=json.dumps(_inputs(analysis), indent=2),
        version=__version__,
        plotly_js=Markup(get_plotlyjs()),  # noqa: S704 - a library's own text
        ink=drawing.INK,
        grid=drawing.GRID,
        paper=drawing.PAPER,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("analysis.html.j2")


def _time_cards(analysis: Analysis) -> list[Card]:
    asked, whole = analysis.inputs, analysis.generation
    return [
        Card(
            label="time to first token", value=seconds(whole.ttft_s), about=f"prefill of {asked.batch} × {asked.prompt}"
        ),
        Card(
            label="time per output token",
            value=seconds(whole.tpot_s),
            about=f"mean of {asked.gen - 1} decode steps" if asked.gen > 1 else "no decode step is taken",
        ),
        Card(label="tokens per second", value=f"{whole.tokens_per_s:.4g}", about="generated, of all sequences"),
        Card(label="latency", value=seconds(whole.latency_s), about=f"until token {asked.gen}"),
    ]


def _memory_cards(analysis: Analysis) -> list[Card]:
    asked, memory = analysis.inputs, analysis.memory
    rest, word = spare(memory)
    positions = analysis.model.max_context
    beyond = positions and (memory.max_context is None or memory.max_context > positions)
    made_for = f"; the model is made for {positions:,}" if beyond else ""
    return [
        Card(
            label="memory",
            value="fits" if memory.fits else "does not fit",
            about=f"{si(memory.total_bytes)}B of {si(memory.capacity_bytes)}B, {si(rest)}B {word}",
            alarm=not memory.fits,
        ),
        Card(
            label="largest batch",
            value=_largest(memory.max_batch),
            about=f"sequences of {asked.prompt + asked.gen} tokens",
            alarm=memory.max_batch == 0,
        ),
        Card(
            label="longest context",
            value=_largest(memory.max_context),
            about=f"tokens, at batch {asked.batch}{made_for}",
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
    *lines, total = flat_rows(phase, per_call=calls)
    keys = [_keys(phase, index, calls=calls) for index in range(len(lines))]
    return Section(
        name=name,
        title=phase_line(name, phase, per_call=calls),
        bound=phase.total.bound,
        advice=sentence(phase.advice),
        roofline=_picture(figures.roofline(analysis, name), f"roofline-{name}"),
        body=tuple(_cells(line.cells, key, line.bound) for line, key in zip(lines, keys, strict=True)),
        total=_cells(total.cells, total.cells, total.bound),
    )


def _keys(phase: Phase, index: int, *, calls: bool) -> tuple[float | str, ...]:
    """The numbers of a row of the table, in the order of COLUMNS; for the operator, its place in launch order."""
    op = phase.operators[index]
    amounts = op.per_call if calls else op
    return (
        index, op.repeat, amounts.ops, amounts.weight_bytes, amounts.activation_bytes, amounts.kv_bytes, op.intensity,
        op.attainable_ops_per_s, op.bound, op.compute_dtype, op.bound_time_s, op.share,
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
    rest, word = spare(memory)
    sizes = (
        ("weights", memory.weight_bytes),
        ("KV cache of prompt and generated tokens", memory.kv_cache_bytes),
        ("live activations, at most", memory.activation_bytes),
        ("in all", memory.total_bytes),
        ("memory of the device", memory.capacity_bytes),
        (word, rest),
    )
    return [(name, f"{si(size)}B", f"{size / memory.capacity_bytes:.1%}") for name, size in sizes]


def _picture(figure: go.Figure, name: str) -> Picture:
    """`figure` without its title and its paper, and so that a finger that drags across it scrolls the page."""
    from .drawing import BLUE

    title, top = figure.layout.title, figure.layout.margin.t
    words = title.text, title.subtitle.text
    kept = _MODE_BAR + (_NOTE if any(note.yref == "paper" for note in figure.layout.annotations) else 0)
    figure.update_layout(
        title=None, margin={"t": kept}, height=figure.layout.height - top + kept, dragmode=False,
        paper_bgcolor=_CLEAR, plot_bgcolor=_CLEAR,
        modebar={"bgcolor": _CLEAR, "color": "gray", "activecolor": BLUE},
    )  # fmt: skip
    html = figure.to_html(
        include_plotlyjs=False, include_mathjax=False, full_html=False, div_id=name, config=_CONFIG
    )  # fmt: skip
    return Picture(title=words[0], subtitle=words[1], drawing=Markup(html))  # noqa: S704 - plotly escapes what it is given


def _inputs(analysis: Analysis) -> dict[str, object]:
    document = analysis.to_dict()
    return {
        "model": document["model"]["name"],
        "hardware": document["hardware"]["name"],
        **document["inputs"],
    }
