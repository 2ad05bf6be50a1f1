"""Reads files of profilers, whose format is recognized by their beginning."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from ..documents import check_file
from ..errors import InputError
from .databases import MAGIC, of_database
from .launches import KernelSums, RecordedLaunches
from .layerwise import is_layerwise, of_layerwise
from .tables import of_table
from .traces import of_trace

FORMATS: Final = (
    "a trace of torch.profiler (.json, .json.gz), what `nsys export --type sqlite` wrote, what `nsys stats --format "
    "csv --report cuda_gpu_trace` or `cuda_gpu_kern_sum` printed, kernel_trace.csv or kernel_stats.csv of rocprofv3, "
    "or a profile of vLLM's layers (.json)"
)
_GZIP: Final = b"\x1f\x8b"
_NAMED: Final = re.compile(r'"traceEvents"\s*:\s*\[')
_LIST: Final = re.compile(r"\s*\[")  # a list of events at top level
_GAP: Final = re.compile(r"[\s,]*")  # between events
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of text that PowerShell writes
_PIECE: Final = 2**22  # bytes read at a time
_LARGER_FILE_HINT: Final = "--max-bytes reads larger files"
MAX_UNPACKED: Final = 2**30  # default limit of unpacked files: traces of some minutes of a GPU are smaller [B]


def read_timeline(path: Path, phase: str, *, max_bytes: int = MAX_UNPACKED) -> RecordedLaunches | KernelSums:
    """Launches on a GPU, or operators of a CPU if there are none.

    phase  "prefill" or "decode", which some files separate
    most   largest size of the unpacked file [B]

    Raises InputError if the file is none of `FORMATS`, is larger, or has no launches.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            return _read(file, path, phase, max_bytes, database=path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give the file of one rank") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def parse_timeline(data: bytes, name: str, phase: str, *, max_bytes: int) -> RecordedLaunches | KernelSums:
    """The same of the contents of a file, which `name` names in errors. No file is read."""
    return _read(io.BytesIO(data), Path(name), phase, max_bytes, database=data)


def _read(
    file: BinaryIO, path: Path, phase: str, max_bytes: int, database: Path | bytes
) -> RecordedLaunches | KernelSums:
    """The launches in an opened file.

    path      names the file in errors
    database  the file, or its contents, in case it is a database
    """
    head = file.read(len(MAGIC))
    file.seek(0)
    if head == MAGIC:
        recording: RecordedLaunches | KernelSums = of_database(database, path)
    else:
        unpacked = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if head.startswith(_GZIP) else file
        recording = _of_text(_bytes(unpacked, path, max_bytes), path, phase)
    if not recording.names:
        raise InputError(f"{path}: has no kernel that ran; record CUDA activities, or CPU activities of a CPU")
    return recording


def _of_text(raw: bytearray, path: Path, phase: str) -> RecordedLaunches | KernelSums:
    text = raw.decode("utf-16" if raw.startswith(_UTF16) else "utf-8-sig", errors="replace")
    del raw
    if not text.strip():
        raise InputError(f"{path}: is empty; must be {FORMATS}")
    if text.lstrip()[:1] in ("{", "["):
        return _of_json(text, path, phase)
    recording = of_table(text, path)
    if recording is None:
        raise InputError(f"{path}: must be {FORMATS}")
    return recording


def _bytes(file: BinaryIO, path: Path, max_bytes: int) -> bytearray:
    """The bytes of a file, of which a small one can unpack to very many."""
    raw = bytearray()
    try:
        while piece := file.read(_PIECE):
            raw += piece
            if len(raw) > max_bytes:
                raise InputError(f"{path}: must have at most {max_bytes:,} bytes, unpacked", hint=_LARGER_FILE_HINT)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    return raw


def _of_json(text: str, path: Path, phase: str) -> RecordedLaunches | KernelSums:
    named = _NAMED.search(text) or _LIST.match(text)
    try:
        if named:
            return of_trace(_events(text, named.end()), path)
        document = json.loads(text)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON, perhaps cut off: {error}") from None
    if is_layerwise(document):
        return of_layerwise(document, path, phase)
    raise InputError(f"{path}: has no traceEvents; must be {FORMATS}")


def _events(text: str, start: int) -> Iterator[Any]:
    """Parses a list of events one by one, as all at once take many times the memory of the text."""
    decode, position = json.JSONDecoder().raw_decode, _after_gap(text, start)
    while text[position : position + 1] != "]":
        event, end = decode(text, position)
        yield event
        position = _after_gap(text, end)


def _after_gap(text: str, position: int) -> int:
    match = _GAP.match(text, position)
    return match.end() if match else position
