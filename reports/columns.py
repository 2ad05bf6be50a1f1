"""Texts in aligned columns. A table library would take longer to load than the analysis takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

WIDTH: Final = 80  # of a text where there is no terminal that has fewer [columns]


def columns(
    lines: Sequence[Sequence[str]],
    *,
    left: Collection[int],
    gap: str = "  ",
    style: Callable[[int, int, str], str] = lambda line, column, text: text,
) -> str:
    """`lines` of cells, those of the columns in `left` to the left and others to the right, one line of text each.

    style  is given line, column and padded text, and returns the text with its colours
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
