"""What a report on an answer has to say, which every format arranges in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .columns import WIDTH
from .page import Card, Picture, listing_page
from .tables import Table, csv_of, filled, json_of, markdowns, texts


class Answer(Protocol):
    """What is reported on: what was asked, the document, and the rows of a table, each of them for programs."""

    @property
    def inputs(self) -> Mapping[str, Any]: ...
    def to_dict(self) -> dict[str, Any]: ...
    def rows(self) -> Iterable[Mapping[str, Any]]: ...


class Command(NamedTuple):
    """One that tells more, in words between which a line can break, and what it tells."""

    told: str
    words: Sequence[str]


_A = TypeVar("_A", bound=Answer)


def _none(_: object) -> list[Any]:
    return []


@dataclass(frozen=True, kw_only=True)
class Report(Generic[_A]):
    """Functions of an answer, one for each part.

    name      of files, where several formats are written to a folder
    headline  what was asked and the result in words; begins with the title
    said      what the numbers are, on a page ahead of them, elsewhere the last of the remarks
    cards     numbers to see first, on a page
    pictures  likewise, those of a list side by side; with them it holds plotly.js, some five megabytes
    undrawn   what pictures leave out
    more      commands to go on with
    """

    name: str
    title: Callable[[_A], str]
    headline: Callable[[_A], str]
    tables: Callable[[_A], list[Table]]
    remarks: Callable[[_A], list[str]]
    said: Callable[[_A], str]
    cards: Callable[[_A], list[Card]] = _none
    pictures: Callable[[_A], list[list[Picture]]] = _none
    undrawn: Callable[[_A], list[str]] = _none
    more: Callable[[_A], list[Command]] = _none

    def text(self, found: _A, width: int = WIDTH) -> str:
        told = [*self.remarks(found), self.said(found)]
        commands = (f"\n{filled(one.told, width)}\n{_lines(one.words, width)}" for one in self.more(found))
        return "".join((texts(self.headline(found), self.tables(found), told, width), *commands))

    def markdown(self, found: _A) -> str:
        commands = (f"{one.told} `{' '.join(one.words)}`" for one in self.more(found))
        told = [*self.remarks(found), self.said(found), *commands]
        return markdowns(self.headline(found), self.tables(found), told)

    def csv(self, found: _A) -> str:
        return csv_of(found.rows())

    def json(self, found: _A) -> str:
        return json_of(found.to_dict())

    def html(self, found: _A) -> str:
        """The whole page."""
        commands = (f"{one.told} {' '.join(one.words)}" for one in self.more(found))
        return listing_page(
            title=self.title(found),
            setting=self.headline(found),
            said=self.said(found),
            cards=self.cards(found),
            pictures=self.pictures(found),
            tables=self.tables(found),
            remarks=[*self.undrawn(found), *self.remarks(found), *commands],
            inputs=found.inputs,
        )


def _lines(words: Sequence[str], width: int) -> str:
    """A command in lines that a shell takes as one."""
    lines = [f"  {words[0]}"]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < width - len(" \\"):
            lines[-1] += f" {word}"
        else:
            lines.append(f"     {word}")
    return " \\\n".join(lines) + "\n"
