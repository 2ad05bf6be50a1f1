"""Figures of devices side by side: time by bound, bounds over batch and length, and what a ranking correlates with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from llmviewer.comparing.cells import Cell, memory_share
from llmviewer.comparing.choice import Choice
from llmviewer.setting import changes_passes
from llmviewer.units import seconds, si

from .drawing import BOUND_COLOR, INSIDE, PAPER, frame, lines, list_rows, log_axis, time_unit

_BATCHES: Final = tuple(2**i for i in range(11))
_LENGTHS: Final = tuple(2**i for i in range(7, 18))
_CROSS: Final = "black"  # on a dark page too: what is below keeps its colour
_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "cross", "star")
_MAX_TICKS: Final = 4  # ticks of an x axis that a phone has room for
_ROW, _AROUND = 46, 168  # heights of a bar and of what is around bars [px]


def time_by_bound(cells: Mapping[str, Cell], phase: str) -> go.Figure:
    """Time of a pass at the first batch in each setting, divided by bound."""
    passes = {name: cell.passes[phase] for name, cell in cells.items() if phase in cell.passes}
    several = any(changes_passes(cell.setting.techniques) for cell in cells.values())
    read = "the prefill, or its last chunk" if several else "time to first token"
    about = read if phase == "prefill" else "the decode step in the middle of the output"
    figure = frame(f"Time of {phase} by bound", about, height=_AROUND + _ROW * len(passes))
    wholes = [float(one.time_s[0]) for one in passes.values()]
    scale, unit = time_unit(max(wholes))
    for bound, color in BOUND_COLOR.items():
        times = [float(np.ravel(one.spent(bound=bound))[0]) for one in passes.values()]
        if any(times):
            figure.add_bar(
                orientation="h", y=list(passes), x=[scale * t for t in times], name=f"{bound}-bound", width=0.62,
                marker={"color": color, "line": {"color": PAPER, "width": 1.5}},
                text=[f"{t / total:.0%}" for t, total in zip(times, wholes, strict=True)],
                textfont={"color": "white", "weight": 600}, **INSIDE,
                hovertext=[f"<b>{n}</b><br>{bound}-bound: {seconds(t)}" for n, t in zip(passes, times, strict=True)],
                hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    for name, total in zip(passes, wholes, strict=True):
        figure.add_annotation(
            x=scale * total, y=name, text=seconds(total), showarrow=False, xanchor="left", xshift=4, font={"size": 12}
        )  # fmt: skip
    figure.update_layout(barmode="stack", uniformtext={"minsize": 10, "mode": "hide"})
    figure.update_xaxes(title_text=f"time [{unit}]", range=[0, 1.4 * scale * max(wholes)], showgrid=False, nticks=5)
    list_rows(figure, passes)
    return figure


def bound_map(cell: Cell, name: str, phase: str) -> go.Figure:
    """The memory-bound share of a pass over batch and length; crosses where it does not fit."""
    max_length = cell.model.max_context or _LENGTHS[-1]
    lengths = [n for n in _LENGTHS if n <= max_length] or [max_length]
    share = memory_share(cell, phase, _BATCHES, lengths)
    beyond = [[not fits(cell, phase, batch=batch, length=n) for batch in _BATCHES] for n in lengths]
    others = "compute or links" if cell.layout.devices > 1 else "compute"
    return share_map(name, phase, batches=_BATCHES, lengths=lengths, share=share, beyond=beyond, others=others)


def share_map(
    name: str,
    phase: str,
    *,
    batches: Sequence[int],
    lengths: Sequence[int],
    share: npt.NDArray[Any],
    beyond: Sequence[Sequence[bool]],
    others: str = "compute",
) -> go.Figure:
    """The share of a pass that is memory-bound, [length, batch], and crosses where it does not fit (`beyond`).

    others  the bound of the rest of the time
    """
    length = "context" if phase == "decode" else "prompt"
    crossed = [
        (str(batch), tokens(n))
        for n, row in zip(lengths, beyond, strict=True)
        for batch, over in zip(batches, row, strict=True)
        if over
    ]
    heat = {
        "type": "heatmap", "x": list(map(str, batches)), "y": list(map(tokens, lengths)), "z": share,
        "zmin": 0, "zmax": 1, "xgap": 1, "ygap": 1,
        "colorscale": [[0, BOUND_COLOR["compute"]], [0.5, "rgb(246, 240, 226)"], [1, BOUND_COLOR["memory"]]],
        "colorbar": {
            "orientation": "h", "thickness": 10, "len": 0.9, "x": 0.5, "y": -0.3, "yanchor": "top",
            "tickvals": [0, 1], "ticktext": [others, "memory"], "tickfont": {"size": 12}, "outlinewidth": 0,
        },
        "customdata": [[f"{value:.0%}" for value in row] for row in share],
        "hovertemplate": f"batch %{{x}}, {length} %{{y}}: %{{customdata}} of the time is memory-bound<extra></extra>",
    }  # fmt: skip
    crosses = {
        "type": "scatter", "x": [x for x, _ in crossed], "y": [y for _, y in crossed], "mode": "markers",
        "hoverinfo": "skip", "showlegend": False,
        "marker": {"symbol": "x-thin", "size": 7, "line": {"color": _CROSS, "width": 1.2}},
    }  # fmt: skip
    return frame(
        f"{name}: what bounds {phase}",
        f"memory-bound share of the time, by batch and {length}; crosses: does not fit",
        height=400, traces=[heat, crosses],
        xaxis={"title": {"text": "batch [sequences]"}, "type": "category", "showgrid": False, "tickangle": 0,
               "nticks": 6},
        yaxis={"title": {"text": f"{length} [tokens]", "standoff": 14}, "type": "category", "showgrid": False},
    )  # fmt: skip


def fits(cell: Cell, phase: str, *, batch: int, length: int) -> bool:
    """Whether a prefill of prompts of `length` tokens, or decode steps at that context, fit the memory."""
    prompt, gen = (length, 0) if phase == "prefill" else (min(cell.prompt, length), max(length - cell.prompt, 0))
    needed_bytes = cell.setting.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen)
    return bool(needed_bytes <= cell.result.capacity_bytes)


def tokens(n: int) -> str:
    """Powers of two as the field writes them.

    >>> tokens(512), tokens(131072)
    ('512', '128k')
    """
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n)


def ranking(choice: Choice, quantity: str) -> go.Figure:
    """Merit of the ranked devices against their memory bandwidth or peak."""
    cells = [one.cell for one in choice.ranked]
    bandwidth = quantity == "memory bandwidth"
    x = [cell.layout.devices * (cell.hardware.bandwidth() if bandwidth else cell.peak) for cell in cells]
    y = [one.merit for one in choice.ranked]
    follows = choice.follows().get(quantity)
    about = "" if follows is None else f"rank correlation {follows:.3f}; "
    unit = "B/s" if bandwidth else "OP/s"
    figure = frame(f"{choice.merit} against {quantity}", f"{about}a point for each device", height=420)
    precisions = dict.fromkeys(cell.quant for cell in cells)
    for quant, line, symbol in zip(precisions, lines(len(precisions)), cycle(_SYMBOLS), strict=False):
        places = [i for i, cell in enumerate(cells) if cell.quant == quant]
        figure.add_scatter(
            x=[x[i] for i in places], y=[y[i] for i in places], mode="markers", name=quant,
            marker={"color": line["color"], "symbol": symbol, "size": 9, "line": {"color": PAPER, "width": 1}},
            hovertext=[
                f"<b>{cells[i].hardware.title}</b>, {quant}<br>{y[i]:.4g} {choice.merit}, {si(x[i])}{unit}"
                for i in places
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(
        title_text=f"{quantity.removesuffix(' OP/s')} [{unit}]", **log_axis(x, si, max_ticks=_MAX_TICKS)
    )
    figure.update_yaxes(title_text=choice.merit, **log_axis(y, si))
    return figure


def names(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Cells by unique names: the device, with the model, precision or layout where there are several."""
    models = len({cell.model.name for cell in cells}) > 1
    quants = len({cell.quant for cell in cells}) > 1
    layouts = len({cell.layout for cell in cells}) > 1
    devices = len({cell.hardware.name for cell in cells}) > 1 or not (models or quants or layouts)
    named = {}
    for cell in cells:
        parts = (
            cell.model.name if models else "",
            cell.hardware.name if devices else "",
            cell.quant if quants else "",
            str(cell.layout) if layouts else "",
        )
        named[" ".join(filter(None, parts))] = cell
    return named
