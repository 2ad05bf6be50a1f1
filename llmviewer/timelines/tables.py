"""Tables of Nsight Systems (`nsys stats --format csv`) and rocprofv3: launches, or sums by kernel."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ..errors import InputError
from .launches import KernelSums, RecordedLaunch, RecordedLaunches, is_time, kernel_sums, of_busiest

_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "nsec": 1e-9, "usec": 1e-6, "msec": 1e-3}
_HEAD: Final = re.compile(r"(?P<name>.*?)(?: \((?P<unit>\w+)\))?$")
_NANOSECONDS: Final = ("Start_Timestamp", "End_Timestamp", "TotalDurationNs")  # columns of rocprofv3
_STREAMS: Final = ("Strm", "Stream_Id", "Queue_Id")  # columns of nsys, and of rocprofv3
_MAX_LINES_BEFORE_HEAD: Final = 100  # most lines before the head of a table
_MAX_ROW_CHARS: Final = 200  # characters of a row in an error
_Row: TypeAlias = tuple[str, dict[str, str], tuple[float, ...]]


def of_table(text: str, path: Path) -> RecordedLaunches | KernelSums | None:
    """The contents of a table; None if the text is not one.

    Raises InputError, with the line, if a row lacks a column, or a value is not a number that it can be.
    """
    lines = text.splitlines()
    for number, line in enumerate(lines[:_MAX_LINES_BEFORE_HEAD]):
        try:
            head = {name for name, _ in map(_column, next(csv.reader([line]), ()))}
        except csv.Error:
            return None

        def rows(name: str, *number_columns: str, after: int = number) -> Iterator[_Row]:
            return _rows(lines, after, path, (name, *number_columns))

        if {"Name", "Start", "Duration"} <= head:
            return of_busiest(
                _launch(where, row, (row.get("Device", ""), row["Name"]), start, duration)
                for where, row, (start, duration) in rows("Name", "Start", "Duration")
            )
        if {"Kernel_Name", "Start_Timestamp", "End_Timestamp"} <= head:
            return of_busiest(
                _launch(where, row, (row.get("Agent_Id", ""), row["Kernel_Name"]), start, end - start)
                for where, row, (start, end) in rows("Kernel_Name", "Start_Timestamp", "End_Timestamp")
            )
        for total, count in (("Total Time", "Instances"), ("TotalDurationNs", "Calls")):
            if {"Name", total, count} <= head:
                return kernel_sums(
                    _sum(where, row["Name"], *numbers) for where, row, numbers in rows("Name", total, count)
                )
    return None


def _launch(
    where: str, row: Mapping[str, str], device_and_name: tuple[str, str], start: float, duration: float
) -> RecordedLaunch:
    device, name = device_and_name
    stream = next((row[column] for column in _STREAMS if column in row), "")
    launch = RecordedLaunch(device=device, name=name, start=start, duration=duration, stream=stream)
    if not launch.valid:
        raise InputError(f"{where}: a launch must have finite times; got {start:g} s for {duration:g} s")
    return launch


def _sum(where: str, name: str, total: float, launches: float) -> tuple[str, float, float]:
    if not is_time(total) or not is_time(launches):
        raise InputError(f"{where}: launches and their time must be finite; got {launches:g} in {total:g} s")
    return name, launches, total


def _column(head: str) -> tuple[str, float]:
    """(name of a column, factor of its numbers to seconds)."""
    match = _HEAD.match(head.strip())
    name, unit = (match["name"], match["unit"]) if match else ("", None)
    return name, _UNITS_S.get("ns" if name in _NANOSECONDS else unit or "", 1.0)


def _rows(lines: Sequence[str], head: int, path: Path, required_columns: Sequence[str]) -> Iterator[_Row]:
    """Each row below line `head` of `lines`: its place, its texts by column name without unit, and its numbers in the
    `wanted` columns but the first. [s]
    """
    table = csv.reader(lines[head:])
    columns = [_column(name) for name in next(table)]
    names, scales = [name for name, _ in columns], dict(columns)
    try:
        for row in table:
            if not any(map(str.strip, row)):
                continue
            where, texts = f"{path}:{head + table.line_num}", dict(zip(names, row, strict=False))
            if missing := [name for name in required_columns if name not in texts]:
                raise InputError(f"{where}: has no {' and no '.join(missing)}; got {','.join(row)[:_MAX_ROW_CHARS]}")
            try:
                yield (
                    where,
                    texts,
                    tuple(float(texts[name].replace(",", "")) * scales[name] for name in required_columns[1:]),
                )
            except ValueError:
                must = f"{' and '.join(required_columns[1:])} must be numbers"
                raise InputError(f"{where}: {must}; got {','.join(row)[:_MAX_ROW_CHARS]}") from None
    except csv.Error as error:
        raise InputError(f"{path}:{head + table.line_num}: is not a row of CSV: {error}") from None
