"""Tables as aligned text and Markdown; wrapped text; JSON and CSV documents."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import isnan
from typing import Any, Final, NamedTuple

import click

from llmviewer.records import frozen
from llmviewer.rows import csv_text
from llmviewer.units import seconds, si

from .columns import WIDTH, blocks, columns, fitted, width_of

_MIN_WORDS: Final = 24  # columns of a text for words to the right of others
BOUND_COLOR: Final = {"memory": "red", "compute": "green", "link": "blue"}  # on a terminal


class Item(NamedTuple):
    """A cell of a table.

    key    value that the page sorts by; the text if not given
    bound  resource that bounds it, "memory", "compute" or "link", which colors the cell
    url    web page of the source that the cell names
    alarm  a verdict against the setting
    """

    text: str
    key: float | str = ""
    bound: str = ""
    url: str = ""
    alarm: bool = False

    @property
    def sort(self) -> float | str:
        return self.key if self.key != "" else self.text


DASH: Final = Item(text="-", key=-1.0)


def number_item(value: float) -> Item:
    """Three significant digits; "-" where unknown."""
    return DASH if isnan(value) else Item(text=digits(value), key=value)


def time_item(value: float) -> Item:
    """Item of a time [s] with its unit; a dash for NaN."""
    return DASH if isnan(value) else Item(text=seconds(value), key=value)


def digits(value: float) -> str:
    """Three significant digits; below a million all digits of the integer part."""
    if value >= 1e6:
        return si(value).replace(" ", "")
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


class Heading(NamedTuple):
    """A column's name where there is room for it, and its meaning."""

    name: str
    meaning: str


class Conclusion(NamedTuple):
    """Conclusion of a table: its subject, the resource that bounds it, and a sentence."""

    subject: str
    bound: str
    text: str


@frozen(kw_only=True)
class Table:
    """A table that each format arranges.

    about       explains what a heading cannot
    words       columns of words, aligned to the left; others are numbers
    total       a last row that sums up the others
    headings    full names and meanings of columns, by their short names, for pages and Markdown
    conclusion  follows the table in texts and stands at the top of a page
    most        rows of a text; None for all
    spare       columns that a narrow terminal leaves out, the first one first
    """

    title: str
    about: str
    head: tuple[str, ...]
    words: tuple[str, ...]
    body: tuple[tuple[Item, ...], ...]
    total: tuple[Item, ...] = ()
    headings: Mapping[str, Heading] = field(default_factory=dict)
    conclusion: Conclusion | None = None
    most: int | None = None
    spare: tuple[str, ...] = ()

    def without_constants(self, *names: str) -> Table:
        """The table without those of the columns `names` in which all rows agree."""
        alike = (i for i in range(len(self.head)) if len({row[i].text for row in self.body}) < 2)
        return self.without(*({self.head[i] for i in alike} & set(names)))

    def without(self, *names: str) -> Table:
        """The table without the columns `names`."""
        indices = [i for i, head in enumerate(self.head) if head not in names]
        head, body, total = (
            tuple(self.head[i] for i in indices),
            tuple(tuple(row[i] for i in indices) for row in self.body),
            tuple(self.total[i] for i in indices) if self.total else (),
        )
        return replace(self, head=head, body=body, total=total)

    def text(self, width: int = WIDTH, table_width: int = sys.maxsize) -> str:
        """Aligned columns, with a title and explanations that wrap at `width`.

        table_width  of the columns: narrower than they are, it leaves out spare ones, then breaks heads and words; what
                     is still too wide goes on under the others
        """
        table, omitted = self, []
        for name in self.spare:
            if name in table.head and width_of(table.lines()) > table_width:
                table = table.without(name)
                omitted.append(name)
        note = f"Left out for width: {', '.join(omitted)}." if omitted else ""
        return f"{filled(self.title, width)}\n{_columns(table, table_width)}{self.below(width, note)}"

    def text_rows(self) -> list[tuple[Item, ...]]:
        """The rows of a text, the total last."""
        return [*self.body[: self.most], *([self.total] if self.total else [])]

    def lines(self) -> list[tuple[str, ...]]:
        """Head and rows of a text, as texts."""
        return [self.head, *(tuple(item.text for item in row) for row in self.text_rows())]

    def below(self, width: int, note: str = "") -> str:
        """The lines under the rows of a text: explanations, `note`, the number of rows left out, and the conclusion."""
        num_omitted = self._left_out()
        omitted_note = f"{num_omitted:,} more: -o FILE.html, .md, .csv or .json has all." if num_omitted else ""
        about = " ".join(filter(None, (self.about, note, omitted_note)))
        texts = filter(None, (about, self.conclusion.text if self.conclusion else ""))
        return "".join(f"{filled(text, width)}\n" for text in texts)

    def _left_out(self) -> int:
        """Number of rows that a text lacks."""
        return len(self.body) - len(self.body[: self.most])

    def markdown(self) -> str:
        align = ["---" if head in self.words else "---:" for head in self.head]
        body = (*self.body, *([self.total] if self.total else []))
        rows = [self.head, tuple(align), *(tuple(item.text for item in row) for row in body)]
        lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
        below = filter(None, (self.about, self.conclusion.text if self.conclusion else ""))
        return f"## {self.title}\n\n" + "\n".join(lines) + "\n" + "".join(f"\n{text}\n" for text in below)


