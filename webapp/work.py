"""The work that a request may take: the CPU time of its thread, checked before each further part of it."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Final

from llmviewer.errors import InputError

MOST_S: Final = 2.5  # of CPU time; what is begun within it is ended
MOST_OF_CHANGE_S: Final = 1.5  # of a change of controls, after which results are asked for
_until_s: ContextVar[float | None] = ContextVar("until_s", default=None)
_most_s: ContextVar[float] = ContextVar("most_s", default=MOST_S)


class TooMuchWorkError(InputError):
    """A question that would hold up others."""


def begin(most_s: float = MOST_S) -> None:
    """Limits the work of this thread from now on."""
    _most_s.set(most_s)
    _until_s.set(time.thread_time() + most_s)


def end() -> None:
    """Ends the limit of this thread."""
    _until_s.set(None)


def begin_again() -> None:
    """Limits another attempt alike, if a limit applies."""
    if _until_s.get() is not None:
        begin(_most_s.get())


def check_work() -> None:
    """Raises TooMuchWorkError if the time of this request is used up. Without a limit it does nothing."""
    until_s = _until_s.get()
    if until_s is not None and time.thread_time() > until_s:
        raise TooMuchWorkError(
            f"this takes more than {_most_s.get():g} s of the server's time; choose fewer devices, pins or techniques, "
            "or fewer generated tokens"
        )
