"""Tables of Nsight Systems (`nsys stats --format csv`) and rocprofv3: launches, or sums by kernel."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ..errors import InputError
from .launches import Launch, Launches, Sums, of_busiest, sums

_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "nsec": 1e-9, "usec": 1e-6, "msec": 1e-3}
_HEAD: Final = re.compile(r"(?P<name>.*?)(?: \((?P<unit>\w+)\))?$")
_NANOSECONDS: Final = ("Start_Timestamp", "End_Timestamp", "TotalDurationNs")  # columns of rocprofv3
_SKIPPED: Final = 100  # most lines before the head of a table
_Row: TypeAlias = tuple[dict[str, str], tuple[float, ...]]


def of_table(text: str, path: Path) -> Launches | Sums | None:
    """The contents of a table; None if the text is not one.

    Raises InputError if a value is not a number.
    """
    lines = text.splitlines()
    for number, line in enumerate(lines[:_SKIPPED]):
        head = {name for name, _ in map(_column, next(csv.reader([line]), ()))}

        def rows(*wanted: str, after: int = number) -> Iterator[_Row]:
            return _rows(lines[after:], path, wanted)

        if {"Name", "Start", "Duration"} <= head:
            return of_busiest(
                Launch(device=row.get("Device", ""), name=row["Name"], start=start, duration=taken)
                for row, (start, taken) in rows("Start", "Duration")
            )
        if {"Kernel_Name", "Start_Timestamp", "End_Timestamp"} <= head:
            return of_busiest(
                Launch(device=row.get("Agent_Id", ""), name=row["Kernel_Name"], start=start, duration=end - start)
                for row, (start, end) in rows("Start_Timestamp", "End_Timestamp")
            )
        for total, count in (("Total Time", "Instances"), ("TotalDurationNs", "Calls")):
            if {"Name", total, count} <= head:
                return sums((row["Name"], launches, taken) for row, (taken, launches) in rows(total, count))
    return None


def _column(head: str) -> tuple[str, float]:
    """(name of a column, factor of its numbers to seconds)."""
    found = _HEAD.match(head.strip())
    name, unit = (found["name"], found["unit"]) if found else ("", None)
    return name, _UNITS_S.get("ns" if name in _NANOSECONDS else unit or "", 1.0)


def _rows(lines: Sequence[str], path: Path, wanted: Sequence[str]) -> Iterator[_Row]:
    """Each row, with column names without units, and its numbers in the `wanted` columns. [s]"""
    head, *rows = csv.reader(line for line in lines if line.strip())
    columns = [_column(name) for name in head]
    scales = dict(columns)
    for row in rows:
        said = {name: text for (name, _), text in zip(columns, row, strict=False)}
        try:
            yield said, tuple(float(said[name].replace(",", "")) * scales[name] for name in wanted)
        except (KeyError, ValueError):
            raise InputError(f"{path}: {' and '.join(wanted)} must be numbers; got {','.join(row)[:200]}") from None
