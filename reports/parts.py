"""Parts of a report: lines of the summary, commands to go on with, and cards and folds of a page.

Tuples instead of dataclasses, which take longer to define and would slow down the start of every command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .tables import Table


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
