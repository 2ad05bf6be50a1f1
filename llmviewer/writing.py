"""Atomic writing of files: under a temporary name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .errors import InputError


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Calls `fill` with a temporary path in the same folder and renames that to `path`.

    Raises InputError if the file cannot be written; an existing file then stays, and no temporary file does.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file to write to")
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}{path.suffix}")
    try:  # tempfile creates files that only their owner can read
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        fill(temporary)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file in UTF-8, as a whole or not at all.

    Raises InputError if it cannot be written.
    """
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
