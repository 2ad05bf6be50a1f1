"""Requests: arrival times, prompts and output lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .lengths import Lengths, Tokens
from .progress import Progress

Times = npt.NDArray[np.float64]

TRACE_BLOCK_TOKENS: Final = 512  # per hash_id of Mooncake's traces (arXiv:2407.00079; github.com/kvcache-ai/Mooncake)
_OUTPUT_STREAM: Final = 1  # with the seed, for random numbers other than those of arrivals and lengths


@frozen(kw_only=True)
class Traffic:
    """Requests in the order of their arrival.

    arrival_s  arrival, the first at 0 or later; inf in a closed loop until a client sends the request [s]
    prompt     input tokens of each
    gen        output tokens of each, the first of which comes with its prefill
    empty      rows of the trace file without output tokens, which are ignored
    later      requests of the trace file beyond the requested number
    cached     cached tokens of each prompt, if the trace file has them; if it names blocks, those of any prompt before
    blocks     names of the blocks of each prompt, of HASHED tokens each but for the last, if the trace file has them;
               prompts that are equal up to the end of a block have the same name there
    drafted    output tokens by pass, if a pass may give several
    in_flight  concurrency of a closed loop: as many arrive at 0, and each other request when one before it finishes
    """

    arrival_s: Times
    prompt: Tokens
    gen: Tokens
    empty: int = 0
    later: int = 0
    cached: Tokens | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None
    drafted: Progress | None = None
    in_flight: int | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate(self) -> float:
        """Mean arrival rate; inf if all arrive at once. [1/s]"""
        span = float(np.max(self.arrival_s))
        return len(self) / span if span > 0 else inf

    @property
    def repeated(self) -> float:
        """Share of prompt tokens in a prefix of an earlier prompt; nan without names of blocks."""
        if self.blocks is None or self.cached is None:
            return nan
        return float(np.sum(self.cached)) / float(np.sum(self.prompt))

    @property
    def progress(self) -> Progress:
        """Output tokens by pass."""
        return self.drafted or Progress.even(self.gen)

    @property
    def tokens_per_step(self) -> float:
        """Mean output tokens of a sequence per decode step; nan without decode steps."""
        steps = float(np.sum(self.progress.passes)) - len(self)
        return (float(np.sum(self.gen)) - len(self)) / steps if steps else nan

    def with_acceptance(self, leaves: Sequence[float], seed: int) -> Traffic:
        """Traffic whose passes give at least 1, 2, ... tokens with the probabilities `leaves`."""
        if len(leaves) == 1:
            return self
        generator = np.random.default_rng((seed, _OUTPUT_STREAM))
        return replace(self, drafted=Progress.drawn(self.gen, leaves, generator))

    def only(self, selection: npt.NDArray[np.intp]) -> Traffic:
        """A selection of the requests."""
        return Traffic(
            arrival_s=self.arrival_s[selection], prompt=self.prompt[selection], gen=self.gen[selection],
            cached=None if self.cached is None else self.cached[selection],
            blocks=self.blocks and tuple(self.blocks[place] for place in selection),
            drafted=self.drafted and self.drafted.only(selection),
            in_flight=self.in_flight and int(np.count_nonzero(selection < self.in_flight)),
        )  # fmt: skip


def poisson(*, rate: float, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator) -> Traffic:
    """Poisson arrivals, scaled to a mean rate of exactly `rate`, as one near the maximum could otherwise exceed it."""
    moments = np.cumsum(generator.exponential(size=requests))
    return Traffic(
        arrival_s=moments * (requests / rate / moments[-1]),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
    )


def closed_loop(
    *, in_flight: int, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator
) -> Traffic:
    """Requests of a closed loop of `in_flight` clients, each of which sends its next request when one finishes."""
    return Traffic(
        arrival_s=np.where(np.arange(requests) < in_flight, 0.0, inf),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
        in_flight=in_flight,
    )
