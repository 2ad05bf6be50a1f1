"""Figures as functions: those of "LLM Inference Unveiled" (arXiv:2402.16363), and where time and memory go.

They know of no file, page or command, so a report and a dashboard show the same pictures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isclose, log10, sqrt
from typing import Any, Final, NamedTuple

import numpy as np
import plotly.graph_objects as go

from llmviewer.analysis import Analysis, OperatorResult, Phase
from llmviewer.forms import Num
from llmviewer.hardware import Hardware
from llmviewer.memory import activation_bytes
from llmviewer.model import Model
from llmviewer.resource import Resource, Unit, matrix, vector
from llmviewer.setting import Setting
from llmviewer.units import seconds, si
from llmviewer.workload import Workload

from .table import number

# The palette of Okabe and Ito (jfly.uni-koeln.de/color), which all common kinds of colour vision tell apart.
BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
ORANGE: Final = "#E69F00"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
BOUND_COLOR: Final = {"memory": VERMILLION, "compute": GREEN}
PART_COLOR: Final = {"weights": BLUE, "KV cache": ORANGE, "activations": PURPLE}
# Written as browsers write them, so that a style sheet can find them and put colours of a dark page in their place.
INK: Final = "rgb(42, 46, 51)"
GRID: Final = "rgb(222, 226, 230)"
PAPER: Final = "rgb(254, 254, 254)"

_LINES: Final = ((BLUE, "solid"), (VERMILLION, "dash"), (GREEN, "dashdot"), (PURPLE, "dot"), (ORANGE, "6px,3px"),
                 (SKY, "9px,3px,2px,3px"))  # fmt: skip
_SYMBOL: Final = {
    "linear": "circle", "lm_head": "hexagon2", "attention": "diamond", "norm": "triangle-up", "add": "cross",
    "activation": "square", "rope": "star", "embedding": "triangle-down", "quantize": "x",
}  # fmt: skip
_ALIKE: Final = 0.02  # points that differ by less fall together [of their value]
_LABELS: Final = 4  # points of a roofline that are named in the picture
_WIDTH: Final = 24  # of the names of a point [characters]
_LABELLED: Final = 0.01  # share of time from which on a point is worth a name
_OTHER: Final = 0.01  # share of time below which operators of a phase are put together
_HATCHING: Final = {"fillmode": "overlay", "fgcolor": "white", "size": 8, "solidity": 0.3}
_TOP, _BOTTOM = 76, 92  # margins [px]
_SPACE: Final = "\N{NO-BREAK SPACE}"

_AXIS: Final[dict[str, Any]] = {
    "gridcolor": GRID, "linecolor": INK, "tickcolor": INK, "ticks": "outside", "showline": True, "zeroline": False,
    "automargin": True, "exponentformat": "SI", "title": {"font": {"size": 13}},
}  # fmt: skip
_TEMPLATE: Final = go.layout.Template(
    layout={
        "font": {"family": "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif", "size": 13, "color": INK},
        "title": {
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 16},
            "font": {"size": 16},
            "subtitle": {"font": {"size": 12, "color": INK}},
        },
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"l": 60, "r": 20, "t": _TOP, "b": _BOTTOM},
        "legend": {"orientation": "h", "x": 0, "yanchor": "top", "font": {"size": 12}, "traceorder": "normal"},
        "hoverlabel": {"bgcolor": "white", "font": {"color": "black", "size": 12}, "align": "left"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


class Case(NamedTuple):
    """A request whose memory is shown: sequences, tokens of each, and the pass that runs."""

    batch: int
    length: int
    phase: str


CASES: Final = tuple(
    Case(batch, length, phase)
    for phase in ("prefill", "decode")
    for batch, length in ((1, 1024), (1, 4096), (16, 1024))
)
_ANY_DEVICE: Final = Hardware(name="any", title="any device", rates={}, capacity=inf)


def roofline(analysis: Analysis, phase: str = "prefill") -> go.Figure:
    """The operators of a phase under the roof of the unit that most of its arithmetic asks for (figure 4)."""
    shown, device = getattr(analysis.phases, phase), analysis.hardware
    main, others = _units(shown, device)
    points = _points(shown)
    turning = device.rates[main] / device.bandwidth()
    reach = [turning, *(p.intensity for p in points)]
    low, high = min(reach) / 3, max(4 * max(reach), 70 * turning)
    without = [op.name for op in shown.operators if not op.ops]
    left_out = f"; not shown: {_joined(without)} (no OPs)" if without else ""
    figure = _figure(
        f"Roofline of {phase}: {analysis.model.name} on {device.name}",
        f"{_batch(shown)}, {seconds(shown.total.bound_time_s)} at least{left_out}",
        height=480,
    )
    _log_axes(figure, x="arithmetic intensity [OP/B]", y="performance [OP/s]")
    _zones(figure, device, main, low=low, high=high)
    _roof(figure, device, main, low=low, high=high)
    for kind in dict.fromkeys(p.kind for p in points):
        _markers(figure, kind, [p for p in points if p.kind == kind], phase)
    for unit, dash in zip(others, ("dash", "dot", "dashdot"), strict=False):
        _lower_roof(figure, device, unit, high=high, dash=dash)
    _turning_point(figure, device, main)
    _labels(figure, points)
    bottom = min([p.attainable for p in points] + [low * device.bandwidth()])
    top = max(device.rates[unit] for unit in (main, *others))
    _window(figure, x=(low, high), y=(bottom / 10, 12 * top))
    return figure


def roofline_dtypes(hardware: Hardware) -> go.Figure:
    """The roofs of a device in each of its data types (figure 5)."""
    bandwidth = hardware.bandwidth()
    roofs: dict[float, list[Resource]] = {}
    for unit in sorted(_arithmetic(hardware), key=hardware.rates.__getitem__, reverse=True):
        roofs.setdefault(hardware.rates[unit], []).append(unit)
    low, high = min(roofs) / bandwidth / 30, max(roofs) / bandwidth * 25
    figure = _figure(
        f"Rooflines of {hardware.title}",
        f"dense rates, memory at {si(bandwidth)}B/s; numbers: turning points [OP/B]",
        height=480,
    )
    _log_axes(figure, x="arithmetic intensity [OP/B]", y="performance [OP/s]")
    figure.add_scatter(
        x=[low, max(roofs) / bandwidth], y=[low * bandwidth, max(roofs)], mode="lines", hoverinfo="skip",
        showlegend=False, line={"color": INK, "width": 2.5},
    )  # fmt: skip
    for (rate, units), (color, dash) in zip(roofs.items(), _cycle(len(roofs)), strict=True):
        at = rate / bandwidth
        name = f"{_dtypes(units)}: {si(rate)}OP/s"
        figure.add_scatter(
            x=[at, high], y=[rate, rate], name=name, mode="lines+markers", showlegend=True,
            line={"color": color, "dash": dash, "width": 2.5}, marker={"size": [9, 0], "color": color},
            hovertemplate=f"{name} from {number(at)} OP/B<extra></extra>",
        )  # fmt: skip
        _note(figure, at, rate, number(at), ax=-4, ay=-12, arrow=False, xanchor="right")
    _window(figure, x=(low, high), y=(low * bandwidth, 3 * max(roofs)))
    return figure


def memory_bars(
    model: str | Model,
    hardware: str | Hardware | None = None,
    *,
    quants: Sequence[str] = ("W16A16", "W4A16", "W4KV4", "W4A4KV4"),
    cases: Sequence[tuple[int, int, str]] = CASES,
    accounting: str = "faithful",
) -> go.Figure:
    """Weights, KV cache and live activations by precision, as parts of what W16A16 needs in the same case (figure 6).

    cases  (batch, tokens, phase) of each group of bars

    With `hardware`, bars that exceed its memory are marked.
    """
    settings = _settings(model, hardware or _ANY_DEVICE, ("W16A16", *quants), accounting)
    base = settings["W16A16"]
    wanted = [Case(*case) for case in cases]
    whole = {case: sum(_parts(base, case).values()) for case in wanted}
    bars = [(case, quant, _parts(settings[quant], case)) for case in wanted for quant in quants]
    x = [
        [f"{case.phase}<br>{case.batch} ×<br>{case.length}" for case, _, _ in bars],
        [quant for _, quant, _ in bars],
    ]
    figure = _figure(
        f"Memory of {base.model.name} by precision", f"{accounting} accounting; below: phase, batch × tokens"
    )
    figure.update_layout(barmode="stack", bargap=0.15, height=500, margin={"t": 120, "b": 120})
    figure.update_layout(legend={"y": 1.01, "yanchor": "bottom"})
    for name, color in PART_COLOR.items():
        figure.add_bar(
            x=x, y=[parts[name] / whole[case] for case, _, parts in bars], name=name, marker={"color": color},
            customdata=[[quant, si(parts[name]), si(sum(parts.values()))] for _, quant, parts in bars],
            hovertemplate=f"%{{customdata[0]}}: {name} %{{customdata[1]}}B of %{{customdata[2]}}B, "
            "%{y:.2%} of W16A16's<extra></extra>",
        )  # fmt: skip
    heights = [sum(parts.values()) / whole[case] for case, _, parts in bars]
    fits = [sum(parts.values()) <= base.hardware.capacity for _, _, parts in bars]
    if not all(fits):
        figure.add_scatter(
            x=x, y=[None if good else height + 0.03 for height, good in zip(heights, fits, strict=True)],
            mode="markers", name=f"over {si(base.hardware.capacity)}B", hoverinfo="skip",
            marker={"symbol": "x", "color": VERMILLION, "size": 8},
        )  # fmt: skip
    figure.update_yaxes(title_text="memory relative to W16A16", range=[0, 0.08 + max(1, *heights)], tickformat=".0%")
    figure.update_xaxes(tickfont={"size": 11}, tickangle=-90, dividercolor=GRID)
    return figure


def decode_time(
    model: str | Model,
    hardware: str | Hardware,
    *,
    quants: Sequence[str] = ("W16A16", "W8A16", "W4A16", "W2A16", "W1A16"),
    batches: Sequence[int] = range(1, 65),
    kv_len: int = 1024,
    accounting: str = "faithful",
) -> go.Figure:
    """The time of a decode step against the batch, by precision (figure 7)."""
    settings = _settings(model, hardware, quants, accounting)
    workload = Workload.decode(batch=np.asarray(batches), kv_len=kv_len)
    figure = _time_figure("Time of a decode step", settings, f"lower bounds; every sequence attends to {kv_len} tokens")
    _time_lines(figure, settings, batches, workload, at="batch %{x}")
    figure.update_xaxes(title_text="batch [sequences]")
    return figure


def prefill_time(
    model: str | Model,
    hardware: str | Hardware,
    *,
    quants: Sequence[str] = ("W16A16", "W8A16", "W4A16", "W2A16", "W1A16"),
    lengths: Sequence[int] = range(16, 1025),
    batch: int = 1,
    accounting: str = "faithful",
) -> go.Figure:
    """The time of a prefill against the length of the prompt, by precision (figure 8)."""
    settings = _settings(model, hardware, quants, accounting)
    workload = Workload.prefill(batch=batch, prompt=np.asarray(lengths))
    figure = _time_figure("Prefill time", settings, f"lower bounds; batch {batch}")
    _time_lines(figure, settings, lengths, workload, at="%{x} tokens")
    powers = [2**i for i in range(31) if min(lengths) <= 2**i <= max(lengths)]
    figure.update_xaxes(title_text="prompt [tokens]", type="log", tickvals=powers, ticktext=list(map(str, powers)))
    figure.update_xaxes(range=[log10(0.99 * min(lengths)), log10(1.01 * max(lengths))])
    return figure


def time_bars(analysis: Analysis) -> go.Figure:
    """How the time of each phase is divided among its operators, in the colours of their bounds."""
    figure = _figure(
        f"Where the time goes: {analysis.model.name} on {analysis.hardware.name}",
        f"operators below {_OTHER:.0%} are taken together as other",
        height=300,
    )
    labels = {name: f"{name}<br>{seconds(phase.total.bound_time_s)}" for name, phase in analysis.phases}
    pieces = [piece for name, phase in analysis.phases for piece in _pieces(phase, labels[name])]
    for bound, color in BOUND_COLOR.items():
        own = [piece for piece in pieces if piece.bound == bound]
        if own:
            figure.add_bar(
                orientation="h", y=[p.row for p in own], x=[p.share for p in own], base=[p.start for p in own],
                name=f"{bound}-bound", marker={"color": color, "line": {"color": PAPER, "width": 1.5}}, width=0.62,
                text=[p.text for p in own], textposition="inside", insidetextanchor="middle", textangle=0,
                textfont={"color": "white", "weight": 600}, hovertext=[p.hover for p in own],
                hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 9, "mode": "hide"})
    figure.update_xaxes(
        title_text="share of the phase's time",
        tickformat=".0%",
        range=[0, 1.001],
        dtick=0.2,
        showgrid=False,
        ticklabeloverflow="allow",
    )
    figure.update_yaxes(categoryorder="array", categoryarray=list(labels.values())[::-1], showline=False, ticks="")
    return figure


def memory_bar(analysis: Analysis) -> go.Figure:
    """What a request takes of the device's memory, and what is left or lacking."""
    memory = analysis.memory
    capacity, spare = memory.capacity_bytes, memory.capacity_bytes - memory.total_bytes
    figure = _figure(
        f"Memory of {analysis.model.name} on {analysis.hardware.name}",
        f"{si(memory.total_bytes)}B of {si(capacity)}B: "
        + (f"fits, {si(spare)}B free" if spare >= 0 else f"does not fit, {si(-spare)}B too much (hatched)"),
        height=310,
    )
    figure.update_layout(margin={"t": 100, "b": 130, "l": 20})
    _legend_below(figure, plot=310 - 100 - 130)
    sizes = (memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes)
    start = 0.0
    for (name, color), size in zip(PART_COLOR.items(), sizes, strict=True):
        within = min(size, max(capacity - start, 0.0))
        _part(figure, name, color, size, shown=(within, size - within))
        start += size
    if spare > 0:
        _part(figure, "free", GRID, spare, shown=(spare, 0.0))
    figure.add_shape(type="line", x0=capacity, x1=capacity, y0=0, y1=1, yref="paper", line={"color": INK, "width": 2})
    figure.add_annotation(
        x=capacity, y=1, yref="paper", yanchor="bottom", xanchor="right", showarrow=False, font={"size": 12},
        text=f"memory of the device {si(capacity)}B",
    )  # fmt: skip
    figure.update_layout(barmode="stack", uniformtext={"minsize": 10, "mode": "hide"})
    figure.update_xaxes(title_text="memory [B]", showgrid=False, range=[0, 1.02 * max(capacity, memory.total_bytes)])
    figure.update_yaxes(showline=False, ticks="")
    return figure


