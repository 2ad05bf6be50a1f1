"""The load that a plan must serve, and times of its steps on many devices at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from ..records import frozen
from ..workload import Spans
from .outcome import Goals
from .policy import POLICIES
from .progress import mean_passes
from .step_times import decoding_group

Grid = npt.NDArray[np.float64]  # [device, copies] or [device, copies, batch]

_BY_DEVICE: Final = ("single_prefill", "packed_prefill", "serial_prefill", "step", "unmodelled")
POLICY: Final = "prefill-first"  # the scheduling policy of plans


@frozen(kw_only=True)
class Load:
    """The requests that every setting must serve.

    cached_tokens  cached tokens of each prompt; `shared_prefix_tokens` of them are a prefix that all prompts share
    acceptance_probabilities  probability that a decode step gives at least 1, 2, ... tokens of a sequence
    width   tokens of each sequence in a decode step
    disaggregated  whether prefills may run on other devices than decode steps
    """

    rate: float
    prompt: int
    gen: int
    cached_tokens: float = 0.0
    shared_prefix_tokens: float = 0.0
    acceptance_probabilities: tuple[float, ...] = (1.0,)
    width: int = 1
    disaggregated: bool = False
    goals: Goals
    limits: Grid
    max_devices: int
    years: float | None

    @property
    def writing(self) -> Load:
        """The load of copies that only decode, without a goal for the time to first token."""
        return replace(self, goals=replace(self.goals, ttft_s=inf))

    @property
    def max_prompts(self) -> int:
        """Maximum prompts that one step of a rank prefills."""
        return max(int(POLICIES[POLICY].budget // self.new), 1)

    @property
    def new(self) -> float:
        """Uncached tokens of each prompt."""
        return self.prompt - self.cached_tokens

    @cached_property
    def decode_steps(self) -> float:
        """Mean decode steps of a request."""
        return mean_passes(self.gen - 1, self.acceptance_probabilities)

    def decoding_group(self, batch: Grid) -> Spans:
        """Decoding sequences of a step, in the middle of their outputs."""
        return decoding_group(self.width, batch, self.middle)

    @property
    def tokens(self) -> int:
        """Tokens of a request at its end, with those that are drafted."""
        return self.prompt + self.gen + self.width - 1

    @property
    def middle(self) -> float:
        """Mean context of a decoding sequence. [tokens]"""
        return self.prompt + self.gen / 2


@frozen(kw_only=True)
class StepTimes:
    """Times of steps, [device]; of decode steps, [device, batch]. [s]

    A lane is a running batch: that of a rank or, in a pipeline, of one of its micro-batches.

    single_prefill  a step in which one lane prefills one prompt
    packed_prefill  of each prompt, in a step with as many as it takes
    serial_prefill  of each prompt, where lanes prefill one at a time and no sequence decodes
    step            a step that only decodes
    unmodelled      share of decode steps for which only a bound is known
    ranks           of a copy that wait for each other in every step, each with its own sequences
    micro_batches   micro-batches of each rank in a pipeline
    rank_sets       sets of such ranks in a copy
    max_prompts     maximum prompts of one step of all these lanes
    """

    single_prefill: Grid
    packed_prefill: Grid
    serial_prefill: Grid
    step: Grid
    unmodelled: Grid
    ranks: int
    micro_batches: int
    rank_sets: int
    max_prompts: int

    @classmethod
    def unknown(
        cls, devices: int, batches: int, *, ranks: int, micro_batches: int, rank_sets: int, max_prompts: int
    ) -> StepTimes:
        """Times to be filled in.

        max_prompts  maximum prompts of one step of a lane
        """
        single_prefill, packed_prefill, serial_prefill, unmodelled = np.full((4, devices), nan)
        return cls(
            single_prefill=single_prefill, packed_prefill=packed_prefill, serial_prefill=serial_prefill,
            step=np.full((devices, batches), nan), unmodelled=unmodelled, ranks=ranks, micro_batches=micro_batches,
            rank_sets=rank_sets, max_prompts=ranks * micro_batches * max_prompts,
        )  # fmt: skip

    @property
    def lanes(self) -> int:
        return self.ranks * self.micro_batches

    @property
    def writing(self) -> StepTimes:
        """The same with prefills on other devices: all steps only decode, and no lane waits for another's prefill."""
        zeros = np.zeros(self.single_prefill.shape)
        return replace(
            self,
            single_prefill=zeros,
            packed_prefill=zeros,
            serial_prefill=zeros,
            ranks=1,
            micro_batches=1,
            max_prompts=1,
        )

    def only(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> StepTimes:
        return replace(self, **{name: getattr(self, name)[list(rows)] for name in _BY_DEVICE})
