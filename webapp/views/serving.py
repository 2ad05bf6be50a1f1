"""Throughput against the speed of a request: devices and layouts under several loads, a simulation per point."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, Final

import numpy as np

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports import serving_front
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.parts import option_words
from llmviewer.reports.serving_front import PERCENTILES, LoadPoint, Targets
from llmviewer.serving.outcome import Simulation
from llmviewer.serving.policy import FIRST_COME_FIRST_SERVED
from llmviewer.serving.simulation import scheduling_options, simulate

from .. import traffic
from ..cpu_limit import check_limit
from ..errors import error_line
from ..results import setting_on
from ..state import FILE_PREFIX, LOAD_FIELDS, SERVED_FIELDS, State

_CONCURRENCIES: Final = (1, 4, 16, 64, 256)
_TASK_CONCURRENCIES: Final = (1, 4, 16, 32)  # of sessions and tasks, which have several requests
_DEGREES: Final = (1, 2, 4, 8)  # of tensor parallelism, where the setting has one device
_MAX_DEVICES_WITH_LAYOUTS: Final = 2  # with more, each has the layout of the setting
_REQUESTS_PER_CLIENT, _TASKS_PER_CLIENT = 10, 5
_REQUESTS_OF_RATE, _TASKS_OF_RATE = 400, 50
_MIN_REQUESTS: Final = 20
_MAX_CALLS: Final = 1000  # of sessions and tasks: some two seconds
_MAX_POINTS: Final = 64
SERVER_FIELDS: Final = (  # of a state, that `llmviewer simulate` and `llmviewer plan` have as options
    "library", "engine", "memory_fraction", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
)  # fmt: skip
_SIMULATED_FIELDS: Final = ("quant", *SERVER_FIELDS, "attention", "mla", "skew", "tp", "pp", "ep", "dp", "cp")
_UNSIMULATED_FIELDS: Final = ("accounting", "mtp", "offload")
_OPTIONS: Final = {"skew": "expert_skew"}  # by the field of the state, where the names differ
_MAX_REASON_CHARACTERS: Final = 300


@frozen(kw_only=True)
class LoadSetting:
    """A load to simulate on a device and a degree of tensor parallelism.

    concurrency  clients of a closed loop; 0 of arrivals at random times
    rate         mean rate of these; 0 of a closed loop [1/s]
    """

    device: str
    tp: int
    concurrency: int = 0
    rate: float = 0.0

    @property
    def name(self) -> str:
        """Device and degree, such as "h100-sxm tp=2"."""
        return f"{self.device} tp={self.tp}" if self.tp > 1 else self.device

    @property
    def load(self) -> str:
        """The load in words."""
        return f"{self.rate:g}/s" if self.rate else f"concurrency {self.concurrency}"


def concurrencies(state: State) -> tuple[int, ...]:
    """Numbers of clients that are simulated."""
    return _CONCURRENCIES if state.traffic == "requests" else _TASK_CONCURRENCIES


def degrees(state: State) -> tuple[int, ...]:
    """Degrees of tensor parallelism that are simulated on each device of a state."""
    has_layout = state.layout.devices > 1 or len(state.on) > _MAX_DEVICES_WITH_LAYOUTS
    return (state.tp,) if has_layout else _DEGREES


def load_settings(state: State) -> tuple[LoadSetting, ...]:
    """The loads of a state, in the order in which they are simulated: all of a device and layout, then the next."""
    loads: list[dict[str, Any]] = (
        [{"rate": rate} for rate in traffic.rates(state)]
        if state.load == "rates"
        else [{"concurrency": number} for number in concurrencies(state)]
    )
    sides = [(device, tp) for device in state.on for tp in degrees(state)]
    return tuple(LoadSetting(device=device, tp=tp, **load) for device, tp in sides for load in loads)


def loads_link(state: State) -> str:
    """Link to the inputs of the loads: states with equal ones have equal points."""
    names = LOAD_FIELDS if state.traffic == "requests" else SERVED_FIELDS
    served = {name: getattr(state, name) for name in names}
    return replace(state.analysis_inputs, batch=1, context=0, step="", measured="", **served).link


def arguments(state: State, one: LoadSetting) -> dict[str, Any]:
    """The arguments of simulate() for a load, besides its setting."""
    if one.rate:
        load, requests = {"rate": one.rate}, _REQUESTS_OF_RATE
        if state.traffic != "requests":
            requests = min(round(_TASKS_OF_RATE * traffic.mean_calls(state)), _MAX_CALLS)
    elif state.traffic == "requests":
        load, requests = {"concurrency": one.concurrency}, _REQUESTS_PER_CLIENT * one.concurrency
    else:
        load = {"concurrency": one.concurrency}
        requests = min(round(_TASKS_PER_CLIENT * traffic.mean_calls(state) * one.concurrency), _MAX_CALLS)
    sent = traffic.arguments(state)
    return {**load, **sent, **_policy(state, one), "requests": max(requests, _MIN_REQUESTS)}


def _policy(state: State, one: LoadSetting) -> dict[str, str]:
    """The engine's policy with the order of waiting requests of a state; nothing if that is by arrival."""
    if state.order == FIRST_COME_FIRST_SERVED:
        return {}
    setting = setting_on(load_state(state, one), one.device)
    policy, _, _ = scheduling_options(setting.engine, {}, setting.hardware, setting.layout)
    return {"policy": str(replace(policy, order=state.order))}


