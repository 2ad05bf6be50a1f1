"""The load that a plan must serve, and times of its steps on many devices at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from ..workload import Spans
from .markov_chain import Reading, held_up_s, reading
from .outcome import Goals
from .policy import POLICIES
from .progress import mean_passes
from .step_times import going_on

Grid = npt.NDArray[np.float64]  # [device, copies] or [device, copies, batch]

_GRIDS: Final = ("alone", "every", "one_by_one", "step", "unmodelled")
POLICY: Final = "prefill-first"  # whose closed form this is


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of every setting.

    known   tokens of each prompt that are there before it is read; `common` are those that all have in common
    leaves  how likely a step leaves at least 1, 2, ... tokens of a sequence that decodes
    width   tokens of each such sequence that a step takes
    disaggregated  whether prompts may be read on other devices than answers are written on
    """

    rate: float
    prompt: int
    gen: int
    known: float = 0.0
    common: float = 0.0
    leaves: tuple[float, ...] = (1.0,)
    width: int = 1
    disaggregated: bool = False
    goals: Goals
    limits: Grid
    max_devices: int
    years: float | None

    @property
    def writing(self) -> Load:
        """The same of copies that write answers alone, which keep to no time to first token."""
        return replace(self, goals=replace(self.goals, ttft_s=inf))

    @property
    def together(self) -> int:
        """Prompts that one step of a rank reads at most."""
        return max(int(POLICIES[POLICY].budget // self.new), 1)

    @property
    def new(self) -> float:
        """Tokens of each prompt that are to be read."""
        return self.prompt - self.known

    @cached_property
    def wanted(self) -> float:
        """Steps of each answer, on average."""
        return mean_passes(self.gen - 1, self.leaves)

    def going_on(self, batch: Grid) -> Spans:
        """What a step has of sequences that decode, in the middle of their answers."""
        return going_on(self.width, batch, self.middle)

    @property
    def middle(self) -> float:
        """What a sequence that decodes attends to on average. [tokens]"""
        return self.prompt + self.gen / 2


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """A step that reads one prompt in one lane, and for each of as many prompts as one reads at most, [device]; a
    decode step, [device, batch]. [s]

    one_by_one  for each of prompts of which a step of a lane reads one, and nobody decodes, [device]
    unmodelled  as of Candidate
    ranks       of a copy that wait for each other in every step, each with sequences of its own
    turns       of each rank in a pipeline, likewise; all of them are lanes
    apart       of a copy, sets of such ranks
    together    prompts that one step of all these lanes reads at most
    """

    alone: Grid
    every: Grid
    one_by_one: Grid
    step: Grid
    unmodelled: Grid
    ranks: int
    turns: int
    apart: int
    together: int

    @classmethod
    def unknown(cls, devices: int, batches: int, *, ranks: int, turns: int, apart: int, together: int) -> StepTimes:
        """To be filled in.

        together  of one lane
        """
        alone, every, one_by_one, unmodelled = np.full((4, devices), nan)
        return cls(
            alone=alone, every=every, one_by_one=one_by_one, step=np.full((devices, batches), nan),
            unmodelled=unmodelled, ranks=ranks, turns=turns, apart=apart, together=ranks * turns * together,
        )  # fmt: skip

    @property
    def lanes(self) -> int:
        return self.ranks * self.turns

    @property
    def writing(self) -> StepTimes:
        """The same where prompts are read elsewhere: steps decode alone, and no lane waits for what another reads."""
        none = np.zeros(self.alone.shape)
        return replace(self, alone=none, every=none, one_by_one=none, ranks=1, turns=1, together=1)

    def only(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> StepTimes:
        return replace(self, **{name: getattr(self, name)[list(rows)] for name in _GRIDS})

    def held_up(self, step: Grid) -> Grid:
        """A step that reads one prompt where those that decode alone take `step`, [device, ...]. [s]"""
        return held_up_s(self.alone.reshape(-1, *[1] * (np.ndim(step) - 1)), step, self.turns)

    def reading(self, rate: Grid, step: Grid) -> Reading:
        """Steps that read, where requests come at such rates and steps that decode alone take `step`, [device, ...]."""
        every = self.every.reshape(-1, *[1] * (np.ndim(rate) - 1))
        return reading(rate, self.held_up(step), every, step, self.together)