@dataclass(frozen=True, kw_only=True)
class _Point:
    """Operators of one kind that fall together on a roofline."""

    operators: tuple[OperatorResult, ...]

    @property
    def kind(self) -> str:
        return self.operators[0].kind

    @property
    def bound(self) -> str:
        return self.operators[0].bound

    @property
    def share(self) -> float:
        return self.sum("share")

    @property
    def intensity(self) -> float:
        """Of all together. [OP/B]"""
        return self.sum("ops") / self.sum("bytes")

    @property
    def attainable(self) -> float:
        """Of all together. [OP/s]"""
        return self.sum("ops") / self.sum("bound_time_s")

    @property
    def label(self) -> str:
        """On as many lines as it takes to stay narrow."""
        words = f"{_joined(op.name for op in self.operators)} {self.share:.0%}".replace(" ", _SPACE)
        return "<br>".join(textwrap.wrap(words.replace("/", "/ "), _WIDTH)).replace("/ ", "/")

    @property
    def lines(self) -> int:
        """Of the label."""
        return 1 + self.label.count("<br>")

    def sum(self, field: str) -> float:
        return float(sum(getattr(op, field) for op in self.operators))

    def alike(self, op: OperatorResult) -> bool:
        one = self.operators[0]
        return (op.kind, op.bound) == (one.kind, one.bound) and all(
            isclose(a, b, rel_tol=_ALIKE)
            for a, b in ((op.intensity, one.intensity), (op.attainable_ops_per_s, one.attainable_ops_per_s))
        )

    def hover(self, phase: str) -> str:
        names = [f"{op.name} × {op.repeat}" for op in self.operators]
        lines = [", ".join(names[i : i + 3]) for i in range(0, len(names), 3)]
        moved = (("weights", "weight_bytes"), ("activations", "activation_bytes"), ("KV cache", "kv_bytes"))
        parts = ", ".join(f"{name} {si(self.sum(field))}B" for name, field in moved if self.sum(field))
        limits = ", ".join(dict.fromkeys(op.limited_by for op in self.operators))
        return "<br>".join(
            (
                f"<b>{',<br>'.join(lines)}</b> ({self.kind}{', together' if len(names) > 1 else ''})",
                f"{si(self.sum('ops'))}OP, {si(self.sum('bytes'))}B: {parts}",
                f"{number(self.intensity)} OP/B, attainable {si(self.attainable)}OP/s",
                f"{self.bound}-bound, by {limits}",
                f"{seconds(self.sum('bound_time_s'))}, {self.share:.1%} of {phase}",
            )
        )


