"""Launches of a recording in time: a lane per stream, colored by part, and idle gaps by cause.

The figure has the launches as arrays in its layout's `meta`. templates/lanes.js draws those of the range shown, merged
where they are narrower than pixels, and draws anew when the range changes.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from llmviewer.timelines.against import Timeline
from llmviewer.timelines.elementwise import ElementwiseOfPass
from llmviewer.timelines.idle import IdleCause
from llmviewer.timelines.kinds import IDLE, Part, PartOfPass
from llmviewer.timelines.launches import KernelSums, RecordedLaunches
from llmviewer.timelines.products import ProductOfPass
from llmviewer.units import seconds

from .drawing import INK, PAPER, frame
from .timeline_figures import PART_COLORS

MAX_LAUNCHES: Final = 200_000  # of a figure, from the first pass on: they take 5 MB
_MAX_LANES: Final = 6  # streams with a lane of their own
_MAX_NAME_CHARS: Final = 120
_LANE_HEIGHT, _MIN_HEIGHT = 44, 300  # [px]
_OTHER_STREAMS: Final = "other streams"
_PATTERNS: Final = {
    IdleCause.HOST: "/", IdleCause.SYNCHRONIZATION: "x", IdleCause.COMMUNICATION: "|", IdleCause.QUEUED: ".",
    IdleCause.UNKNOWN: "",
}  # fmt: skip


@cache
def lanes_script() -> str:
    """JavaScript that fills the figure: `fillLanes` and `zoomLanes`."""
    return (Path(__file__).parent / "templates" / "lanes.js").read_text(encoding="utf-8")


def report_script() -> str:
    """JavaScript that draws the figure on a page, and again after each zoom; plotly replaces `{plot_id}`."""
    return f"""(() => {{
{lanes_script()}
  const div = document.getElementById("{{plot_id}}");
  let event = null;
  const draw = () => {{
    const figure = zoomLanes({{ data: div.data, layout: div.layout }}, event, div.clientWidth);
    Plotly.react(div, figure.data, figure.layout);
  }};
  div.on("plotly_relayout", (change) => {{
    if (!Object.keys(change).some((key) => key.startsWith("xaxis") || key === "autosize")) return;
    event = change;
    requestAnimationFrame(draw);
  }});
  draw();
}})();"""


def drawn_launches(result: Timeline) -> tuple[int, int]:
    """(first launch of the figure, the one after its last); equal if the file has only sums by kernel."""
    if isinstance(result.recording, KernelSums):
        return 0, 0
    count = len(result.recording.names)
    first = 0 if count <= MAX_LAUNCHES else min(result.passes.spans[0][0], count - MAX_LAUNCHES)
    return first, min(first + MAX_LAUNCHES, count)


def lane_figure(result: Timeline) -> go.Figure | None:
    """The launches of a recording; None if the file has only sums by kernel."""
    recording = result.recording
    if isinstance(recording, KernelSums):
        return None
    meta = _meta(result, recording)
    bars: dict[str, Any] = {"type": "bar", "orientation": "h", "x": [], "y": [], "base": [], "hoverinfo": "text"}
    texts = {"textposition": "inside", "insidetextanchor": "start", "textangle": 0, "constraintext": "none"}
    traces = [
        {**bars, **texts, "name": part.value, "marker": {"color": PART_COLORS[part], "line": {"width": 0}}}
        for part in Part
    ] + [
        {
            **bars,
            "name": f"{IDLE}: {cause.value}",
            "marker": {
                "color": PAPER,
                "line": {"width": 0.5, "color": INK},
                "pattern": {"shape": shape, "fgcolor": INK, "size": 5, "solidity": 0.25},
            },
        }
        for cause, shape in _PATTERNS.items()
    ]
    used = {part for _, part in meta["kernels"]} | {meta["parts"] + cause for cause in meta["gaps"]["cause"]}
    for number, trace in enumerate(traces):
        trace["showlegend"] = number in used
    return frame(
        "Launches in time",
        "one pass; scroll to zoom, drag to move, double-click for the pass",
        height=_MIN_HEIGHT + _LANE_HEIGHT * len(meta["lanes"]),
        traces=traces,
        barmode="overlay",
        bargap=0.15,
        hovermode="closest",
        dragmode="pan",
        meta=meta,
        xaxis={"title": {"text": "time from the start of a pass [us]"}, "range": meta["range"], "tickformat": ",~r"},
        yaxis={
            "categoryorder": "array", "categoryarray": meta["lanes"][::-1], "range": [-0.6, len(meta["lanes"]) - 0.4],
            "fixedrange": True, "showgrid": False, "showline": False, "ticks": "",
        },
    )  # fmt: skip


def _meta(result: Timeline, recording: RecordedLaunches) -> dict[str, Any]:
    """Launches and gaps as arrays, in microseconds from the start of the first pass averaged."""
    first, stop = drawn_launches(result)
    origin_s = float(recording.start_s[result.passes.spans[0][0]])
    start_us = np.round(1e6 * (recording.start_s[first:stop] - origin_s), 3)
    duration_us = np.round(1e6 * recording.duration_s[first:stop], 3)
    names = recording.names[first:stop]
    kernels = {name: number for number, name in enumerate(dict.fromkeys(names))}
    part_numbers = {part: number for number, part in enumerate(Part)}
    cause_numbers = {cause: number for number, cause in enumerate(_PATTERNS)}
    references = _References(result)
    gaps = [gap for gap in result.idle_gaps if first <= gap.launch < stop]
    lanes, lane_numbers = _lanes(recording.streams[first:stop], host=recording.host)
    pass_us = 1e6 * float(result.passes.each_s[0])
    return {
        "start": start_us.tolist(),
        "duration": duration_us.tolist(),
        "lane": [lane_numbers[stream] for stream in recording.streams[first:stop]],
        "kernel": [kernels[name] for name in names],
        "reference": [references.number(launch, name) for launch, name in enumerate(names, first)],
        "kernels": [[_escaped(name[:_MAX_NAME_CHARS]), part_numbers[result.part_by_name[name]]] for name in kernels],
        "references": references.texts,
        "lanes": [*lanes, IDLE],
        "gaps": {
            "start": [round(1e6 * (gap.start - origin_s), 3) for gap in gaps],
            "duration": [round(1e6 * gap.duration, 3) for gap in gaps],
            "cause": [cause_numbers[gap.cause] for gap in gaps],
        },
        "parts": len(part_numbers),
        "longest": float(max(duration_us.max(), max((1e6 * gap.duration for gap in gaps), default=0.0))),
        "range": [-0.01 * pass_us, 1.01 * pass_us],
    }


def _lanes(streams: tuple[str, ...], *, host: bool) -> tuple[list[str], dict[str, int]]:
    """(names of lanes, lane of each stream); the busiest streams come first and have their own."""
    ordered = [stream for stream, _ in Counter(streams).most_common()]
    separate = ordered if len(ordered) <= _MAX_LANES else ordered[: _MAX_LANES - 1]
    word = "thread" if host else "stream"
    names = [f"{word} {stream}".strip() for stream in separate] + [_OTHER_STREAMS] * (len(separate) < len(ordered))
    return names, {stream: min(number, len(names) - 1) for number, stream in enumerate(ordered)}


class _References:
    """Recorded, expected and bound times beside each launch: of its product, elementwise kinds, or part."""

    def __init__(self, result: Timeline) -> None:
        self.texts: list[str] = []
        self._by_launch = result.identified.launches
        for product in result.products:
            self.texts.append(_product_text(product))
        self._by_name: dict[str, int] = {}
        numbers: dict[str, int] = {}
        for part in result.parts:
            numbers[part.part] = len(self.texts)
            self.texts.append(_text(part.title, part))
        for kernel in result.kernels:
            self._by_name[kernel.name] = numbers[kernel.part]
        if len(result.elementwise) > 1:
            for work in result.elementwise:
                for name in work.kernels if work.operators else ():
                    self._by_name[name] = len(self.texts)
                self.texts.append(_text(", ".join(work.operators), work))
        self.texts.append("not in the passes compared")

    def number(self, launch: int, name: str) -> int:
        """Place of the text of a launch."""
        place = self._by_launch.get(launch)
        return self._by_name.get(name, len(self.texts) - 1) if place is None else place


def _text(title: str, times: PartOfPass | ElementwiseOfPass) -> str:
    reference = f", >= {seconds(times.bound_s)}" if times.bound_s else ""
    expected = f", expected {seconds(times.expected_s)}" if times.expected_s else ""
    return f"{title}, all of a pass: recorded {seconds(times.measured_s)}{reference}{expected}"


def _product_text(product: ProductOfPass) -> str:
    each = product.launches
    expected = "" if product.expected_s is None else f", expected {seconds(product.expected_s / each)}"
    return (
        f"{', '.join(product.operators)}: mean {seconds(product.measured_s / each)}, "
        f">= {seconds(product.bound_s / each)}{expected}"
    )


def _escaped(name: str) -> str:
    """A name without what plotly takes for markup."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
