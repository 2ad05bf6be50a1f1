"""Headers of GGUF files: metadata, and name, shape and type of every tensor; weights are not read.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

from ..documents import MAX_EXACT_INTEGER, Section, check_file
from ..errors import InputError
from ..ggml import TYPES
from ..precision import Format
from ..records import frozen

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_VERSIONS: Final = (2, 3)
_DIMENSIONS: Final = 4
_MAX_ARRAY_ITEMS: Final = 4096  # largest array that is kept: for lists of layers, not vocabularies


@frozen(kw_only=True)
class StoredTensor:
    """A tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    format: Format

    @property
    def numel(self) -> int:
        return prod(self.shape)


@frozen(kw_only=True)
class Gguf:
    """The header of a file."""

    metadata: Section
    tensors: Mapping[str, StoredTensor]


def read_gguf(path: Path) -> Gguf:
    """The header of the file at `path`.

    Raises InputError if it is no GGUF file, is truncated, or has impossible values.
    """
    check_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _ByteReader(data, str(path)).header()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give a file") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: must be a GGUF file; it is empty") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


class _ByteReader:
    """Reads the bytes in order, never past the end."""

    def __init__(self, data: mmap.mmap, file: str) -> None:
        self.data, self.file, self.at = data, file, 0

    def header(self) -> Gguf:
        if self.data[:4] != b"GGUF":
            raise InputError(f"{self.file}: must be a GGUF file; it begins with {self.data[:4]!r}")
        self.at = 4
        version = self.number("I")
        if version not in _VERSIONS:
            fault = "is big-endian" if version & 0xFFFF == 0 else f"is of version {version}"
            raise InputError(f"{self.file}: {fault}; must be GGUF version 2 or 3, little-endian")
        tensors, pairs = self.count("tensors", 24), self.count("metadata entries", 13)
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self.text()
            metadata[key] = self.value(self.number("I"))
        stored_tensors = (self.tensor() for _ in range(tensors))
        return Gguf(metadata=Section(metadata, self.file), tensors={t.name: t for t in stored_tensors})

    def take(self, size: int) -> int:
        """The offset of the next `size` bytes, which are then consumed."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise InputError(f"{self.file}: is truncated in its header, after {len(self.data)} bytes")
        return start

    def number(self, code: str) -> Any:
        return struct.unpack_from(f"<{code}", self.data, self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, items: str, item_bytes: int) -> int:
        """The next number, a count of items of at least `item_bytes` bytes each."""
        number: int = self.number("Q")
        if number * item_bytes > len(self.data):
            raise InputError(f"{self.file}: has {len(self.data)} bytes, too few for {number} {items}")
        return number

    def text(self) -> str:
        size = self.count("bytes of a text", 1)
        start = self.take(size)
        return self.data[start : start + size].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise InputError(f"{self.file}: has metadata of type {kind}, which is no GGUF type")
        inner = self.number("I")
        if inner == _TEXT:
            for _ in range(self.count("texts", 8)):
                self.take(self.count("bytes of a text", 1))
            return "texts"
        if inner not in _SCALARS:
            raise InputError(f"{self.file}: has an array of type {inner}, which is not supported")
        size = struct.calcsize(f"<{_SCALARS[inner]}")
        entries = self.count("entries of an array", size)
        start = self.take(entries * size)
        return (
            list(struct.unpack_from(f"<{entries}{_SCALARS[inner]}", self.data, start))
            if entries < _MAX_ARRAY_ITEMS
            else "many"
        )

    def tensor(self) -> StoredTensor:
        name = self.text()
        dimensions = self.number("I")
        if not 1 <= dimensions <= _DIMENSIONS:
            raise InputError(f"{self.file}: tensor {name!r} must have 1 to {_DIMENSIONS} dimensions; got {dimensions}")
        shape = tuple(self.number("q") for _ in range(dimensions))
        if min(shape) < 1 or prod(shape) > MAX_EXACT_INTEGER:
            raise InputError(f"{self.file}: tensor {name!r} has the impossible shape {list(shape)}")
        kind = self.number("I")
        self.number("Q")
        if kind not in TYPES:
            raise InputError(f"{self.file}: tensor {name!r} has the unknown type {kind}")
        block, fmt = TYPES[kind].elements, TYPES[kind].format
        if shape[0] % block:
            raise InputError(
                f"{self.file}: tensor {name!r} has rows of {shape[0]}, no multiple of the {block} of {fmt}"
            )
        return StoredTensor(name=name, shape=shape, format=fmt)