def _points(phase: Phase) -> list[_Point]:
    """The operators that have OPs, those that fall together as one, largest share of time first."""
    points: list[_Point] = []
    for op in phase.operators:
        if op.ops:
            home = next((i for i, point in enumerate(points) if point.alike(op)), None)
            if home is None:
                points.append(_Point(operators=(op,)))
            else:
                points[home] = _Point(operators=(*points[home].operators, op))
    return sorted(points, key=lambda point: point.share, reverse=True)


def _units(phase: Phase, device: Hardware) -> tuple[Resource, list[Resource]]:
    """The unit that does most of the OPs, and others that work and have another peak."""
    ops: dict[Resource, float] = {}
    for op in phase.operators:
        unit = next(r for r in (matrix(op.compute_dtype), vector(op.compute_dtype)) if r in device.rates)
        ops[unit] = ops.get(unit, 0) + op.ops
    main, *others = sorted((unit for unit in ops if ops[unit]), key=ops.__getitem__, reverse=True)
    return main, [unit for unit in others if device.rates[unit] != device.rates[main]]


def _joined(names: Iterable[str]) -> str:
    """Names, those with the same last word together.

    >>> _joined(["q_proj", "k_proj", "attention"])
    'q/k_proj, attention'
    """
    heads: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        head, line, tail = name.rpartition("_")
        heads.setdefault(line + tail, []).append(head)
    return ", ".join("/".join(own) + tail for tail, own in heads.items())