def _columns(table: Table, width: int) -> str:
    """Head and rows of a text within `width`."""
    left = [i for i, head in enumerate(table.head) if head in table.words]
    rows = table.text_rows()
    fitted_lines = fitted(table.lines(), left=left, width=width)
    fits = width_of([line for parts in fitted_lines for line in parts]) <= width
    broken = fitted_lines if fits else fitted(table.lines(), left=(), width=width)
    places = [place for place, parts in enumerate(broken) for _ in parts]
    lines = [line for parts in broken for line in parts]
    keys = max(next((i for i, head in enumerate(table.head) if head not in table.words), 1), 1)
    texts = []
    for indices in blocks(lines, keys=keys, width=width):

        def style(line: int, column: int, text: str, indices: list[int] = indices) -> str:
            if not places[line] or not text.strip():
                return text
            row = rows[places[line] - 1]
            return _styled(text, row[indices[column]], total=row is table.total)

        cells = [[line[i] for i in indices] for line in lines]
        texts.append(columns(cells, left=[j for j, i in enumerate(indices) if i in left], gap=" ", style=style))
    return "\n".join(texts)


def _styled(text: str, item: Item, *, total: bool) -> str:
    color = BOUND_COLOR.get(item.bound)
    return click.style(text, fg=color, bold=total) if color or total else text


class Reasons(Table):
    """A table of words, whose last column wraps in a text."""

    def text(self, width: int = WIDTH, table_width: int = sys.maxsize) -> str:  # noqa: ARG002 (words wrap at `width`)
        lines = self.lines()
        before = columns([line[:-1] for line in lines], left=range(len(self.head)), gap=" ").splitlines()
        indent = max(map(len, before)) + 1
        texts = [filled(self.title, width)]
        for start, line in zip(before, lines, strict=True):
            wrap_width = max(width, indent + _MIN_WORDS)
            texts.append(filled(line[-1], wrap_width, first=start.ljust(indent), others=" " * indent))
        return "\n".join((*texts, self.below(width)))


def filled(text: str, width: int = WIDTH, *, first: str = "", others: str = "") -> str:
    """`text` wrapped at `width`; options and paths are not broken, so that they can be copied.

    first, others  indentation of the first and of the other lines
    """
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )


def json_of(document: object) -> str:
    """Indented JSON with a final newline. Raises ValueError for NaN and infinity, which JSON lacks."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def csv_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV with the keys of the first row as heads; empty where a row lacks a key. Whole numbers have no fraction."""
    listed = list(rows)
    heads = list(listed[0])
    return csv_text([heads, *([_int_if_whole(row.get(head, "")) for head in heads] for row in listed)])


def _int_if_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value
