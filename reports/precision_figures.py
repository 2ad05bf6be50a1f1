"""Figures that compare precisions: memory of requests, time of decode steps and of prefills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log10
from typing import Final, NamedTuple, Unpack

import numpy as np
import plotly.graph_objects as go

from llmviewer.devices.hardware import Hardware
from llmviewer.errors import InputError
from llmviewer.memory import activation_bytes, weight_bytes
from llmviewer.model import Model, kv_cache_bytes
from llmviewer.options import CountedOptions
from llmviewer.roofline import Plan
from llmviewer.setting import Setting
from llmviewer.units import seconds, si
from llmviewer.workload import Workload

from .drawing import GRID, PART_COLOR, VERMILLION, frame, lines


class MemoryCase(NamedTuple):
    """A request whose memory is shown: sequences, tokens of each, and the pass that runs."""

    batch: int
    length: int
    phase: str


CASES: Final = tuple(
    MemoryCase(batch, length, phase)
    for phase in ("prefill", "decode")
    for batch, length in ((1, 1024), (1, 4096), (16, 1024))
)
_BASE: Final = "W16A16"  # what others are compared with
_OF_MEMORY: Final = (_BASE, "W4A16", "W4KV4", "W4A4KV4")
_OF_TIME: Final = (_BASE, "W8A16", "W4A16", "W2A16", "W1A16")
_ANY_DEVICE: Final = Hardware(name="any", title="any device", rates={}, capacity=inf)


class _Bar(NamedTuple):
    """Memory of a case in one precision: parts by the names of PART_COLOR, and the total of the case in _BASE. [B]"""

    case: MemoryCase
    quant: str
    parts: Mapping[str, float]
    base_total: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def height(self) -> float:
        return self.total / self.base_total


def memory_bars(
    model: str | Model,
    hardware: str | Hardware | None = None,
    *,
    quants: Sequence[str] | None = None,
    cases: Sequence[tuple[int, int, str]] = CASES,
    **options: Unpack[CountedOptions],
) -> go.Figure:
    """Weights, KV cache and live activations by precision, over the total in W16A16 of the same case (figure 6).

    quants  precisions; those of the paper if not given
    cases   (batch, tokens, phase) of each group of bars, without decode steps if the model has none

    With `hardware`, bars that exceed its memory are marked.
    """
    one = Setting.of(model, hardware or _ANY_DEVICE, **options)
    cases_shown = [
        case for case in (MemoryCase(*case) for case in cases) if one.model.generates or case.phase == "prefill"
    ]
    bars = _bars(one, _OF_MEMORY if quants is None else quants, cases_shown)
    x = [[f"{case.phase}<br>{case.batch} ×<br>{case.length}" for case, *_ in bars], [bar.quant for bar in bars]]
    figure = frame(
        f"Memory of {one.model.name} by precision", f"{one.accounting} accounting; below: phase, batch × tokens",
        height=500, top=120, bottom=120,
    )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.15, legend={"y": 1.01, "yanchor": "bottom"})
    for name, color in PART_COLOR.items():
        figure.add_bar(
            x=x, y=[bar.parts[name] / bar.base_total for bar in bars], name=name, marker={"color": color},
            customdata=[[bar.quant, si(bar.parts[name]), si(bar.total)] for bar in bars],
            hovertemplate=f"%{{customdata[0]}}: {name} %{{customdata[1]}}B of %{{customdata[2]}}B, "
            f"%{{y:.2%}} of {_BASE}'s<extra></extra>",
        )  # fmt: skip
    _crosses(figure, x, bars, one.hardware.capacity)
    top = 0.08 + max(1, *(bar.height for bar in bars))
    figure.update_yaxes(title_text=f"memory relative to {_BASE}", range=[0, top], tickformat=".0%")
    figure.update_xaxes(tickfont={"size": 10}, tickangle=-90, dividercolor=GRID)
    return figure


def decode_time(
    model: str | Model,
    hardware: str | Hardware,
    *,
    quants: Sequence[str] | None = None,
    batches: Sequence[int] = range(1, 65),
    kv_len: int = 1024,
    **options: Unpack[CountedOptions],
) -> go.Figure:
    """Time of a decode step against the batch, by precision (figure 7).

    quants  precisions; those of the paper if not given

    Raises InputError if the model does not generate.
    """
    one = Setting.of(model, hardware, **options)
    if not one.model.generates:
        raise InputError(f"{one.model.name} does not generate: it has no decode step")
    workload = Workload.decode(batch=np.asarray(batches), kv_len=kv_len, prompt=kv_len - 1)
    plans = _plans(one, quants, "decode")
    figure = _time_frame("Time of a decode step", one, f"every sequence attends to {kv_len} tokens")
    _curves(figure, plans, batches, workload, label="batch %{x}")
    figure.update_xaxes(title_text="batch [sequences]")
    return figure


def prefill_time(
    model: str | Model,
    hardware: str | Hardware,
    *,
    quants: Sequence[str] | None = None,
    lengths: Sequence[int] = range(16, 1025),
    batch: int = 1,
    **options: Unpack[CountedOptions],
) -> go.Figure:
    """Time of a prefill against the length of the prompt, by precision (figure 8).

    quants  precisions; those of the paper if not given
    """
    one = Setting.of(model, hardware, **options)
    workload = Workload.prefill(batch=batch, prompt=np.asarray(lengths))
    plans = _plans(one, quants, "prefill")
    figure = _time_frame("Prefill time", one, f"batch {batch}")
    _curves(figure, plans, lengths, workload, label="%{x} tokens")
    shortest, longest = min(lengths), max(lengths)
    powers = [2**i for i in range(31) if shortest <= 2**i <= longest]
    figure.update_xaxes(
        title_text="prompt [tokens]", type="log", tickvals=powers, ticktext=list(map(str, powers)),
        range=[log10(0.99 * shortest), log10(1.01 * longest)],
    )  # fmt: skip
    return figure


def _settings(one: Setting, quants: Sequence[str]) -> dict[str, Setting]:
    """The setting in each precision."""
    return {quant: one.having(quant=quant) for quant in quants}


def _plans(one: Setting, quants: Sequence[str] | None, phase: str) -> dict[str, Plan]:
    """The plan of a phase in each precision."""
    settings = _settings(one, _OF_TIME if quants is None else quants)
    return {quant: setting.plan_of(phase) for quant, setting in settings.items()}


def _bars(one: Setting, quants: Sequence[str], cases: Sequence[MemoryCase]) -> list[_Bar]:
    settings = _settings(one, (_BASE, *quants))
    totals = {case: sum(_parts(settings[_BASE], case).values()) for case in cases}
    return [_Bar(case, quant, _parts(settings[quant], case), totals[case]) for case in cases for quant in quants]


def _parts(setting: Setting, case: MemoryCase) -> dict[str, float]:
    """Parts of the memory by the names of PART_COLOR. [B]"""
    batch, length = case.batch, case.length
    if case.phase == "prefill":
        prompt, graph, workload = length, setting.graph, Workload.prefill(batch=batch, prompt=length)
    else:
        prompt, graph = length - 1, setting.decode_graph
        workload = Workload.decode(batch=batch, kv_len=length, prompt=prompt)
    sizes = (
        weight_bytes(graph),
        kv_cache_bytes(graph, batch=batch, context=length, prompt=prompt),
        activation_bytes(graph, workload),
    )
    return dict(zip(PART_COLOR, map(float, sizes), strict=True))


def _crosses(figure: go.Figure, x: Sequence[Sequence[str]], bars: Sequence[_Bar], capacity: float) -> None:
    """Crosses above the bars that exceed the memory."""
    heights = [bar.height + 0.03 if bar.total > capacity else None for bar in bars]
    if any(heights):
        figure.add_scatter(
            x=x, y=heights, mode="markers", name=f"over {si(capacity)}B", hoverinfo="skip",
            marker={"symbol": "x", "color": VERMILLION, "size": 8},
        )  # fmt: skip


def _time_frame(title: str, one: Setting, about: str) -> go.Figure:
    figure = frame(
        f"{title} of {one.model.name} on {one.hardware.name}", f"lower bounds; {about}; {one.accounting} accounting",
        height=440,
    )  # fmt: skip
    figure.update_yaxes(title_text="time [ms]", rangemode="tozero")
    return figure


def _curves(figure: go.Figure, plans: Mapping[str, Plan], x: Sequence[int], workload: Workload, *, label: str) -> None:
    for (quant, plan), line in zip(plans.items(), lines(len(plans)), strict=True):
        time_s = np.broadcast_to(plan.time_s(workload), len(x))
        figure.add_scatter(
            x=list(x), y=1e3 * time_s, mode="lines", name=quant, line={**line, "width": 2.2},
            customdata=[seconds(t) for t in time_s], hovertemplate=f"{quant}, {label}: %{{customdata}}<extra></extra>",
        )  # fmt: skip