def _batch(phase: Phase) -> str:
    tokens = f"{phase.q_len} token{'s'[: phase.q_len > 1]}"
    return f"batch {phase.batch}, {tokens} at a context of {phase.kv_len}"


def _figure(title: str, subtitle: str = "", *, height: int = 420) -> go.Figure:
    """Nothing yet, in the style that all figures have."""
    figure = go.Figure(
        layout={"template": _TEMPLATE, "height": height, "title": {"text": title, "subtitle": {"text": subtitle}}}
    )
    _legend_below(figure, plot=height - _TOP - _BOTTOM)
    return figure


def _legend_below(figure: go.Figure, *, plot: int) -> None:
    """Below the title of the x axis, which ends 64 pixels below a `plot` as high as this. [px]"""
    figure.update_layout(legend_y=-64 / plot)


def _log_axes(figure: go.Figure, *, x: str, y: str) -> None:
    figure.update_xaxes(title_text=x, type="log", dtick=1)
    figure.update_yaxes(title_text=y, type="log", dtick=1)


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


def _zones(figure: go.Figure, device: Hardware, unit: Resource, *, low: float, high: float) -> None:
    """Where memory bounds, and where arithmetic does."""
    turning = device.rates[unit] / device.bandwidth()
    for bound, (start, end), anchor in (("memory", (low, turning), "right"), ("compute", (turning, high), "left")):
        figure.add_vrect(
            x0=start, x1=end, fillcolor=BOUND_COLOR[bound], opacity=0.1, line_width=0, layer="below"
        )  # fmt: skip
        figure.add_annotation(
            x=log10(turning), y=1, yref="y domain", yanchor="top", xanchor=anchor, showarrow=False,
            text=f"<b>{bound}-bound</b>", font={"color": BOUND_COLOR[bound], "size": 11},
        )  # fmt: skip


