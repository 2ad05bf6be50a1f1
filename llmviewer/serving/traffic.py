"""Requests: arrival times, prompts and lengths of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from .lengths import Lengths, Tokens
from .progress import Progress

Times = npt.NDArray[np.float64]

HASHED: Final = 512  # tokens of a block in Mooncake's traces (arXiv:2407.00079; github.com/kvcache-ai/Mooncake)
_DRAWN: Final = 1  # beside the seed, for what is drawn of answers: others than arrivals and lengths


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests in the order of their arrival.

    arrival_s  when each arrives, the first at 0 or later; inf while that is not known, in a closed loop [s]
    prompt     tokens that each brings
    gen        tokens that are written for each, of which its prefill gives the first
    empty      rows of the file that generate nothing, and are not among them
    later      requests of the file that come after these, of which no more were asked for
    cached     tokens of each prompt that are in a cache before it is read, where a file says so; where it names blocks,
               those that any prompt before it had
    blocks     their names, of HASHED tokens each, the last of a prompt maybe fewer, where a file has them: prompts that
               are alike up to the end of one have the same
    drafted    how their answers grow, where a pass may give several tokens
    in_flight  of a closed loop: so many come at 0, and each other one when one before it is answered
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
        """Requests over the time in which they arrive; inf where all come at once. [1/s]"""
        span = float(np.max(self.arrival_s))
        return len(self) / span if span > 0 else inf

    @property
    def repeated(self) -> float:
        """The part of all prompts that prompts before them had, up to there alike; nan where nothing names blocks."""
        if self.blocks is None or self.cached is None:
            return nan
        return float(np.sum(self.cached)) / float(np.sum(self.prompt))

    @property
    def progress(self) -> Progress:
        """How their answers grow."""
        return self.drafted or Progress.even(self.gen)

    @property
    def tokens_per_step(self) -> float:
        """That each decode step leaves of a sequence, on average; nan where there is none."""
        steps = float(np.sum(self.progress.passes)) - len(self)
        return (float(np.sum(self.gen)) - len(self)) / steps if steps else nan

    def leaving(self, leaves: Sequence[float], seed: int) -> Traffic:
        """The same where each pass leaves at least 1, 2, ... tokens as likely as `leaves` says."""
        if len(leaves) == 1:
            return self
        generator = np.random.default_rng((seed, _DRAWN))
        return replace(self, drafted=Progress.drawn(self.gen, leaves, generator))

    def only(self, which: npt.NDArray[np.intp]) -> Traffic:
        """Some of them."""
        return Traffic(
            arrival_s=self.arrival_s[which], prompt=self.prompt[which], gen=self.gen[which],
            cached=None if self.cached is None else self.cached[which],
            blocks=self.blocks and tuple(self.blocks[place] for place in which),
            drafted=self.drafted and self.drafted.only(which),
            in_flight=self.in_flight and int(np.count_nonzero(which < self.in_flight)),
        )  # fmt: skip


def poisson(*, rate: float, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator) -> Traffic:
    """`requests` that come at random over as long as so many take at `rate` a second. Without that, a rate near what is
    served at most may be drawn beyond it.
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
    """`requests` of clients that each send the next when theirs is answered, so that `in_flight` are on the way."""
    return Traffic(
        arrival_s=np.where(np.arange(requests) < in_flight, 0.0, inf),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
        in_flight=in_flight,
    )
