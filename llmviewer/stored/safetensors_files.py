"""Headers of safetensors files: name, shape and type of every tensor; weights are not read.

https://github.com/huggingface/safetensors: eight bytes with the length of the header, and a JSON object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

from ..documents import MAX_EXACT_INTEGER, Section, path_exists, read_json
from ..errors import InputError
from ..precision import BF16, FP16, FP32, NAMED, Format
from .gguf_files import StoredTensor

_LONGEST: Final = 100_000_000  # bytes of a header; the library's limit
_INDEX: Final = "model.safetensors.index.json"
_SINGLE_FILE: Final = "model.safetensors"
_PART: Final = re.compile(r".*-\d+-of-\d+\.safetensors")
_DTYPES: Final = {
    "F64": NAMED["fp64"], "F32": FP32, "F16": FP16, "BF16": BF16, "F8_E4M3": NAMED["fp8_e4m3"],
    "F8_E5M2": NAMED["fp8_e5m2"], "F8_E8M0": Format("e8m0", 8, "table"), "F4": Format("fp4", 4, "fp4"),
    "I8": NAMED["int8"], **{name: Format(name.lower(), bits, "table") for name, bits in (
        ("U8", 8), ("BOOL", 8), ("I16", 16), ("U16", 16), ("I32", 32), ("U32", 32), ("I64", 64), ("U64", 64))},
}  # fmt: skip


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has the safetensors files of a whole model."""
    return (folder / _INDEX).is_file() or (folder / _SINGLE_FILE).is_file()


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of the checkpoint in a folder, from one file or those in its index.

    Raises InputError if a file is missing or invalid.
    """
    if not (folder / _INDEX).is_file():
        return read_safetensors(folder / _SINGLE_FILE)
    index = read_json(folder / _INDEX)
    files = index.section("weight_map")
    names = sorted({files.text(name) for name in files})
    for name in names:
        if Path(name).name != name:
            raise index.error("weight_map", f"must name files beside it; got {name!r}")
        if not path_exists(str(folder / name)):
            raise index.error("weight_map", f"names {name}, which is missing; download it, or give the config.json")
    return {name: tensor for file in names for name, tensor in read_safetensors(folder / file).items()}


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file.

    Raises InputError if its header is missing, truncated or invalid.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                mismatch = f"says that its header has {length} bytes and has {max(size - 8, 0)}"
                raise InputError(f"{path}: is no safetensors file, or is truncated: {mismatch}")
            if length > _LONGEST:
                raise InputError(f"{path}: header must have at most {_LONGEST} bytes; got {length}")
            header = file.read(length)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        data = json.loads(header)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is no safetensors file: its header is not JSON") from None
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: is no safetensors file: its header is no JSON object")
    section = Section(data, str(path))
    return {name: _tensor(section.section(name), name) for name in data if name != "__metadata__"}


def _tensor(part: Section, name: str) -> StoredTensor:
    fmt = _DTYPES[part.choice("dtype", _DTYPES)]
    shape: Any = part.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise part.error("shape", f"must be a list of whole numbers of at least 0; got {json.dumps(shape)}")
    if prod(shape) > MAX_EXACT_INTEGER:
        raise part.error("shape", f"must have at most {MAX_EXACT_INTEGER} elements; got {json.dumps(shape)}")
    return StoredTensor(name=name, shape=tuple(shape), format=fmt)


def folder_of(path: Path) -> Path:
    """The folder of a .safetensors file that is a whole checkpoint.

    Raises InputError if the file is one part of several, or has no config.json beside it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if _PART.fullmatch(path.name):
        raise InputError(f"{path}: is one part of a checkpoint; give its folder")
    if not (path.parent / "config.json").is_file():
        raise InputError(f"{path}: needs a config.json in the same folder")
    return path.parent