def _roof(figure: go.Figure, device: Hardware, unit: Resource, *, low: float, high: float) -> None:
    """min(peak, intensity x bandwidth)."""
    rate, bandwidth = device.rates[unit], device.bandwidth()
    figure.add_scatter(
        x=[low, rate / bandwidth, high], y=[low * bandwidth, rate, rate], mode="lines", hoverinfo="skip",
        showlegend=False, line={"color": INK, "width": 2.5},
    )  # fmt: skip


def _lower_roof(figure: go.Figure, device: Hardware, unit: Resource, *, high: float, dash: str) -> None:
    """The peak of another unit, from where it leaves the slope that all units share."""
    rate = device.rates[unit]
    start = rate / device.bandwidth()
    text = f"{unit.dtype} {unit.unit}<br>{si(rate)}OP/s"
    figure.add_scatter(
        x=[start, high], y=[rate, rate], mode="lines", showlegend=False,
        line={"color": INK, "width": 1.2, "dash": dash}, hovertemplate=f"{text}<extra></extra>",
    )  # fmt: skip
    _note(figure, start, rate, text, ax=-8, ay=0, arrow=False, xanchor="right", align="right", font={"size": 11})


def _turning_point(figure: go.Figure, device: Hardware, unit: Resource) -> None:
    rate, bandwidth = device.rates[unit], device.bandwidth()
    figure.add_scatter(
        x=[rate / bandwidth], y=[rate], mode="markers", showlegend=False, marker={"color": INK, "size": 8},
        hovertemplate=f"turning point of {unit.dtype} {unit.unit} units<br>{si(rate)}OP/s at {si(bandwidth)}B/s: "
        f"{number(rate / bandwidth)} OP/B<extra></extra>",
    )  # fmt: skip
    text = f"turning point {number(rate / bandwidth)} OP/B<br>{unit.dtype} {unit.unit} {si(rate)}OP/s"
    _note(figure, rate / bandwidth, rate, text, ax=-24, ay=-24, xanchor="right", align="right", font={"size": 11})


