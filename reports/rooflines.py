"""Rooflines: operators of a phase, operators in several settings, and the data types of a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil, inf, log10, sqrt
from typing import Any, Final

import plotly.graph_objects as go

from llmviewer.analyzing.analysis import Analysis
from llmviewer.devices.hardware import Hardware
from llmviewer.errors import InputError
from llmviewer.resource import Resource, Unit, vector
from llmviewer.units import si

from .drawing import BOTTOM, BOUND_COLOR, INK, PAPER, TOP, frame, lines
from .operator_table import number, operator_id
from .phrases import phase_title
from .roofline_points import Roof, RooflinePoint, about, joined, points, roofs

_SYMBOL: Final = {
    "linear": "circle", "lm_head": "hexagon2", "attention": "diamond", "norm": "triangle-up", "add": "cross",
    "activation": "square", "rope": "star", "embedding": "triangle-down", "quantize": "x",
    "experts": "octagon", "router": "triangle-right", "route": "triangle-left", "permute": "bowtie",
    "combine": "hourglass", "conv": "pentagon", "scan": "diamond-wide", "elementwise": "diamond-tall",
}  # fmt: skip
_OTHER_SYMBOL: Final = "circle-open"  # of other kinds of operators
_EXPECTED: Final = "expected"
_MAX_LABELS: Final = 4  # points with their names in a figure
_MIN_LABELLED_SHARE: Final = 0.01  # smallest share of time of a point with its name
_MAX_KINDS: Final = 8  # entries of a legend that fit on a phone
_HEIGHT: Final = 480  # [px]
_LEGEND, _LEGEND_ROW = 64, 20  # distance of the legend from the plot, and the height of its rows [px]
_LABEL_ROW: Final = 18  # height of a name at a line [px]
_MAX_RIDGE_RATIO: Final = 1e7  # ratio to a ridge point of intensities outside the figure


@dataclass
class _LogLog:
    """The traces, shapes and notes of a figure whose axes are logarithmic; plotly takes them fastest at once."""

    title: str
    subtitle: str
    traces: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def scatter(self, **trace: Any) -> None:
        self.traces.append({"type": "scatter", **trace})

    def note(
        self, x: float, y: float, text: str, *, ax: float, ay: float, arrow: bool = True, **extra_style: Any
    ) -> None:  # fmt: skip
        """Text at a point, moved by `ax` to the right and `ay` down. [px]"""
        place = {"ax": ax, "ay": ay, "showarrow": True} if arrow else {"showarrow": False, "xshift": ax, "yshift": -ay}
        style = {"arrowhead": 0, "arrowwidth": 1, "arrowcolor": INK}
        self.notes.append({"x": log10(x), "y": log10(y), "text": text, **style, **place, **extra_style})

    def legend(self, kinds: Iterable[str]) -> None:
        """Entries of the kinds of operators, by shape alone."""
        for kind in kinds:
            self.scatter(
                x=[None], y=[None], mode="markers", name=kind, legendgroup=kind,
                marker={"symbol": _SYMBOL.get(kind, _OTHER_SYMBOL), "size": 9, "color": INK},
            )  # fmt: skip

    def figure(self, *, x: tuple[float, float], y: tuple[float, float], bottom: int = BOTTOM) -> go.Figure:
        """The figure with these ranges of its axes and a tick per decade, above a margin. [px]"""
        decades = [10.0**e for e in range(ceil(log10(y[0])), ceil(log10(y[1])))]
        plot = _HEIGHT - TOP - BOTTOM
        legend: dict[str, Any] = {} if bottom == BOTTOM else {"legend": {"y": -_LEGEND / plot}}
        return frame(
            self.title, self.subtitle, height=TOP + plot + bottom, bottom=bottom, traces=self.traces,
            shapes=self.shapes, annotations=self.notes,
            xaxis={"title": {"text": "arithmetic intensity [OP/B]"}, "type": "log", "dtick": 1,
                   "range": list(map(log10, x))},
            yaxis={"title": {"text": "performance [OP/s]"}, "type": "log", "dtick": 1, "range": list(map(log10, y)),
                   "tickvals": decades, "ticktext": [si(decade, 1).strip() for decade in decades]},
            **legend,
        )  # fmt: skip


def roofline(analysis: Analysis, phase: str = "prefill") -> go.Figure:
    """The operators of a phase under the roof of the unit that does most of its arithmetic (figure 4).

    Raises InputError if there is no such phase, or the model has none.
    """
    if phase not in ("prefill", "decode"):
        raise InputError(f"phase must be prefill or decode; got {phase!r}")
    analyzed = dict(analysis.phases).get(phase)
    if analyzed is None:
        raise InputError(f"{analysis.model.name} does not generate: it has no {phase} step")
    name = phase_title(analysis, phase)
    main, *others = roofs(analyzed, analysis.setting.linked)
    roofline_points = points(analyzed)
    kinds = list(dict.fromkeys(point.kind for point in roofline_points))
    intensities = [main.ridge, *(point.intensity for point in roofline_points)]
    low, high = min(intensities) / 3, max(4 * max(intensities), 70 * main.ridge)

    plot = _LogLog(f"Roofline of {name}: {analysis.model.name} on {analysis.hardware.name}", about(analyzed))
    _add_zones(plot, main, low=low, high=high)
    _add_roof(plot, x=[low, main.ridge, high], y=[low * main.bandwidth, main.rate, main.rate])
    for kind in kinds:
        same = [point for point in roofline_points if point.kind == kind]
        colors = [BOUND_COLOR[point.bound] for point in same]
        _add_points(plot, same, name, color=colors, sizes=[_diameter(p.share) for p in same], opacity=0.85, group=kind)
    plot.legend(kinds[:_MAX_KINDS])
    _add_expected(plot, roofline_points)
    for roof, dash in zip(others, ("dash", "dot", "dashdot"), strict=False):
        _add_lower_roof(plot, roof, high=high, dash=dash)
    tops = _add_cache_slopes(plot, analysis.hardware, main, low)
    _add_ridge_point(plot, main)

    labelled_rates = [
        point.expected for point in roofline_points if point.expected is not None and point.share >= _MIN_LABELLED_SHARE
    ]
    bottom = min([point.attainable for point in roofline_points] + labelled_rates + [low * main.bandwidth]) / 10
    top = 12 * max(*(roof.rate for roof in (main, *others)), *tops)
    decade = (_HEIGHT - TOP - BOTTOM) / log10(top / bottom)
    _add_labels(
        plot, roofline_points, [roof.rate for roof in others], leftwards_from=main.ridge / 2, decade=decade,
        floor=-decade * log10(bottom),
    )  # fmt: skip
    return plot.figure(x=(low, high), y=(bottom, top))


def roofline_dtypes(hardware: Hardware) -> go.Figure:
    """The roofs of a device in each of its data types (figure 5)."""
    rated = hardware.at_datasheet()
    ranked = sorted((Roof.of(rated, unit) for unit in _arithmetic(hardware)), key=_rate, reverse=True)
    top, bandwidth = ranked[0], hardware.bandwidth()
    low, high = ranked[-1].ridge / 30, top.ridge * 25
    plot = _LogLog(
        f"Rooflines of {hardware.title}",
        f"dense datasheet rates, memory at {si(bandwidth)}B/s; numbers: ridge points [OP/B]",
    )
    _add_roof(plot, x=[low, top.ridge], y=[low * bandwidth, top.rate])
    groups = [list(same) for _, same in groupby(ranked, key=_rate)]
    for same, line in zip(groups, lines(len(groups)), strict=True):
        ridge, rate = same[0].ridge, same[0].rate
        name = f"{_dtypes(same)}: {si(rate)}OP/s"
        plot.scatter(
            x=[ridge, high], y=[rate, rate], name=name, mode="lines+markers", showlegend=True,
            line={**line, "width": 2.5}, marker={"size": [9, 0], "color": line["color"]},
            hovertemplate=f"{name} from {number(ridge)} OP/B<extra></extra>",
        )  # fmt: skip
        plot.note(ridge, rate, number(ridge), ax=-4, ay=-12, arrow=False, xanchor="right")
    return plot.figure(x=(low, high), y=(low * bandwidth, 3 * top.rate))


def rooflines(analyses: Mapping[str, Analysis], phase: str = "prefill") -> go.Figure:
    """The operators of a phase in several settings, by name, each under the roof of its own device."""
    about = (
        "a line and a colour for each setting, a shape for each kind of operator, area by share of time; "
        "thin lines join an operator that moves"
    )
    plot = _LogLog(f"Rooflines of {phase}", about)
    low, high, bottom, top = inf, 0.0, inf, 0.0
    kinds: dict[str, None] = {}
    some_expected = False
    points_of_settings = {name: points(getattr(analysis.phases, phase)) for name, analysis in analyses.items()}
    _add_moves(plot, list(points_of_settings.values()))
    for (name, analysis), line in zip(analyses.items(), lines(len(analyses)), strict=True):
        analyzed = getattr(analysis.phases, phase)
        main, *_ = roofs(analyzed, analysis.setting.linked)
        roofline_points = points_of_settings[name]
        kinds |= dict.fromkeys(point.kind for point in roofline_points if point.share >= _MIN_LABELLED_SHARE)
        low = min(low, min(main.ridge, *(point.intensity for point in roofline_points)) / 3)
        high = max(high, 4 * max(point.intensity for point in roofline_points), 10 * main.ridge)
        bottom, top = min(bottom, *(point.attainable for point in roofline_points)), max(top, main.rate)
        _add_named_roof(plot, main, name, line)
        expected = [(point.intensity, point.expected) for point in roofline_points if point.expected is not None]
        if expected:
            some_expected = True
            plot.scatter(
                x=[x for x, _ in expected], y=[y for _, y in expected], mode="markers", legendgroup=name,
                name=_EXPECTED, showlegend=False, hoverinfo="skip",
                marker={"symbol": _OTHER_SYMBOL, "color": line["color"], "size": 7},
            )  # fmt: skip
        for kind in dict.fromkeys(point.kind for point in roofline_points):
            same = [point for point in roofline_points if point.kind == kind]
            sizes = [_diameter(point.share) / 1.5 for point in same]
            _add_points(
                plot, same, phase, color=line["color"], sizes=sizes, opacity=0.8, group=name, head=f"<b>{name}</b><br>"
            )  # fmt: skip
    if some_expected:
        plot.scatter(
            x=[None], y=[None], mode="markers", name=_EXPECTED,
            marker={"symbol": _OTHER_SYMBOL, "size": 9, "color": INK},
        )  # fmt: skip
    plot.legend(kinds)
    below = _LEGEND + _LEGEND_ROW * (len(analyses) + ceil(len(kinds) / 3))
    return plot.figure(x=(low, high), y=(bottom / 5, 4 * top), bottom=below)


def _add_moves(plot: _LogLog, points_of_settings: Sequence[Sequence[RooflinePoint]]) -> None:
    """Lines between the points of an operator in different settings."""
    paths: dict[str, list[tuple[float, float]]] = {}
    for roofline_points in points_of_settings:
        for point in roofline_points:
            for name in dict.fromkeys(map(operator_id, point.operators)):
                if point.share >= _MIN_LABELLED_SHARE:
                    paths.setdefault(name, []).append((point.intensity, point.attainable))
    moves = [path for path in dict.fromkeys(map(tuple, paths.values())) if len(set(path)) > 1]
    if moves:
        plot.scatter(
            x=[x for path in moves for x in (*(x for x, _ in path), None)],
            y=[y for path in moves for y in (*(y for _, y in path), None)],
            mode="lines", line={"color": INK, "width": 1}, opacity=0.5, hoverinfo="skip", showlegend=False,
        )  # fmt: skip


def _add_named_roof(plot: _LogLog, roof: Roof, name: str, line: Mapping[str, str]) -> None:
    """The slope and the peak of the roof of one setting, beyond both ends of the figure, and its ridge point."""
    low, high = roof.ridge / _MAX_RIDGE_RATIO, roof.ridge * _MAX_RIDGE_RATIO
    peak = f"{roof.name} {si(roof.rate)}OP/s, {si(roof.bandwidth)}B/s"
    ridge = f"ridge point {number(roof.ridge)} OP/B"
    plot.scatter(
        x=[low, roof.ridge, high], y=[low * roof.bandwidth, roof.rate, roof.rate], name=f"{name}, {ridge}",
        legendgroup=name, mode="lines+markers", line={**line, "width": 2},
        marker={"size": [0, 8, 0], "color": line["color"]},
        hovertemplate=f"<b>{name}</b><br>{peak}<br>{ridge}<extra></extra>",
    )  # fmt: skip


def _rate(roof: Roof) -> float:
    return roof.rate


def _arithmetic(device: Hardware) -> list[Resource]:
    """The matrix units of a device and vector fp32; all vector units of a device without matrix units."""
    units = [unit for unit in device.rates if unit.unit is Unit.MATRIX]
    if units:
        return units + [unit for unit in device.rates if unit == vector("fp32")]
    return [unit for unit in device.rates if unit.unit is Unit.VECTOR]


def _dtypes(same: Sequence[Roof]) -> str:
    return ", ".join(unit.dtype if unit.unit is Unit.MATRIX else str(unit) for unit, *_ in same)


def _add_zones(plot: _LogLog, roof: Roof, *, low: float, high: float) -> None:
    """The intensities at which memory bounds, and those at which arithmetic does."""
    for bound, start, end, place, anchor in (
        ("memory", low, roof.ridge, 0, "left"), ("compute", roof.ridge, high, 1, "right"),
    ):  # fmt: skip
        plot.shapes.append({
            "type": "rect", "x0": start, "x1": end, "y0": 0, "y1": 1, "xref": "x", "yref": "y domain",
            "fillcolor": BOUND_COLOR[bound], "opacity": 0.1, "line": {"width": 0}, "layer": "below",
        })  # fmt: skip
        plot.notes.append({
            "x": place, "xref": "paper", "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": anchor,
            "showarrow": False, "text": f"<b>{bound}-bound</b>", "font": {"color": BOUND_COLOR[bound], "size": 11},
        })  # fmt: skip


def _add_roof(plot: _LogLog, *, x: Sequence[float], y: Sequence[float]) -> None:
    """The highest performance of a device."""
    plot.scatter(x=x, y=y, mode="lines", hoverinfo="skip", showlegend=False, line={"color": INK, "width": 2.5})


def _add_lower_roof(plot: _LogLog, roof: Roof, *, high: float, dash: str) -> None:
    """The peak of another unit, from the slope that all units share."""
    text = f"{roof.name} {si(roof.rate)}"  # in OP/s as the axis, short enough for a phone
    plot.scatter(
        x=[roof.ridge, high], y=[roof.rate, roof.rate], mode="lines", showlegend=False,
        line={"color": INK, "width": 1.2, "dash": dash}, hovertemplate=f"{text}OP/s<extra></extra>",
    )  # fmt: skip
    plot.note(
        high, roof.rate, text, ax=-4, ay=9, arrow=False, xanchor="right", bgcolor=PAPER, borderpad=0, font={"size": 11}
    )


def _add_cache_slopes(plot: _LogLog, hardware: Hardware, main: Roof, low: float) -> list[float]:
    """The performance of launches whose operands a cache holds, by the bandwidths of the device's file.

    Returns the highest values.
    """
    tops, names, left = [0.0], [], main.ridge
    for level, dash in zip(("l2", "l3"), ("dot", "dashdot"), strict=True):
        bandwidth = hardware.numbers.get(f"{level}.bandwidth")
        if bandwidth and bandwidth > main.bandwidth:
            ridge = main.rate / bandwidth
            start = min(low, ridge / 10)
            text = f"{level.upper()} {si(bandwidth)}B/s"
            plot.scatter(
                x=[start, ridge], y=[start * bandwidth, main.rate], mode="lines", showlegend=False,
                line={"color": INK, "width": 1.2, "dash": dash},
                hovertemplate=f"{text}: for operands that it holds<extra></extra>",
            )  # fmt: skip
            tops.append(main.rate)
            names.append(text)
            left = min(left, ridge)
    if names:  # left of the fastest
        plot.note(
            left / 3, main.rate / 3, "<br>".join(names), ax=-8, ay=-16, arrow=False, xanchor="right", align="right",
            font={"size": 11},
        )  # fmt: skip
    return tops


def _add_ridge_point(plot: _LogLog, roof: Roof) -> None:
    plot.scatter(
        x=[roof.ridge], y=[roof.rate], mode="markers", showlegend=False, marker={"color": INK, "size": 8},
        hovertemplate=f"ridge point of {roof.name} units<br>{si(roof.rate)}OP/s at {si(roof.bandwidth)}B/s: "
        f"{number(roof.ridge)} OP/B<extra></extra>",
    )  # fmt: skip
    text = f"ridge point {number(roof.ridge)} OP/B<br>{roof.name} {si(roof.rate)}OP/s"
    plot.note(roof.ridge, roof.rate, text, ax=-24, ay=-24, xanchor="right", align="right", font={"size": 11})


def _add_points(
    plot: _LogLog,
    same: Sequence[RooflinePoint],
    phase: str,
    *,
    color: str | list[str],
    sizes: list[float],
    opacity: float,
    group: str,
    head: str = "",
) -> None:
    """Points of operators of one kind.

    group  entry of the legend that shows and hides them
    head   first line of what is shown on hover
    """
    plot.scatter(
        x=[p.intensity for p in same], y=[p.attainable for p in same], mode="markers", legendgroup=group,
        showlegend=False, hovertext=[f"{head}{p.hover(phase)}" for p in same],
        hovertemplate="%{hovertext}<extra></extra>", customdata=[p.operator for p in same],
        marker={
            "symbol": _SYMBOL.get(same[0].kind, _OTHER_SYMBOL), "size": sizes, "opacity": opacity, "color": color,
            "line": {"color": PAPER, "width": 1},
        },
    )  # fmt: skip


def _add_expected(plot: _LogLog, roofline_points: Sequence[RooflinePoint]) -> None:
    """Hollow points of expected performance, each on a line below its bound."""
    expected_points = [(point, point.expected) for point in roofline_points if point.expected is not None]
    if not expected_points:
        return
    plot.scatter(
        x=[x for p, _ in expected_points for x in (p.intensity, p.intensity, None)],
        y=[y for p, expected in expected_points for y in (p.attainable, expected, None)],
        mode="lines", line={"color": INK, "width": 1}, opacity=0.5, hoverinfo="skip", showlegend=False,
        legendgroup=_EXPECTED,
    )  # fmt: skip
    plot.scatter(
        x=[p.intensity for p, _ in expected_points], y=[expected for _, expected in expected_points],
        mode="markers", name=_EXPECTED, legendgroup=_EXPECTED,
        hovertemplate="%{hovertext}, %{y:.3s}OP/s<extra></extra>",
        hovertext=[f"<b>{joined(op.name for op in p.operators)}</b>, expected" for p, _ in expected_points],
        marker={
            "symbol": _OTHER_SYMBOL, "size": [_diameter(p.share) * 0.7 for p, _ in expected_points],
            "color": [BOUND_COLOR[p.bound] for p, _ in expected_points], "line": {"width": 1.5},
        },
    )  # fmt: skip


def _diameter(share: float) -> float:
    """Diameter of a point whose area grows with its share of time. [px]"""
    return 8 + 26 * sqrt(share)


def _add_labels(
    plot: _LogLog,
    roofline_points: Sequence[RooflinePoint],
    rates: Sequence[float],
    *,
    leftwards_from: float,
    decade: float,
    floor: float,
) -> None:
    """Names of the largest points, as many as have room.

    They stand to the right of memory-bound points, and to the left of others, where a narrow figure has room.

    rates           peaks of lower roofs, whose names are kept clear
    leftwards_from  intensity from which on names stand to the left of memory-bound points too [OP/B]
    decade, floor   height of a decade, and place of the lower end of the plot [px]
    """
    rightwards = [p for p in roofline_points if p.bound == "memory" and p.intensity < leftwards_from]
    named = [p for p in roofline_points[:_MAX_LABELS] if p.share >= _MIN_LABELLED_SHARE]
    places = _places(named, rightwards, rates, decade)
    while any(end > floor for _, end in places):
        named.pop()
        places = _places(named, rightwards, rates, decade)
    for point, (start, _) in zip(_downwards(named, rightwards), places, strict=True):
        side, anchor = (1, "left") if point in rightwards else (-1, "right")
        plot.note(
            point.intensity, point.attainable, point.label, ax=22 * side,
            ay=start + decade * log10(point.attainable), xanchor=anchor, yanchor="top", align=anchor,
            standoff=_diameter(point.share) / 2, bgcolor=PAPER, borderpad=1, font={"size": 11},
        )  # fmt: skip


def _downwards(named: Sequence[RooflinePoint], rightwards: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """Points in the order in which their names stand below each other, on either side of them."""
    return sorted(named, key=lambda p: p.intensity ** (-1 if p in rightwards else 1))


def _places(
    named: Sequence[RooflinePoint], rightwards: Sequence[RooflinePoint], rates: Sequence[float], decade: float
) -> list[tuple[float, float]]:
    """The upper and the lower end of each name, below the roof and clear of others, also in a narrow figure. [px]"""
    others = [(-decade * log10(rate), _LABEL_ROW - decade * log10(rate)) for rate in rates]
    placed: list[tuple[float, float]] = []
    for point in _downwards(named, rightwards):
        height = 9 + 13 * point.lines
        start = (34 if point in rightwards else 46) - decade * log10(point.attainable)
        for above, below in sorted(others + placed):
            if above < start + height and start < below:
                start = below
        placed.append((start, start + height))
    return placed
