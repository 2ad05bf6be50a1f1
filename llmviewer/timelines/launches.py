"""The contents of a profiler's file for one device: launches in order, or sums by kernel name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field, replace
from functools import cached_property
from math import inf, nan
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..records import frozen
from ..units import counted

# vLLM: execute_context_2(512)_generation_8(8); newer ones precede it by the tokens of the pass and list in parentheses
# the sums of new tokens (sq) and of tokens attended to (sk), or new tokens and the sum of their squares.
_VLLM: Final = re.compile(
    r"context_(?P<reads>\d{1,9})\((?P<read>[^)]*)\)[ _]generation_(?P<writes>\d{1,9})\((?P<written>[^)]*)\)"
)
_SUMS: Final = re.compile(r"sq(?P<new>\d{1,15})sk(?P<seen>\d{1,15})sqsq")
_NEW: Final = re.compile(r"\d{1,15}")
_SGLANG: Final = re.compile(r"step\[(?P<mode>\w+) bs=(?P<batch>\d{1,9})(?: toks=(?P<tokens>\d{1,15}))?")
_MAX_TIME_S: Final = 1e12  # longest time and latest start [s]
_CLOCK_TOLERANCE_S: Final = 1e-6  # tolerance between the end of a range and the start of the next [s]


class Operands(NamedTuple):
    """Operands of a matrix product in torch.

    rows     rows of the activations
    weights  elements of the weight matrix; 0 if both operands are activations, as in eager attention
    dtype    data type of the activations
    call     number of the operator's call in the file: kernels of one call are one product
    """

    rows: int
    weights: int
    dtype: str
    call: int = -1


class RecordedLaunch(NamedTuple):
    """A kernel of a GPU, or an operator of a CPU with all that it calls.

    device            device; of operators, the thread
    start, duration   [s]
    operands          operands of a product with weights, if recorded
    stream            stream of the device
    called            when the host called for it; nan if not recorded [s]
    module            modules of torch around its call, as modules.modules_of() reads them; "" if not recorded
    """

    device: str
    name: str
    start: float
    duration: float
    operands: Operands | None = None
    stream: str = ""
    called: float = nan
    module: str = ""

    @property
    def valid(self) -> bool:
        """Whether the launch has a name and finite times, which damaged files lack."""
        return isinstance(self.name, str) and is_time(self.start, -_MAX_TIME_S) and is_time(self.duration)


def is_time(value: float, minimum_s: float = 0.0) -> bool:
    """Whether a time is a float from `minimum_s` on, so small that sums with it keep their digits. [s]"""
    return isinstance(value, float) and minimum_s <= value <= _MAX_TIME_S


@frozen(kw_only=True)
class RecordedSequences:
    """Sequences of one phase in a pass that the engine named.

    number  sequences
    new     new tokens of all of them; None if not named
    context_tokens  tokens that they attend to, new ones included, of all of them; None if not named
    """

    number: int
    new: int | None = None
    context_tokens: int | None = None

    def text(self, one: str) -> str:
        """The sequences in words, such as "9 prompts (8,155 tokens)"; `one` names one of them."""
        tokens = f" ({self.new:,} tokens)" if self.new and self.new != self.number else ""
        return f"{counted(self.number, one)}{tokens}"


@frozen(kw_only=True)
class EngineStep:
    """A pass named by the engine: vLLM `execute_context_0(0)_generation_8(8)`, SGLang `step[DECODE bs=8]`.

    prefills, decodes  its sequences by phase
    undivided          whether `prefills` are sequences of both phases, which the name does not divide
    """

    start_s: float
    prefills: RecordedSequences
    decodes: RecordedSequences
    undivided: bool = False

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of its sequences."""
        return ("prefill",) * bool(self.prefills.number) + ("decode",) * bool(self.decodes.number or self.undivided)

    def __str__(self) -> str:
        """The work of the pass, such as "9 prompts (8,155 tokens) and 37 decodes"."""
        named = (self.prefills, "mixed sequence" if self.undivided else "prompt"), (self.decodes, "decode")
        return " and ".join(sequences.text(one) for sequences, one in named if sequences.number) or "no sequences"


@frozen(kw_only=True)
class RecordedLaunches:
    """Launches of one device, by start.

    start_s, duration_s  one number per launch [s]
    operands             one per launch; None if not recorded
    modules              modules of torch around the call of each launch, as modules.modules_of() reads them; "" if not
                         recorded
    steps                passes in order, if the engine names them
    devices              devices in the file (of operators: threads); this is the one with most launches
    host                 whether launches are operators of a CPU
    streams              stream of each launch, as the profiler names it
    called_s             when the host called for each launch; nan if not recorded [s]
    waits_s              (start, end) of each call in which the host waited for a device, by start [s]
    rank                 rank of the device among those of the run, if the file has it
    device               name of the device in the file
    others               the other devices in the file, by name
    """

    names: tuple[str, ...] = field(repr=False)
    start_s: NDArray[np.float64] = field(repr=False)
    duration_s: NDArray[np.float64] = field(repr=False)
    operands: tuple[Operands | None, ...] = field(repr=False)
    modules: tuple[str, ...] = field(repr=False)
    steps: tuple[EngineStep, ...] = field(default=(), repr=False)
    devices: int = 1
    host: bool = False
    streams: tuple[str, ...] = field(default=(), repr=False)
    called_s: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    waits_s: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 2)), repr=False)
    rank: int | None = None
    device: str = ""
    others: tuple[RecordedLaunches, ...] = field(default=(), repr=False)

    @cached_property
    def ended_s(self) -> NDArray[np.float64]:
        """Time when each launch and all earlier ones have ended. [s]"""
        return np.maximum.accumulate(self.start_s + self.duration_s)

    @cached_property
    def pauses_s(self) -> NDArray[np.float64]:
        """Idle time before each launch; negative if an earlier launch still runs. [s]"""
        return np.concatenate(([0.0], self.start_s[1:] - self.ended_s[:-1]))


