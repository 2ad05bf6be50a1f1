"""CPU-time limit of a request, on the clock of its thread, checked before each further analysis."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Final

from llmviewer.errors import InputError

LIMIT_S: Final = 2.5  # CPU time of a request; an analysis that has started is completed
CHANGE_LIMIT_S: Final = 1.5  # CPU time to check changed controls; the requests for results follow
_until_s: ContextVar[float | None] = ContextVar("until_s", default=None)
_limit_s: ContextVar[float] = ContextVar("most_s", default=LIMIT_S)


class CpuLimitError(InputError):
    """A request that would block others for too long."""


def start_limit(limit_s: float = LIMIT_S) -> None:
    """Starts a limit of CPU time for this thread."""
    _limit_s.set(limit_s)
    _until_s.set(time.thread_time() + limit_s)


def end_limit() -> None:
    """Removes the limit of this thread."""
    _until_s.set(None)


def restart_limit() -> None:
    """Starts the same limit again for another attempt, if one applies."""
    if _until_s.get() is not None:
        start_limit(_limit_s.get())


def check_limit() -> None:
    """Raises CpuLimitError if the CPU time of this request is used up; does nothing without a limit."""
    until_s = _until_s.get()
    if until_s is not None and time.thread_time() > until_s:
        raise CpuLimitError(
            f"this takes more than {_limit_s.get():g} s of server CPU time; choose fewer devices, pins or techniques, "
            "or fewer generated tokens"
        )
