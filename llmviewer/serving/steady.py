"""The steady state in closed form: the batch at which departures keep up with arrivals, and what a request waits.

Little's law (doi:10.1287/opre.9.3.383): the sequences that decode are the rate of requests times how long each decodes,
which in turn depends on how many they are. Prompts queue for the device as customers with priority do, who wait for the
step that runs and for the prompts before them (Cobham, doi:10.1287/opre.2.1.70).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isinf, nan, sqrt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..workload import Spans
from .lengths import Tokens
from .policy import Policy
from .steps import Steps
from .traffic import Traffic

Column = npt.NDArray[np.float64]

_REQUESTS: Final = 128  # of the traffic whose lengths stand for all; groups of prompts likewise
_BATCHES: Final = 192  # between which the batch is looked for
_AGREED: Final = 3  # times that how many prompts a step reads, and how long it takes, are worked out from each other
_STEPS: Final = 64  # of the longest answer, at which is asked how many are still written


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
    held: Column = np.maximum(read, (read + (turns - 1) * step) / turns)
    return held


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
    taken: Column = (often * read + (1 - often) * step) * parts / count / own
    return taken


@dataclass(frozen=True, kw_only=True)
class Steady:
    """Means of the steady state; inf where requests come faster than they are served.

    tpot_s       nan where all answers are of one token
    batch        sequences that decode, or that a batch has where it is served as a whole
    utilization  part of the time in which the device works
    max_rate     requests that it can serve at most [1/s]
    max_batch    sequences that it can have at most, by memory and as asked
    """

    batch: float
    utilization: float
    ttft_s: float
    tpot_s: float
    max_rate: float
    max_batch: int

    @property
    def stable(self) -> bool:
        return not isinf(self.ttft_s)


def steady(steps: Steps, traffic: Traffic, *, rate: float, policy: Policy, max_batch: int) -> Steady:
    """`rate` requests a second with lengths as those of `traffic`, of any policy, on one copy. Lanes do all alike.

    max_batch  sequences at a time of each rank, if memory has room for the caches of so many in the middle of their
               answers
    """
    lengths, lanes = _Lengths.of(traffic, steps), steps.lanes * steps.apart
    longest = int(lengths.prompt[-1])
    if policy.padded:
        ranks = steps.ranks
        fitting = steps.fitting(max_batch * ranks, prompt=longest, gen=int(lengths.gen[-1])) // ranks
    else:
        room = steps.room_bytes(policy.most_read(longest))
        room -= float(steps.cache_bytes(lengths.common)) if lengths.common else 0.0
        fitting = int(room / float(steps.cache_bytes(lengths.own + steps.ahead))) if room > 0 else 0
    most = min(max_batch, fitting) / steps.turns
    if not most:
        return _overrun(max_rate=0, most=0)
    kind = _in_batches if policy.drains else _flowing
    found = kind(steps, lengths, rate / lanes, policy, max(most, 1))
    return replace(
        found, batch=found.batch * lanes, max_rate=found.max_rate * lanes, max_batch=round(most * lanes),
    )  # fmt: skip


def _overrun(*, max_rate: float, most: float) -> Steady:
    return Steady(batch=most, utilization=1, ttft_s=inf, tpot_s=inf, max_rate=max_rate, max_batch=int(most))


class _Lengths(NamedTuple):
    """Those of the traffic, each from the shortest to the longest, evenly. [tokens]

    passes  that give a token or more of each, its prompt's included
    groups  means of prompts of about the same length, and `shares` the part of all that are in each
    known   tokens of these that are there before they are read
    wanted  passes of a request that decode steps are, on average
    often   passes of decode steps for each token of an answer after the first, likewise
    middle  what a sequence that decodes attends to on average, and `own` what it has of it that no others have
    common  what prompts have in common
    """

    prompt: Column
    gen: Column
    passes: Column
    groups: Column
    shares: Column
    known: Column
    wanted: float
    often: float
    middle: float
    own: float
    common: float

    @classmethod
    def of(cls, traffic: Traffic, steps: Steps) -> _Lengths:
        count, passes = min(_REQUESTS, len(traffic)), traffic.progress.passes
        place = ((np.arange(count) + 0.5) * len(traffic) / count).astype(int)
        prompt, gen, taken = (
            np.sort(lengths)[place].astype(float) for lengths in (traffic.prompt, traffic.gen, passes)
        )
        share = traffic.gen / np.sum(traffic.gen)
        common = np.broadcast_to(steps.in_common(traffic.prompt), len(traffic))
        groups, shares = _grouped(traffic.prompt)
        several = traffic.gen > 1
        middle = float(share @ (traffic.prompt + traffic.gen / 2))
        return cls(
            prompt=prompt, gen=gen, passes=taken, groups=groups, shares=shares,
            known=np.broadcast_to(steps.known(groups), groups.shape), wanted=float(np.mean(passes)) - 1,
            often=float(np.mean((passes[several] - 1) / (traffic.gen[several] - 1))) if np.any(several) else nan,
            middle=middle, own=middle - float(share @ common), common=float(np.max(common)),
        )  # fmt: skip


def _grouped(lengths: Tokens) -> tuple[Column, Column]:
    """Means and shares of groups, from the shortest to the longest, that are alike in the sum of their squares: what
    prompts wait grows with the squares, of which the few that are longest have most.
    """
    ordered = np.sort(lengths).astype(float)
    sums = np.cumsum(ordered**2)
    group = np.ceil(sums / sums[-1] * _REQUESTS - 1e-9).astype(int)
    counts = np.bincount(group)
    found = counts > 0
    return np.bincount(group, ordered)[found] / counts[found], counts[found] / len(ordered)


class _Prompts(NamedTuple):
    """What reading a request takes of the device, by batch.

    time_s, square  of the device, mean and mean of the square [s]
    along           steps in which those that decode take part
    more_s          by which the last part of a prompt, in a step of its own, takes longer than its share of others
    every_s         of the device for each prompt of steps that read as many as they take
    each            how many such steps a prompt takes, of those in which others decode
    together        how many prompts such a step reads, 1 where they take more than one
    """

    time_s: Column
    square: Column
    along: Column
    more_s: Column
    every_s: Column
    each: Column
    together: Column | int


def _prompts(steps: Steps, lengths: _Lengths, policy: Policy, batch: Column) -> _Prompts:
    """Steps that read a prompt, beside `batch` sequences that decode where the policy mixes.

    The parts of a prompt differ in how many tokens are before them; the one in the middle stands for all, as the time
    is a line in that.
    """
    prompt, others = lengths.groups[:, None], batch[None, :] if policy.mixes else np.zeros((1, 1))
    new = prompt - lengths.known[:, None]
    taken = steps.width * others
    room = np.maximum(policy.budget - taken, 1) if policy.cuts else np.maximum(policy.budget, new + 0 * others)
    part = np.minimum(new, room)
    parts = new / part
    decoding = steps.going_on(others, lengths.middle)

    def step_s(tokens: Column, end: Column, count: Column | float = 1.0) -> Column:
        read = Spans(batch=count, q_len=tokens, kv_len=end, logits=np.minimum(1 / parts, tokens))
        return np.asarray(steps.mixed_s((decoding, read)), dtype=float)

    middle = prompt - (new - part) / 2
    each_s = step_s(part, middle)
    count = room / part if policy.cuts else room // new
    every_s = parts * each_s if np.all(count == 1) else parts * step_s(part, middle, count) / count
    rest = new - np.floor(parts) * part
    more_s = np.zeros(each_s.shape)
    if np.any(rest > 0):
        more_s = np.where(rest > 0, step_s(np.maximum(rest, 1e-3), prompt) - rest / part * each_s, 0.0)
    shape = (len(prompt), len(batch))
    time_s, parts, more_s, every_s = (np.broadcast_to(a, shape) for a in (parts * each_s, parts, more_s, every_s))
    along = lengths.shares @ parts if policy.mixes else np.zeros(len(batch))
    mean = float(lengths.shares @ (lengths.groups - lengths.known))
    together = np.maximum(room[0] / mean, 1) if policy.cuts else max(int(policy.budget // mean), 1)
    means = (lengths.shares @ each for each in (time_s, time_s**2, more_s, every_s))
    time_s, square, more_s, every_s = means
    if not policy.cuts and together == 1:
        every_s = time_s
    each = np.broadcast_to(mean / room[0], along.shape) if policy.cuts else along / together
    return _Prompts(time_s, square, along, more_s, every_s, each, together)


def _flowing(steps: Steps, lengths: _Lengths, rate: float, policy: Policy, most: float) -> Steady:
    """Requests come and go while others decode.

    In a second, `rate` prompts are read in each turn of a pipeline, and what is left of it goes to steps that decode
    alone. A request that decodes has B others beside it where B is the mean, as arrivals at random see the mean (PASTA,
    doi:10.1287/opre.30.2.223).
    """
    wanted, turns = lengths.wanted, steps.turns
    batch = np.concatenate(([0.0], np.geomspace(1 / 64, most, _BATCHES)))
    prompts = _prompts(steps, lengths, policy, batch)
    filled = 1 - (1 - 1 / turns) * np.exp(-batch)  # of the turns, those that have anybody, who decodes being in one
    step_s, alone_s = (
        np.broadcast_to(
            np.asarray(steps.decode_s(batch=count, kv_len=lengths.middle, filled=part), dtype=float), batch.shape
        )
        for count, part in ((1 + batch, filled), (np.maximum(batch, 1), 1.0))
    )
    every_s, together = prompts.every_s / turns, turns * prompts.together
    if turns > 1:
        per_request = saturated_s(
            np.maximum(batch, 1e-9) / max(wanted, 1e-9), held_up_s(prompts.time_s, alone_s, turns), every_s, alone_s,
            most=together, lanes=turns, parts=np.maximum(prompts.along, 1), mixes=policy.mixes,
        )  # fmt: skip
    else:
        per_request = wanted * alone_s / np.maximum(batch, 1e-9) + prompts.every_s - prompts.each * alone_s
    max_rate = float(np.max(1 / np.maximum(per_request, prompts.every_s)[1:]))
    if rate >= max_rate:
        return _overrun(max_rate=max_rate, most=most)
    alone = held_up_s(prompts.time_s, step_s, turns)
    read = reading(np.full(len(batch), turns * rate), alone, every_s, step_s, together)
    busy = turns * rate * read.read_s / read.prompts
    beside = prompts.along if policy.mixes else np.maximum(1 - read.prompts / turns, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(busy < 1, 1 / (turns * rate * beside / read.prompts + (1 - busy) / step_s), inf)
    missing = rate * wanted * tpot - batch
    place = int(np.argmax(missing <= 0))
    if missing[place] > 0:
        return _overrun(max_rate=max_rate, most=most)
    at = 0.0 if place == 0 else missing[place - 1] / (missing[place - 1] - missing[place])

    def found(values: Column) -> float:
        return float(values[max(place - 1, 0)] * (1 - at) + values[place] * at)

    sequences, occupied = found(batch), found(busy)
    somebody = 1 - float(np.exp(-turns * sequences))  # of as many as come at random
    decoding = (1 - occupied) * somebody
    last_s = somebody * prompts.more_s + (1 - somebody) * prompts.more_s[0]
    # A whole prompt is in the way of those of all turns. Parts of one are so for a step of those of other turns, and
    # the turns are as many servers of a queue (Sakasegawa 1977).
    along = 1 if policy.cuts else turns
    lines = turns // along
    each = np.maximum(read.prompts * along / turns, 1)
    square = prompts.square * (read.read_s / prompts.time_s) ** 2 / each
    queued = along * rate * found(read.read_s / each)
    part_s = read.read_s / np.maximum(prompts.along, 1)
    before = along * rate * found(square) / 2 * queued ** (sqrt(2 * (lines + 1)) - 2) / lines
    residual = before + decoding * found(step_s) / 2 + (occupied - queued) * found(part_s) / 2
    return Steady(
        batch=sequences,
        utilization=occupied + decoding,
        ttft_s=found(read.read_s + last_s) + residual / (1 - queued * found(each / (along * prompts.together))),
        tpot_s=found(tpot) * lengths.often,
        max_rate=max_rate,
        max_batch=int(most),
    )


def _in_batches(steps: Steps, lengths: _Lengths, rate: float, policy: Policy, most: float) -> Steady:
    """Those who came while a batch was served are the next; a request that finds nobody is a batch alone.

    Rough where lengths vary, as the longest answer of a batch stands for a random one.
    """
    batch = np.unique(np.round(np.geomspace(1, most, _BATCHES)))
    longest = batch / (batch + 1)  # the quantile that the longest of so many is at on average
    prompts, answers, passes = (
        np.where(batch > 1, np.quantile(each, longest), np.mean(each))
        for each in (lengths.prompt, lengths.gen, lengths.passes)
    )
    if policy.padded:
        read = np.asarray(steps.prefill_s(prompts, batch), dtype=float)
        parts = np.ones(len(batch))
    else:
        read = batch * np.mean(np.broadcast_to(steps.prefill_s(lengths.prompt), lengths.prompt.shape))
        parts = np.maximum(batch * np.mean(lengths.prompt - steps.known(lengths.prompt)) / policy.budget, 1)
    through = (np.arange(_STEPS) + 0.5) / _STEPS
    step, written = (through * np.maximum(each - 1, 0)[:, None] for each in (passes, answers))
    left = np.mean(lengths.passes - 1 > step[:, :, None], axis=2)
    alive = batch[:, None] * (1.0 if policy.padded else left)
    context = (prompts[:, None] if policy.padded else float(np.mean(lengths.prompt))) + written + 1
    step_s = np.mean(np.broadcast_to(steps.decode_s(batch=np.maximum(alive, 1), kv_len=context), step.shape), axis=1)
    decoding = step_s * np.maximum(passes - 1, 0)
    cycle = read + decoding
    max_rate = float(np.max(batch / cycle))
    taken = 1.0
    if rate >= max_rate:
        return _overrun(max_rate=max_rate, most=most)
    for _ in range(_BATCHES):
        spent = float(np.interp(taken, batch, cycle))
        taken = rate * spent / -float(np.expm1(-rate * spent))
    if taken > most:
        return _overrun(max_rate=max_rate, most=most)

    def found(values: Column) -> float:
        return float(np.interp(taken, batch, values))

    utilization = spent / (spent + float(np.exp(-rate * spent)) / rate)
    several = lengths.gen[lengths.gen > 1] - 1
    each = float(np.mean(1 / several)) if len(several) else nan
    later = found(read * (parts - 1) / (2 * parts)) * each  # for the prompts of the same batch that are read after it
    return Steady(
        batch=taken,
        utilization=utilization,
        ttft_s=utilization * spent / 2 + found(read * (parts + 1) / (2 * parts)),
        tpot_s=found(decoding) * each if policy.padded else found(step_s) * lengths.often + later,
        max_rate=max_rate,
        max_batch=int(most),
    )
