"""Files of profilers, by what they begin with."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

from ..errors import InputError
from .databases import MAGIC, of_database
from .launches import Launches, Sums
from .layerwise import is_layerwise, of_layerwise
from .tables import of_table
from .traces import of_trace

FORMATS: Final = (
    "a trace of torch.profiler (.json, .json.gz), what `nsys export --type sqlite` wrote, what `nsys stats --format "
    "csv --report cuda_gpu_trace` or `cuda_gpu_kern_sum` printed, kernel_trace.csv or kernel_stats.csv of rocprofv3, "
    "or a profile of vLLM's layers (.json)"
)


def read_timeline(path: Path, phase: str) -> Launches | Sums:
    """What ran on a GPU, or the operators of a CPU where nothing did.

    phase  "prefill" or "decode", which some files have apart

    Raises InputError where the file is none of `FORMATS`, or nothing ran.
    """
    found = _read(path, phase)
    if not found.names:
        raise InputError(f"{path}: nothing in it ran; record CUDA activities, or CPU activities of a CPU")
    return found


def _read(path: Path, phase: str) -> Launches | Sums:
    raw = _bytes(path)
    if raw.startswith(MAGIC):
        return of_database(path)
    text = raw.decode("utf-8-sig", errors="replace")
    if text.lstrip()[:1] in ("{", "["):
        return _of_json(text, path, phase)
    found = of_table(text, path)
    if found is None:
        raise InputError(f"{path}: must be {FORMATS}")
    return found


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give the file of one rank") from None
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _of_json(text: str, path: Path, phase: str) -> Launches | Sums:
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON that can be read, perhaps cut off: {error}") from None
    if is_layerwise(document):
        return of_layerwise(document, path, phase)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path}: has no traceEvents; must be {FORMATS}")
    return of_trace(events, path)
