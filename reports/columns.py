"""Text in aligned columns. Importing a table library would take longer than an analysis."""

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
