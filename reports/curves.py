"""A quantity along the batch or the length: a curve for each of several settings, and where they cross."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log2, log10
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from .contrasts import tokens
from .drawing import INK, PAPER, frame, lines

Array = npt.NDArray[Any]
_HEIGHT: Final = 380  # [px]
_TURN: Final = "bound changes"
_MEET: Final = "curves cross"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One of them.

    y         at x
    expected  of real kernels, at fewer places: (x, y)
    turns     where what most of the time is bound by changes: (x, y, what is said there)
    limit     what y must not exceed
    """

    x: Array
    y: Array
    expected: tuple[Array, Array] | None = None
    turns: Sequence[tuple[float, float, str]] = field(default=())
    limit: float | None = None


def curves(
    title: str,
    about: str,
    named: Mapping[str, Curve],
    *,
    axis: str,
    unit: str,
    text: Callable[[float], str],
    meets: Sequence[tuple[float, float, str]] = (),
    at: float | None = None,
) -> go.Figure:
    """Curves by name, both axes logarithmic.

    axis   what x is, with its unit; `unit` what y is, with its own
    text   y for people to read
    meets  where two curves cross: (x, y, what is said there)
    at     the x of the present setting
    """
    figure = frame(title, about, height=_HEIGHT)
    for (name, one), line in zip(named.items(), lines(len(named)), strict=True):
        figure.add_scatter(
            x=one.x, y=one.y, mode="lines", name=name, legendgroup=name, line={**line, "width": 2.2},
            customdata=[text(y) for y in one.y], hovertemplate=f"{name}, %{{x}}: %{{customdata}}<extra></extra>",
        )  # fmt: skip
        if one.expected:
            x, y = one.expected
            figure.add_scatter(
                x=x, y=y, mode="markers", legendgroup=name, showlegend=False, customdata=[text(value) for value in y],
                marker={"symbol": "circle-open", "size": 5, "color": line["color"]},
                hovertemplate=f"{name}, %{{x}}: expected %{{customdata}}<extra></extra>",
            )  # fmt: skip
        if one.limit is not None:
            figure.add_scatter(
                x=[one.x[0], one.x[-1]], y=[one.limit, one.limit], mode="lines", legendgroup=name, showlegend=False,
                line={"color": line["color"], "width": 1, "dash": "dot"},
                hovertemplate=f"memory of {name}: {text(one.limit)}<extra></extra>",
            )  # fmt: skip
    turns = [turn for one in named.values() for turn in one.turns]
    for label, marks, symbol in ((_TURN, turns, "diamond"), (_MEET, meets, "x-thin")):
        if marks:
            figure.add_scatter(
                x=[x for x, *_ in marks], y=[y for _, y, _ in marks], mode="markers", name=label,
                hovertext=[said for *_, said in marks], hovertemplate="%{hovertext}<extra></extra>",
                marker={"symbol": symbol, "size": 10, "color": INK,
                        "line": {"color": INK if symbol == "x-thin" else PAPER, "width": 2}},
            )  # fmt: skip
    if any(one.expected for one in named.values()):
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name="expected of real kernels",
            marker={"symbol": "circle-open", "size": 6, "color": INK},
        )  # fmt: skip
    if any(one.limit is not None for one in named.values()):
        figure.add_scatter(
            x=[None], y=[None], mode="lines", name="memory of the device",
            line={"color": INK, "width": 1, "dash": "dot"},
        )  # fmt: skip
    if at is not None:
        figure.add_vline(x=at, line={"color": INK, "width": 1, "dash": "dot"}, opacity=0.5)
    first, last = (pick(float(pick(one.x)) for one in named.values()) for pick in (min, max))
    powers = [2**i for i in range(ceil(log2(first)), floor(log2(last)) + 1)]
    shown = powers[:: 1 + len(powers) // 9]
    figure.update_xaxes(
        title_text=axis, type="log", tickvals=shown, ticktext=[tokens(power) for power in shown], tickangle=0,
        range=[log10(0.96 * first), log10(1.04 * last)],
    )  # fmt: skip
    limits = [one.limit for one in named.values() if one.limit is not None]
    low = min(float(np.min(one.y)) for one in named.values())
    high = max([low, *limits, *(float(np.max(one.y)) for one in named.values())])
    high = max([high, *(float(np.max(one.expected[1])) for one in named.values() if one.expected)])
    low = min([low, *limits])
    values = _ticks(low, high)
    figure.update_yaxes(
        title_text=unit, type="log", tickvals=values, ticktext=[text(value).replace(".00", "") for value in values],
        range=[log10(low / 1.2), log10(1.2 * high)],
    )  # fmt: skip
    return figure


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two, as many as can be read."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    found: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5)):
        found = [value for e in decades for d in digits if low / 1.2 <= (value := d * 10.0**e) <= 1.2 * high]
        if len(found) >= 4:
            break
    return found[:: 1 + len(found) // 8]


def crossings(a: Array, b: Array) -> list[int]:
    """Places i where which of two curves is lower changes between i and i + 1; where they touch is no crossing.

    >>> crossings(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
    [1]
    """
    sign = np.sign(np.round(a / b - 1, 9))
    held = [0.0] * len(sign)  # the last side that was not a tie
    for i, side in enumerate(sign):
        held[i] = side or (held[i - 1] if i else 0.0)
    return [i for i in range(len(held) - 1) if held[i] and held[i + 1] != held[i]]
