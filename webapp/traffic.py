"""Requests that clients of the Serving tab send: one by one, in sessions of several turns, or in agents' tasks."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmviewer.documents import parse_yaml
from llmviewer.errors import InputError, quoted
from llmviewer.serving.calls import CallLimits
from llmviewer.serving.delays import parse_delays
from llmviewer.serving.offered_traffic import tenant_shares
from llmviewer.serving.policy import FIRST_COME_FIRST_SERVED
from llmviewer.serving.routers import ROUND_ROBIN
from llmviewer.serving.task_files import Task, parse_task

from .state import EXAMPLE_TASK, FILE_PREFIX, File, State
from .words import CONTROLS, ORDER_LABELS

_LIMITS: Final = CallLimits(calls=20_000, blocks=500_000)  # of a simulation: some 50 MB
_SAMPLED_CALLS: Final = 300  # for the mean of calls per task
_EXAMPLE_FILE: Final = Path(__file__).with_name("assets") / f"{EXAMPLE_TASK}.yaml"
_MAX_RATES: Final = 8  # arrival rates of a curve
_MAX_RATE: Final = 10_000  # [1/s]
_SESSION_ROUTERS: Final = ("prefix-aware", "session")


def check(state: State) -> None:
    """Raises InputError, in the words of the page, if clients cannot send what a state describes."""
    if state.load == "rates":
        rates(state)
    if state.tenants:
        tenant_shares(state.tenants, CONTROLS["tenants"].label)
    if _disaggregated(state) and state.order != FIRST_COME_FIRST_SERVED:
        order, replicas = (CONTROLS[name].label for name in ("order", "prefill_replicas"))
        raise InputError(
            f"{order} must be {ORDER_LABELS[FIRST_COME_FIRST_SERVED]} with {replicas}: no replica both prefills and "
            f"decodes; got {ORDER_LABELS[state.order]}"
        )
    if state.traffic == "sessions":
        parse_delays(state.think_time or "0", CONTROLS["think_time"].label)
    elif state.traffic == "tasks":
        mean_calls(state)
    elif state.router in _SESSION_ROUTERS:
        raise InputError(f"{CONTROLS['router'].label} {state.router} needs sessions or tasks; choose these, or another")


def rates(state: State) -> tuple[float, ...]:
    """Mean arrival rates of a state, ascending. [1/s]

    Raises InputError if they are invalid.
    """
    try:
        values = sorted({float(text) for text in state.rates.split(",")})
    except ValueError:
        values = []
    if not 0 < len(values) <= _MAX_RATES or not all(0 < rate <= _MAX_RATE for rate in values):
        raise InputError(
            f"{CONTROLS['rates'].label} must be 1 to {_MAX_RATES} numbers above 0, at most {_MAX_RATE:,}, such as "
            f"0.5, 1, 2; got {quoted(state.rates)}"
        )
    return tuple(values)


def _disaggregated(state: State) -> bool:
    """Whether prefills run on replicas of their own, which closed loops do not have."""
    return state.load == "rates" and state.prefill_replicas > 0


def task(state: State) -> Task:
    """The task of an agent that a state names.

    Raises InputError if its file is invalid or not on the page.
    """
    return _parsed(task_file(state))


def task_file(state: State) -> File:
    """The file of the task that a state names.

    Raises InputError if it is not on the page.
    """
    if state.tasks == EXAMPLE_TASK:
        return File(name=_EXAMPLE_FILE.name, text=example_text())
    files = [one for one in state.files if f"{FILE_PREFIX}{one.name}" == state.tasks]
    if not files:
        raise InputError(f"{state.tasks}: the file is not on this page; upload it again")
    return files[0]


def example_text() -> str:
    """The file of the task that ships."""
    return _EXAMPLE_FILE.read_text(encoding="utf-8")


@lru_cache(maxsize=16)
def _parsed(file: File) -> Task:
    return parse_task(parse_yaml(file.text, file.name), reads_files=False, limits=_LIMITS)


def mean_calls(state: State) -> float:
    """Mean calls of a session or task; 1 of a request."""
    if state.traffic == "tasks":
        return _mean_calls(task(state))
    return state.session_turns if state.traffic == "sessions" else 1


@lru_cache(maxsize=16)
def _mean_calls(one: Task) -> float:
    """Mean calls of a task, of a sample."""
    sample = one.traffic(rate=1.0, in_flight=None, requests=_SAMPLED_CALLS, generator=np.random.default_rng(0))
    return len(sample) / sample.task_count


def arguments(state: State) -> dict[str, Any]:
    """The arguments of simulate() on what each client sends, and to which servers."""
    servers: dict[str, Any] = {"replicas": state.replicas} if state.replicas > 1 else {}
    servers |= {"router": state.router} if state.router != ROUND_ROBIN else {}
    servers |= {"tenants": state.tenants} if state.tenants else {}
    servers |= {"prefill_replicas": state.prefill_replicas} if _disaggregated(state) else {}
    if state.traffic == "tasks":
        return {"tasks": task(state), **servers}
    lengths = {"prompt_lengths": state.prompt, "gen_lengths": state.gen}
    if state.traffic == "requests":
        return lengths | servers
    session = {"session_turns": state.session_turns, "think_time": state.think_time or None,
               "system_prompt": state.system_prompt or None}  # fmt: skip
    return lengths | {name: value for name, value in session.items() if value is not None} | servers
