"""Progress of long commands, on standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

import click

from ..units import counted

_LINE_INTERVAL_S: Final = 10  # between two lines without a terminal
_FIRST_LINE_S: Final = 2  # before the first line of progress

_T = TypeVar("_T")


def rewritable() -> bool:
    """Whether standard error is a terminal whose lines can be rewritten."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Ticker:
    """Progress lines, rewritten on a terminal, else one every ten seconds; the last was due at `last_line_s`. [s]"""

    def __init__(self) -> None:
        self.live = rewritable()
        self.last_line_s = time.monotonic()

    def due(self) -> bool:
        """Whether another line is due; notes its time."""
        now = time.monotonic()
        if not self.live and now - self.last_line_s < _LINE_INTERVAL_S:
            return False
        self.last_line_s = now
        return True

    def print(self, line: str, *, last: bool = False) -> None:
        """Prints `line`, on a terminal in place of the one before."""
        click.echo(f"\r{line}\x1b[K" if self.live else line, err=True, nl=last or not self.live)


def with_progress(
    run: Callable[..., _T], noun: str, *, several: str = "", scale: int = 1, verb: str = "done"
) -> Callable[..., _T]:
    """Wraps `run`, which may take minutes: after some seconds, standard error shows its progress.

    noun, several  unit of the numbers that `run` reports, of which `scale` are one
    """
    ticker = Ticker()
    start_s, printed_line = time.monotonic(), False

    def progress(finished_count: int, total_count: int) -> None:
        nonlocal printed_line
        if time.monotonic() - start_s > _FIRST_LINE_S and ticker.due():
            finished, total = finished_count // scale, total_count // scale
            ticker.print(f"{finished:,} of {counted(total, noun, several)} {verb}")
            printed_line = True

    def running(*arguments: object, **options: object) -> _T:
        try:
            return run(*arguments, **options, progress=progress)
        finally:
            if printed_line and ticker.live:
                ticker.print("", last=True)

    return running


def with_progress_bar(label: str, run: Callable[..., _T]) -> _T:
    """Calls `run`, on a terminal with a progress bar."""
    if not rewritable():
        return run()
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def progress(finished_count: int, settings: int) -> None:
            bar.length = settings
            bar.update(finished_count - bar.pos)

        return run(progress=progress)
