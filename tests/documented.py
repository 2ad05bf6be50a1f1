"""Passages of the documentation that tests compare with the product: tables, and commands with their output.

`python -m tests.documented --write [PAGE...]` runs the commands and writes their output anew, as far as it is shown.
"""

import argparse
import io
import os
import re
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from unittest.mock import patch

from llmviewer.cli import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("tutorials/*.md")))
ELISION = "..."
# A command with its output: in one block, or the command at the end of a block and its output in the next.
TRANSCRIPT = re.compile(
    r"(?:^\$ llmviewer ((?:.*\\\n)*.*)\n|bin/llmviewer (.*)\n```\n\n```\n)((?:(?!```|\$ ).*\n)*)", re.MULTILINE
)
NOT_REPRODUCIBLE = "gpt2.json.gz"  # a recording of another machine, too large to commit
_EQUAL_LINES = 0.5  # similarity above which a printed line is taken for a rewording of a quoted line


def text(page):
    """The text of a page, its lines joined."""
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def rows(page, header):
    """The cells of each row of the one table in `page` whose first line begins with `header`."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    (start,) = (place for place, line in enumerate(lines) if line.startswith(header))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def names(cell):
    """The names that a cell has in backticks."""
    return cell.split("`")[1::2]


def with_output(page):
    """The text of a page, each command's output as it is printed now."""

    def transcript(match):
        command = (match[1] or match[2]).replace("\\\n", " ")
        return match[0] if NOT_REPRODUCIBLE in command else match[0].removesuffix(match[3]) + renewed(match[3], command)

    def renewed(quoted, command):
        try:
            return excerpt(quoted, output(command))
        except ValueError as error:
            error.add_note(f"{page}: {command}")
            raise

    return TRANSCRIPT.sub(transcript, page.read_text(encoding="utf-8"))


@cache
def output(command):
    """The lines that a command prints on a terminal of 80 columns."""
    printed = io.StringIO()
    with patch.dict(os.environ, COLUMNS="80"), redirect_stdout(printed):
        assert main(shlex.split(command)) == 0, command
    return [line.rstrip() for line in printed.getvalue().splitlines()]


def excerpt(quoted, printed):
    """The part of `printed` that corresponds to `quoted`, where ELISION stands for any lines; all if nothing is quoted.

    If `quoted` is no such part, a passage between two elisions runs from the line printed in place of its first line to
    that in place of its last.
    """
    lines = quoted.splitlines()
    if not lines:
        return "".join(f"{line}\n" for line in printed)
    if is_excerpt(lines, printed):
        return quoted
    places = _align(lines, printed)
    passages = []
    for start, end in _passages(lines):
        if all(place is None for place in places[start:end]):
            raise ValueError("nothing printed is like:\n" + "\n".join(lines[start:end]))
        matched = [place for place in places[start:end] if place is not None]
        first = 0 if start == 0 else matched[0] - _unmatched(places[start:end])
        last = len(printed) if end == len(lines) else matched[-1] + 1 + _unmatched(places[start:end][::-1])
        passages.append("".join(f"{line}\n" for line in printed[max(first, 0) : last]))
    gap = f"{ELISION}\n"
    return gap * (lines[0] == ELISION) + gap.join(passages) + gap * (lines[-1] == ELISION)


def is_excerpt(lines, printed):
    """Whether all passages between elisions are printed, in this order, with nothing left out but at elisions."""
    text, position = "\n" + "".join(f"{line}\n" for line in printed), 0
    for start, end in _passages(lines):
        passage = "\n" + "".join(f"{line}\n" for line in lines[start:end])
        begin = text.find(passage, position)
        if begin < 0 or (start == 0 and begin > 0) or (end == len(lines) and not text.endswith(passage)):
            return False
        position = begin + len(passage) - 1
    return True


def _passages(lines):
    """Start and end of each run of lines without an elision."""
    start = 0
    for end in (*(place for place, line in enumerate(lines) if line == ELISION), len(lines)):
        if start < end:
            yield start, end
        start = end + 1


def _unmatched(places):
    """The number of lines before the first that has a counterpart."""
    return next(index for index, place in enumerate(places) if place is not None)


def _align(quoted, printed):
    """Index of the most similar printed line for each quoted line, in increasing order; None where none is similar."""
    scores = [[_similarity(line, other) for other in printed] for line in quoted]
    best = [[0.0] * (len(printed) + 1) for _ in range(len(quoted) + 1)]
    for row in reversed(range(len(quoted))):
        for column in reversed(range(len(printed))):
            paired = scores[row][column] + best[row + 1][column + 1]
            best[row][column] = max(best[row + 1][column], best[row][column + 1], paired if scores[row][column] else 0)
    places, row, column = [None] * len(quoted), 0, 0
    while row < len(quoted) and column < len(printed):
        score = scores[row][column]
        if score and best[row][column] == score + best[row + 1][column + 1]:
            places[row] = column
            row, column = row + 1, column + 1
        elif best[row][column] == best[row][column + 1]:
            column += 1
        else:
            row += 1
    return places


@cache
def _similarity(line, other):
    """Share of characters that two lines have in common, 0 where that is coincidence; equal lines count double."""
    if line == other:
        return 2.0
    ratio = SequenceMatcher(None, line, other, autojunk=False).ratio() if line and other else 0.0
    return ratio if ratio > _EQUAL_LINES else 0.0


def fill_workplace(folder):
    """Links the files of the checkout into `folder`, so that commands run there and leave nothing behind."""
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


def write(pages):
    with tempfile.TemporaryDirectory() as folder:
        fill_workplace(Path(folder))
        with chdir(folder):
            for page in pages:
                renewed = with_output(page)
                if renewed != page.read_text(encoding="utf-8"):
                    page.write_text(renewed, encoding="utf-8")
                    sys.stdout.write(f"{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the output of the documentation's commands anew.")
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("page", nargs="*", type=lambda name: Path(name).resolve(), default=PAGES)
    write(parser.parse_args().page)
