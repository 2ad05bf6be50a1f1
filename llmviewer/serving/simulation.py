"""One device, or several that share a model, that serve requests step by step: a discrete-event simulation.

Decode steps between two events are taken together: as long as nobody comes or goes only the lengths grow, and the time
of a step is a line in them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from ..workload import Spans
from .lengths import Tokens
from .policy import Policy
from .steps import Blocks, Steps
from .traffic import Times, Traffic

Requests = npt.NDArray[np.int64]  # places in the traffic

SPARE: Final = 0.01  # of the memory for caches that stays free when a request is taken up, as in vLLM ("watermark")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Where the time of a device went, and its work. [s], [tokens], [B]

    reading_s, mixed_s, decoding_s  steps that read prompts alone, that read and decode, that decode alone
    full_s                          the part of them in which the next request waits for memory
    crowded_s                       the part in which it waits for a place in the batch
    sequence_s                      sequences that are worked on, summed over time
    read, reread                    tokens of prompts, and of requests that had lost their cache
    written                         tokens of answers
    padding                         tokens read or written that nobody asked for
    """

    reading_s: float = 0.0
    mixed_s: float = 0.0
    decoding_s: float = 0.0
    full_s: float = 0.0
    crowded_s: float = 0.0
    sequence_s: float = 0.0
    peak_bytes: float = 0.0
    room_bytes: float = 0.0
    read: float = 0
    reread: float = 0
    written: float = 0
    padding: float = 0

    @property
    def busy_s(self) -> float:
        return self.reading_s + self.mixed_s + self.decoding_s


@dataclass(frozen=True, kw_only=True)
class Served:
    """What became of every request, in the order of the traffic.

    start_s    when its prompt was taken up [s]
    first_s    when its first token was there [s]
    finish_s   when its answer was there: where batches are padded, with the last of its batch [s]
    gap_s      the longest wait between two of its tokens [s]
    preempted  times that it lost its cache, to be read again
    """

    start_s: Times
    first_s: Times
    finish_s: Times
    gap_s: Times
    preempted: Tokens
    usage: Usage


def serve(
    steps: Steps, traffic: Traffic, *, policy: Policy, max_batch: int, block: int, read_elsewhere: bool = False
) -> Served:
    """All requests of `traffic`, until the last is done.

    max_batch       sequences at a time
    block           tokens of a block of the cache
    read_elsewhere  caches and first tokens come with the requests

    Raises InputError where a request does not fit alone.
    """
    longest = int(np.max(traffic.prompt + traffic.gen))
    read = policy.most_read(int(np.max(traffic.prompt)))
    blocks = Blocks.of(steps, room_bytes=steps.room_bytes(read), size=block, longest=longest)
    steps.check_fits(longest, read, blocks.bytes_of_one(longest))
    return _Server(steps, traffic, policy, max_batch, blocks, read_elsewhere=read_elsewhere).run()


