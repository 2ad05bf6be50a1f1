"""Reads files of profilers, whose format is recognized by their beginning."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast

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
_RANK: Final = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\b')
_PIECE: Final = 2**22  # bytes read at a time
_MAX_EVENT_CHARS: Final = 2**26  # characters of an event, which is parsed anew whenever some of it is missing
_LARGER_FILE_HINT: Final = "--max-bytes reads larger files"
MAX_UNPACKED: Final = 2**30  # default limit of unpacked files: traces of some minutes of a GPU are smaller [B]

Progress: TypeAlias = Callable[[int, int], None]  # is given the bytes read of a file and its size


def read_timeline(
    path: Path, phase: str, *, max_bytes: int = MAX_UNPACKED, progress: Progress | None = None
) -> RecordedLaunches | KernelSums:
    """Launches on a GPU, or operators of a CPU if there are none.

    phase      "prefill" or "decode", which some files separate
    max_bytes  largest size of the unpacked file [B]
    progress   is called after each piece of the file

    Raises InputError if the file is none of `FORMATS`, is larger, or has no launches.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            on_read = (lambda: progress(file.tell(), size)) if progress else lambda: None
            return _read(file, path, phase, max_bytes=max_bytes, database=path, on_read=on_read)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give the file of one rank") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def parse_timeline(data: bytes, name: str, phase: str, *, max_bytes: int) -> RecordedLaunches | KernelSums:
    """The same of the contents of a file, which `name` names in errors. No file is read."""
    return _read(io.BytesIO(data), Path(name), phase, max_bytes=max_bytes, database=data)


def _read(
    file: BinaryIO,
    path: Path,
    phase: str,
    *,
    max_bytes: int,
    database: Path | bytes,
    on_read: Callable[[], None] = lambda: None,
) -> RecordedLaunches | KernelSums:
    """The launches in an opened file.

    path      names the file in errors
    database  the file, or its contents, in case it is a database
    on_read   is called after each piece
    """
    head = file.read(len(MAGIC))
    file.seek(0)
    if head == MAGIC:
        recording: RecordedLaunches | KernelSums = of_database(database, path)
    else:
        unpacked = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if head.startswith(_GZIP) else file
        recording = _of_text(_Text(_pieces(unpacked, path, max_bytes, on_read)), path, phase)
    if not recording.names:
        raise InputError(f"{path}: has no kernel that ran; record CUDA activities, or CPU activities of a CPU")
    return recording


class _Text:
    """The text of a file, of which as much is in memory as was read and is not parsed.

    window    text from `consumed` characters on
    position  place in the window up to which it is parsed
    """

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self.window, self.position, self.consumed = "", 0, 0

    def extend(self) -> bool:
        """Reads as much as is not parsed, at least a piece, and drops what is; False at the end of the file."""
        unparsed = self.window[self.position :]
        pieces = [unparsed]
        size = 0
        while size <= len(unparsed) and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            size += len(piece)
        if not size:
            return False
        self.window = "".join(pieces)
        self.consumed, self.position = self.consumed + self.position, 0
        return True

    def rest(self) -> str:
        """All text that is not parsed."""
        pieces = [self.window[self.position :], *self._pieces]
        self.window, self.position = "", 0
        return "".join(pieces)


def _pieces(file: BinaryIO, path: Path, max_bytes: int, on_read: Callable[[], None]) -> Iterator[str]:
    """The text of a file, piece by piece; a small file can unpack to very many.

    Raises InputError if it has more than `max_bytes` or is damaged.
    """
    decoder: codecs.IncrementalDecoder | None = None
    size = 0
    try:
        while raw := file.read(_PIECE):
            size += len(raw)
            if size > max_bytes:
                raise InputError(f"{path}: must have at most {max_bytes:,} bytes, unpacked", hint=_LARGER_FILE_HINT)
            encoding = "utf-16" if raw.startswith(_UTF16) else "utf-8-sig"
            decoder = decoder or codecs.getincrementaldecoder(encoding)(errors="replace")
            on_read()
            yield decoder.decode(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _of_text(text: _Text, path: Path, phase: str) -> RecordedLaunches | KernelSums:
    while not text.window.strip():
        text.position = len(text.window)
        if not text.extend():
            raise InputError(f"{path}: is empty; must be {FORMATS}")
    if text.window.lstrip()[:1] in ("{", "["):
        return _of_json(text, path, phase)
    recording = of_table(text.rest(), path)
    if recording is None:
        raise InputError(f"{path}: must be {FORMATS}")
    return recording


def _of_json(text: _Text, path: Path, phase: str) -> RecordedLaunches | KernelSums:
    try:
        events = _LIST.match(text.window)
        while events is None:
            events = _NAMED.search(text.window)
            if events is None and not text.extend():
                return _of_document(json.loads(text.window), path, phase)
        rank = _RANK.search(text.window, 0, events.start())
        text.position = events.end()
        return of_trace(_events(text), path, rank=int(rank[1]) if rank else None)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, character {text.consumed + error.pos:,}"
        raise InputError(f"{path}: is not valid JSON, perhaps cut off: {reason}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON, perhaps cut off: {error}") from None


def _of_document(document: Any, path: Path, phase: str) -> KernelSums:
    """The sums in a JSON document without events."""
    if is_layerwise(document):
        return of_layerwise(document, path, phase)
    raise InputError(f"{path}: has no traceEvents; must be {FORMATS}")


def _events(text: _Text) -> Iterator[Any]:
    """Parses a list of events one by one, as all at once take many times the memory of the text."""
    decode = json.JSONDecoder().raw_decode
    while True:
        match = _GAP.match(text.window, text.position)
        text.position = match.end() if match else text.position
        if text.window[text.position : text.position + 1] == "]":
            return
        try:
            event, end = decode(text.window, text.position)
        except json.JSONDecodeError:
            if len(text.window) - text.position > _MAX_EVENT_CHARS or not text.extend():
                raise
            continue
        text.position = end
        yield event
