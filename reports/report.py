"""A report: the parts of a result that each format arranges, as text, Markdown, CSV, JSON or an HTML page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import click

from .columns import WIDTH
from .parts import Card, Command, Details, Line
from .tables import Heading, Table, csv_of, filled, json_of

if TYPE_CHECKING:
    from .page_figures import Picture

ALARM: Final = "red"


class Result(Protocol):
    """A result with a JSON document and the rows of a CSV file."""

    def to_dict(self) -> dict[str, Any]: ...
    def rows(self) -> Iterable[Mapping[str, Any]]: ...


_R = TypeVar("_R", bound=Result)


def _empty(_: object) -> list[Any]:
    return []


class Report(NamedTuple, Generic[_R]):
    """Functions of a result, one for each part.

    name      stem of the files in a folder of several formats
    headline  the request and the outcome in words; begins with the title
    summary   main numbers; on a page, cards have most of them
    remarks   notes on the result, as sentences
    basis     what the numbers are: ahead of them on a page, after the remarks elsewhere
    cards     numbers at the top of a page
    pictures  rows of figures and small tables, side by side on a page; figures bring plotly.js, some five megabytes
    undrawn   what the figures leave out
    more      commands to go on with
    details   folds at the end of a page
    inputs    arguments of the result, at the foot of a page
    """

    name: str
    title: Callable[[_R], str]
    headline: Callable[[_R], str]
    tables: Callable[[_R], list[Table]]
    remarks: Callable[[_R], list[str]]
    basis: Callable[[_R], str]
    summary: Callable[[_R], list[Line]] = _empty
    cards: Callable[[_R], list[Card]] = _empty
    pictures: Callable[[_R], Sequence[Sequence[Picture | Table]]] = _empty
    undrawn: Callable[[_R], list[str]] = _empty
    more: Callable[[_R], list[Command]] = _empty
    details: Callable[[_R], list[Details]] = _empty
    inputs: Callable[[_R], Mapping[str, Any]] = attrgetter("inputs")

    def text(self, result: _R, width: int = WIDTH, *, table_width: int = sys.maxsize, colored: bool = False) -> str:
        """Text with words that wrap at `width`, and tables of at most `table_width` columns."""
        summary, remarks = self.summary(result), [*self.remarks(result), self.basis(result)]
        parts = [
            click.style(filled(self.headline(result), width), bold=True) + "\n" + _lines(summary, width),
            *(table.text(width, table_width) for table in self.tables(result)),
            "".join(f"{filled(remark, width)}\n" for remark in remarks),
            *(f"{filled(one.purpose, width)}\n{_typed(one.words, width)}" for one in self.more(result)),
        ]
        text = "\n".join(parts)
        return text if colored else click.unstyle(text)

    def brief(self, result: _R) -> str:
        """The headline and the summary."""
        return click.unstyle(f"{filled(self.headline(result), WIDTH)}\n{_lines(self.summary(result), WIDTH)}").rstrip()

    def notebook(self, result: _R) -> str:
        """The headline, the summary and the first figure as part of a page that loads plotly.js from its network."""
        from .page import notebook_cell

        drawn = [one for row in self.pictures(result) for one in row if not isinstance(one, Table)]
        lines = [(line.label, line.text) for line in self.summary(result)]
        return notebook_cell(self.headline(result), lines, drawn[0] if drawn else None)

    def markdown(self, result: _R) -> str:
        summary, tables = self.summary(result), self.tables(result)
        commands = (f"{one.purpose} `{' '.join(one.words)}`" for one in self.more(result))
        remarks = [*self.remarks(result), self.basis(result), *commands]
        lines = "".join(f"| {line.label} | {line.text} |\n" for line in summary)
        parts = [
            f"# {self.headline(result)}\n",
            *([f"| | |\n|---|---|\n{lines}"] if summary else []),
            *(table.markdown() for table in tables),
            *(f"{legend}\n" for legend in [_legend(tables)] if legend),
            "".join(f"- {remark}\n" for remark in remarks),
        ]
        return "\n".join(parts)

    def csv(self, result: _R) -> str:
        return csv_of(result.rows())

    def json(self, result: _R) -> str:
        return json_of(result.to_dict())

    def html(self, result: _R) -> str:
        """A page in one file."""
        from .page import report_page

        tables = self.tables(result)
        commands = (f"{one.purpose} {' '.join(one.words)}" for one in self.more(result))
        return report_page(
            title=self.title(result),
            headline=self.headline(result),
            basis=self.basis(result),
            summary=[line for line in self.summary(result) if line.on_page],
            cards=self.cards(result),
            pictures=self.pictures(result),
            tables=tables,
            legend=_legend(tables),
            remarks=[*self.undrawn(result), *self.remarks(result), *commands],
            details=self.details(result),
            inputs=self.inputs(result),
        )


def _legend(tables: Sequence[Table]) -> str:
    """Meanings of the columns of all tables, each once."""
    headings: dict[str, Heading] = {}
    for table in tables:
        headings |= {name: heading for name, heading in table.headings.items() if heading.meaning}
    meanings = "; ".join(f"{heading.name}: {heading.meaning}" for heading in headings.values())
    return f"{meanings}." if meanings else ""


def _lines(summary: Sequence[Line], width: int) -> str:
    """The summary as labels and texts in two columns."""
    margin = max((len(line.label) for line in summary), default=0) + 2
    text = ""
    for line in summary:
        value = filled(line.text, width - margin).replace("\n", "\n" + margin * " ")
        text += line.label.ljust(margin) + (click.style(value, fg=ALARM) if line.alarm else value) + "\n"
    return text


def _typed(words: Sequence[str], width: int) -> str:
    """A command in lines that a shell reads as one."""
    lines = [f"  {words[0]}"]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < width - len(" \\"):
            lines[-1] += f" {word}"
        else:
            lines.append(f"     {word}")
    return " \\\n".join(lines) + "\n"