class _Server:
    """The state between two steps.

    waiting  requests that have come, in their order; those that lost their cache are in front
    reading  taken up, their prompts not wholly read: the tokens that are, by request
    ids      those that decode
    written  tokens of each; its cache holds the prompt and all of them but the last
    """

    def __init__(
        self, steps: Steps, traffic: Traffic, policy: Policy, max_batch: int, blocks: Blocks, *, read_elsewhere: bool
    ) -> None:
        self.steps, self.policy, self.max_batch, self.blocks = steps, policy, max_batch, blocks
        self.arrival, self.prompt, self.gen = traffic.arrival_s, traffic.prompt, traffic.gen
        self.read_elsewhere = read_elsewhere
        count = len(traffic)
        self.start, self.first, self.finish = (np.full(count, np.nan) for _ in range(3))
        self.last, self.gap = np.zeros(count), np.zeros(count)
        self.preempted = np.zeros(count, dtype=np.int64)
        self.written = np.full(count, int(read_elsewhere), dtype=np.int64)
        self.waiting: deque[int] = deque()
        self.reading: dict[int, int] = {}
        self.ids: Requests = np.empty(0, dtype=np.int64)
        self.clock, self.come, self.reserved, self.peak = 0.0, 0, 0.0, 0.0
        self.blocked = ""
        self.spent: defaultdict[str, float] = defaultdict(float)

    def run(self) -> Served:
        while self.come < len(self.arrival) or self.waiting or self.reading or len(self.ids):
            while self.come < len(self.arrival) and self.arrival[self.come] <= self.clock:
                self.waiting.append(self.come)
                self.come += 1
            if not (self.waiting or self.reading or len(self.ids)):
                self.clock = float(self.arrival[self.come])
                continue
            self._take_up()
            if self.policy.padded:
                self._padded_batch()
            elif parts := self._parts():
                self._read(parts)
            elif len(self.ids):
                self._decode()
        usage = Usage(**self.spent, peak_bytes=self.peak, room_bytes=self.blocks.room_bytes)
        return Served(
            start_s=self.start, first_s=self.first, finish_s=self.finish, gap_s=self.gap, preempted=self.preempted,
            usage=usage,
        )  # fmt: skip

    def _take_up(self) -> None:
        """Those who wait, in their order, as far as there is room."""
        self.blocked = ""
        busy = len(self.ids) + len(self.reading)
        if self.policy.drains and busy:
            return
        used = self.reserved + self._cached(0)
        while self.waiting:
            request = self.waiting[0]
            own = self.blocks.bytes_of_one(self._needs(request))
            spare = SPARE * self.blocks.room_bytes if busy else 0.0
            full = used + own > self.blocks.room_bytes - spare
            if self.policy.padded and self.reading:
                full = not self._fits_padded([*self.reading, request])
            if full or busy >= self.max_batch:
                self.blocked = "crowded_s" if busy >= self.max_batch else "full_s"
                return
            self.waiting.popleft()
            used, busy = used + own, busy + 1
            if np.isnan(self.start[request]):
                self.start[request] = self.clock
            if self.read_elsewhere and not self.preempted[request]:
                self.first[request] = self.last[request] = self.arrival[request]
                self._join([request])
            else:
                self.reading[request] = 0
                self.reserved += own

    def _fits_padded(self, batch: list[int]) -> bool:
        prompt, gen = int(np.max(self.prompt[batch])), int(np.max(self.gen[batch]))
        return self.steps.fitting(len(batch), prompt=prompt, gen=gen) == len(batch)

    def _needs(self, request: int) -> int:
        """Tokens of the cache that a request is given when it is taken up."""
        if self.policy.drains:
            return int(self.prompt[request] + self.gen[request])
        return int(self.prompt[request] + self.written[request]) + 1

    def _cached(self, more: int) -> float:
        """What the caches of all that decode take `more` steps later. [B]"""
        return self.blocks.bytes_of(self.prompt[self.ids] + self.written[self.ids] - 1 + more)

    def _fits(self, more: int) -> bool:
        return self.policy.drains or self.reserved + self._cached(more) <= self.blocks.room_bytes

    def _parts(self) -> list[tuple[int, int]]:
        """Who is read in the next step, and how many tokens of each."""
        budget = self.policy.budget - (len(self.ids) if self.policy.cuts else 0)
        found: list[tuple[int, int]] = []
        for request, read in self.reading.items():
            rest = int(self.prompt[request] + self.written[request]) - read
            take = min(rest, budget) if self.policy.cuts else rest
            if take < 1 or (found and take > budget):
                break
            found.append((request, take))
            budget -= take
        return found

    def _read(self, parts: list[tuple[int, int]]) -> None:
        """A step that reads; where the policy mixes, all that decode take part."""
        decoding = self.ids if self.policy.mixes else self.ids[:0]
        if len(decoding) and not self._fits(1):
            self._send_away()
            return
        groups = tuple(self._span(request, take) for request, take in parts)
        if len(decoding):
            mean = float(np.mean(self.prompt[decoding] + self.written[decoding]))
            groups = (Spans(batch=float(len(decoding)), q_len=1.0, kv_len=mean), *groups)
        time_s = self.steps.step_s(groups)
        self._spend("mixed_s" if len(decoding) else "reading_s", time_s)
        if len(decoding):
            self._write(decoding, 1)
        done = []
        for request, take in parts:
            self.spent["reread" if self.preempted[request] else "read"] += take
            self.reading[request] += take
            if self.reading[request] == self.prompt[request] + self.written[request]:
                done.append(request)
        for request in done:
            self.reserved -= self.blocks.bytes_of_one(self._needs(request))
            del self.reading[request]
        self.reserved = self.reserved if self.reading else 0.0  # what rounding leaves
        self._write(np.array(done, dtype=np.int64), 1)
        self._join(done)

    def _span(self, request: int, take: int) -> Spans:
        end = self.reading[request] + take
        last = end == self.prompt[request] + self.written[request]
        return Spans(batch=1.0, q_len=float(take), kv_len=float(end), logits=float(last))

    def _decode(self) -> None:
        """Steps in which nobody comes or goes: until the first is done, memory is full, or somebody can be taken up."""
        ids, count = self.ids, len(self.ids)
        steps = int(np.min(self.gen[ids] - self.written[ids]))
        if not self._fits(steps):
            fitting = 0
            while steps - fitting > 1:
                middle = (fitting + steps) // 2
                fitting, steps = (middle, steps) if self._fits(middle) else (fitting, middle)
            steps = fitting
        if not steps:
            self._send_away()
            return
        mean = float(np.mean(self.prompt[ids] + self.written[ids]))
        first = self.steps.decoding_s(count, mean)
        last = self.steps.decoding_s(count, mean + steps - 1)
        slope = (last - first) / max(steps - 1, 1)
        if not self.policy.drains and not self.waiting and self.come < len(self.arrival):
            steps = min(steps, _steps_in(float(self.arrival[self.come]) - self.clock, first, slope))
        whole_s = steps * (first + slope * (steps - 1) / 2)
        self._spend("decoding_s", whole_s)
        self._write(ids, steps, last_s=first + slope * (steps - 1), rest_s=whole_s - first)
        self._leave()

    def _write(self, ids: Requests, steps: int, *, last_s: float = 0.0, rest_s: float = 0.0) -> None:
        """`steps` tokens of each until now: the last after `last_s`, all but the first in `rest_s`. [s]"""
        before = np.maximum(self.clock - rest_s - self.last[ids], last_s)
        fresh = np.isnan(self.first[ids])
        self.first[ids[fresh]] = self.clock
        self.gap[ids] = np.where(fresh, 0.0, np.maximum(self.gap[ids], before))
        self.last[ids] = self.clock
        self.written[ids] += steps
        self.spent["written"] += steps * len(ids)

    def _join(self, requests: list[int]) -> None:
        self.ids = np.concatenate((self.ids, np.array(requests, dtype=np.int64)))
        self._leave()

    def _leave(self) -> None:
        done = self.written[self.ids] >= self.gen[self.ids]
        if np.any(done):
            self.finish[self.ids[done]] = self.clock
            self.ids = self.ids[~done]

    def _send_away(self) -> None:
        """The last that came loses its cache and waits in front, to be read again (recomputation, arXiv:2309.06180)."""
        request = max(*self.ids.tolist(), *self.reading) if self.reading else int(np.max(self.ids))
        if request in self.reading:
            self.reserved -= self.blocks.bytes_of_one(self._needs(request))
            del self.reading[request]
        self.ids = self.ids[self.ids != request]
        self.preempted[request] += 1
        self.waiting.appendleft(request)

    def _padded_batch(self) -> None:
        """A whole batch, all of it as long as the longest of its prompts and answers."""
        batch = np.array(list(self.reading), dtype=np.int64)
        prompt, gen = int(np.max(self.prompt[batch])), int(np.max(self.gen[batch]))
        count = float(len(batch))
        read_s = self.steps.step_s((Spans(batch=count, q_len=float(prompt), kv_len=float(prompt)),))
        self._spend("reading_s", read_s)
        self._write(batch, 1)
        last_s = self.steps.decoding_s(len(batch), prompt + gen - 1.0)
        decoding = self.steps.answers_s(len(batch), first=prompt + 1, last=prompt + gen - 1)
        self._spend("decoding_s", decoding)
        self.gap[batch] = np.where(self.gen[batch] > 1, last_s, 0.0)
        self.written[batch] = self.gen[batch]
        self.finish[batch] = self.clock
        asked = int(np.sum(self.prompt[batch])), int(np.sum(self.gen[batch]))
        self.spent["read"] += asked[0]
        self.spent["written"] += asked[1] - len(batch)  # the first of each is counted
        self.spent["padding"] += len(batch) * (prompt + gen) - sum(asked)
        self.reading, self.reserved = {}, 0.0

    def _spend(self, kind: str, time_s: float) -> None:
        self.clock += time_s
        self.spent[kind] += time_s
        self.spent["sequence_s"] += time_s * (len(self.ids) + len(self.reading))
        if self.blocked:
            self.spent[self.blocked] += time_s
        self.peak = max(self.peak, self.reserved + self._cached(0))


def _steps_in(time_s: float, first: float, slope: float) -> int:
    """The fewest steps that take `time_s` or longer, where the first takes `first` and each `slope` more. [s]"""
    if slope <= 0:
        return max(ceil(time_s / first), 1)
    half = first - slope / 2
    return max(ceil((sqrt(half * half + 2 * slope * max(time_s, 0.0)) - half) / slope), 1)
