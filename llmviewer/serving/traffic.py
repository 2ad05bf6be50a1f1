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

HASHED: Final = 512  # tokens of a block in Mooncake's traces (arXiv:2407.00079; github.com/kvcache-ai/Mooncake)
_OUTPUT_STREAM: Final = 1  # with the seed, for random numbers other than those of arrivals and lengths


@frozen(kw_only=True)
class Traffic:
    """Requests in the order of their arrival.

    arrival_s  arrival, the first at 0 or later; inf in a closed loop until a client sends the request [s]
    prompt     input tokens of each
    gen        output tokens of each, the first of which comes with its prefill
    empty      rows of the trace file that generate nothing, and are left out
    later      requests of the trace file beyond the number that was wanted
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

    def leaving(self, leaves: Sequence[float], seed: int) -> Traffic:
        """The same with at least 1, 2, ... tokens per pass, at the probabilities `leaves`."""
        if len(leaves) == 1:
            return self
        generator = np.random.default_rng((seed, _OUTPUT_STREAM))
        return replace(self, drafted=Progress.drawn(self.gen, leaves, generator))

    def only(self, which: npt.NDArray[np.intp]) -> Traffic:
        """A selection of the requests."""
        return Traffic(
            arrival_s=self.arrival_s[which], prompt=self.prompt[which], gen=self.gen[which],
            cached=None if self.cached is None else self.cached[which],
            blocks=self.blocks and tuple(self.blocks[place] for place in which),
            drafted=self.drafted and self.drafted.only(which),
            in_flight=self.in_flight and int(np.count_nonzero(which < self.in_flight)),
        )  # fmt: skip


def poisson(*, rate: float, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator) -> Traffic:
    """`requests` that arrive at random in exactly the time of that many at `rate` per second: a rate near the maximum
    could otherwise be drawn beyond it.
    """
    moments = np.cumsum(generator.exponential(size=requests))
    return Traffic(
        arrival_s=moments * (requests / rate / moments[-1]),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
    )


def closed_loop(
    *, in_flight: int, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator
) -> Traffic:
    """`requests` of `in_flight` clients that each send the next when theirs is finished."""
    return Traffic(
        arrival_s=np.where(np.arange(requests) < in_flight, 0.0, inf),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
        in_flight=in_flight,
    )