def _markers(figure: go.Figure, kind: str, points: Sequence[_Point], phase: str) -> None:
    """Points of one shape, and that shape in the legend without the colour of any bound."""
    symbol = _SYMBOL.get(kind, "circle-open")
    figure.add_scatter(
        x=[p.intensity for p in points], y=[p.attainable for p in points], mode="markers", legendgroup=kind,
        showlegend=False, hovertext=[p.hover(phase) for p in points], hovertemplate="%{hovertext}<extra></extra>",
        marker={
            "symbol": symbol, "size": [_diameter(p.share) for p in points], "opacity": 0.85,
            "color": [BOUND_COLOR[p.bound] for p in points], "line": {"color": PAPER, "width": 1},
        },
    )  # fmt: skip
    figure.add_scatter(
        x=[None], y=[None], mode="markers", name=kind, legendgroup=kind,
        marker={"symbol": symbol, "size": 9, "color": INK},
    )  # fmt: skip


def _diameter(share: float) -> float:
    """Area grows with the share of time. [px]"""
    return 8 + 26 * sqrt(share)


def _labels(figure: go.Figure, points: Sequence[_Point]) -> None:
    """Names of the largest points below the roof, one under another where points are close."""
    named = [p for p in points[:_LABELS] if p.share >= _LABELLED]
    placed: list[_Point] = []
    for point in sorted(named, key=lambda p: p.intensity if p.bound == "compute" else 1 / p.intensity):
        above = [other for other in placed if point.bound == other.bound and _near(point, other)]
        side, down, anchor = (1, 34, "left") if point.bound == "memory" else (-1, 46, "right")
        down += sum(9 + 13 * other.lines for other in above)
        _note(
            figure, point.intensity, point.attainable, point.label, ax=22 * side, ay=down, xanchor=anchor,
            yanchor="top", align=anchor, standoff=_diameter(point.share) / 2, bgcolor=PAPER, borderpad=1,
            font={"size": 11},
        )  # fmt: skip
        placed.append(point)


def _near(one: _Point, other: _Point) -> bool:
    """Whether the names of two points would meet."""
    return 1 / 6 < one.intensity / other.intensity < 6


def _arithmetic(device: Hardware) -> list[Resource]:
    """Its matrix units and vector fp32; all of its vector units where it has no other."""
    units = [unit for unit in device.rates if unit.unit is Unit.MATRIX]
    if units:
        return units + [unit for unit in device.rates if unit == vector("fp32")]
    return [unit for unit in device.rates if unit.unit is Unit.VECTOR]


def _dtypes(units: Sequence[Resource]) -> str:
    return ", ".join(unit.dtype if unit.unit is Unit.MATRIX else str(unit) for unit in units)


