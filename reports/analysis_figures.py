"""Time and memory of analyses as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

import plotly.graph_objects as go

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import Total
from llmviewer.units import seconds, si

from .drawing import (
    BOUND_COLOR,
    GRID,
    INK,
    INSIDE,
    KIND_COLOR,
    PAPER,
    PART_COLOR,
    PART_INK,
    frame,
    list_rows,
    time_unit,
)
from .phrases import between, memory_margin, per_device, phase_title
from .roofline_points import OTHER, Piece, pieces

_BAR_PAIRS: Final = "solid bars are lower bounds, faint ones expected times"
_EXPECTED_OPACITY: Final = 0.5
_HATCHING: Final = {"fillmode": "overlay", "fgcolor": "white", "size": 8, "solidity": 0.3}


def time_bars(analysis: Analysis) -> go.Figure:
    """Shares of the operators in the time of each phase, colored by bound."""
    figure = frame(
        f"Where the time goes: {analysis.model.name} on {analysis.hardware.name}",
        f"operators below {OTHER:.0%}, at the bound and as expected, are other",
        height=340,
    )
    rows = {
        name: f"{phase_title(analysis, name)}<br>{seconds(phase.total.bound_time_s)}" for name, phase in analysis.phases
    }
    bars = [piece for name, phase in analysis.phases for piece in pieces(phase, rows[name])]
    for bound in BOUND_COLOR:
        same_bound = [piece for piece in bars if piece.bound == bound]
        if same_bound:
            _pieces(figure, f"{bound}-bound", BOUND_COLOR[bound], [(piece, 1.0) for piece in same_bound], width=0.62)
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 9, "mode": "hide"})
    figure.update_xaxes(
        title_text="share of the phase's time", tickformat=".0%", range=[0, 1.001], dtick=0.2, showgrid=False,
        ticklabeloverflow="allow",
    )  # fmt: skip
    list_rows(figure, rows.values())
    return figure


def phase_bars(analyses: Mapping[str, Analysis], phase: str) -> go.Figure:
    """Bound and expected time of a phase in several settings, by name, each divided into operators."""
    phases = {name: dict(one.phases).get(phase, one.phases.prefill) for name, one in analyses.items()}
    rows = {name: "<br>".join((name, *_row_times(one.total))) for name, one in phases.items()}
    figure = frame(
        f"Where the time of {phase} goes",
        f"{_BAR_PAIRS}; operators below {OTHER:.0%} of both are other",
        height=170 + 84 * len(phases),
    )  # fmt: skip
    expected = {name: _expected(one.total) for name, one in phases.items() if one.total.expected_time_s}
    longest = max(*(one.total.bound_time_s for one in phases.values()), *(high_s for *_, high_s in expected.values()))
    scale, unit = time_unit(longest)
    pieces_by_setting = {name: pieces(one, rows[name]) for name, one in phases.items()}
    colors, label_of = _legend([piece for each in pieces_by_setting.values() for piece in each])
    for label, color in colors.items():
        bars = [
            (piece, scale * phases[name].total.bound_time_s)
            for name, each in pieces_by_setting.items()
            for piece in each
            if label_of(piece) == label
        ]
        _pieces(figure, label, color, bars, offset=-0.04, width=0.44)
    if expected:
        starts = {name: _expected_starts(pieces_by_setting[name]) for name in expected}
        for label, color in colors.items():
            parts = [
                (piece, scale * start_s)
                for name in expected
                for piece, start_s in starts[name]
                if label_of(piece) == label and piece.expected_s
            ]
            figure.add_bar(
                orientation="h", y=[piece.row for piece, _ in parts], base=[start for _, start in parts],
                x=[scale * (piece.expected_s or 0.0) for piece, _ in parts], customdata=[p.operator for p, _ in parts],
                name=label, showlegend=False, offset=-0.4, width=0.34,
                marker={"color": color, "opacity": _EXPECTED_OPACITY, "line": {"color": PAPER, "width": 1.5}},
                hovertext=[_expected_hover(piece) for piece, _ in parts], hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
        times, lows, highs = ([scale * time_s for time_s in each] for each in zip(*expected.values(), strict=True))
        figure.add_bar(
            orientation="h", y=[rows[name] for name in expected], x=times, offset=-0.4, width=0.34, name="expected",
            showlegend=False, marker={"color": "rgba(0,0,0,0)"},
            hoverinfo="skip", error_x={
                "type": "data", "array": [high - time for time, high in zip(times, highs, strict=True)],
                "arrayminus": [time - low for time, low in zip(times, lows, strict=True)],
                "color": INK, "thickness": 1.5, "width": 4,
            },
        )  # fmt: skip
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 9, "mode": "hide"}, showlegend=True)
    figure.update_xaxes(title_text=f"time [{unit}]", range=[0, 1.02 * scale * longest], showgrid=False)
    list_rows(figure, rows.values())
    return figure


def operator_bars(analysis: Analysis, phase: str) -> go.Figure:
    """Lower bound and expected time of each operator of a phase, the longest first."""
    analyzed = dict(analysis.phases).get(phase, analysis.phases.prefill)
    total = analyzed.total
    listed = sorted(pieces(analyzed, ""), key=lambda piece: (piece.name == "other", -piece.share))
    name_counts = Counter(one.name for one in listed)
    rows = {f"{one.name} {one.share:.0%}" + f", {one.bound}" * (name_counts[one.name] > 1): one for one in listed}
    expect = between(total.expected_time_s, total.expected_low_s, total.expected_high_s)
    figure = frame(
        f"Where the time of {phase} goes",
        f"{_BAR_PAIRS if expect else 'bars are lower bounds'}, {seconds(total.bound_time_s)}"
        + (f" and {expect} in total" if expect else " in total") + f"; operators below {OTHER:.0%} are other",
        height=160 + 30 * len(rows), top=60, bottom=100,
    )  # fmt: skip
    bounds_s = {row: one.share * total.bound_time_s for row, one in rows.items()}
    expected = {row: one.expected_s for row, one in rows.items() if one.expected_s is not None}
    longest = max([*bounds_s.values(), *expected.values()])
    scale, unit = time_unit(longest)
    colors, label_of = _legend(listed)
    for label, color in colors.items():
        same = {row: one for row, one in rows.items() if label_of(one) == label}
        figure.add_bar(
            orientation="h", y=list(same), x=[scale * bounds_s[row] for row in same], name=label, offset=0, width=0.4,
            marker={"color": color}, customdata=[one.operator for one in same.values()],
            hovertext=[one.hover for one in same.values()], hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
        later = {row: one for row, one in same.items() if row in expected}
        if later:
            figure.add_bar(
                orientation="h", y=list(later), x=[scale * expected[row] for row in later], name=f"{label}, expected",
                showlegend=False, offset=-0.4, width=0.4, marker={"color": color, "opacity": _EXPECTED_OPACITY},
                customdata=[one.operator for one in later.values()],
                hovertext=[_expected_hover(one) for one in later.values()],
                hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    figure.update_layout(barmode="overlay", showlegend=True)
    figure.update_xaxes(title_text=f"time [{unit}]", range=[0, 1.03 * scale * longest], showgrid=False)
    list_rows(figure, rows)
    return figure


def _legend(bars: Sequence[Piece]) -> tuple[Mapping[str, str], Callable[[Piece], str]]:
    """Colors by label, and the label of a piece: its bound or, if all have the same one, its kind of operator."""
    bounds = {piece.bound for piece in bars}
    if len(bounds) > 1:
        colors = {f"{bound}-bound": color for bound, color in BOUND_COLOR.items() if bound in bounds}
        return colors, lambda piece: f"{piece.bound}-bound"
    shares: dict[str, float] = {}
    for piece in bars:
        if piece.operator:
            shares[piece.kind] = shares.get(piece.kind, 0.0) + piece.share
    kinds = sorted(shares, key=lambda kind: -shares[kind])[: len(KIND_COLOR) - 1]

    def label_of(piece: Piece) -> str:
        return piece.kind if piece.operator and piece.kind in kinds else "other"

    colors = dict(zip(kinds, KIND_COLOR, strict=False))
    return colors | ({"other": KIND_COLOR[-1]} if "other" in map(label_of, bars) else {}), label_of


def _expected_starts(bars: Sequence[Piece]) -> list[tuple[Piece, float]]:
    """Pieces with the times at which they begin in the bar of expected times. [s]"""
    ends = accumulate((piece.expected_s or 0.0 for piece in bars), initial=0.0)
    return list(zip(bars, ends, strict=False))


def _expected_hover(piece: Piece) -> str:
    return piece.hover if piece.expected_s is None else f"{piece.hover}<br>expected {seconds(piece.expected_s)}"


def _row_times(total: Total) -> list[str]:
    """Bound and expected time of a phase, a line each."""
    expected = [f"expected {seconds(total.expected_time_s)}"] if total.expected_time_s else []
    return [f">= {seconds(total.bound_time_s)}", *expected]


def _expected(total: Total) -> tuple[float, float, float]:
    """Expected time of a phase and its interval. [s]"""
    time_s, low_s, high_s = total.expected_time_s, total.expected_low_s, total.expected_high_s
    assert time_s is not None
    return time_s, time_s if low_s is None else low_s, time_s if high_s is None else high_s


def memories(analyses: Mapping[str, Analysis]) -> go.Figure:
    """Parts of the memory that a request needs in several settings, by name, and the capacity of each device."""
    verdicts = {name: "fits" if one.memory.fits else "does not fit" for name, one in analyses.items()}
    rows = [f"{name}<br>{verdict}" for name, verdict in verdicts.items()]
    subject = f"memory of all sequences{next(map(per_device, analyses.values()), '')}"
    figure = frame("Memory", f"{subject}; a line at the capacity of the device", height=190 + 64 * len(rows))
    footprints = [one.memory for one in analyses.values()]
    for (name, color), field in zip(PART_COLOR.items(), ("weight", "kv_cache", "activation"), strict=True):
        sizes = [getattr(memory, f"{field}_bytes") for memory in footprints]
        texts = [f"{name} {si(size)}B" for size in sizes]
        figure.add_bar(
            orientation="h", y=rows, x=[size / 1e9 for size in sizes], name=name, marker={"color": color}, width=0.6,
            text=texts, textfont={"color": PART_INK[name], "weight": 600}, **{**INSIDE, "insidetextanchor": "start"},
            hovertext=texts, hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    for place, memory in enumerate(reversed(footprints)):  # below the bars, whose labels it would cross
        capacity = memory.capacity_bytes / 1e9
        figure.add_shape(
            type="line", layer="below", x0=capacity, x1=capacity, y0=place - 0.45, y1=place + 0.45,
            line={"color": INK, "width": 3},
        )  # fmt: skip
    figure.add_scatter(
        y=rows, x=[memory.capacity_bytes / 1e9 for memory in footprints], mode="markers", showlegend=False, opacity=0,
        marker={"size": 20}, hovertext=[f"capacity {si(memory.capacity_bytes)}B" for memory in footprints],
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=[None], y=[None], mode="markers", name="capacity",
        marker={"symbol": "line-ns-open", "size": 14, "color": INK, "line": {"width": 3}},
    )  # fmt: skip
    widest = max(max(memory.total_bytes, memory.capacity_bytes) for memory in footprints)
    figure.update_layout(barmode="stack", uniformtext={"minsize": 10, "mode": "hide"})
    figure.update_xaxes(title_text="memory [GB]", range=[0, 1.03 * widest / 1e9], showgrid=False, exponentformat="none")
    list_rows(figure, rows)
    return figure


def memory_bar(analysis: Analysis) -> go.Figure:
    """Parts of the memory that a request needs, and free or lacking memory."""
    memory = analysis.memory
    capacity, (margin, word) = memory.capacity_bytes, memory_margin(memory)
    verdict = f"fits, {si(margin)}B {word}" if memory.fits else f"does not fit, {si(margin)}B {word} (hatched)"
    figure = frame(
        f"Memory of {analysis.model.name} on {analysis.hardware.name}",
        f"{si(memory.total_bytes)}B of {si(capacity)}B{per_device(analysis)}: {verdict}",
        height=310, top=100, bottom=130,
    )  # fmt: skip
    sizes = (memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes)
    start = 0.0
    for (name, color), size in zip(PART_COLOR.items(), sizes, strict=True):
        within = min(size, max(capacity - start, 0.0))
        _part(figure, name, color, within=within, beyond=size - within)
        start += size
    if memory.fits:
        _part(figure, word, GRID, within=margin, beyond=0.0)
    _limit(figure, capacity)
    figure.update_layout(barmode="stack", uniformtext={"minsize": 10, "mode": "hide"}, margin={"l": 20})
    figure.update_xaxes(title_text="memory [B]", showgrid=False, range=[0, 1.02 * max(capacity, memory.total_bytes)])
    figure.update_yaxes(showline=False, ticks="")
    return figure


def _pieces(figure: go.Figure, label: str, color: str, bars: Sequence[tuple[Piece, float]], **placement: float) -> None:
    """Pieces of one color, each with the length of its bar."""
    figure.add_bar(
        orientation="h", y=[p.row for p, _ in bars], x=[p.share * length for p, length in bars],
        base=[p.start * length for p, length in bars], customdata=[p.operator for p, _ in bars], name=label,
        marker={"color": color, "line": {"color": PAPER, "width": 1.5}}, **placement,
        text=[p.text for p, _ in bars], textfont={"color": "white", "weight": 600}, **INSIDE,
        hovertext=[p.hover for p, _ in bars], hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _part(figure: go.Figure, name: str, color: str, *, within: float, beyond: float) -> None:
    """A part of the memory, hatched beyond the capacity of the device. [B]"""
    text = f"{name} {si(within + beyond)}B"
    for length, pattern in ((within, ""), (beyond, "/")):
        if length:
            longer = length == max(within, beyond)
            figure.add_bar(
                orientation="h", y=[""], x=[length], name=text, legendgroup=name, showlegend=longer,
                marker={"color": color, "pattern": {"shape": pattern, **_HATCHING}},
                text=[text if longer else ""], textfont={"color": PART_INK.get(name, INK), "weight": 600},
                **INSIDE, hovertemplate=f"{text}<extra></extra>",
            )  # fmt: skip


def _limit(figure: go.Figure, capacity: float) -> None:
    """A line at the capacity of the device."""
    figure.add_shape(type="line", x0=capacity, x1=capacity, y0=0, y1=1, yref="paper", line={"color": INK, "width": 2})
    figure.add_annotation(
        x=capacity, y=1, yref="paper", yanchor="bottom", xanchor="right", showarrow=False, font={"size": 12},
        text=f"capacity {si(capacity)}B",
    )  # fmt: skip
