"""Text in aligned columns. Importing a table library would take longer than an analysis."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import Final

WIDTH: Final = 80  # of a text where there is no terminal that has fewer [columns]
_MIN_WORD_WIDTH: Final = 12  # of a column of words, however little room there is
_BREAK: Final = re.compile(r"\s|(?<=-)")  # where a heading may be broken


def columns(
    lines: Sequence[Sequence[str]],
    *,
    left: Collection[int],
    gap: str = "  ",
    style: Callable[[int, int, str], str] = lambda line, column, text: text,
) -> str:
    """Lines of cells as aligned text.

    left   columns aligned to the left; others to the right
    style  colors a padded cell, given its line, its column and its text
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ""
    for i, line in enumerate(lines):
        cells = [
            cell.ljust(width) if j in left else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        cells[-1] = cells[-1].rstrip()
        text += gap.join(style(i, j, cell) for j, cell in enumerate(cells)).rstrip() + "\n"
    return text


def width_of(lines: Sequence[Sequence[str]]) -> int:
    """Columns that lines of cells take with a space between."""
    return sum(1 + max(map(len, column)) for column in zip(*lines, strict=True)) - 1


def fitted(lines: Sequence[Sequence[str]], *, left: Collection[int], width: int) -> list[list[list[str]]]:
    """Lines of cells, the head first, each as those into which it is broken so that they take `width` if words allow.

    Heads of several words are broken first, then the widest cells of the columns `left`, which are words.
    """
    if (excess := width_of(lines) - width) <= 0:
        return [[list(line)] for line in lines]
    head, *body = lines
    limits = []
    for j, name in enumerate(head):
        widths = [len(line[j]) for line in body]
        limits.append(max([*map(len, _BREAK.split(name)), *widths]))
        excess -= max([len(name), *widths]) - limits[-1]
    while excess > 0 and (wide := [j for j in left if limits[j] > _MIN_WORD_WIDTH]):
        limits[max(wide, key=limits.__getitem__)] -= 1
        excess -= 1
    return [_broken(line, limits, left) for line in lines]


def _broken(line: Sequence[str], limits: Sequence[int], left: Collection[int]) -> list[list[str]]:
    """The lines into which one is broken so that its cells are within `limits`; others of words are indented."""
    parts = [
        textwrap.wrap(cell, limit, subsequent_indent=" " if j in left else "", break_long_words=j in left) or [""]
        for j, (cell, limit) in enumerate(zip(line, limits, strict=True))
    ]
    height = max(map(len, parts))
    return [[part[i] if i < len(part) else "" for part in parts] for i in range(height)]


def blocks(lines: Sequence[Sequence[str]], *, keys: int, width: int) -> list[list[int]]:
    """Indices of the columns of each of the blocks, one under the other, into which a table wider than `width` is cut.

    keys  number of the first columns, which each block has
    """
    widths = [1 + max(map(len, column)) for column in zip(*lines, strict=True)]
    first, key_width = list(range(keys)), sum(widths[:keys]) - 1
    cut: list[list[int]] = [[]]
    used = key_width
    for j in range(keys, len(widths)):
        if cut[-1] and used + widths[j] > width:
            cut.append([])
            used = key_width
        cut[-1].append(j)
        used += widths[j]
    return [first + one for one in cut]
