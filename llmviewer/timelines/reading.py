"""Files of profilers: the launches of one device, or their sums."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

FORMATS: Final = (
    "a trace of torch.profiler (.json, .json.gz), or what `nsys stats --format csv --report cuda_gpu_trace` or "
    "`cuda_gpu_kern_sum` printed"
)
_RUN_ON_DEVICE: Final = (
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "memcpy",
    "memset",
)  # categories; older ones have capitals
_NAMED: Final = "gpu_user_annotation"  # what the host named, as long as it took on the device
_VLLM: Final = re.compile(r"context_(?P<reads>\d+)\([^)]*\)[ _]generation_(?P<writes>\d+)\(")
_SGLANG: Final = re.compile(r"step\[(?P<mode>\w+) bs=(?P<batch>\d+)")
_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "nsec": 1e-9, "usec": 1e-6, "msec": 1e-3}
_HEAD: Final = re.compile(r"(?P<name>.*?)(?: \((?P<unit>\w+)\))?$")
_CLOCK: Final = 1e-6  # to which times of a range and of the next one may differ [s]
_SKIPPED: Final = 100  # lines that may stand before the head of a table


@dataclass(frozen=True, kw_only=True)
class Step:
    """A pass as the engine named it: vLLM `execute_context_0(0)_generation_8(8)`, SGLang `step[DECODE bs=8]`.

    reads, writes  sequences whose prompts it reads, and that it writes a token of
    """

    start_s: float
    reads: int
    writes: int


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Launches of one device in the order in which they began.

    start_s, duration_s  one number each [s]
    steps                passes in their order, where the engine named them
    devices              in the file, of which this is the one with the most launches
    """

    names: tuple[str, ...] = field(repr=False)
    start_s: NDArray[np.float64] = field(repr=False)
    duration_s: NDArray[np.float64] = field(repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Kernels by name: launches, and the time of all of them. [s]"""

    names: tuple[str, ...] = field(repr=False)
    launches: NDArray[np.float64] = field(repr=False)
    total_s: NDArray[np.float64] = field(repr=False)


def read_timeline(path: Path) -> Launches | Sums:
    """What ran on a GPU.

    Raises InputError where the file is none of `FORMATS`, or nothing ran.
    """
    text = _text(path)
    found = _of_json(text, path) if text.lstrip()[:1] in ("{", "[") else _of_csv(text, path)
    if not found.names:
        raise InputError(f"{path}: nothing in it ran on a GPU; record CUDA activities")
    return found


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give the file of one rank") from None
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _of_json(text: str, path: Path) -> Launches:
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON that can be read, perhaps cut off: {error}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path}: has no traceEvents; must be {FORMATS}")
    events = [event for event in events if isinstance(event, dict)]
    return _launches(_events(events, _RUN_ON_DEVICE, path), _steps(_events(events, (_NAMED,), path)))


def _events(
    events: Iterable[dict[str, Any]], kinds: Sequence[str], path: Path
) -> Iterator[tuple[str, str, float, float]]:
    """(device, name, start, duration) of those of some kinds. [s]"""
    for event in events:
        if str(event.get("cat", "")).lower() not in kinds:
            continue
        given = event.get("args")
        device = given.get("device", event.get("pid")) if isinstance(given, dict) else event.get("pid")
        try:
            yield str(device), str(event["name"]), 1e-6 * float(event["ts"]), 1e-6 * float(event["dur"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path}: a {event['cat']} must have name, ts and dur; got {str(event)[:200]}") from None


def _steps(named: Iterable[tuple[str, str, float, float]]) -> tuple[Step, ...]:
    """One after another: of a range that is there for each of its streams, the first."""
    found: list[Step] = []
    until = -inf
    for _, name, start, taken in sorted(named, key=itemgetter(2)):
        step = _step(name, start)
        if step and start > until - _CLOCK:
            found.append(step)
            until = start + taken
    return tuple(found)


def _step(name: str, start: float) -> Step | None:
    if said := _VLLM.search(name):
        return Step(start_s=start, reads=int(said["reads"]), writes=int(said["writes"]))
    if said := _SGLANG.search(name):
        decodes, batch = said["mode"] == "DECODE", int(said["batch"])
        return Step(start_s=start, reads=0 if decodes else batch, writes=batch if decodes else 0)
    return None


def _of_csv(text: str, path: Path) -> Launches | Sums:
    lines = text.splitlines()
    for number, line in enumerate(lines[:_SKIPPED]):
        units = {m["name"]: m["unit"] for head in next(csv.reader([line]), ()) if (m := _HEAD.match(head.strip()))}
        if {"Name", "Start", "Duration"} <= units.keys():
            rows = _rows(lines[number:], path, ("Start", "Duration"))
            return _launches((row.get("Device", ""), row["Name"], start, taken) for row, (start, taken) in rows)
        if {"Name", "Total Time", "Instances"} <= units.keys():
            found = [
                (row["Name"], *numbers) for row, numbers in _rows(lines[number:], path, ("Total Time", "Instances"))
            ]
            names, totals, counts = zip(*found, strict=True) if found else ((), (), ())
            return Sums(names=names, launches=np.array(counts, float), total_s=np.array(totals, float))
    raise InputError(f"{path}: must be {FORMATS}")


def _rows(
    lines: Sequence[str], path: Path, wanted: Sequence[str]
) -> Iterator[tuple[dict[str, str], tuple[float, ...]]]:
    """Each row, without units in the names of its columns, and the numbers `wanted` of it. [s]"""
    head, *rows = csv.reader(line for line in lines if line.strip())
    columns = [_HEAD.match(name.strip()) for name in head]
    names = [column["name"] if column else "" for column in columns]
    scales = {c["name"]: _UNITS_S.get(c["unit"] or "", 1.0) for c in columns if c}
    for row in rows:
        said = dict(zip(names, row, strict=False))
        try:
            yield said, tuple(float(said[name].replace(",", "")) * scales[name] for name in wanted)
        except (KeyError, ValueError):
            raise InputError(f"{path}: {' and '.join(wanted)} must be numbers; got {','.join(row)[:200]}") from None


def _launches(found: Iterable[tuple[str, str, float, float]], steps: tuple[Step, ...] = ()) -> Launches:
    every = list(found)
    counts = Counter(device for device, *_ in every)
    busiest = max(counts, key=counts.__getitem__, default="")
    own = sorted((start, duration, name) for device, name, start, duration in every if device == busiest)
    start, duration, names = zip(*own, strict=True) if own else ((), (), ())
    return Launches(
        names=names, start_s=np.array(start, float), duration_s=np.array(duration, float), steps=steps,
        devices=len(counts),
    )  # fmt: skip
