"""What a file of a profiler has of one device: its launches in their order, or their sums by name."""

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
_CLOCK: Final = 1e-6  # to which times of a range and of the next one may differ [s]


class Operands(NamedTuple):
    """Of a matrix product, as torch calls it: rows multiplied, numbers in the other matrix, data type of the rows."""

    rows: int
    weights: int
    dtype: str


class Launch(NamedTuple):
    """A kernel of a GPU, or an operator of a CPU with all that it calls.

    device            that it ran on; of operators the thread
    start, duration   [s]
    operands          of a product with weights, where they are recorded
    """

    device: str
    name: str
    start: float
    duration: float
    operands: Operands | None = None


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
    operands             one each; None where they are not recorded
    steps                passes in their order, where the engine named them
    devices              in the file, of which this is the one with the most launches; of operators threads
    host                 whether they are operators of a CPU
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
    """Kernels by name: launches, and the time of all of them. [s]

    passes  that they are of, where the file says so
    """

    names: tuple[str, ...] = field(repr=False)
    launches: NDArray[np.float64] = field(repr=False)
    total_s: NDArray[np.float64] = field(repr=False)
    passes: int | None = None
    devices: int = 1
    host: bool = False


def of_busiest(found: Iterable[Launch], *, steps: tuple[Step, ...] = (), host: bool = False) -> Launches:
    """The launches of the device that has the most."""
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
    """Of names, launches and times of all of them. [s]"""
    names, counts, totals = zip(*every, strict=True) if (every := list(found)) else ((), (), ())
    return Sums(names=names, launches=np.array(counts, float), total_s=np.array(totals, float), passes=passes)


def steps_of(named: Iterable[Launch]) -> tuple[Step, ...]:
    """Ranges that an engine named, one after another: of one that is there for each of its streams, the first."""
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
