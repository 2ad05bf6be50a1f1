"""Curves over batch size or prompt length with their crossings, figures of the paper, and maps of the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from llmviewer.reports import figures
from llmviewer.reports.comparison_figures import share_map, tokens
from llmviewer.reports.curves import Curve, curves
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.setting import Setting
from llmviewer.units import seconds, si
from llmviewer.workload import Workload

from ..results import DeviceResult
from ..state import State
from ..words import LOWER_BOUND_SIGN, UPPER_BOUND_SIGN
from .sweep_curves import DEFAULT_MAX_CONTEXT, SweepCurve, bound_changes, curve_crossings, time_by_bound

_MAPPED: Final = tuple(2**i for i in range(11))  # batches of a map
_MAPS: Final = 4  # devices with a map


def curve_figures(sweep_lines: Sequence[SweepCurve], state: State) -> dict[str, PageFigure]:
    """Figures of decode time, tokens/s, TTFT and memory, by id."""
    if not sweep_lines:
        return {}
    along, current_x = _axis(state)
    where = _fixed_inputs(sweep_lines[0], state)
    shared_arguments: dict[str, Any] = {
        "axis": along,
        "present_x": float(current_x),
        "place": str if state.sweep == "batch" else tokens,
    }
    figures: dict[str, PageFigure] = {}
    if sweep_lines[0].setting.model.generates:
        steps = {line.name: _curve(line, "decode") for line in sweep_lines}
        figures["sweep-decode"] = page_figure(curves(
            f"Decode step {LOWER_BOUND_SIGN}", f"{where}", steps, unit="time", text=seconds, **shared_arguments,
            meets=curve_crossings(sweep_lines, "decode"),
        ))  # fmt: skip
        if not state.techniques:  # with techniques a pass may not yield one token per sequence
            rates = {line.name: _rate(line, steps[line.name]) for line in sweep_lines}
            figures["sweep-rate"] = page_figure(curves(
                f"Decode tokens/s {UPPER_BOUND_SIGN}", f"{where}", rates, unit="tokens/s",
                text=lambda y: si(y).strip(), **shared_arguments,
            ))  # fmt: skip
    figures["sweep-prefill"] = page_figure(curves(
        f"TTFT {LOWER_BOUND_SIGN}", f"{where}", {line.name: _curve(line, "prefill") for line in sweep_lines},
        unit="time", text=seconds, **shared_arguments, meets=curve_crossings(sweep_lines, "prefill"),
    ))  # fmt: skip
    each = " per device" * (sweep_lines[0].setting.layout.devices > 1)
    figures["sweep-memory"] = page_figure(curves(
        "Memory", f"weights, KV cache and activations{each}; {where}", _memory_curves(sweep_lines), unit="memory",
        text=lambda y: f"{si(y)}B",
        limits={line.setting.hardware.name: line.setting.hardware.capacity for line in sweep_lines}, **shared_arguments,
    ))  # fmt: skip
    return figures


def _memory_curves(curves: Sequence[SweepCurve]) -> dict[str, Curve]:
    """Memory of a request; a single curve if it is equal on all devices."""
    sizes = {line.name: Curve(x=line.x, y=line.memory(line.x)) for line in curves}
    first, *others = sizes.values()
    return {"needed": first} if others and all(np.array_equal(first.y, one.y) for one in others) else sizes


def sweep_rows(curves: Sequence[SweepCurve]) -> list[tuple[Any, ...]]:
    """All points of the curves in SI units for a CSV file: a line of heads, then one per curve and point."""
    axis = curves[0].state.sweep if curves else "batch"
    heads = ("of", "batch" if axis == "batch" else "prompt", "decode_step_s", "ttft_s", "total_bytes", "fits")
    rows: list[tuple[Any, ...]] = [heads]
    for line in curves:
        steps = line.time_s("decode", line.x) if line.setting.model.generates else np.full(len(line.x), np.nan)
        columns = (steps, line.time_s("prefill", line.x), line.memory(line.x))
        for x, step, ttft, size in zip(line.x, *columns, strict=True):
            decode = "" if np.isnan(step) else float(step)
            rows.append((
                line.name, int(x), decode, float(ttft), float(size), bool(size <= line.setting.hardware.capacity)
            ))  # fmt: skip
    return rows


def crossing_table(curves: Sequence[SweepCurve], state: State) -> list[tuple[str, ...]]:
    """Points where bounds change or curves cross: a line of heads, then one per point."""
    axis = "batch" if state.sweep == "batch" else "prompt"
    rows: list[tuple[str, ...]] = [(axis, "phase", "change")]
    for phase in _phases(curves):
        name = "decode step" if phase == "decode" else "prefill"
        marks = [(x, change) for line in curves for x, _, change in bound_changes(line, phase)]
        marks += [(x, change) for x, _, change in curve_crossings(curves, phase)]
        rows += [(f"{x:,.0f}", name, change) for x, change in sorted(marks)]
    return rows


def bound_maps(results: Sequence[DeviceResult], state: State) -> list[PageFigure]:
    """Maps of the bound over batch and length, for the first devices."""
    return [_map(one, state) for one in results[:_MAPS]]


def paper_figure(results: Sequence[DeviceResult], state: State) -> PageFigure:
    """A figure of "LLM Inference Unveiled" (arXiv:2402.16363), for the current model on the first device.

    Raises InputError if a precision is impossible, or the model has no such phase.
    """
    first = results[0]
    one, phase = first.setting, first.phase_name(state.phase)
    if state.sweep == "figure-4":
        return page_figure(figures.roofline(first.analysis, phase))
    if state.sweep == "figure-5":
        return page_figure(figures.roofline_dtypes(one.hardware))
    counted: dict[str, Any] = {"attention": str(one.attention), "accounting": str(one.accounting), "mla": str(one.mla)}
    quants = state.quants or None
    if state.sweep == "figure-6":
        return page_figure(figures.memory_bars(one.model, one.hardware, quants=quants, **counted))
    if state.sweep == "figure-7":
        return page_figure(figures.decode_time(one.model, one.hardware, quants=quants, kv_len=state.prompt, **counted))
    return page_figure(figures.prefill_time(one.model, one.hardware, quants=quants, batch=state.batch, **counted))


def _phases(curves: Sequence[SweepCurve]) -> list[str]:
    return [] if not curves else ["decode", "prefill"] if curves[0].setting.model.generates else ["prefill"]


def _axis(state: State) -> tuple[str, int]:
    return ("batch [sequences]", state.batch) if state.sweep == "batch" else ("prompt [tokens]", state.prompt)


def _fixed_inputs(line: SweepCurve, state: State) -> str:
    if state.sweep == "batch":
        return f"prompt {state.prompt}, context {line.context(0)}" if state.kv_len else f"prompt {state.prompt}"
    return f"batch {state.batch}"


def _curve(line: SweepCurve, phase: str) -> Curve:
    expected = line.expected_s(phase, line.expected_x)
    return Curve(
        x=line.x, y=line.time_s(phase, line.x), bound_changes=bound_changes(line, phase),
        expected=None if expected is None else (line.expected_x, expected),
    )  # fmt: skip


def _rate(line: SweepCurve, step: Curve) -> Curve:
    """Tokens per second of decode steps."""
    batch = line.x if line.state.sweep == "batch" else np.full(len(line.x), float(line.state.batch))
    expected = None
    if step.expected:
        x, time_s = step.expected
        expected = (x, (x if line.state.sweep == "batch" else line.state.batch) / time_s)
    return Curve(x=line.x, y=batch / step.y, expected=expected)


def _map(one: DeviceResult, state: State) -> PageFigure:
    setting, phase = one.setting, one.phase_name(state.phase)
    lengths = list(_lengths(setting, state))
    batch, length = (grid.ravel() for grid in np.meshgrid(np.asarray(_MAPPED, float), np.asarray(lengths, float)))
    share = setting.layout.micro_batch_size(batch)
    if phase == "prefill":
        prompt, gen = length, np.zeros(len(length))
        pass_ = setting.prefill(Workload.prefill(batch=share, prompt=length, images=state.images))
    else:
        prompt = np.minimum(state.prompt, length - 1)
        gen = length - prompt
        pass_ = setting.step(Workload.decode(batch=share, kv_len=length, prompt=prompt, images=state.images))
    times = time_by_bound(setting.plan_of(phase), pass_)
    total_s = np.broadcast_to(sum(times.values(), start=0.0), batch.shape)
    shape = (len(lengths), len(_MAPPED))
    needed_bytes = setting.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen, images=state.images)
    beyond = np.broadcast_to(np.greater(needed_bytes, setting.hardware.capacity), batch.shape).reshape(shape)
    figure = share_map(
        one.name, phase, batches=_MAPPED, lengths=lengths, beyond=beyond.tolist(),
        share=np.broadcast_to(times["memory"] / total_s, batch.shape).reshape(shape),
        others="link or compute" if np.any(np.greater(times["link"], 0)) else "compute",
    )  # fmt: skip
    return page_figure(figure)._replace(title=one.name, subtitle="")  # common text is above the maps


def _lengths(setting: Setting, state: State) -> Iterator[int]:
    """Powers of two up to the maximum context; larger than the tokens of images and of an encoder."""
    max_length = setting.model.max_context or DEFAULT_MAX_CONTEXT
    min_length = max(state.images * setting.model.image_tokens, state.prompt if setting.model.is_encoder_decoder else 0)
    lengths = [n for n in (2**i for i in range(7, 18)) if min_length < n <= max_length]
    yield from lengths or [max(max_length, min_length + 1)]
