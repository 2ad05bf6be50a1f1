"""A Markov chain of steps that read prompts and steps that only decode, as prompts arrive at random."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]

_AGREED: Final = 3  # times that how many prompts a step reads, and how long it takes, are worked out from each other


class Reading(NamedTuple):
    """Steps that read prompts, where each of them reads all that came in the one before, as far as it takes them.

    read_s   how long they take, and `alone_s` one that reads a single prompt [s]
    prompts  that they read
    round_s  how long all steps take on average, those that decode alone included [s]
    often    the part of all steps that they are
    full     prompts over the most that they read; where that is 1, prompts wait for more than one step
    """

    read_s: Column
    alone_s: Column
    prompts: Column
    round_s: Column
    often: Column
    full: Column


def reading(rate: Column, alone: Column, every: Column, step: Column, most: Column | float) -> Reading:
    """Steps as a Markov chain: one reads where a prompt came in the one before, and takes the longer the more it reads.

    rate         at which requests come [1/s]
    alone, step  a step that reads one prompt, and one that decodes alone [s]
    every, most  for each prompt of a step that reads as many as it takes, and how many those are [s]
    """
    read, prompts = alone, np.ones(np.broadcast_shapes(np.shape(rate), np.shape(step)))
    comes = -np.expm1(-rate * step)
    several = bool(np.any(np.greater(most, 1)))
    more_s = (every * most - alone) / np.where(np.greater(most, 1), np.subtract(most, 1), inf)  # for another prompt
    for _ in range(_AGREED if several else 1):
        often = comes / (comes + np.exp(-rate * read))
        round_s = often * read + (1 - often) * step
        if several:
            prompts = np.clip(np.divide(rate * round_s, often, out=prompts, where=often > 0), 1, most)
            read = alone + more_s * (prompts - 1)
    full = prompts / most
    return Reading(read, alone, prompts, often * read + (1 - often) * step, often, full)


def held_up_s(read: Column, step: Column, turns: int) -> Column:
    """A step in which one turn of a pipeline reads and the others decode, which follow it: all stages of the longest,
    or the slowest stage for each. [s]

    read, step  where all turns read, and where all decode [s]
    """
    return np.asarray(np.maximum(read, (read + (turns - 1) * step) / turns))


def saturated_s(
    ends: Column,
    alone: Column,
    every: Column,
    step: Column,
    *,
    most: Column | float,
    lanes: int,
    parts: Column | float = 1.0,
    mixes: bool = False,
) -> Column:
    """For each request of a lane, where somebody always waits, who comes as another leaves, at random. What one lane
    reads holds up the others, whether they read or not. [s]

    ends         answers of a lane that end in a step in which it decodes
    alone, step  steps that read one prompt, in `parts`, and one that decodes alone [s]
    every, most  as of reading(), of all lanes together
    mixes        those that decode take part where their lane reads
    """
    full = most / lanes
    count = np.minimum(ends / -np.expm1(-ends), full)  # prompts of a lane that are read together
    reads = ends * parts / count
    own = np.minimum(reads, 1) if mixes else 1 / (1 + 1 / reads)
    often = 1 - (1 - own) ** lanes
    filled = (lanes * own / often * count - 1) / np.maximum(np.subtract(most, 1), 1)
    longest = 1 - (1 - own * (count - 1) / np.maximum(full - 1, 1e-9)) ** lanes  # as long as any lane that is full
    read = (alone + (every * most - alone) * np.maximum(filled, longest / often)) / parts
    return np.asarray((often * read + (1 - often) * step) * parts / count / own)
