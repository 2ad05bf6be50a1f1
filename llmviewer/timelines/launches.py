"""The contents of a profiler's file for one device: launches in order, or sums by kernel name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_VLLM: Final = re.compile(r"context_(?P<reads>\d+)\([^)]*\)[ _]generation_(?P<writes>\d+)\(")
_SGLANG: Final = re.compile(r"step\[(?P<mode>\w+) bs=(?P<batch>\d+)")
_LONGEST_S: Final = 1e12  # longest time and latest start [s]
_CLOCK: Final = 1e-6  # tolerance between the end of a range and the start of the next [s]


class Operands(NamedTuple):
    """Operands of a matrix product in torch: rows, elements of the weight matrix, and data type of the rows."""

    rows: int
    weights: int
    dtype: str


class Launch(NamedTuple):
    """A kernel of a GPU, or an operator of a CPU with all that it calls.

    device            device; of operators, the thread
    start, duration   [s]
    operands          operands of a product with weights, if recorded
    """

    device: str
    name: str
    start: float
    duration: float
    operands: Operands | None = None

    @property
    def valid(self) -> bool:
        """Whether it has a name and finite times, as damaged files do not."""
        return isinstance(self.name, str) and is_time(self.start, -_LONGEST_S) and is_time(self.duration)


def is_time(value: float, least: float = 0.0) -> bool:
    """Whether a time is a number from `least` on that leaves the others their digits. [s]"""
    return isinstance(value, float) and least <= value <= _LONGEST_S


@dataclass(frozen=True, kw_only=True)
class Step:
    """A pass named by the engine: vLLM `execute_context_0(0)_generation_8(8)`, SGLang `step[DECODE bs=8]`.

    reads, writes  number of sequences in prefill and in decode
    """

    start_s: float
    reads: int
    writes: int


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Launches of one device, by start.

    start_s, duration_s  one number per launch [s]
    operands             one per launch; None if not recorded
    steps                passes in order, if the engine names them
    devices              devices in the file (of operators: threads); this is the one with most launches
    host                 whether launches are operators of a CPU
    """

    names: tuple[str, ...] = field(repr=False)
    start_s: NDArray[np.float64] = field(repr=False)
    duration_s: NDArray[np.float64] = field(repr=False)
    operands: tuple[Operands | None, ...] = field(repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)
    devices: int = 1
    host: bool = False


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Launches and total time by kernel name. [s]

    passes  number of passes, if the file has it
    """

    names: tuple[str, ...] = field(repr=False)
    launches: NDArray[np.float64] = field(repr=False)
    total_s: NDArray[np.float64] = field(repr=False)
    passes: int | None = None
    devices: int = 1
    host: bool = False


def of_busiest(found: Iterable[Launch], *, steps: tuple[Step, ...] = (), host: bool = False) -> Launches:
    """The launches of the device with most of them."""
    every = list(found)
    counts = Counter(launch.device for launch in every)
    busiest = max(counts, key=counts.__getitem__, default="")
    own = sorted((one for one in every if one.device == busiest), key=attrgetter("start", "duration", "name"))
    return Launches(
        names=tuple(one.name for one in own), start_s=np.array([one.start for one in own], float),
        duration_s=np.array([one.duration for one in own], float), operands=tuple(one.operands for one in own),
        steps=steps, devices=len(counts), host=host,
    )  # fmt: skip


def sums(found: Iterable[tuple[str, float, float]], *, passes: int | None = None) -> Sums:
    """Sums from (name, launches, total time). [s]"""
    names, counts, totals = zip(*every, strict=True) if (every := list(found)) else ((), (), ())
    return Sums(names=names, launches=np.array(counts, float), total_s=np.array(totals, float), passes=passes)


def steps_of(named: Iterable[Launch]) -> tuple[Step, ...]:
    """Passes named by the engine, in order; of ranges repeated for each stream, the first one."""
    found: list[Step] = []
    until = -inf
    for one in sorted(named, key=attrgetter("start")):
        step = _step(one.name, one.start)
        if step and one.start > until - _CLOCK:
            found.append(step)
            until = one.start + one.duration
    return tuple(found)


def _step(name: str, start: float) -> Step | None:
    if said := _VLLM.search(name):
        return Step(start_s=start, reads=int(said["reads"]), writes=int(said["writes"]))
    if said := _SGLANG.search(name):
        decodes, batch = said["mode"] == "DECODE", int(said["batch"])
        return Step(start_s=start, reads=0 if decodes else batch, writes=batch if decodes else 0)
    return None
