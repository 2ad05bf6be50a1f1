"""Compares capacities of servers with logged start-ups: writes the last section of docs/memory.md.

Run as `python benchmarks/server_memory.py`, from tests/server_startups.csv; it takes half a minute.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # or the path of who imports it would change
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from llmviewer.expectation.engines import find_engine  # noqa: E402
from tests.server_startups import DEVELOPED, HELD_OUT, Startup, startups  # noqa: E402

PAGE = ROOT / "docs" / "memory.md"
HEADING = "## Against logged start-ups\n"
_FAR = 0.05  # error from which a row is named
_HEAD = """
Written by `python benchmarks/server_memory.py` from {count} start-ups in public logs and issues, each with its address
in `tests/server_startups.csv`. Errors are those of the tokens that the engine logged. Half of the sources were held
out while the rules were developed. llama.cpp has as many tokens as it is asked for: its rows test whether it starts.

| engine | half | settings | rows | median error | nine of ten within | starts or not, right |
|---|---|---|---|---|---|---|
"""


def table(results: Iterable[Startup]) -> Iterator[str]:
    """Errors by engine, half, and whether the log leaves anything out."""
    results = list(results)
    for engine in dict.fromkeys(one.row["engine"] for one in results):
        for half in (DEVELOPED, HELD_OUT):
            for is_known in (True, False):
                rows = [one for one in results if (one.row["engine"], one.row["half"]) == (engine, half)]
                rows = [one for one in rows if not is_known or not one.row["unknown"]]
                errors = [abs(one.ratio - 1) for one in rows if one.ratio is not None]
                if errors:
                    right = sum(one.expected.starts == one.starts for one in rows)
                    yield (
                        f"| {find_engine(engine).title} | {half} | {'known' if is_known else 'all'} | {len(rows)} "
                        f"| {np.median(errors):.1%} | {np.quantile(errors, 0.9):,.0%} | {right} of {len(rows)} |"
                    )


def far(results: Iterable[Startup]) -> Iterator[str]:
    """Rows that are far off, with what the log leaves out."""
    for one in results:
        row = one.row
        if one.ratio is not None and (abs(one.ratio - 1) > _FAR or one.starts != one.expected.starts):
            verdict = "" if one.starts == one.expected.starts else f"; started: {row['starts']}"
            yield (
                f"| [{row['model']}]({row['url']}) | {row['engine']} {row['engine_version']} | {row['tp']} x "
                f"{row['hardware']} | {one.ratio:.2f}{verdict} | {row['unknown']} |"
            )


def section(results: Iterable[Startup]) -> str:
    """The section of the page."""
    results = list(results)
    lines = [
        HEADING, _HEAD.format(count=len(results)).strip("\n"), *table(results), "",
        "Rows more than 5 % off; the last column is what the log leaves out, without which a row counts as known:", "",
        "| model | engine | devices | expected / logged | unknown |", "|---|---|---|---|---|", *far(results),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def page(results: Iterable[Startup]) -> str:
    """The page with a new section."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    return text + section(results)


if __name__ == "__main__":
    PAGE.write_text(page(startups()), encoding="utf-8")
