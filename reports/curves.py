"""A quantity along batch or length: a curve for each setting, and where curves cross."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import ceil, floor, log2, log10
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from llmviewer.records import frozen

from .drawing import INK, PAPER, frame, lines, plain, ticks

Array = npt.NDArray[Any]
_HEIGHT: Final = 380  # [px]
_BOUND_CHANGE_LABEL: Final = "bound changes"
_CROSSING_LABEL: Final = "curves cross"
_DOTTED: Final = {"color": INK, "width": 1, "dash": "dot"}


@frozen(kw_only=True)
class Curve:
    """A curve.

    y         values at x
    expected  expected values at fewer places: (x, y)
    bound_changes  places where the bound of most of the time changes: (x, y, text)
    """

    x: Array
    y: Array
    expected: tuple[Array, Array] | None = None
    bound_changes: Sequence[tuple[float, float, str]] = field(default=())


def curves(
    title: str,
    about: str,
    named: Mapping[str, Curve],
    *,
    axis: str,
    unit: str,
    text: Callable[[float], str],
    place: Callable[[int], str] = str,
    meets: Sequence[tuple[float, float, str]] = (),
    limits: Mapping[str, float] | None = None,
    present_x: float | None = None,
) -> go.Figure:
    """Curves by name over logarithmic axes.

    axis    name and unit of x; `unit` that of y
    text    y as text; `place` x as text, at powers of two
    meets   places where two curves cross: (x, y, text)
    limits  upper limits of y by name, in the colors of as many curves, or in ink where there is one
    present_x  x of the present setting
    """
    limits = limits or {}
    styles = [{"color": INK, "dash": "solid"}] if len(named) < len(limits) else lines(len(named))
    bound_changes = [change for one in named.values() for change in one.bound_changes]
    traces = [
        *(trace for (name, one), line in zip(named.items(), styles, strict=True)
          for trace in _drawn(name, one, line, text)),
        *_limits(limits, named, text),
        *_marked(_BOUND_CHANGE_LABEL, bound_changes, "diamond"), *_marked(_CROSSING_LABEL, meets, "x-thin"),
        *([{"type": "scatter", "x": [None], "y": [None], "mode": "markers", "name": "expected",
            "marker": {"symbol": "circle-open", "size": 6, "color": INK}}]
          if any(one.expected for one in named.values()) else []),
    ]  # fmt: skip
    first, last = (pick(float(pick(one.x)) for one in named.values()) for pick in (min, max))
    powers = [2**i for i in range(ceil(log2(first)), floor(log2(last)) + 1)]
    labelled = powers[:: 1 + len(powers) // 9]
    values = [y for one in named.values() for y in (one.y, *([one.expected[1]] if one.expected else []))]
    low = min([*limits.values(), *(float(np.min(y)) for y in values)])
    high = max([*limits.values(), *(float(np.max(y)) for y in values)])
    marks = ticks(low / 1.2, 1.2 * high)
    return frame(
        title, about, height=_HEIGHT, traces=traces,
        xaxis={"title": {"text": axis}, "type": "log", "tickvals": labelled, "tickangle": 0,
               "ticktext": [place(power) for power in labelled], "range": [log10(0.96 * first), log10(1.04 * last)]},
        yaxis={"title": {"text": unit, "standoff": 8}, "type": "log", "tickvals": marks,
               "ticktext": [plain(text(value)) for value in marks],
               "range": [log10(low / 1.2), log10(1.2 * high)]},
        **({} if present_x is None else _present(present_x)),
    )  # fmt: skip


def _drawn(name: str, one: Curve, line: Mapping[str, str], text: Callable[[float], str]) -> Iterator[dict[str, Any]]:
    """A curve, and circles at expected values."""
    yield {
        "type": "scatter", "x": one.x, "y": one.y, "mode": "lines", "name": name, "legendgroup": name,
        "line": {**line, "width": 2.2}, "customdata": [text(y) for y in one.y],
        "hovertemplate": f"{name}, %{{x}}: %{{customdata}}<extra></extra>",
    }  # fmt: skip
    if one.expected:
        x, y = one.expected
        yield {
            "type": "scatter", "x": x, "y": y, "mode": "markers", "legendgroup": name, "showlegend": False,
            "customdata": [text(value) for value in y],
            "marker": {"symbol": "circle-open", "size": 5, "color": line["color"]},
            "hovertemplate": f"{name}, %{{x}}: %{{customdata}} expected of real kernels<extra></extra>",
        }  # fmt: skip


def _limits(
    limits: Mapping[str, float], named: Mapping[str, Curve], text: Callable[[float], str]
) -> Iterator[dict[str, Any]]:
    x = [min(one.x[0] for one in named.values()), max(one.x[-1] for one in named.values())]
    for (name, limit), line in zip(limits.items(), lines(len(limits)), strict=True):
        label = f"{name}: {plain(text(limit))}"
        style = _DOTTED if len(limits) == 1 else {"color": line["color"], "width": 1.5, "dash": "dot"}
        yield {
            "type": "scatter", "x": x, "y": [limit, limit], "mode": "lines", "name": label, "line": style,
            "hovertemplate": f"{label}<extra></extra>",
        }  # fmt: skip


def _marked(name: str, marks: Sequence[tuple[float, float, str]], symbol: str) -> Iterator[dict[str, Any]]:
    if marks:
        edge = INK if symbol == "x-thin" else PAPER
        yield {
            "type": "scatter", "x": [x for x, *_ in marks], "y": [y for _, y, _ in marks], "mode": "markers",
            "name": name, "hovertext": [text for *_, text in marks], "hovertemplate": "%{hovertext}<extra></extra>",
            "marker": {"symbol": symbol, "size": 10, "color": INK, "line": {"color": edge, "width": 2}},
        }  # fmt: skip


def _present(x: float) -> dict[str, Any]:
    """A line at the present setting, as parts of a layout."""
    upright = {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "y domain"}
    word = {"text": "now", "x": log10(x), "y": 1, "yref": "y domain", "yanchor": "bottom", "showarrow": False}
    return {"shapes": [{**upright, "line": _DOTTED, "opacity": 0.6}], "annotations": [{**word, "font": {"size": 11}}]}


def crossings(a: Array, b: Array) -> list[int]:
    """Places i where which of two curves is lower changes between i and i + 1; where they touch is no crossing.

    >>> crossings(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
    [1]
    """
    sign = np.sign(np.round(a / b - 1, 9))
    sides = [0.0] * len(sign)  # the last side that was not a tie
    for i, side in enumerate(sign):
        sides[i] = side or (sides[i - 1] if i else 0.0)
    return [i for i in range(len(sides) - 1) if sides[i] and sides[i + 1] != sides[i]]
