"""Tables of any kind, once: as aligned text, as Markdown, and as HTML that sorts; and what programs read: JSON, CSV."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Final

from llmviewer.rows import csv_text
from llmviewer.units import seconds, si

from .columns import WIDTH, columns

_LEAST: Final = 24  # of words beside columns


@dataclass(frozen=True, kw_only=True)
class Item:
    """A cell: its text, the number behind it by which the table is sorted, and the bound whose colour it has."""

    text: str
    key: float | str = ""
    bound: str = ""

    @property
    def sort(self) -> float | str:
        return self.key if self.key != "" else self.text


NOTHING: Final = Item(text="-", key=-1.0)


def number_item(value: float) -> Item:
    """Three significant digits; "-" where unknown."""
    return NOTHING if isnan(value) else Item(text=digits(value), key=value)


def time_item(value: float) -> Item:
    return NOTHING if isnan(value) else Item(text=seconds(value), key=value)


def digits(value: float) -> str:
    """Three that are significant, or as many as it takes to write it out up to a million."""
    if value >= 1e6:
        return si(value).replace(" ", "")
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """`words` are the columns of words, to the left; the others are of numbers. `about` explains what a head cannot.

    most  rows that a text has; None for all
    """

    title: str
    about: str
    head: tuple[str, ...]
    words: tuple[str, ...]
    body: tuple[tuple[Item, ...], ...]
    most: int | None = None

    def without_constants(self, *names: str) -> Table:
        """The table without those of the columns `names` that say the same in every row, or nothing."""
        kept = [
            i for i, head in enumerate(self.head) if head not in names or len({row[i].text for row in self.body}) > 1
        ]
        head, body = (tuple(self.head[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in self.body))
        return replace(self, head=head, body=body)

    def text(self, width: int = WIDTH) -> str:
        """Aligned, with words that wrap at `width`; the columns themselves take the room that they need."""
        left = [i for i, head in enumerate(self.head) if head in self.words]
        return f"{filled(self.title, width)}\n{columns(self.lines(), left=left, gap=' ')}{self.below(width)}"

    def lines(self) -> list[tuple[str, ...]]:
        """The head and the rows that a text has."""
        return [self.head, *(tuple(item.text for item in row) for row in self.body[: self.most])]

    def below(self, width: int) -> str:
        """What a text says under its rows."""
        more = self._left_out()
        rest = f"{more:,} more: -o FILE.html, .md, .csv or .json has all." if more else ""
        said = " ".join(filter(None, (self.about, rest)))
        return f"{filled(said, width)}\n" if said else ""

    def _left_out(self) -> int:
        """How many rows a text has not."""
        return len(self.body) - len(self.body[: self.most])

    def markdown(self) -> str:
        marks = ["---" if head in self.words else "---:" for head in self.head]
        rows = [self.head, tuple(marks), *(tuple(item.text for item in row) for row in self.body)]
        lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
        about = f"\n{self.about}\n" if self.about else ""
        return f"## {self.title}\n\n" + "\n".join(lines) + f"\n{about}"


class Reasons(Table):
    """Of words alone, the last of which are long and go on in the next line of a text."""

    def text(self, width: int = WIDTH) -> str:
        lines = self.lines()
        before = columns([line[:-1] for line in lines], left=range(len(self.head)), gap=" ").splitlines()
        indent = max(map(len, before)) + 1
        found = [filled(self.title, width)]
        for start, line in zip(before, lines, strict=True):
            found.append(filled(line[-1], max(width, indent + _LEAST), first=start.ljust(indent), others=" " * indent))
        return "\n".join((*found, self.below(width)))


@dataclass(frozen=True, kw_only=True)
class Grouped(Table):
    """Of which a text has only the names of what has the same reason: `groups` of a reason and of them.

    most  names of a group that a text has; None for all
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...]

    def text(self, width: int = WIDTH) -> str:
        lines = (filled(f"{reason}: {self._named(names)}", width, others="  ") for reason, names in self.groups)
        return "\n".join((filled(self.title, width), *lines, self.below(width)))

    def _named(self, names: Sequence[str]) -> str:
        more = len(names) - len(names[: self.most])
        return f"{', '.join(names[: self.most])}{f' and {more} more' if more else ''}"

    def _left_out(self) -> int:
        return sum(len(names) - len(names[: self.most]) for _, names in self.groups)


def filled(text: str, width: int = WIDTH, *, first: str = "", others: str = "") -> str:
    """Lines of `text`, of which the first and the others are indented; options and paths are whole, to be copied."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )


def texts(head: str, tables: Sequence[Table], remarks: Sequence[str], width: int = WIDTH) -> str:
    """A report as text, `width` columns wide where names allow it."""
    parts = [filled(head, width) + "\n", *(table.text(width) for table in tables)]
    parts += ["\n".join(filled(remark, width) for remark in remarks) + "\n"] if remarks else []
    return "\n".join(parts)


def markdowns(head: str, tables: Sequence[Table], remarks: Sequence[str]) -> str:
    parts = [f"# {head}\n", *(table.markdown() for table in tables)]
    parts += ["".join(f"- {remark}\n" for remark in remarks)] if remarks else []
    return "\n".join(parts)


def json_of(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def csv_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of heads, which are the keys of the first row, and a line for each row, empty where it lacks a key."""
    listed = list(rows)
    heads = list(listed[0])
    return csv_text([heads, *([row.get(head, "") for head in heads] for row in listed)])
