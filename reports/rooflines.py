"""Rooflines: of the operators of a phase, and of all data types of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import ceil, inf, log10, sqrt
from typing import Any, Final

import plotly.graph_objects as go

from llmviewer.analyzing.analysis import Analysis
from llmviewer.devices.hardware import Hardware
from llmviewer.errors import InputError
from llmviewer.operators.kinds import kind_of
from llmviewer.resource import Resource, Unit, vector
from llmviewer.units import si

from .drawing import BOUND_COLOR, INK, PAPER, frame, lines
from .operator_table import number
from .phrases import phase_title
from .roofline_points import Point, Roof, about, joined, points, roofs

_LABELS: Final = 4  # points that are named in the picture
_KINDS: Final = 8  # that a legend tells apart: a phone has room for no more
_BELOW, _LEGEND_ROW = 64, 20  # heights of what is between a plot and its legend, and of a line of that [px]
_FAR: Final = 1e7  # times a turning point: beyond what is shown
_HOLLOW: Final = "expected"
_LINE: Final = 18  # height of a name that hangs from a line [px]
_LABELLED: Final = 0.01  # share of time from which on a point is worth a name


def roofline(analysis: Analysis, phase: str = "prefill") -> go.Figure:
    """The operators of a phase under the roof of the unit that most of its arithmetic asks for (figure 4).

    Raises InputError where there is no such phase, or the model has none.
    """
    if phase not in ("prefill", "decode"):
        raise InputError(f"phase must be prefill or decode; got {phase!r}")
    shown = dict(analysis.phases).get(phase)
    if shown is None:
        raise InputError(f"{analysis.model.name} does not generate: it has no {phase} step")
    name = phase_title(analysis, phase)
    main, *others = roofs(shown, analysis.hardware)
    found = points(shown)
    reach = [main.turning, *(p.intensity for p in found)]
    low, high = min(reach) / 3, max(4 * max(reach), 70 * main.turning)
    figure = _log_log(f"Roofline of {name}: {analysis.model.name} on {analysis.hardware.name}", about(shown))
    _zones(figure, main, low=low, high=high)
    _ink(figure, x=[low, main.turning, high], y=[low * main.bandwidth, main.rate, main.rate])
    for kind in dict.fromkeys(p.kind for p in found):
        _markers(figure, kind, [p for p in found if p.kind == kind], name)
    for kind in list(dict.fromkeys(p.kind for p in found))[:_KINDS]:
        _shape(figure, kind)
    _expected(figure, found)
    for roof, dash in zip(others, ("dash", "dot", "dashdot"), strict=False):
        _lower_roof(figure, roof, high=high, dash=dash)
    tops = _inner_slopes(figure, analysis.hardware, main, low)
    _turning_point(figure, main)
    large = [p.expected for p in found if p.expected is not None and p.share >= _LABELLED]
    bottom = min([p.attainable for p in found] + large + [low * main.bandwidth]) / 10
    top = 12 * max(*(roof.rate for roof in (main, *others)), *tops)
    decade = _plot(figure) / log10(top / bottom)
    _labels(
        figure, found, [roof.rate for roof in others], beyond=main.turning / 2, decade=decade,
        floor=-decade * log10(bottom),
    )  # fmt: skip
    _window(figure, x=(low, high), y=(bottom, top))
    return figure


def roofline_dtypes(hardware: Hardware) -> go.Figure:
    """The roofs of a device in each of its data types (figure 5)."""
    rated = hardware.at_datasheet()
    ranked = sorted((Roof.of(rated, unit) for unit in _arithmetic(hardware)), key=_rate, reverse=True)
    top, bandwidth = ranked[0], hardware.bandwidth()
    low, high = ranked[-1].turning / 30, top.turning * 25
    figure = _log_log(
        f"Rooflines of {hardware.title}",
        f"dense datasheet rates, memory at {si(bandwidth)}B/s; numbers: turning points [OP/B]",
    )
    _ink(figure, x=[low, top.turning], y=[low * bandwidth, top.rate])
    groups = [list(same) for _, same in groupby(ranked, key=_rate)]
    for same, line in zip(groups, lines(len(groups)), strict=True):
        at, rate = same[0].turning, same[0].rate
        name = f"{_dtypes(same)}: {si(rate)}OP/s"
        figure.add_scatter(
            x=[at, high], y=[rate, rate], name=name, mode="lines+markers", showlegend=True,
            line={**line, "width": 2.5}, marker={"size": [9, 0], "color": line["color"]},
            hovertemplate=f"{name} from {number(at)} OP/B<extra></extra>",
        )  # fmt: skip
        _note(figure, at, rate, number(at), ax=-4, ay=-12, arrow=False, xanchor="right")
    _window(figure, x=(low, high), y=(low * bandwidth, 3 * top.rate))
    return figure


def rooflines(analyses: Mapping[str, Analysis], phase: str = "prefill") -> go.Figure:
    """The operators of a phase in several settings, by name, each under the roof of its own device."""
    about = "a line and a colour for each setting, a shape for each kind of operator, area by share of time"
    figure = _log_log(f"Rooflines of {phase}", about)
    low, high, bottom, top = inf, 0.0, inf, 0.0
    kinds: dict[str, None] = {}
    for (name, one), line in zip(analyses.items(), lines(len(analyses)), strict=True):
        shown = getattr(one.phases, phase)
        main, *_ = roofs(shown, one.hardware)
        found = points(shown)
        kinds |= dict.fromkeys(p.kind for p in found if p.share >= _LABELLED)
        left, right = min(main.turning, *(p.intensity for p in found)) / 3, 4 * max(p.intensity for p in found)
        low, high = min(low, left), max(high, right, 10 * main.turning)
        bottom, top = min(bottom, *(p.attainable for p in found)), max(top, main.rate)
        _roof_of(figure, main, name, line)
        hollow = [(p.intensity, p.expected) for p in found if p.expected is not None]
        if hollow:
            figure.add_scatter(
                x=[x for x, _ in hollow], y=[y for _, y in hollow], mode="markers", legendgroup=name, name=_HOLLOW,
                showlegend=False, hoverinfo="skip", marker={"symbol": "circle-open", "color": line["color"], "size": 7},
            )  # fmt: skip
        for kind in dict.fromkeys(p.kind for p in found):
            own = [p for p in found if p.kind == kind]
            figure.add_scatter(
                x=[p.intensity for p in own], y=[p.attainable for p in own], mode="markers", legendgroup=name,
                showlegend=False, hovertemplate="%{hovertext}<extra></extra>",
                hovertext=[f"<b>{name}</b><br>{p.hover(phase)}" for p in own],
                customdata=[p.operator for p in own],
                marker={
                    "symbol": kind_of(kind).symbol, "size": [_diameter(p.share) / 1.5 for p in own],
                    "color": line["color"], "opacity": 0.8, "line": {"color": PAPER, "width": 1},
                },
            )  # fmt: skip
    if any(trace.name == _HOLLOW for trace in figure.data):
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=_HOLLOW,
            marker={"symbol": "circle-open", "size": 9, "color": INK},
        )
    for kind in kinds:
        _shape(figure, kind)
    _window(figure, x=(low, high), y=(bottom / 5, 4 * top))
    below = _BELOW + _LEGEND_ROW * (len(analyses) + ceil(len(kinds) / 3))
    plot = _plot(figure)
    figure.update_layout(
        height=figure.layout.margin.t + plot + below, margin={"b": below}, legend={"y": -_BELOW / plot}
    )  # fmt: skip
    return figure


def _roof_of(figure: go.Figure, roof: Roof, name: str, line: Mapping[str, str]) -> None:
    """The slope and the peak of one of several roofs, from one decimal end of the picture to the other."""
    low, high = roof.turning / _FAR, roof.turning * _FAR
    peak = f"{roof.name} {si(roof.rate)}OP/s, {si(roof.bandwidth)}B/s"
    text = f"<b>{name}</b><br>{peak}<br>turning point {number(roof.turning)} OP/B"
    figure.add_scatter(
        x=[low, roof.turning, high], y=[low * roof.bandwidth, roof.rate, roof.rate], name=name, legendgroup=name,
        mode="lines", line={**line, "width": 2}, hovertemplate=f"{text}<extra></extra>",
    )  # fmt: skip


def _rate(roof: Roof) -> float:
    return roof.rate


def _arithmetic(device: Hardware) -> list[Resource]:
    """Its matrix units and vector fp32; all of its vector units where it has no other."""
    units = [unit for unit in device.rates if unit.unit is Unit.MATRIX]
    if units:
        return units + [unit for unit in device.rates if unit == vector("fp32")]
    return [unit for unit in device.rates if unit.unit is Unit.VECTOR]


def _dtypes(same: Sequence[Roof]) -> str:
    return ", ".join(unit.dtype if unit.unit is Unit.MATRIX else str(unit) for unit, *_ in same)


def _log_log(title: str, subtitle: str) -> go.Figure:
    """The frame of a roofline."""
    figure = frame(title, subtitle, height=480)
    figure.update_xaxes(title_text="arithmetic intensity [OP/B]", type="log", dtick=1)
    figure.update_yaxes(title_text="performance [OP/s]", type="log", dtick=1)
    return figure


def _window(figure: go.Figure, *, x: tuple[float, float], y: tuple[float, float]) -> None:
    """What of log-log axes is shown, with a tick a decade."""
    figure.update_xaxes(range=list(map(log10, x)))
    decades = [10.0**e for e in range(ceil(log10(y[0])), ceil(log10(y[1])))]
    figure.update_yaxes(range=list(map(log10, y)), tickvals=decades, ticktext=[si(d, 1).strip() for d in decades])


def _note(
    figure: go.Figure, x: float, y: float, text: str, *, ax: float, ay: float, arrow: bool = True, **more: Any
) -> None:
    """Text at a point of log-log axes, moved by `ax` to the right and `ay` down. [px]"""
    position = {"ax": ax, "ay": ay, "showarrow": True} if arrow else {"showarrow": False, "xshift": ax, "yshift": -ay}
    figure.add_annotation(
        x=log10(x), y=log10(y), text=text, arrowhead=0, arrowwidth=1, arrowcolor=INK, **position, **more
    )  # fmt: skip


def _zones(figure: go.Figure, roof: Roof, *, low: float, high: float) -> None:
    """Where memory bounds, and where arithmetic does."""
    for bound, start, end, place, anchor in (
        ("memory", low, roof.turning, 0, "left"), ("compute", roof.turning, high, 1, "right"),
    ):  # fmt: skip
        figure.add_vrect(
            x0=start, x1=end, fillcolor=BOUND_COLOR[bound], opacity=0.1, line_width=0, layer="below"
        )  # fmt: skip
        figure.add_annotation(
            x=place, xref="paper", y=1, yref="paper", yanchor="bottom", xanchor=anchor, showarrow=False,
            text=f"<b>{bound}-bound</b>", font={"color": BOUND_COLOR[bound], "size": 11},
        )  # fmt: skip


def _ink(figure: go.Figure, *, x: Sequence[float], y: Sequence[float]) -> None:
    """The thick line of what a device attains at most."""
    figure.add_scatter(
        x=x, y=y, mode="lines", hoverinfo="skip", showlegend=False, line={"color": INK, "width": 2.5}
    )  # fmt: skip


def _lower_roof(figure: go.Figure, roof: Roof, *, high: float, dash: str) -> None:
    """The peak of another unit, from where it leaves the slope that all units share."""
    text = f"{roof.name} {si(roof.rate)}OP/s"
    figure.add_scatter(
        x=[roof.turning, high], y=[roof.rate, roof.rate], mode="lines", showlegend=False,
        line={"color": INK, "width": 1.2, "dash": dash}, hovertemplate=f"{text}<extra></extra>",
    )  # fmt: skip
    _note(figure, high, roof.rate, text, ax=-4, ay=8, arrow=False, xanchor="right", font={"size": 11})


def _inner_slopes(figure: go.Figure, hardware: Hardware, main: Roof, low: float) -> list[float]:
    """What caches would let a launch attain whose operands they hold, where a file says how fast they are; the tops."""
    tops, names, left = [0.0], [], main.turning
    for level, dash in zip(("l2", "l3"), ("dot", "dashdot"), strict=True):
        bandwidth = hardware.numbers.get(f"{level}.bandwidth")
        if bandwidth and bandwidth > main.bandwidth:
            at = main.rate / bandwidth
            text = f"{level.upper()} {si(bandwidth)}B/s"
            figure.add_scatter(
                x=[min(low, at / 10), at], y=[min(low, at / 10) * bandwidth, main.rate], mode="lines",
                showlegend=False, line={"color": INK, "width": 1.2, "dash": dash},
                hovertemplate=f"{text}: for operands that it holds<extra></extra>",
            )  # fmt: skip
            tops.append(main.rate)
            names.append(text)
            left = min(left, at)
    if names:  # left of the fastest
        _note(
            figure, left / 3, main.rate / 3, "<br>".join(names), ax=-8, ay=-16, arrow=False, xanchor="right",
            align="right", font={"size": 11},
        )  # fmt: skip
    return tops


def _turning_point(figure: go.Figure, roof: Roof) -> None:
    figure.add_scatter(
        x=[roof.turning], y=[roof.rate], mode="markers", showlegend=False, marker={"color": INK, "size": 8},
        hovertemplate=f"turning point of {roof.name} units<br>{si(roof.rate)}OP/s at {si(roof.bandwidth)}B/s: "
        f"{number(roof.turning)} OP/B<extra></extra>",
    )  # fmt: skip
    text = f"turning point {number(roof.turning)} OP/B<br>{roof.name} {si(roof.rate)}OP/s"
    _note(
        figure, roof.turning, roof.rate, text, ax=-24, ay=-24, xanchor="right", align="right", font={"size": 11}
    )  # fmt: skip


def _markers(figure: go.Figure, kind: str, own: Sequence[Point], phase: str) -> None:
    """Points of one shape."""
    figure.add_scatter(
        x=[p.intensity for p in own], y=[p.attainable for p in own], mode="markers", legendgroup=kind,
        showlegend=False, hovertext=[p.hover(phase) for p in own], hovertemplate="%{hovertext}<extra></extra>",
        customdata=[p.operator for p in own],
        marker={
            "symbol": kind_of(kind).symbol, "size": [_diameter(p.share) for p in own], "opacity": 0.85,
            "color": [BOUND_COLOR[p.bound] for p in own], "line": {"color": PAPER, "width": 1},
        },
    )  # fmt: skip


def _shape(figure: go.Figure, kind: str) -> None:
    """The shape of a kind in the legend, without the colour of any bound or device."""
    figure.add_scatter(
        x=[None], y=[None], mode="markers", name=kind, legendgroup=kind,
        marker={"symbol": kind_of(kind).symbol, "size": 9, "color": INK},
    )  # fmt: skip


def _expected(figure: go.Figure, found: Sequence[Point]) -> None:
    """Hollow points where real kernels are expected, each on a line below its bound."""
    known = [(p, p.expected) for p in found if p.expected is not None]
    if not known:
        return
    figure.add_scatter(
        x=[x for p, _ in known for x in (p.intensity, p.intensity, None)],
        y=[y for p, expected in known for y in (p.attainable, expected, None)],
        mode="lines", line={"color": INK, "width": 1}, opacity=0.5, hoverinfo="skip", showlegend=False,
        legendgroup="expected",
    )  # fmt: skip
    figure.add_scatter(
        x=[p.intensity for p, _ in known], y=[expected for _, expected in known], mode="markers",
        name=_HOLLOW, legendgroup="expected",
        hovertext=[f"<b>{joined(op.name for op in p.operators)}</b>, expected" for p, _ in known],
        hovertemplate="%{hovertext}, %{y:.3s}OP/s<extra></extra>",
        marker={
            "symbol": "circle-open", "size": [_diameter(p.share) * 0.7 for p, _ in known],
            "color": [BOUND_COLOR[p.bound] for p, _ in known], "line": {"width": 1.5},
        },
    )  # fmt: skip


def _diameter(share: float) -> float:
    """Area grows with the share of time. [px]"""
    return 8 + 26 * sqrt(share)


def _labels(
    figure: go.Figure, found: Sequence[Point], rates: Sequence[float], *, beyond: float, decade: float, floor: float
) -> None:
    """Names of the largest points, as many as have room above `floor`: to the right of those that memory bounds, to the
    left of others and of those `beyond` that intensity, where a narrow picture has no room. A decade is so high. [px]
    """
    right = [p for p in found if p.bound == "memory" and p.intensity < beyond]
    named = [p for p in found[:_LABELS] if p.share >= _LABELLED]
    places = _places(named, right, rates, decade)
    while any(end > floor for _, end in places):
        named.pop()
        places = _places(named, right, rates, decade)
    for point, (start, _) in zip(_downwards(named, right), places, strict=True):
        side, anchor = (1, "left") if point in right else (-1, "right")
        _note(
            figure, point.intensity, point.attainable, point.label, ax=22 * side,
            ay=start + decade * log10(point.attainable), xanchor=anchor, yanchor="top", align=anchor,
            standoff=_diameter(point.share) / 2, bgcolor=PAPER, borderpad=1, font={"size": 11},
        )  # fmt: skip


def _downwards(named: Sequence[Point], right: Sequence[Point]) -> list[Point]:
    """Points in the order in which their names hang below each other, on either side of them."""
    return sorted(named, key=lambda p: p.intensity ** (-1 if p in right else 1))


def _places(
    named: Sequence[Point], right: Sequence[Point], rates: Sequence[float], decade: float
) -> list[tuple[float, float]]:
    """The upper and the lower end of each name: below the roof, no two as high, since on a narrow picture they would
    meet, and clear of the names of lower roofs at `rates`. [px]
    """
    others = [(-decade * log10(rate), _LINE - decade * log10(rate)) for rate in rates]
    found: list[tuple[float, float]] = []
    for point in _downwards(named, right):
        height = 9 + 13 * point.lines
        start = (34 if point in right else 46) - decade * log10(point.attainable)
        for above, below in sorted(others + found):
            if above < start + height and start < below:
                start = below
        found.append((start, start + height))
    return found


def _plot(figure: go.Figure) -> float:
    """The height of what is between the margins. [px]"""
    return float(figure.layout.height - figure.layout.margin.t - figure.layout.margin.b)
