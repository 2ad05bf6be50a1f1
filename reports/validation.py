"""Bound and expectation against measured rows: errors in tables; as an HTML page also scatters and the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from llmviewer.expectation.validate import Group, Point, Validation
from llmviewer.units import counted, seconds

from .columns import WIDTH
from .page import report_page
from .page_figures import Picture, picture
from .parts import Card
from .tables import NOTHING, Item, Table, filled

if TYPE_CHECKING:
    import plotly.graph_objects as go

_BAND: Final = 0.2  # on both sides of what is predicted exactly
_WORDS: Final = ("family", "device", "dtype", "from", "what", "library", "kernel", "shape")
_SAID: Final = (
    "The bound is what no kernel beats; the expectation is what kernels of the library take. Errors are means of "
    "|predicted / measured - 1|."
)
_LEGEND: Final = (
    "Errors in per cent: bound is how far below measured times the bound is, MAPE and median are those of the "
    "expectation; in 80%: rows in its interval, which 80 % are meant to be. --format json also has kernels under and "
    "over 20 us apart, bias, rank correlation, and rows within 10 and 20 %."
)
_TWO: Final = ("expected", "bound")
_DEEP: Final = 100  # how far below measured times bounds are drawn
_FARTHEST: Final = "Farthest off; row 1 is the first below the names of the columns:"
_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "cross", "x")


def render_text(scores: Validation, inputs: Mapping[str, Sequence[str]], width: int = WIDTH) -> str:
    """A table for each family, with what there is room for."""
    families = dict.fromkeys(group.family for group in scores.groups)
    tables = [_of_family(family, scores.groups).text(width) for family in families]
    remarks = [*([_LEGEND] if tables else []), *_under(scores.groups)]
    worst = ({k: v for k, v in row.items() if k != "file" or len(inputs["files"]) > 1} for row in scores.worst)
    lists = {_FARTHEST: list(map(_far, worst)), "Not scored:": list(_skipped(scores))}
    parts = [
        filled(f"{_headline(scores, inputs)}.", width) + "\n",
        *tables,
        *(["".join(f"{filled(remark, width)}\n" for remark in remarks)] if remarks else []),
        *(_listed(head, lines, width) for head, lines in lists.items() if lines),
    ]
    return "\n".join(parts)


def _listed(head: str, lines: Sequence[str], width: int) -> str:
    """Lines under a head, indented."""
    return "".join(f"{line}\n" for line in (
        filled(head, width), *(filled(line, width, first="  ", others="    ") for line in lines),
    ))  # fmt: skip


def _headline(scores: Validation, inputs: Mapping[str, Sequence[str]]) -> str:
    rows = sum(group.expected.rows for group in scores.groups)
    devices = list(dict.fromkeys(group.device for group in scores.groups))
    files, profiles = (", ".join(Path(path).name for path in inputs[key]) for key in ("files", "profiles"))
    by = f", expected by {profiles} first" if profiles else ""
    return f"{counted(rows, 'measured kernel')} on {', '.join(devices) or 'no device'}, of {files}{by}"


def _of_family(family: str, groups: Sequence[Group]) -> Table:
    rows = tuple(
        (
            *(Item(text=text) for text in (g.device, g.dtype.removesuffix(" cache").replace(", ", "/"), g.source)),
            Item(text=str(g.expected.rows)),
            *(Item(text=_percent(v)) for v in (g.bound.mape, g.expected.mape, g.expected.median, g.expected.covered)),
        )
        for g in groups
        if g.family == family
    )
    head = ("device", "dtype", "from", "rows", "bound", "MAPE", "median", "in 80%")
    return Table(title=family, about="", head=head, words=_WORDS, body=rows)


def _percent(value: float) -> str:
    return "-" if isnan(value) else f"{100 * value:.1f}"


def _under(groups: Sequence[Group]) -> Iterator[str]:
    faster = [f"{g.family} {g.device} {g.dtype} {counted(g.violations, 'row')}" for g in groups if g.violations]
    if faster:
        yield f"Measured faster than the bound: {'; '.join(faster)}."


def _far(row: Mapping[str, Any]) -> str:
    told = {key: value for key, value in row.items() if not key.endswith("_us") and str(value) != "nan"}  # not known
    facts = ", ".join(value if isinstance(value, str) else f"{key} {value:g}" for key, value in told.items())
    time, expected, bound = (seconds(row[f"{key}_us"] / 1e6) for key in ("time", "expected", "bound"))
    return f"{facts}: {time} measured, {expected} expected, {bound} at the bound"


def _skipped(scores: Validation) -> Iterator[str]:
    return (f"{counted(count, 'row')}: {reason}" for reason, count in scores.skipped.items())


def render_html(scores: Validation, inputs: Mapping[str, Sequence[str]]) -> str:
    """The whole page. It holds plotly.js, so it is some five megabytes long."""
    return report_page(
        title="Bound and expectation against measurements",
        headline=_headline(scores, inputs),
        said=_SAID,
        cards=_cards(scores),
        pictures=_pictures(scores),
        tables=[table for table in (_by_group(scores.groups), _by_device(scores.groups), _worst(scores)) if table.body],
        remarks=[f"Not scored: {line}." for line in _skipped(scores)],
        inputs=dict(inputs),
    )


def _cards(scores: Validation) -> list[Card]:
    if not scores.groups:
        return []
    counts = np.array([group.expected.rows for group in scores.groups], dtype=float)

    def mean(values: Sequence[float]) -> str:
        known = ~np.isnan(values)
        return f"{np.average(np.asarray(values)[known], weights=counts[known]):.1%}" if np.any(known) else "-"

    under = sum(group.violations for group in scores.groups)
    return [
        Card(label="error of the expectation", value=mean([g.expected.mape for g in scores.groups]),
             about="mean over all rows"),
        Card(label="error of the bound", value=mean([g.bound.mape for g in scores.groups]),
             about="how far kernels are from what hardware allows"),
        Card(label="within 20 %", value=mean([g.expected.within_20 for g in scores.groups]), about="of the rows"),
        Card(label="in the interval", value=mean([g.expected.covered for g in scores.groups]),
             about="of the rows; 80 % are meant to be"),
        Card(label="under the bound", value=f"{under / counts.sum():.2%}",
             about=f"{counted(under, 'row')} measured faster than it", alarm=under > 0.005 * counts.sum()),
    ]  # fmt: skip


def _pictures(scores: Validation) -> list[list[Picture]]:
    if not scores.points:
        return []
    roofed = [point for point in scores.points if point.balance > 0]
    below = [picture(errors(scores.groups), "errors")]
    below += [picture(roofline(roofed), "roofline")] if roofed else []
    return [[picture(scatter(scores.points, what), what) for what in _TWO], below]


def scatter(points: Sequence[Point], what: str) -> go.Figure:
    """Predicted against measured times; on the line they are the same."""
    from .drawing import GRID, INK, frame

    predicted = {p: p.expected_us if what == "expected" else p.bound_us for p in points}
    shown = [p for p in points if predicted[p] > 0]
    title = "Expected" if what == "expected" else "Bound"
    figure = frame(f"{title} against measured", "the band is 20 % on both sides", height=460)
    every = np.array([[p.measured_us, predicted[p]] for p in shown])
    ends = np.array([every[:, 0].min() / 1.5, every.max() * 1.5])
    least = max(every[:, 1].min() / 1.5, ends[0] / _DEEP)
    band = np.concatenate([ends * (1 + _BAND), ends[::-1] * (1 - _BAND)])
    figure.add_scatter(
        x=[*ends, *ends[::-1]], y=band, fill="toself", mode="none", fillcolor=GRID, hoverinfo="skip", showlegend=False
    )
    figure.add_scatter(
        x=ends, y=ends, mode="lines", line={"color": INK, "width": 1}, hoverinfo="skip", showlegend=False
    )
    _clouds(figure, [
        _Dot(p, p.measured_us, predicted[p], f"measured {p.measured_us:.4g} us, {what} {predicted[p]:.4g} us")
        for p in shown
    ])  # fmt: skip
    figure.update_xaxes(title_text="measured [us]", type="log", range=list(np.log10(ends)), dtick=1)
    figure.update_yaxes(title_text=f"{what} [us]", type="log", range=[np.log10(least), np.log10(ends[1])], dtick=1)
    return figure


def roofline(points: Sequence[Point]) -> go.Figure:
    """Measured kernels under the roof of their device and data type, both axes by its ridge, so that all fit in one."""
    from .drawing import INK, frame

    figure = frame(
        "Measured kernels on the roofline",
        "of their own device and data type, whose ridge and whose peak are 1",
        height=460,
    )
    x = np.array([p.balance for p in points])
    y = np.array([p.attained for p in points])
    low, high = min(x.min() / 2, 0.01), max(x.max() * 2, 10)
    figure.add_scatter(
        x=[low, 1, high], y=[low, 1, 1], mode="lines", line={"color": INK, "width": 2}, name="roof", hoverinfo="skip"
    )
    _clouds(figure, [
        _Dot(p, p.balance, p.attained, f"{p.measured_us:.4g} us, {p.attained:.1%} of the peak") for p in points
    ])  # fmt: skip
    figure.update_xaxes(title_text="arithmetic intensity / that of the ridge", type="log", dtick=1,
                        range=[np.log10(low), np.log10(high)])  # fmt: skip
    figure.update_yaxes(title_text="OP/s / peak", type="log", dtick=1, tickformat="~g",
                        range=[np.log10(max(y.min() / 2, 1e-6)), 0.3])  # fmt: skip
    return figure


class _Dot(NamedTuple):
    """A measured kernel, where it is drawn, and what is said of it beside its name."""

    point: Point
    x: float
    y: float
    said: str


def _clouds(figure: go.Figure, dots: Sequence[_Dot]) -> None:
    """A colour and a shape for each family."""
    from .drawing import lines

    families = list(dict.fromkeys(dot.point.family for dot in dots))
    for family, style, symbol in zip(families, lines(len(families)), cycle(_SYMBOLS), strict=False):
        own = [dot for dot in dots if dot.point.family == family]
        figure.add_scattergl(
            x=[dot.x for dot in own], y=[dot.y for dot in own], mode="markers", name=family,
            marker={"color": style["color"], "symbol": symbol, "size": 5, "opacity": 0.55},
            hovertext=[f"<b>{dot.point.name}</b><br>{dot.said}" for dot in own],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip


def errors(groups: Sequence[Group]) -> go.Figure:
    """The error of the expectation, and of the bound, of every family and device."""
    from .drawing import BLUE, ORANGE, frame, list_rows

    kinds = list(dict.fromkeys((g.family, g.device) for g in groups))
    names = [f"{family}, {device}" for family, device in kinds]
    figure = frame("Error by family and device", "mean of |predicted / measured - 1|", height=168 + 34 * len(kinds))
    for what, color in zip(_TWO, (BLUE, ORANGE), strict=True):
        values = [_mean([g for g in groups if (g.family, g.device) == kind], what) for kind in kinds]
        figure.add_bar(
            orientation="h", y=names, x=values, name=what, marker={"color": color},
            text=[f"{v:.1%}" for v in values], textposition="outside", cliponaxis=False,
            hovertemplate="%{y}: %{x:.1%}<extra>" + what + "</extra>",
        )  # fmt: skip
    longest = max(_mean([g for g in groups if (g.family, g.device) == kind], what) for kind in kinds for what in _TWO)
    figure.update_xaxes(title_text="error", tickformat=".0%", range=[0, 1.3 * longest], nticks=5)
    list_rows(figure, names)
    return figure


def _mean(groups: Sequence[Group], what: str) -> float:
    scores = [g.expected if what == "expected" else g.bound for g in groups]
    return float(np.average([s.mape for s in scores], weights=[s.rows for s in scores]))


def _share(value: float) -> Item:
    return NOTHING if isnan(value) else Item(text=f"{value:.1%}", key=value)


_HEAD: Final = ("rows", "bound", "expected", "median", "< 20 us", "> 20 us", "bias", "within 20 %", "in 80 %", "rank")


def _numbers(group: Group) -> tuple[Item, ...]:
    e = group.expected
    shares = (group.bound.mape, e.mape, e.median, e.mape_short, e.mape_long, e.bias, e.within_20, e.covered)
    rank = NOTHING if isnan(e.rank) else Item(text=f"{e.rank:.3f}", key=e.rank)
    under = Item(text=str(group.violations), key=group.violations)
    return Item(text=f"{e.rows:,}", key=e.rows), *map(_share, shares), rank, under


def _by_group(groups: Sequence[Group]) -> Table:
    return Table(
        title="By family, device and data type",
        about="Errors of the bound and of the expectation, means; the others are of the expectation: median error, of "
        "kernels under and over 20 us, median of expected / measured less 1, rows within 20 %, in the interval of 80 "
        "%, and the rank correlation. Under bound: rows measured faster than it.",
        head=("family", "device", "dtype", "from", *_HEAD, "under bound"),
        words=_WORDS,
        body=tuple(
            (Item(text=g.family), Item(text=g.device), Item(text=g.dtype), Item(text=g.source), *_numbers(g))
            for g in groups
        ),
    )


def _by_device(groups: Sequence[Group]) -> Table:
    devices = list(dict.fromkeys(g.device for g in groups))
    rows = []
    for device in devices:
        own = [g for g in groups if g.device == device]
        count = sum(g.expected.rows for g in own)
        rows.append((
            Item(text=device), Item(text=f"{count:,}", key=count), _share(_mean(own, "bound")),
            _share(_mean(own, "expected")),
        ))  # fmt: skip
    return Table(
        title="By device", about="", head=("device", "rows", "bound", "expected"), words=_WORDS,
        body=tuple(rows) if len(devices) > 1 else (),
    )  # fmt: skip


def _worst(scores: Validation) -> Table:
    rows = []
    for row in scores.worst:
        facts = {key: value for key, value in row.items() if key not in ("file", "row", "gpu")}
        facts = {k: v for k, v in facts.items() if not k.endswith("_us") and str(v) != "nan"}  # not known
        shape = ", ".join(f"{k} {v:g}" if isinstance(v, float) else str(v) for k, v in facts.items())
        times = [Item(text=f"{row[key]:.4g}", key=row[key]) for key in ("time_us", "expected_us", "bound_us")]
        rows.append((Item(text=str(row.get("gpu", ""))), Item(text=shape), *times))
    return Table(
        title="Farthest off", about="", head=("device", "shape", "measured [us]", "expected [us]", "bound [us]"),
        words=_WORDS, body=tuple(rows),
    )  # fmt: skip