@frozen(kw_only=True)
class KernelSums:
    """Launches and total time by kernel name. [s]

    passes  number of passes, if the file has it
    """

    names: tuple[str, ...] = field(repr=False)
    launches: NDArray[np.float64] = field(repr=False)
    total_s: NDArray[np.float64] = field(repr=False)
    passes: int | None = None
    devices: int = 1
    host: bool = False


def of_busiest(
    launches: Iterable[RecordedLaunch],
    *,
    steps: tuple[EngineStep, ...] = (),
    host_waits: Iterable[tuple[float, float]] = (),
    host: bool = False,
    rank: int | None = None,
) -> RecordedLaunches:
    """The launches of the device with most of them, and of the others.

    host_waits  (start, end) of calls in which the host waited for a device [s]
    rank        rank of the device
    """
    by_device: dict[str, list[RecordedLaunch]] = {}
    for launch in launches:
        by_device.setdefault(launch.device, []).append(launch)
    waits_s = np.array(sorted(host_waits), float).reshape(-1, 2)

    def of_device(device: str) -> RecordedLaunches:
        ordered = sorted(by_device.get(device, ()), key=attrgetter("start", "duration", "name"))
        return RecordedLaunches(
            names=tuple(launch.name for launch in ordered),
            start_s=np.array([launch.start for launch in ordered], float),
            duration_s=np.array([launch.duration for launch in ordered], float),
            operands=tuple(launch.operands for launch in ordered),
            modules=tuple(launch.module for launch in ordered),
            steps=steps,
            devices=len(by_device),
            host=host,
            streams=tuple(launch.stream for launch in ordered),
            called_s=np.array([launch.called for launch in ordered], float),
            waits_s=waits_s,
            rank=rank,
            device=device,
        )

    busiest = max(by_device, key=lambda device: len(by_device[device]), default="")
    others = () if host else tuple(of_device(device) for device in sorted(by_device) if device != busiest)
    return replace(of_device(busiest), others=others)


def kernel_sums(rows: Iterable[tuple[str, float, float]], *, passes: int | None = None) -> KernelSums:
    """Collects (name, launches, total time) rows. [s]"""
    names, counts, totals = zip(*every, strict=True) if (every := list(rows)) else ((), (), ())
    return KernelSums(names=names, launches=np.array(counts, float), total_s=np.array(totals, float), passes=passes)


def steps_of(ranges: Iterable[RecordedLaunch]) -> tuple[EngineStep, ...]:
    """Passes named by the engine, in order; of ranges repeated for each stream or nested, the first one's start, and
    the name with most numbers.
    """
    steps: list[EngineStep] = []
    end_s = -inf
    for one in sorted(ranges, key=attrgetter("start")):
        step = parse_step(one.name, one.start)
        if step is None:
            continue
        if one.start > end_s - _CLOCK_TOLERANCE_S:
            steps.append(step)
            end_s = one.start + one.duration
        elif _num_token_counts(step) > _num_token_counts(steps[-1]):
            steps[-1] = replace(step, start_s=steps[-1].start_s)
    return tuple(steps)


def _num_token_counts(step: EngineStep) -> int:
    """Number of token counts that the name of a pass gives."""
    return sum(count is not None for each in (step.prefills, step.decodes) for count in (each.new, each.context_tokens))


def parse_step(name: str, start: float) -> EngineStep | None:
    """The pass that a range's name describes; None if it names none.

    start  when the range begins [s]
    """
    if match := _VLLM.search(name):
        return EngineStep(
            start_s=start, prefills=_sequences(match["reads"], match["read"]),
            decodes=_sequences(match["writes"], match["written"]),
        )  # fmt: skip
    if match := _SGLANG.search(name):
        tokens = None if match["tokens"] is None else int(match["tokens"])
        sequences, no_sequences = RecordedSequences(number=int(match["batch"]), new=tokens), RecordedSequences(number=0)
        decodes = match["mode"] == "DECODE"
        return EngineStep(
            start_s=start,
            prefills=no_sequences if decodes else sequences,
            decodes=sequences if decodes else no_sequences,
            undivided=match["mode"] == "MIXED",
        )
    return None


def _sequences(number: str, numbers: str) -> RecordedSequences:
    """Sequences of a phase, from what a name has in parentheses."""
    if match := _SUMS.match(numbers):
        return RecordedSequences(number=int(number), new=int(match["new"]), context_tokens=int(match["seen"]))
    first = _NEW.match(numbers)
    return RecordedSequences(number=int(number), new=int(first[0]) if first else None)
