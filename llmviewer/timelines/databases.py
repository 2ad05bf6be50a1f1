"""Databases that `nsys export --type sqlite` writes: kernels, copies and memory sets of GPUs.

Tables and columns are those of the SQLite Schema Reference of docs.nvidia.com/nsight-systems/UserGuide.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from math import nan
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import InputError, quoted
from .host_calls import WAIT_CALLS
from .launches import RecordedLaunch, RecordedLaunches, of_busiest

MAGIC: Final = b"SQLite format 3\x00"
_GRAPHS: Final = {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "SELECT 1 FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE LIMIT 1"}
# Bytes of the header that are 2 for a write-ahead log, which a database in memory cannot have, else 1
# (sqlite.org/fileformat.html).
_JOURNALS: Final = slice(18, 20)
_ROLLBACK: Final = b"\x01\x01"
_MOST_STEPS: Final = 500_000_000  # of SQLite's virtual machine, some ten seconds; a kernel takes some 100
_STEPS: Final = 1_000_000  # after which they are counted
_LAUNCHES: Final = {  # by the table, which need not be there
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "SELECT k.*, value AS name FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = demangledName"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": "SELECT *, 'Memcpy' AS name FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET": "SELECT *, 'Memset' AS name FROM CUPTI_ACTIVITY_KIND_MEMSET",
}
_CALLS_TABLE: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_CALLS: Final = (
    "SELECT r.start, r.end, r.correlationId, r.globalTid, s.value AS name FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
    "JOIN StringIds s ON s.id = nameId"
)
_PROCESS_BITS: Final = 24  # bits of a global thread below those of its process


class _HostCalls(NamedTuple):
    """Calls of the host: when each was made, by process and correlation, and those in which it waited. [s]"""

    called_s: dict[tuple[int, int], float]
    waits_s: list[tuple[float, float]]


def of_database(source: Path | bytes, path: Path) -> RecordedLaunches:
    """The launches in a database, which is a file or the contents of one; `path` names it in errors.

    Raises InputError if it is not such a database, or has CUDA graphs without their kernels.
    """
    try:
        with closing(_in_memory(source) if isinstance(source, bytes) else _on_disk(source)) as database:
            database.row_factory = sqlite3.Row
            tables = {row["name"] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if any(database.execute(query).fetchone() for table, query in _GRAPHS.items() if table in tables):
                raise InputError(f"{path}: has CUDA graphs without their kernels; record with --cuda-graph-trace=node")
            calls = _host_calls(_rows_of_calls(database) if _CALLS_TABLE in tables else ())
            return of_busiest(
                (
                    _launch(row, calls, f"{path}: row {number} of {table}")
                    for table, query in _LAUNCHES.items()
                    if table in tables
                    for number, row in enumerate(database.execute(query), 1)
                ),
                host_waits=calls.waits_s,
            )
    except (sqlite3.Error, IndexError) as error:
        raise InputError(f"{path}: must be a database from `nsys export --type sqlite`: {error}") from None


def _on_disk(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _in_memory(data: bytes) -> sqlite3.Connection:
    """A connection to the contents of a file, which may come from anybody: a view in it may never end."""
    database = sqlite3.connect(":memory:")
    database.deserialize(data[: _JOURNALS.start] + _ROLLBACK + data[_JOURNALS.stop :])
    database.execute("PRAGMA trusted_schema = OFF")
    left = iter(range(_MOST_STEPS // _STEPS))
    database.set_progress_handler(lambda: next(left, None) is None, _STEPS)
    return database


def _rows_of_calls(database: sqlite3.Connection) -> Iterable[sqlite3.Row]:
    """Rows of the host's calls; none if the table lacks columns."""
    columns = {row["name"] for row in database.execute(f"PRAGMA table_info({_CALLS_TABLE})")}
    return database.execute(_CALLS) if {"start", "end", "correlationId", "globalTid", "nameId"} <= columns else ()


def _host_calls(rows: Iterable[sqlite3.Row]) -> _HostCalls:
    """Calls with whole numbers, as SQLite allows any value in any column."""
    calls = _HostCalls({}, [])
    for row in rows:
        start, end, correlation, thread = row["start"], row["end"], row["correlationId"], row["globalTid"]
        if not all(isinstance(number, int) for number in (start, end, correlation, thread)):
            continue
        calls.called_s[thread >> _PROCESS_BITS, correlation] = 1e-9 * start
        if WAIT_CALLS.search(str(row["name"])):
            calls.waits_s.append((1e-9 * start, 1e-9 * end))
    return calls


def _launch(row: sqlite3.Row, calls: _HostCalls, where: str) -> RecordedLaunch:
    """A launch. Each process numbers its own devices, so a device is named by both; older files lack the process.

    Raises InputError if its name is no text or its times are no numbers, as SQLite allows in any column.
    """
    columns = set(row.keys())
    process = row["globalPid"] if "globalPid" in columns else ""
    stream = row["streamId"] if "streamId" in columns else ""
    correlation = row["correlationId"] if "correlationId" in columns else None
    called_s = nan
    if isinstance(process, int) and isinstance(correlation, int):
        called_s = calls.called_s.get((process >> _PROCESS_BITS, correlation), nan)
    name, start, end = row["name"], row["start"], row["end"]
    if isinstance(start, int | float) and isinstance(end, int | float):
        device = f"{process}, {row['deviceId']}"
        launch = RecordedLaunch(
            device=device, name=name, start=1e-9 * start, duration=1e-9 * (end - start), stream=str(stream),
            called=called_s,
        )  # fmt: skip
        if launch.valid:
            return launch
    raise InputError(f"{where}: must have a name, start and end; got {quoted([name, start, end])}")