def simulate_command(state: State, one: LoadSetting) -> str:
    """The command that simulates a load; an uploaded model, device or task is a file that the user has.

    Empty if it has no option for an input of the state.
    """
    defaults = State()
    if any(getattr(state, name) != getattr(defaults, name) for name in _UNSIMULATED_FIELDS):
        return ""
    options = arguments(state, one)
    if state.traffic == "tasks":
        options["tasks"] = traffic.task_file(state).name
    words = (state.model.removeprefix(FILE_PREFIX), one.device.removeprefix(FILE_PREFIX))
    return _command(f"llmviewer simulate {shlex.join(words)}", options, state, one, _SIMULATED_FIELDS)


def _command(words: str, options: Mapping[str, Any], state: State, one: LoadSetting, names: Sequence[str]) -> str:
    """A command with options, and those of the setting of a load that it takes."""
    defaults, side = State(), load_state(state, one)
    changed = {
        _OPTIONS.get(name, name): getattr(side, name)
        for name in names
        if getattr(side, name) != getattr(defaults, name)
    }
    lists = {"techniques": state.techniques, "hardware_set": state.what_ifs(one.device)}
    return " ".join((words, *option_words({**options, **changed, **lists})))


def load_state(state: State, one: LoadSetting) -> State:
    """The state that analyzes a load's setting, with a batch of its clients."""
    return replace(state, on=(one.device,), tp=one.tp, batch=one.concurrency or state.batch).with_files(state.files)


def simulation(state: State, one: LoadSetting) -> Simulation:
    """The simulation of a load.

    Raises InputError if it is impossible, or takes too long.
    """
    return simulate(
        setting_on(load_state(state, one), one.device), **arguments(state, one),
        progress=lambda _finished, _requests: check_limit(),
    )  # fmt: skip


def simulated(state: State, place: int) -> dict[str, Any]:
    """The point at a place of load_settings() as JSON; with a reason in place of numbers if it is impossible."""
    one = load_settings(state)[place]
    row: dict[str, Any] = {"place": place, "reason": ""}
    try:
        run = simulation(state, one)
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
    if tasks := run.tasks:
        numbers |= {f"task_p{p}_s": float(np.percentile(tasks.latency_s, p)) for p in PERCENTILES}
        numbers |= {"usd_per_task": run.usd_per_task, "hit_rate": run.usage.there}
    return {name: None if isnan(value) else round(float(value), 9) for name, value in numbers.items()}


def loads_of(text: str | None, state: State) -> tuple[list[LoadPoint], list[str]]:
    """Parses the points that a browser has collected; and the reasons why others are impossible, once each.

    Raises InputError if the text is not what simulated() wrote.
    """
    try:
        rows = json.loads(text or "[]")
        settings = load_settings(state)
        kind = "" if state.traffic == "requests" else state.traffic.removesuffix("s")
        return _points(rows[:_MAX_POINTS], settings, kind), _reasons(rows[:_MAX_POINTS], settings)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        raise InputError("serving: the points are damaged; reload the page") from None


def _points(rows: Iterable[dict[str, Any]], settings: Sequence[LoadSetting], kind: str) -> list[LoadPoint]:
    points = []
    for row in rows:
        one = settings[int(row["place"])]
        for basis in ("bound", "expected"):
            if basis in row:
                numbers = {
                    str(key): float("nan") if value is None else float(value) for key, value in row[basis].items()
                }
                points.append(LoadPoint(
                    name=one.name, place=int(row["place"]),
                    basis=basis, concurrency=one.concurrency, rate=one.rate, numbers=numbers, kind=kind,
                ))  # fmt: skip
    return points


def _reasons(rows: Iterable[dict[str, Any]], settings: Sequence[LoadSetting]) -> list[str]:
    reasons: dict[str, None] = {}
    for row in rows:
        if row["reason"]:
            one = settings[int(row["place"])]
            reasons[f"{one.name}: {str(row['reason'])[:_MAX_REASON_CHARACTERS]}"] = None
    return list(reasons)


def targets(state: State) -> Targets:
    """Latency targets of a state."""
    return Targets(ttft_s=state.ttft / 1e3, tpot_s=state.tpot / 1e3, percentile=int(state.within.removeprefix("p")))


def front_figure(points: Sequence[LoadPoint], state: State) -> PageFigure:
    """Throughput per device against the speed of a request."""
    return page_figure(serving_front.figure(points, targets(state)))
