"""Throughput against the speed of a request: closed loops on devices and layouts, a simulation per point."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, Final

import numpy as np

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports import serving_front
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.serving_front import PERCENTILES, ClosedLoop, Targets
from llmviewer.serving.outcome import Simulation
from llmviewer.serving.simulation import simulate

from ..cpu_limit import check_limit
from ..errors import error_line
from ..results import setting_on
from ..state import State

CONCURRENCIES: Final = (1, 4, 16, 64, 256)
_DEGREES: Final = (1, 2, 4, 8)  # of tensor parallelism, where the setting has one device
_MAX_DEVICES_WITH_LAYOUTS: Final = 2  # with more, each has the layout of the setting
_REQUESTS_PER_CLIENT: Final = 10
_MIN_REQUESTS: Final = 20
_MAX_LOOPS: Final = 64
_MAX_REASON_CHARACTERS: Final = 300


@frozen(kw_only=True)
class LoopSetting:
    """A closed loop to simulate: a device, a degree of tensor parallelism and a number of clients."""

    device: str
    tp: int
    concurrency: int


def degrees(state: State) -> tuple[int, ...]:
    """Degrees of tensor parallelism that are simulated on each device of a state."""
    has_layout = state.layout.devices > 1 or len(state.on) > _MAX_DEVICES_WITH_LAYOUTS
    return (state.tp,) if has_layout else _DEGREES


def loop_settings(state: State) -> tuple[LoopSetting, ...]:
    """The loops of a state, in the order in which they are simulated: each concurrency on all devices and layouts."""
    sides = [(device, tp) for device in state.on for tp in degrees(state)]
    return tuple(
        LoopSetting(device=device, tp=tp, concurrency=concurrency)
        for device, tp in sides
        for concurrency in CONCURRENCIES
    )


def loops_link(state: State) -> str:
    """Link to the inputs of the loops: states with equal ones have equal loops."""
    return replace(state.analysis_inputs, batch=1, context=0, step="", measured="").link


def loop_state(state: State, one: LoopSetting) -> State:
    """The state that analyzes a loop's setting with a batch of its clients."""
    return replace(state, on=(one.device,), tp=one.tp, batch=one.concurrency).with_files(state.files)


def simulated(state: State, place: int) -> dict[str, Any]:
    """The loop at a place of loop_settings() as JSON; with a reason in place of numbers if it is impossible."""
    one = loop_settings(state)[place]
    row: dict[str, Any] = {"place": place, "reason": ""}
    try:
        run = simulate(
            setting_on(loop_state(state, one), one.device),
            concurrency=one.concurrency,
            prompt_lengths=state.prompt,
            gen_lengths=state.gen,
            requests=max(_MIN_REQUESTS, _REQUESTS_PER_CLIENT * one.concurrency),
            progress=lambda _finished, _requests: check_limit(),
        )
    except Exception as error:  # noqa: BLE001 - the page stays
        return row | {"reason": error_line(error, state.link)}
    sides = {"bound": run} | ({"expected": run.expected} if run.expected else {})
    return row | {name: _numbers(side) for name, side in sides.items()}


def _numbers(run: Simulation) -> dict[str, Any]:
    """Rates and percentiles of a simulation, None where unknown. [1/s], [s], [USD], [J]"""
    speed = 1 / float(np.mean(run.tpot_s)) if len(run.tpot_s) else float("nan")
    numbers = {
        "speed": speed,
        "tokens_per_s": run.tokens_per_s,
        "per_device": run.tokens_per_s / run.devices,
        "usd_per_million": 1e6 / run.tokens_per_dollar,
        "joules_per_token": 1 / run.tokens_per_joule,
        **{f"ttft_p{p}_s": float(np.percentile(run.ttft_s, p)) for p in PERCENTILES},
        **{f"tpot_p{p}_s": float(np.percentile(run.tpot_s, p)) if len(run.tpot_s) else speed for p in PERCENTILES},
    }
    return {name: None if isnan(value) else round(float(value), 9) for name, value in numbers.items()}


def loops_of(text: str | None, state: State) -> tuple[list[ClosedLoop], list[str]]:
    """Parses the loops that a browser has collected; and the reasons why others are impossible, once each.

    Raises InputError if the text is not what simulated() wrote.
    """
    try:
        rows = json.loads(text or "[]")
        settings = loop_settings(state)
        return _loops(rows[:_MAX_LOOPS], settings), _reasons(rows[:_MAX_LOOPS], settings)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise InputError("loops: are damaged; reload the page") from None


def _loops(rows: Iterable[dict[str, Any]], settings: Sequence[LoopSetting]) -> list[ClosedLoop]:
    loops = []
    for row in rows:
        one = settings[int(row["place"])]
        for basis in ("bound", "expected"):
            if basis in row:
                numbers = {
                    str(key): float("nan") if value is None else float(value) for key, value in row[basis].items()
                }
                loops.append(ClosedLoop(
                    name=f"{one.device} tp={one.tp}" if one.tp > 1 else one.device, place=int(row["place"]),
                    basis=basis, concurrency=one.concurrency, numbers=numbers,
                ))  # fmt: skip
    return loops


def _reasons(rows: Iterable[dict[str, Any]], settings: Sequence[LoopSetting]) -> list[str]:
    reasons: dict[str, None] = {}
    for row in rows:
        if row["reason"]:
            one = settings[int(row["place"])]
            reasons[f"{one.device}, tp={one.tp}: {str(row['reason'])[:_MAX_REASON_CHARACTERS]}"] = None
    return list(reasons)


def targets(state: State) -> Targets:
    """Latency targets of a state."""
    return Targets(ttft_s=state.ttft / 1e3, tpot_s=state.tpot / 1e3, percentile=int(state.within.removeprefix("p")))


def front_figure(loops: Sequence[ClosedLoop], state: State) -> PageFigure:
    """Throughput per device against the speed of a request."""
    return page_figure(serving_front.figure(loops, targets(state)))
