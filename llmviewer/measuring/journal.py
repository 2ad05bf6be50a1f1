"""The journal of measurements: a file with one line per result, so that a kill loses none; and tables by family."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import InputError
from ..writing import write
from .ceilings import Ceiling

if TYPE_CHECKING:
    import pandas as pd

SCHEMA: Final = 1
_FILE: Final = "journal.jsonl"
_LOCK: Final = "journal.lock"
PassLaunches = tuple[tuple[str, ...], str]  # (kind of launches, tiling as text; "": the default)
_SHARED_PROPERTIES: Final = (
    "schema",
    "gpu",
    "device",
    "driver",
    "versions",
)  # properties that all rows of one folder share


class Journal:
    """A folder with the measurements of one machine and its libraries.

    Raises InputError if the folder cannot be created or written to, holds measurements of another machine or version,
    or is in use by another process.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.folder, self.path = folder, folder / _FILE
        self.rows: list[dict[str, Any]] = []
        self.ceilings: list[Ceiling] = []
        self.complete = False  # whether all ceilings were measured
        self.broken: set[PassLaunches] = set()  # launches after which the device was unusable
        self._tried: set[PassLaunches] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _lock(folder)
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
            complete_lines = [line for line in lines if line.endswith(b"\n")]  # a kill may have truncated the last one
            if len(complete_lines) < len(lines):
                self.path.write_bytes(b"".join(complete_lines))
            trying = self._read(complete_lines, header)
        except OSError as error:
            raise InputError(f"{folder}: must be a folder to write to: {error.strerror}") from None
        if not complete_lines:
            self._write("header", {key: header[key] for key in _SHARED_PROPERTIES})
        if trying:
            self.broke(*trying)

    def _read(self, lines: list[bytes], header: Mapping[str, Any]) -> PassLaunches | None:
        """The launch during whose first trial the process ended; None if there is none."""
        trying = None
        for number, line in enumerate(lines, 1):
            try:
                ((kind, entry),) = json.loads(line).items()
            except (ValueError, AttributeError):
                raise InputError(
                    f"{self.path}:{number}: is not a line of a journal; give another folder with -o"
                ) from None
            trying = None
            if kind == "header":
                for key in _SHARED_PROPERTIES:
                    if entry.get(key) != header[key]:
                        raise InputError(
                            f"{self.path}: holds measurements with {key} {_plain(entry.get(key))}, but this machine "
                            f"has {_plain(header[key])}; give another folder with -o"
                        )
            elif kind == "ceiling":
                self.ceilings.append(Ceiling(**entry))
            elif kind == "complete":
                self.complete = True
            elif kind == "broken":
                self.broken.add((tuple(entry["kind"]), entry["tiling"]))
            elif kind == "trying":
                trying = tuple(entry["kind"]), entry["tiling"]
                self._tried.add(trying)
            elif kind == "row":
                self.rows.append(entry)
        return trying

    def ceiling(self, one: Ceiling) -> None:
        self.ceilings.append(one)
        self._write("ceiling", asdict(one))

    def ceilings_complete(self) -> None:
        self.complete = True
        self._write("complete", {})

    def row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._write("row", row)

    @contextmanager
    def trying(self, kind: tuple[str, ...], tiling: str) -> Iterator[None]:
        """Records the first launch of a tiling before it starts: if it ends the process, it is not tried again."""
        if (kind, tiling) in self._tried:
            yield
            return
        self._tried.add((kind, tiling))
        self._write("trying", {"kind": kind, "tiling": tiling})
        try:
            yield
        finally:
            self._write("tried", {})

    def broke(self, kind: tuple[str, ...], tiling: str) -> None:
        """Records that such launches made the device unusable, so that they are not tried again."""
        self.broken.add((kind, tiling))
        self._write("broken", {"kind": kind, "tiling": tiling})

    def _write(self, kind: str, entry: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({kind: entry}) + "\n")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None

    def tables(self, suffix: str) -> list[Path]:
        """Writes all rows as .parquet or .csv, one file per family of kernels."""
        import pandas as pd

        families: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows:
            families[row["family"]].append(row)
        paths = []
        for family, rows in sorted(families.items()):
            path = self.folder / f"{family}{suffix}"
            write(path, partial(_fill, pd.DataFrame(rows), suffix))
            paths.append(path)
        return paths


def _lock(folder: Path) -> None:
    """Locks the folder until this process ends, as two would disturb each other's times; closing the file would unlock.

    Raises InputError if another process has locked it.
    """
    if sys.platform == "win32":
        return
    import fcntl

    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(file)
        raise InputError(
            f"{folder}: in use by another `llmviewer measure`; wait until it ends, as each would slow the other"
        ) from None
    except OSError:  # file systems without locks
        pass


def _fill(frame: pd.DataFrame, suffix: str, path: Path) -> None:
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else repr(value)
