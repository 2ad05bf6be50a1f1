"""The load that a plan must serve."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf
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
