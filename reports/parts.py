"""Parts of a report: lines of the summary, commands to go on with, and cards and folds of a page.

Tuples instead of dataclasses, which take longer to define and would slow down the start of every command.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .tables import Table

_OPTIONS: Final = {"profiles": "profile", "techniques": "with"}  # options with another name than in Python


class Line(NamedTuple):
    """A line of the summary.

    alarm    a verdict against the setting
    on_page  shown on a page too, where no card has it
    """

    label: str
    text: str
    alarm: bool = False
    on_page: bool = False


class Command(NamedTuple):
    """A command to go on with: its purpose, and its words, between which a line may break."""

    purpose: str
    words: Sequence[str]


def option_words(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of a Python function as options of its command, each with its value."""
    words = []
    for name, value in arguments.items():
        option = f"--{_OPTIONS.get(name, name.replace('_', '-'))}"
        each = value if isinstance(value, tuple) else (value,)
        words += [option] if value is True else [f"{option} {shlex.quote(_text(one))}" for one in each]
    return words


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Card(NamedTuple):
    """A number at the top of a page.

    sign      relation of a bound to its value: at least or at most
    bound     resource that bounds the pass whose time it is
    expected  expected value with its interval; "" where unknown
    alarm     a verdict against the setting
    """

    label: str
    value: str
    about: str
    sign: str = ""
    bound: str = ""
    expected: str = ""
    alarm: bool = False


class Details(NamedTuple):
    """Tables and notes that a page folds under a summary."""

    summary: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
