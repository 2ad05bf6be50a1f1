"""Bars of a recorded pass with its expected time and its bound, and of the ranks of a run."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from llmviewer.timelines.against import Timeline
from llmviewer.timelines.kinds import IDLE, Part
from llmviewer.timelines.ranks import RankedTimeline
from llmviewer.units import seconds

from .drawing import BLUE, GREEN, GRID, INK, ORANGE, PAPER, PURPLE, SKY, VERMILLION, YELLOW, frame, list_rows, time_unit

PART_COLORS: Final = {
    Part.PRODUCTS: GREEN, Part.EXPERTS: SKY, Part.ATTENTION: VERMILLION, Part.STATE: YELLOW, Part.ELEMENTWISE: ORANGE,
    Part.COMMUNICATION: BLUE, Part.SAMPLING: PURPLE, Part.MOVES: INK, Part.OTHER: GRID,
}  # fmt: skip


def part_bars(result: Timeline) -> go.Figure:
    """Time of each part of a pass: recorded, expected if known for all parts, and at the bound."""
    all_expected = all(part.expected_s is not None for part in result.parts if part.bound_s)
    rows = {"recorded": "measured_s", **({"expected": "expected_s"} if all_expected else {}), ">= bound": "bound_s"}
    bars = {part.title: [getattr(part, key) or 0.0 for key in rows.values()] for part in result.parts}
    colors: dict[str, str] = {part.title: PART_COLORS[Part(part.part)] for part in result.parts}
    if result.idle_s is not None:
        idle = {"recorded": result.idle_s, "expected": result.host_s or 0.0}
        bars[IDLE], colors[IDLE] = [idle.get(row, 0.0) for row in rows], PAPER
    scale, unit = time_unit(result.time_s)
    height = 190 + 50 * len(rows)
    about = f"recorded, {'expected, ' * all_expected}and roofline bound"
    figure = frame("Parts of a pass", about, height=height, barmode="stack")
    for name, times_s in bars.items():
        figure.add_bar(
            name=name, orientation="h", y=list(rows), x=[scale * time_s for time_s in times_s],
            marker={"color": colors[name], "line": {"color": INK, "width": 0.5}},
            customdata=list(map(seconds, times_s)),
            hovertemplate=f"{name}, %{{y}}: %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text=f"time [{unit}]", showgrid=False)
    list_rows(figure, rows)
    return figure


def rank_bars(result: RankedTimeline) -> go.Figure:
    """Time of a pass on each rank: computation, communication beside and without it, waiting, and the rest."""
    ranks = [f"rank {rank.rank}" for rank in result.ranks]
    waiting_s = [rank.waiting_s or 0.0 for rank in result.ranks]
    bars = {
        "computation": (GREEN, [rank.compute_s - rank.overlapped_s for rank in result.ranks]),
        "both": (SKY, [rank.overlapped_s for rank in result.ranks]),
        "communication": (
            BLUE,
            [max(rank.exposed_s - wait, 0.0) for rank, wait in zip(result.ranks, waiting_s, strict=True)],
        ),
        "waiting": (
            VERMILLION,
            [min(wait, rank.exposed_s) for rank, wait in zip(result.ranks, waiting_s, strict=True)],
        ),
        IDLE: (PAPER, [rank.idle_s for rank in result.ranks]),
    }
    scale, unit = time_unit(result.pass_s)
    figure = frame(
        "Ranks", "time of a pass; waiting is for later ranks in collectives",
        height=190 + 26 * max(len(ranks), 3), barmode="stack",
    )  # fmt: skip
    for name, (color, times_s) in bars.items():
        if any(times_s):
            figure.add_bar(
                name=name, orientation="h", y=ranks, x=[scale * time_s for time_s in times_s],
                marker={"color": color, "line": {"color": INK, "width": 0.5}}, customdata=list(map(seconds, times_s)),
                hovertemplate=f"%{{y}}, {name}: %{{customdata}}<extra></extra>",
            )  # fmt: skip
    figure.update_xaxes(title_text=f"time [{unit}]", showgrid=False)
    list_rows(figure, ranks)
    return figure
