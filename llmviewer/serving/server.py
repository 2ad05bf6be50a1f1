"""A discrete-event simulation of one copy of a model, on one device or several, that serves requests step by step.

Decode steps between two events are simulated together: while no sequence starts or ends, only lengths grow, and the
time of a step is linear in them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf, sqrt
from operator import itemgetter
from typing import Final

import numpy as np

from ..workload import Spans
from .kv_cache import Caches
from .lengths import Tokens
from .metrics import Served, Span, Usage
from .policy import Policy
from .prefix_cache import PrefixCache
from .progress import Requests
from .step_times import Groups
from .steps import Steps
from .traffic import Traffic

SPARE: Final = 0.01  # of the memory for caches that stays free when a request is taken up, as in vLLM ("watermark")


def serve(
    steps: Steps, traffic: Traffic, *, policy: Policy, max_batch: int, block: int, read_elsewhere: bool = False,
    progress: Callable[[int], object] = lambda finished: None,
) -> Served:  # fmt: skip
    """All requests of `traffic`, until the last is done.

    max_batch       sequences at a time, of each rank that has sequences of its own
    block           tokens of a block of the cache
    read_elsewhere  caches and first tokens come with the requests
    progress        called after each step with the number of finished requests

    Raises InputError where a request does not fit alone.
    """
    passes = np.full(len(traffic), int(read_elsewhere), dtype=np.int64)
    return _Server(steps, traffic, policy, max_batch, block, passes=passes).run(progress)


def saturate(
    steps: Steps, traffic: Traffic, passes: Tokens, *, policy: Policy, max_batch: int, block: int,
    progress: Callable[[int], object] = lambda finished: None,
) -> Span | None:  # fmt: skip
    """Requests that are all there at the start, the first of which have taken so many passes; without the steps in
    which a copy fills up or runs empty. None where they are too few to tell.

    progress  called after each step with the number of finished requests

    Raises InputError where a request does not fit alone.
    """
    further = np.zeros(len(traffic) - len(passes), dtype=np.int64)
    every = np.concatenate((passes, further))
    return _Server(steps, traffic, policy, max_batch, block, passes=every).saturated(progress)


@dataclass(eq=False)
class _Lane:
    """Sequences that one scheduler of a copy has.

    rank      in whose memory they are
    reading   taken up, their prompts not wholly read: the tokens that are, by request
    reserved  for their caches [B]
    ids       those that decode
    """

    rank: int
    reading: dict[int, int] = field(default_factory=dict)
    reserved: float = 0.0
    ids: Requests = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def held(self) -> int:
        """Sequences that it works on."""
        return len(self.ids) + len(self.reading)


class _Server:
    """The state between two steps.

    waiting        requests that have come, in their order; those that lost their cache are in front
    passes         that each has taken, of its prompt and of its answer
    written        tokens of each; its cache holds the prompt and all of them but the last, and comes with it where it
                   has any
    prefix_caches  blocks of prompts in the memory of each rank, where the traffic names them
    blocks         of a prompt; the one in front is asked for again and again
    sent           requests whose arrival is known: in a closed loop each answer brings the next
    since          steps since prompts were last let through, or would have been
    short          somebody has lost its cache since the last step: nobody is taken up before the next one, or who was
                   sent away would come back to the room that it left for others
    """

    def __init__(
        self, steps: Steps, traffic: Traffic, policy: Policy, max_batch: int, block: int, *, passes: Tokens
    ) -> None:
        self.steps, self.policy, self.max_batch = steps, policy, max_batch
        self.caches, self.progress = Caches.of(steps, traffic, policy, block), traffic.progress
        self.room = self.caches.blocks.room_bytes
        self.arrival, self.prompt, self.gen = traffic.arrival_s.copy(), traffic.prompt, traffic.gen
        count = len(traffic)
        self.sent = traffic.in_flight or count
        self.start, self.first, self.finish = (np.full(count, np.nan) for _ in range(3))
        self.last, self.gap = np.zeros(count), np.zeros(count)
        self.preempted, self.known = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.passes = passes
        self.written = self.progress.written(np.arange(count), passes).copy()
        self.waiting: deque[int] = deque()
        self.lanes = [_Lane(rank) for rank in range(steps.ranks) for _ in range(steps.turns)]
        self.ranks = [self.lanes[at : at + steps.turns] for at in range(0, steps.lanes, steps.turns)]
        self.prefix_caches = [PrefixCache() for _ in self.ranks]
        self.blocks = lru_cache(maxsize=1)(self.caches.of_prompt)
        self.clock, self.come, self.peak = 0.0, 0, 0.0
        self.blocked, self.short, self.since = "", False, 0
        self.spent: defaultdict[str, float] = defaultdict(float)

    @property
    def held(self) -> int:
        """Sequences that are worked on."""
        return sum(lane.held for lane in self.lanes)

    def run(self, progress: Callable[[int], object]) -> Served:
        while self.come < len(self.arrival) or self.waiting or self.held:
            self._arrive()
            if not (self.waiting or self.held):
                self.clock = float(self.arrival[self.come])
                continue
            self._take_up()
            self._step()
            progress(self.come - len(self.waiting) - self.held)
        return Served(
            arrival_s=self.arrival, start_s=self.start, first_s=self.first, finish_s=self.finish, gap_s=self.gap,
            preempted=self.preempted, known=self.known, usage=self._usage(self.spent),
        )  # fmt: skip

    def saturated(self, progress: Callable[[int], object]) -> Span | None:
        """From when all are answered that were taken up at first, until nobody waits any more."""

        def step() -> None:
            self._step()
            self._take_up()
            progress(self.come - len(self.waiting) - self.held)

        self._arrive()
        self._take_up()
        first = np.flatnonzero(~np.isnan(self.start))
        while np.any(np.isnan(self.finish[first])):
            step()
        start, spent, preempted = self.clock, dict(self.spent), int(np.sum(self.preempted))
        while self.waiting:
            step()
        done = self.finish > start
        if np.count_nonzero(done) < len(first):
            return None
        several = done & (self.gen > 1)
        writing = self.finish - self.first
        return Span(
            begun=int(np.count_nonzero(self.first > start)), answered=int(np.count_nonzero(done)),
            decoding_s=float(np.mean(writing[done])),
            tpot_s=writing[several] / (self.gen[several] - 1), gap_s=self.gap[several],
            preemptions=int(np.sum(self.preempted)) - preempted,
            usage=self._usage({name: value - spent.get(name, 0.0) for name, value in self.spent.items()}),
        )  # fmt: skip

    def _usage(self, spent: Mapping[str, float]) -> Usage:
        return Usage(**spent, peak_bytes=self.peak, room_bytes=self.room * len(self.ranks))

    def _arrive(self) -> None:
        while self.come < len(self.arrival) and self.arrival[self.come] <= self.clock:
            self.waiting.append(self.come)
            self.come += 1

    def _step(self) -> None:
        if self.policy.padded:
            self._padded_batch()
        elif any(parts := [self._parts(lane) for lane in self.lanes]):
            if self._let_through(parts):
                self._read(parts)
            else:
                self._decode(self.policy.hold - 1 - self.since)
        elif self.held:
            self._decode()

    def _take_up(self) -> None:
        """Those who wait, in their order, as far as there is room: each in the rank that has the fewest sequences, and
        the lane of it that does.
        """
        if self.short:
            return
        self.blocked = ""
        if not self.waiting or (self.policy.drains and self.held):
            return
        used = [self._used(rank) for rank in self.ranks]
        while self.waiting:
            request = self.waiting[0]
            own = self._needs(request)
            more = [own - each.held_bytes(self.blocks(request)) for each in self.prefix_caches]
            counts = [sum(lane.held for lane in rank) for rank in self.ranks]
            open_ranks = [at for at, count in enumerate(counts) if count < self.max_batch]
            able = [at for at in open_ranks if not self._full(used[at] + more[at], counts[at], request)]
            if not able:
                self.blocked = "full_s" if open_ranks else "crowded_s"
                return
            at = min(able, key=counts.__getitem__)
            lane = min(self.ranks[at], key=lambda lane: lane.held)
            self.waiting.popleft()
            used[at] += more[at]
            there = self._there(request, at, used[at])
            if np.isnan(self.start[request]):
                self.start[request], self.known[request] = self.clock, there
            if self.written[request] and not self.preempted[request]:  # its cache comes with it
                self.first[request] = self.last[request] = self.arrival[request]
                self._join(lane, [request])
            else:
                lane.reading[request] = there
                lane.reserved += own
                self.spent["known"] += there

    def _there(self, request: int, at: int, used: float) -> int:
        """Tokens of its prompt that are in a rank which takes it up, and whose caches take `used` with it. [B]"""
        if not self.caches.named:
            return int((self.caches.common if self.preempted[request] else self.caches.known)[request])
        there = min(self.prefix_caches[at].hit_tokens(self.blocks(request)), int(self.prompt[request]) - 1)
        self.prefix_caches[at].acquire(request, self.blocks(request))
        self._evict(at, used)
        return there

    def _let_go(self, at: int, requests: Iterable[int], made: float = inf) -> None:
        """A rank works on them no more. Until now their caches have grown, and others had to make room for that.

        made  tokens of the prompt of each that are there, where those are not all
        """
        if self.caches.named:
            self._evict(at, self._used(self.ranks[at]))
            for request in requests:
                self.prefix_caches[at].release(request, made)

    def _evict(self, at: int, used: float) -> None:
        """Blocks of prompts that nobody works on, where the caches of a rank take `used`. [B]"""
        self.spent["evicted"] += self.prefix_caches[at].evict(self.room - used)

    def _full(self, used: float, busy: int, request: int) -> bool:
        """Whether a rank with so many sequences has no room for one more, with which they take `used`. [B]"""
        if self.policy.padded and self.held:
            return not self._fits_padded([*(one for lane in self.lanes for one in lane.reading), request])
        return used > self.room * (1 - (SPARE if busy else 0.0))

    def _fits_padded(self, batch: list[int]) -> bool:
        prompt, gen = int(np.max(self.prompt[batch])), int(np.max(self.gen[batch]))
        return self.steps.fitting(len(batch), prompt=prompt, gen=gen) == len(batch)

    def _needs(self, request: int) -> float:
        """Of the memory, what a request is given when it is taken up. [B]"""
        answer = self.gen[request] if self.policy.drains else self.written[request] + 1
        return self.caches.own_of_one(request, int(self.prompt[request] + answer))

    def _used(self, rank: Sequence[_Lane], more: int = 0) -> float:
        """What the caches of a rank take when all that decode have taken `more` steps. [B]"""
        own = (self.caches.own(lane.ids, self.prompt[lane.ids] + self._after(lane.ids, more) - 1) for lane in rank)
        return sum(lane.reserved for lane in rank) + sum(own) - self.prefix_caches[rank[0].rank].shared_bytes

    def _after(self, ids: Requests, more: int) -> Tokens:
        """Tokens of some that decode after so many more steps."""
        return self.progress.written(ids, self.passes[ids] + more) if more else self.written[ids]

    def _without_room(self, more: int) -> Sequence[_Lane]:
        """The first rank that has no room for `more` steps; empty where all do."""
        if self.policy.drains:
            return ()
        return next((rank for rank in self.ranks if self._used(rank, more) > self.room), ())

    def _parts(self, lane: _Lane) -> list[tuple[int, int]]:
        """Who is read in the next step, and how many tokens of each."""
        budget = self.policy.budget - (len(lane.ids) * self.steps.width if self.policy.shares else 0)
        found: list[tuple[int, int]] = []
        for request, read in lane.reading.items():
            rest = int(self.prompt[request] + self.written[request]) - read
            take = min(rest, budget) if self.policy.cuts else rest
            if take < 1 or (found and take > budget):
                break
            found.append((request, take))
            budget -= take
        return found

    def _let_through(self, parts: Sequence[list[tuple[int, int]]]) -> bool:
        """Whether these are read in the next step, or held back until every rank has some.

        As in _balance_adp_requests() of TensorRT-LLM, which counts steps without prompts too.
        """
        if self.since + 1 >= self.policy.hold:
            return True
        reads = [any(parts[at : at + self.steps.turns]) for at in range(0, len(parts), self.steps.turns)]
        return all(reads) or not all(any(len(lane.ids) for lane in rank) for rank in self.ranks)

    def _read(self, parts: Sequence[list[tuple[int, int]]]) -> None:
        """A step in which some lanes read; those that decode take part where the policy mixes, or they read nothing."""
        decoding = [
            lane.ids if self.policy.mixes or not own else lane.ids[:0]
            for lane, own in zip(self.lanes, parts, strict=True)
        ]
        if any(map(len, decoding)) and (full := self._without_room(1)):
            self._send_away(full)
            return
        self._spend(
            "mixed_s" if any(map(len, decoding)) else "reading_s",
            self.steps.step_s([self._groups(*each) for each in zip(self.lanes, parts, decoding, strict=True)]),
        )
        self.since = 0
        for lane, own, ids in zip(self.lanes, parts, decoding, strict=True):
            self._write(ids, 1)
            self._have_read(lane, own)

    def _groups(self, lane: _Lane, parts: list[tuple[int, int]], decoding: Requests) -> Groups:
        groups = tuple(self._span(request, lane.reading[request] + take, take) for request, take in parts)
        if not len(decoding):
            return groups
        mean = _mean(self.prompt[decoding] + self.written[decoding])
        return (self.steps.going_on(float(len(decoding)), mean), *groups)

    def _span(self, request: int, end: int, take: int) -> Spans:
        last = end == self.prompt[request] + self.written[request]
        return Spans(batch=1.0, q_len=float(take), kv_len=float(end), logits=float(last))

    def _have_read(self, lane: _Lane, parts: list[tuple[int, int]]) -> None:
        done = []
        for request, take in parts:
            self.spent["reread" if self.preempted[request] else "read"] += take
            lane.reading[request] += take
            if lane.reading[request] == self.prompt[request] + self.written[request]:
                done.append(request)
        for request in done:
            lane.reserved -= self._needs(request)
            del lane.reading[request]
        lane.reserved = lane.reserved if lane.reading else 0.0  # what rounding leaves
        self._write(np.array(done, dtype=np.int64), 1)
        self._join(lane, done)

    def _decode(self, most: float = inf) -> None:
        """Steps in which nobody comes or goes: until the first is done, memory is full, or somebody can be taken up;
        `most` at most.
        """
        ids = np.concatenate([lane.ids for lane in self.lanes])
        steps = int(min((self.progress.passes[ids] - self.passes[ids]).min(), most))
        if self._without_room(steps):
            fitting = 0
            while steps - fitting > 1:
                middle = (fitting + steps) // 2
                fitting, steps = (fitting, middle) if self._without_room(middle) else (middle, steps)
            steps = fitting
        if not steps:
            self._send_away(self._without_room(1))
            return
        first, last = (
            self.steps.decoding_s([self._mean(lane, later) for lane in self.lanes]) for later in (0, steps - 1)
        )
        slope = (last - first) / max(steps - 1, 1)
        if not self.policy.drains and not self.waiting and self.come < self.sent:
            steps = min(steps, _steps_in(float(self.arrival[self.come]) - self.clock, first, slope))
        whole_s = steps * (first + slope * (steps - 1) / 2)
        self._spend("decoding_s", whole_s)
        self.since = (self.since + steps) % self.policy.hold
        self._write(ids, steps, last_s=first + slope * (steps - 1), rest_s=whole_s - first)
        for lane in self.lanes:
            self._leave(lane)

    def _mean(self, lane: _Lane, later: int) -> tuple[int, float]:
        """Sequences that decode, and the tokens that each attends to on average so many steps later."""
        if not len(lane.ids):
            return 0, 0.0
        return len(lane.ids), _mean(self.prompt[lane.ids] + self._after(lane.ids, later))

    def _write(self, ids: Requests, steps: int, *, last_s: float = 0.0, rest_s: float = 0.0) -> None:
        """`steps` of each until now: the last took `last_s`, all but the first `rest_s`. [s]"""
        if not len(ids):  # as of lanes that only read, or read on
            return
        before = np.maximum(self.clock - rest_s - self.last[ids], last_s)
        fresh = np.isnan(self.first[ids])
        self.first[ids[fresh]] = self.clock
        self.gap[ids] = np.where(fresh, 0.0, np.maximum(self.gap[ids], before))
        self.last[ids] = self.clock
        before_them = self.written[ids]
        self.passes[ids] += steps
        self.written[ids] = self.progress.written(ids, self.passes[ids])
        self.spent["written"] += int((self.written[ids] - before_them).sum())

    def _join(self, lane: _Lane, requests: list[int]) -> None:
        if requests:
            lane.ids = np.concatenate((lane.ids, np.array(requests, dtype=np.int64)))
        self._leave(lane)

    def _leave(self, lane: _Lane) -> None:
        done = self.written[lane.ids] >= self.gen[lane.ids]
        if done.any():
            ids = lane.ids[done]
            self._answer(ids)
            self._let_go(lane.rank, ids.tolist())
            lane.ids = lane.ids[~done]

    def _answer(self, ids: Requests) -> None:
        """Their answers are there, and in a closed loop as many requests come."""
        self.finish[ids] = self.clock
        self.arrival[self.sent : self.sent + len(ids)] = self.clock
        self.sent = min(self.sent + len(ids), len(self.arrival))

    def _send_away(self, rank: Sequence[_Lane]) -> None:
        """The last that came to a rank loses its cache and waits in front, to be read again (recomputation,
        arXiv:2309.06180).
        """
        lasts = (max((*lane.ids.tolist(), *lane.reading), default=-1) for lane in rank)
        request, lane = max(zip(lasts, rank, strict=True), key=itemgetter(0))
        self._evict(lane.rank, self.room)
        made = lane.reading.pop(request, inf)
        if made < inf:
            lane.reserved -= self._needs(request)
        self._let_go(lane.rank, (request,), made)
        lane.ids = lane.ids[lane.ids != request]
        self.preempted[request] += 1
        self.waiting.appendleft(request)
        self.short = True

    def _padded_batch(self) -> None:
        """A whole batch, all of it as long as the longest of its prompts and answers, and lanes as the fullest."""
        held = {request: there for lane in self.lanes for request, there in lane.reading.items()}
        batch, there = (np.array(list(each), dtype=np.int64) for each in (held.keys(), held.values()))
        most = max(lane.held for lane in self.lanes)
        prompt, gen = int(np.max(self.prompt[batch])), int(np.max(self.gen[batch]))
        each = self.prompt[batch] - there
        new = int(np.max(each))
        read = (Spans(batch=float(most), q_len=float(new), kv_len=float(prompt)),)
        self._spend("reading_s", self.steps.step_s([read if lane.held else () for lane in self.lanes]))
        self._write(batch, 1)
        last_s = float(self.steps.decode_s(batch=float(most), kv_len=prompt + gen - 1.0))
        steps = int(np.max(self.progress.passes[batch])) - 1
        decoding = self.steps.answers_s(most, first=prompt + 1, last=prompt + gen - 1, steps=steps)
        self._spend("decoding_s", decoding)
        self.gap[batch] = np.where(self.gen[batch] > 1, last_s, 0.0)
        self.passes[batch], self.written[batch] = self.progress.passes[batch], self.gen[batch]
        self._answer(batch)
        asked = int(np.sum(each)), int(np.sum(self.gen[batch]))
        self.spent["read"] += asked[0]
        self.spent["written"] += asked[1] - len(batch)  # the first of each is counted
        self.spent["padding"] += len(batch) * (new + gen) - sum(asked)
        for lane in self.lanes:
            self._let_go(lane.rank, lane.reading)
            lane.reading, lane.reserved = {}, 0.0

    def _spend(self, kind: str, time_s: float) -> None:
        self.clock += time_s
        self.short = False
        self.spent[kind] += time_s
        self.spent["sequence_s"] += time_s * self.held
        if self.blocked:
            self.spent[self.blocked] += time_s
        self.peak = max(self.peak, sum(self._used(rank) for rank in self.ranks))


def _mean(lengths: Tokens) -> float:
    """Of the few that most steps have, in a tenth of the time that np.mean takes."""
    return float(lengths.sum(dtype=np.float64)) / len(lengths)


def _steps_in(time_s: float, first: float, slope: float) -> int:
    """The fewest steps that take `time_s` or longer, where the first takes `first` and each `slope` more. [s]"""
    if slope <= 0:
        return max(ceil(time_s / first), 1)
    half = first - slope / 2
    return max(ceil((sqrt(half * half + 2 * slope * max(time_s, 0.0)) - half) / slope), 1)
