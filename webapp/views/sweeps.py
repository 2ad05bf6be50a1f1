"""Curves along the batch or the length with where they cross, figures of the paper, and maps of what bounds a pass."""

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

from ..answers import Answer
from ..state import State
from .lines import LONGEST, SweepCurve, meets, turns, waits

_MAPPED: Final = tuple(2**i for i in range(11))  # batches of a map
_MAPS: Final = 4  # devices that have one


def pictures(own: Sequence[SweepCurve], state: State) -> dict[str, PageFigure]:
    """Decode time, tokens/s, time to first token and memory, by the ids of their figures."""
    if not own:
        return {}
    along, at = _along(state)
    where = _where(own[0], state)
    named: dict[str, Any] = {"axis": along, "present_x": float(at), "place": str if state.sweep == "batch" else tokens}
    found: dict[str, PageFigure] = {}
    if own[0].setting.model.generates:
        steps = {line.name: _curve(line, "decode") for line in own}
        found["sweep-decode"] = page_figure(curves(
            "Time of a decode step", f"at least; {where}", steps, unit="time", text=seconds, **named,
            meets=meets(own, "decode"),
        ))  # fmt: skip
        if not state.techniques:  # with which a pass may yield more tokens, or fewer
            rates = {line.name: _rate(line, steps[line.name]) for line in own}
            found["sweep-rate"] = page_figure(curves(
                "Tokens a second", f"at most, in decode; {where}", rates, unit="tokens/s",
                text=lambda y: si(y).strip(), **named,
            ))  # fmt: skip
    found["sweep-prefill"] = page_figure(curves(
        "Time to first token", f"at least; {where}", {line.name: _curve(line, "prefill") for line in own},
        unit="time", text=seconds, **named, meets=meets(own, "prefill"),
    ))  # fmt: skip
    each = " of each device" * (own[0].setting.layout.devices > 1)
    found["sweep-memory"] = page_figure(curves(
        "Memory", f"with KV cache and activations{each}; {where}", _sizes(own), unit="memory",
        text=lambda y: f"{si(y)}B",
        limits={line.setting.hardware.name: line.setting.hardware.capacity for line in own}, **named,
    ))  # fmt: skip
    return found


def _sizes(own: Sequence[SweepCurve]) -> dict[str, Curve]:
    """Memory of a request; one curve if it is the same on all devices."""
    sizes = {line.name: Curve(x=line.x, y=line.memory(line.x)) for line in own}
    first, *others = sizes.values()
    return {"needed": first} if others and all(np.array_equal(first.y, one.y) for one in others) else sizes


def points(own: Sequence[SweepCurve]) -> list[tuple[Any, ...]]:
    """All places of the curves, in SI units: a line of heads, then one for each line and place."""
    axis = own[0].state.sweep if own else "batch"
    heads = ("of", "batch" if axis == "batch" else "prompt", "decode_step_s", "ttft_s", "total_bytes", "fits")
    rows: list[tuple[Any, ...]] = [heads]
    for line in own:
        steps = line.time_s("decode", line.x) if line.setting.model.generates else np.full(len(line.x), np.nan)
        columns = (steps, line.time_s("prefill", line.x), line.memory(line.x))
        for x, step, ttft, size in zip(line.x, *columns, strict=True):
            decode = "" if np.isnan(step) else float(step)
            rows.append((
                line.name, int(x), decode, float(ttft), float(size), bool(size <= line.setting.hardware.capacity)
            ))  # fmt: skip
    return rows


def crossing_table(own: Sequence[SweepCurve], state: State) -> list[tuple[str, ...]]:
    """Points where bounds change and where curves cross: heads, then a line for each."""
    axis = "batch" if state.sweep == "batch" else "prompt"
    rows: list[tuple[str, ...]] = [(axis, "pass", "what changes")]
    for phase in _phases(own):
        name = "decode step" if phase == "decode" else "prefill"
        marks = [(x, said) for line in own for x, _, said in turns(line, phase)]
        marks += [(x, said) for x, _, said in meets(own, phase)]
        rows += [(f"{x:,.0f}", name, said) for x, said in sorted(marks)]
    return rows


def maps(found: Sequence[Answer], state: State) -> list[PageFigure]:
    """Maps of the bound over batch and length, for each of the first devices."""
    return [_map(one, state) for one in found[:_MAPS]]


def preset(found: Sequence[Answer], state: State) -> PageFigure:
    """A figure of "LLM Inference Unveiled" (arXiv:2402.16363), for the present model on the first device.

    Raises InputError where a precision cannot be had, and where the model has no such phase.
    """
    first = found[0]
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


def _phases(own: Sequence[SweepCurve]) -> list[str]:
    return [] if not own else ["decode", "prefill"] if own[0].setting.model.generates else ["prefill"]


def _along(state: State) -> tuple[str, int]:
    return ("batch [sequences]", state.batch) if state.sweep == "batch" else ("prompt [tokens]", state.prompt)


def _where(line: SweepCurve, state: State) -> str:
    if state.sweep == "batch":
        return f"prompt {state.prompt}, context {line.context(0)}" if state.context else f"prompt {state.prompt}"
    return f"batch {state.batch}"


def _curve(line: SweepCurve, phase: str) -> Curve:
    expected = line.expected_s(phase, line.few)
    return Curve(
        x=line.x, y=line.time_s(phase, line.x), turns=turns(line, phase),
        expected=None if expected is None else (line.few, expected),
    )  # fmt: skip


def _rate(line: SweepCurve, step: Curve) -> Curve:
    """Tokens a second of decode steps."""
    batch = line.x if line.state.sweep == "batch" else np.full(len(line.x), float(line.state.batch))
    few = None
    if step.expected:
        x, time_s = step.expected
        few = (x, (x if line.state.sweep == "batch" else line.state.batch) / time_s)
    return Curve(x=line.x, y=batch / step.y, expected=few)


def _map(one: Answer, state: State) -> PageFigure:
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
    times = waits(setting.plan_of(phase), pass_)
    whole = np.broadcast_to(sum(times.values(), start=0.0), batch.shape)
    shape = (len(lengths), len(_MAPPED))
    needed = setting.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen, images=state.images)
    beyond = np.broadcast_to(np.greater(needed, setting.hardware.capacity), batch.shape).reshape(shape)
    figure = share_map(
        one.name, phase, batches=_MAPPED, lengths=lengths, beyond=beyond.tolist(),
        share=np.broadcast_to(times["memory"] / whole, batch.shape).reshape(shape),
        others="link or compute" if np.any(np.greater(times["link"], 0)) else "compute",
    )  # fmt: skip
    return page_figure(figure)._replace(title=one.name, subtitle="")  # what they share is said once, above them


def _lengths(setting: Setting, state: State) -> Iterator[int]:
    """Powers of two that the model can have; more than a prompt whose pictures or encoder need so many."""
    most = setting.model.max_context or LONGEST
    least = max(state.images * setting.model.image_tokens, state.prompt if setting.model.is_encoder_decoder else 0)
    found = [n for n in (2**i for i in range(7, 18)) if least < n <= most]
    yield from found or [max(most, least + 1)]
