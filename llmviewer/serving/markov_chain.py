"""A Markov chain of steps with prefills and steps that only decode, as prompts arrive at random."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]

_ITERATIONS: Final = 3  # of the prompts of a step and its duration, which determine each other


class Reading(NamedTuple):
    """Prefill steps, each with all prompts that arrived during the step before, up to the maximum of a step.

    read_s   mean duration [s]
    prompts  mean prompts
    """

    read_s: Column
    prompts: Column


@np.errstate(divide="ignore", invalid="ignore")
def reading(rate: Column, single_s: Column, each_s: Column, step: Column, most: Column | float) -> Reading:
    """Steps as a Markov chain: a step prefills the prompts that arrived during the step before.

    rate         of requests [1/s]
    single_s, step  duration of a step with one prompt, and of one that only decodes [s]
    each_s     duration for each prompt of a full step, with `most` prompts [s]
    """
    shape = np.broadcast_shapes(np.shape(rate), np.shape(step))
    read, prompts = single_s, np.ones(shape)
    if not np.any(np.greater(most, 1)):
        return Reading(read, prompts)
    comes = -np.expm1(-rate * step)
    more_s = (each_s * most - single_s) / np.where(np.greater(most, 1), np.subtract(most, 1), inf)  # for another prompt
    for _ in range(_ITERATIONS):
        prefill_fraction = comes / (comes + np.exp(-rate * read))
        round_s = prefill_fraction * read + (1 - prefill_fraction) * step  # mean of all steps
        arrived = rate * round_s / prefill_fraction  # not a number where none comes
        prompts = np.minimum(np.fmax(arrived, 1), most)
        read = single_s + more_s * (prompts - 1)
    return Reading(read, prompts)


def held_up_s(read: Column, step: Column, micro_batches: int) -> Column:
    """A step in which one micro-batch of a pipeline prefills and the others decode: all stages of the longest, or the
    slowest stage for each. [s]

    read, step  duration where all micro-batches prefill, and where all decode [s]
    """
    return np.asarray(np.maximum(read, (read + (micro_batches - 1) * step) / micro_batches))


def saturated_s(
    ends: Column,
    single_s: Column,
    each_s: Column,
    step: Column,
    *,
    most: Column | float,
    lanes: int,
    parts: Column | float = 1.0,
    mixes: bool = False,
) -> Column:
    """Time for each request of a lane, where a waiting request always replaces one that finishes. A prefill of one lane
    delays all others. [s]

    ends         requests of a lane that finish in a decode step
    single_s, step  duration of steps with one prompt, in `parts` chunks, and of one that only decodes [s]
    each_s, most  as in reading(), of all lanes together
    mixes        whether sequences also decode in steps with a prefill of their lane
    """
    full = most / lanes
    count = np.minimum(ends / -np.expm1(-ends), full)  # prompts of a lane that are read together
    reads = ends * parts / count
    lane_prefill_fraction = np.minimum(reads, 1) if mixes else 1 / (1 + 1 / reads)
    prefill_fraction = 1 - (1 - lane_prefill_fraction) ** lanes
    filled = (lanes * lane_prefill_fraction / prefill_fraction * count - 1) / np.maximum(np.subtract(most, 1), 1)
    longest = (
        1 - (1 - lane_prefill_fraction * (count - 1) / np.maximum(full - 1, 1e-9)) ** lanes
    )  # as long as any lane that is full
    read = (single_s + (each_s * most - single_s) * np.maximum(filled, longest / prefill_fraction)) / parts
    return np.asarray((prefill_fraction * read + (1 - prefill_fraction) * step) * parts / count / lane_prefill_fraction)
