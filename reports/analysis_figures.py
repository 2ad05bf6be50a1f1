"""Time and memory of analyses as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import plotly.graph_objects as go

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import Total
from llmviewer.units import seconds, si

from .drawing import BOUND_COLOR, GRID, INK, INSIDE, PAPER, PART_COLOR, PART_INK, frame, list_rows, time_unit
from .phrases import between, memory_margin, per_device, phase_title
from .roofline_points import OTHER, Piece, pieces

_MIN_LABELLED_SHARE: Final = 0.25  # of the width, from which a bar has room for its time on a phone too
_HATCHING: Final = {"fillmode": "overlay", "fgcolor": "white", "size": 8, "solidity": 0.3}


def time_bars(analysis: Analysis) -> go.Figure:
    """Shares of the operators in the time of each phase, colored by bound."""
    figure = frame(
        f"Where the time goes: {analysis.model.name} on {analysis.hardware.name}",
        f"operators below {OTHER:.0%} are grouped as other",
        height=340,
    )
    rows = {
        name: f"{phase_title(analysis, name)}<br>{seconds(phase.total.bound_time_s)}" for name, phase in analysis.phases
    }
    bars = [piece for name, phase in analysis.phases for piece in pieces(phase, rows[name])]
    for bound in BOUND_COLOR:
        same_bound = [piece for piece in bars if piece.bound == bound]
        if same_bound:
            _pieces(figure, bound, same_bound)
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 9, "mode": "hide"})
    figure.update_xaxes(
        title_text="share of the phase's time", tickformat=".0%", range=[0, 1.001], dtick=0.2, showgrid=False,
        ticklabeloverflow="allow",
    )  # fmt: skip
    list_rows(figure, rows.values())
    return figure


def phase_bars(analyses: Mapping[str, Analysis], phase: str) -> go.Figure:
    """Time of a phase in several settings, by name, divided into operators."""
    phases = {name: dict(one.phases).get(phase, one.phases.prefill) for name, one in analyses.items()}
    rows = {
        name: f"{name}<br>\N{GREATER-THAN OR EQUAL TO} {seconds(one.total.bound_time_s)}"
        for name, one in phases.items()
    }
    figure = frame(
        f"Where the time of {phase} goes",
        f"bars are lower bounds; operators below {OTHER:.0%} are grouped as other",
        height=190 + 74 * len(phases),
    )  # fmt: skip
    longest = max(one.total.bound_time_s for one in phases.values())
    scale, unit = time_unit(longest)
    for bound in BOUND_COLOR:
        same_bound = [
            (piece, scale * one.total.bound_time_s)
            for name, one in phases.items()
            for piece in pieces(one, rows[name])
            if piece.bound == bound
        ]
        if same_bound:
            _pieces(figure, bound, [piece for piece, _ in same_bound], lengths=[length for _, length in same_bound])
    expected = {rows[name]: _expected(one.total) for name, one in phases.items() if one.total.expected_time_s}
    if expected:
        times, lows, highs = ([scale * time_s for time_s in each] for each in zip(*expected.values(), strict=True))
        figure.add_scatter(
            y=list(expected), x=times, mode="markers+text", name="expected, 80 % interval",
            text=[seconds(time_s) for time_s, _, _ in expected.values()], cliponaxis=False,
            textposition=["top right" if time < max(highs) / 2 else "top center" for time in times],  # off short bars
            hovertext=[f"expected {between(*each)}" for each in expected.values()],
            hovertemplate="%{hovertext}<extra></extra>",
            marker={"symbol": "line-ns-open", "size": 26, "color": INK, "line": {"width": 3}},
            error_x={
                "type": "data", "array": [high - time for time, high in zip(times, highs, strict=True)],
                "arrayminus": [time - low for time, low in zip(times, lows, strict=True)],
                "color": INK, "thickness": 2, "width": 6,
            },
        )  # fmt: skip
        longest = max(longest, *(high_s for _, _, high_s in expected.values()))
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 9, "mode": "hide"}, showlegend=True)
    figure.update_xaxes(title_text=f"time [{unit}]", range=[0, 1.02 * scale * longest], showgrid=False)
    list_rows(figure, rows.values())
    return figure


def operator_bars(analysis: Analysis, phase: str) -> go.Figure:
    """Lower bound and expected time of each operator of a phase, the longest first."""
    analyzed = dict(analysis.phases).get(phase, analysis.phases.prefill)
    total = analyzed.total
    ranked = sorted(pieces(analyzed, ""), key=lambda piece: (piece.name == "other", -piece.share))
    listed = [one for one in ranked if one.share >= OTHER / 2]
    name_counts = Counter(one.name for one in listed)
    rows = {f"{one.name} {one.share:.0%}" + f", {one.bound}" * (name_counts[one.name] > 1): one for one in listed}
    hovers = {
        row: one.hover if one.expected_s is None else f"{one.hover}<br>expected {seconds(one.expected_s)}"
        for row, one in rows.items()
    }
    expect = between(total.expected_time_s, total.expected_low_s, total.expected_high_s)
    figure = frame(
        f"Where the time of {phase} goes",
        f"bars are lower bounds, {seconds(total.bound_time_s)} in total" + f"; expected {expect}" * bool(expect)
        + f"; operators below {OTHER:.0%} are other",
        height=160 + 26 * len(rows), top=60, bottom=100,
    )  # fmt: skip
    bounds_s = {row: one.share * total.bound_time_s for row, one in rows.items()}
    expected = {row: one.expected_s for row, one in rows.items() if one.expected_s is not None}
    longest = max([*bounds_s.values(), *expected.values()])
    scale, unit = time_unit(longest)
    for bound in BOUND_COLOR:
        same_bound = {row: one for row, one in rows.items() if one.bound == bound}
        if same_bound:
            figure.add_bar(
                orientation="h", y=list(same_bound), x=[scale * bounds_s[row] for row in same_bound],
                name=f"{bound}-bound", width=0.8, marker={"color": BOUND_COLOR[bound]},
                customdata=[one.operator for one in same_bound.values()],
                hovertext=[hovers[row] for row in same_bound], hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    wide_rows = [row for row, time_s in bounds_s.items() if time_s > _MIN_LABELLED_SHARE * longest]
    figure.add_scatter(
        y=wide_rows, x=[0] * len(wide_rows), mode="text",
        text=[f"\N{NO-BREAK SPACE}{seconds(bounds_s[row])}" for row in wide_rows],
        hoverinfo="skip", textposition="middle right", textfont={"color": "white", "size": 11}, showlegend=False,
    )  # fmt: skip
    if expected:
        figure.add_scatter(
            y=list(expected), x=[scale * time_s for time_s in expected.values()], mode="markers", name="expected",
            customdata=[rows[row].operator for row in expected],
            hovertext=[hovers[row] for row in expected], hovertemplate="%{hovertext}<extra></extra>",
            marker={"symbol": "line-ns-open", "size": 14, "color": INK, "line": {"width": 2.5}},
        )  # fmt: skip
    figure.update_layout(barmode="overlay", showlegend=True)
    figure.update_xaxes(title_text=f"time [{unit}]", range=[0, 1.03 * scale * longest], showgrid=False)
    list_rows(figure, rows)
    return figure


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
    figure.add_scatter(
        y=rows, x=[memory.capacity_bytes / 1e9 for memory in footprints], mode="markers", name="capacity",
        marker={"symbol": "line-ns-open", "size": 44, "color": INK, "line": {"width": 3}},
        hovertext=[f"{si(memory.capacity_bytes)}B" for memory in footprints],
        hovertemplate="%{hovertext}<extra></extra>",
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


def _pieces(figure: go.Figure, bound: str, bars: Sequence[Piece], lengths: Sequence[float] | None = None) -> None:
    """Bars of operators with one bound.

    lengths  time of the phase of each bar; 1 if not given
    """
    scales = [1.0] * len(bars) if lengths is None else lengths
    figure.add_bar(
        orientation="h", y=[p.row for p in bars], x=[p.share * length for p, length in zip(bars, scales, strict=True)],
        base=[p.start * length for p, length in zip(bars, scales, strict=True)], customdata=[p.operator for p in bars],
        name=f"{bound}-bound", marker={"color": BOUND_COLOR[bound], "line": {"color": PAPER, "width": 1.5}}, width=0.62,
        text=[p.text for p in bars], textfont={"color": "white", "weight": 600}, **INSIDE,
        hovertext=[p.hover for p in bars], hovertemplate="%{hovertext}<extra></extra>",
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