def _cycle(count: int) -> list[tuple[str, str]]:
    return [_LINES[i % len(_LINES)] for i in range(count)]


def _parts(setting: Setting, case: Case) -> dict[str, float]:
    """What is in memory, under the names of PART_COLOR. [B]"""
    batch, length = case.batch, case.length
    if case.phase == "prefill":
        workload = Workload.prefill(batch=batch, prompt=length)
    else:
        workload = Workload.decode(batch=batch, kv_len=length)
    footprint = setting.footprint
    cache = footprint.cache_bytes(batch=batch, context=length)
    sizes: tuple[Num, ...] = (footprint.weight_bytes, cache, activation_bytes(setting.graph, workload))
    return dict(zip(PART_COLOR, map(float, sizes), strict=True))


def _settings(
    model: str | Model, hardware: str | Hardware, quants: Sequence[str], accounting: str
) -> dict[str, Setting]:
    """One for each precision, under its name."""
    one = Setting.of(model, hardware, accounting=accounting)
    return {quant: one.having(quant=quant) for quant in quants}


def _time_figure(what: str, settings: Mapping[str, Setting], subtitle: str) -> go.Figure:
    one = next(iter(settings.values()))
    figure = _figure(
        f"{what} of {one.model.name} on {one.hardware.name}", f"{subtitle}; {one.accounting} accounting", height=440
    )
    figure.update_yaxes(title_text="time [ms]", rangemode="tozero")
    return figure


def _time_lines(
    figure: go.Figure, settings: Mapping[str, Setting], x: Sequence[int], workload: Workload, *, at: str
) -> None:
    for (quant, setting), (color, dash) in zip(settings.items(), _cycle(len(settings)), strict=True):
        time_s = np.broadcast_to(setting.plan.time_s(workload), len(x))
        figure.add_scatter(
            x=list(x), y=1e3 * time_s, mode="lines", name=quant, line={"color": color, "dash": dash, "width": 2.2},
            customdata=[seconds(t) for t in time_s], hovertemplate=f"{quant}, {at}: %{{customdata}}<extra></extra>",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of a phase's bar, `share` long from `start`."""

    row: str
    bound: str
    start: float
    share: float
    text: str
    hover: str


def _pieces(phase: Phase, row: str) -> list[_Piece]:
    """The operators of a phase as parts of its bar, those of the bound that takes most time first."""
    by_bound = phase.total.time_by_bound_s
    ranked = sorted(phase.operators, key=lambda op: (-by_bound[op.bound], op.share < _OTHER, -op.share))
    groups: dict[tuple[str, str], list[OperatorResult]] = {}
    for op in ranked:
        groups.setdefault((op.bound, "other" if op.share < _OTHER else f"{op.name} {op.block}"), []).append(op)
    pieces: list[_Piece] = []
    start = 0.0
    for (bound, key), ops in groups.items():
        name = "other" if key == "other" else ops[0].name
        share, time_s = sum(op.share for op in ops), sum(op.bound_time_s for op in ops)
        hover = f"<b>{name}</b>: {seconds(time_s)}, {share:.1%}, {bound}-bound"
        if name == "other":
            hover += "".join(f"<br>{op.name} {seconds(op.bound_time_s)}" for op in ops)
        pieces.append(
            _Piece(row=row, bound=bound, start=start, share=share, text=f"{name}<br>{share:.0%}", hover=hover)
        )
        start += share
    return pieces


def _part(figure: go.Figure, name: str, color: str, size: float, *, shown: tuple[float, float]) -> None:
    """A part of the memory, `shown` as what is within the device's and what is beyond. [B]"""
    text = f"{name} {si(size)}B"
    for length, pattern in zip(shown, ("", "/"), strict=True):
        if length:
            figure.add_bar(
                orientation="h", y=[""], x=[length], name=text, legendgroup=name, showlegend=length == max(shown),
                marker={"color": color, "pattern": {"shape": pattern, **_HATCHING}},
                text=[text if length == max(shown) else ""], textposition="inside", insidetextanchor="middle",
                textangle=0, textfont={"color": INK if name == "free" else "white", "weight": 600},
                hovertemplate=f"{text}<extra></extra>",
            )  # fmt: skip
