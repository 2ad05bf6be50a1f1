"""Discrete-event simulation of one server with continuous batching: a model on one or several devices.

Decode steps between two events are simulated together: until a sequence starts or finishes only context lengths grow,
and the time of a step is linear in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import ceil, inf, isnan, sqrt

import numpy as np

from ..expectation.engines import DIRECT, Frontend
from ..workload import Spans
from .arrivals import Arrivals, Inbox
from .kv_cache import Caches
from .lengths import Tokens
from .metrics import Served, Span, Usage
from .orders import PreemptiveQueue, waiting_queue
from .policy import Policy
from .request_states import RequestStates
from .running_batch import RunningBatch
from .scheduler import Chunks, Scheduler
from .step_times import Groups
from .steps import Steps
from .traffic import Traffic


def serve(
    steps: Steps, traffic: Traffic, *, policy: Policy, max_batch: int, block: int, prefilled: bool = False,
    frontend: Frontend = DIRECT,
    progress: Callable[[int], object] = lambda finished: None,
) -> Served:  # fmt: skip
    """Simulates a server until all requests are finished.

    max_batch  maximum running sequences per rank
    block      tokens per KV block
    prefilled  requests arrive with their KV cache and first token, from a prefill pool
    frontend   what lies between clients and steps
    progress   called with the number of finished requests, when it has grown

    Raises InputError if a request does not fit the KV memory alone.
    """
    passes = np.full(len(traffic), int(prefilled), dtype=np.int64)
    requests = RequestStates(traffic, passes, frontend)
    caches = Caches.of(steps, traffic, policy, block)
    server = ReplicaServer(
        steps, traffic, policy, max_batch=max_batch, requests=requests, caches=caches, arrivals=requests.arrivals
    )
    return server.run(progress)


def serve_saturated(
    steps: Steps, traffic: Traffic, passes: Tokens, *, policy: Policy, max_batch: int, block: int,
    progress: Callable[[int], object] = lambda finished: None,
) -> Span | None:  # fmt: skip
    """Simulates a server whose requests all wait at the start, and measures it without warm-up and drain.

    passes    forward passes already completed by the first requests, so that they do not all finish at once
    progress  called after each step with the number of finished requests

    Returns None if fewer requests finish in that time than are admitted at first. Raises InputError if a request does
    not fit the KV memory alone.
    """
    not_started = np.zeros(len(traffic) - len(passes), dtype=np.int64)
    all_passes = np.concatenate((passes, not_started))
    requests = RequestStates(traffic, all_passes)
    caches = Caches.of(steps, traffic, policy, block)
    server = ReplicaServer(
        steps, traffic, policy, max_batch=max_batch, requests=requests, caches=caches, arrivals=requests.arrivals
    )
    return server.run_saturated(progress)


def served(requests: RequestStates, usage: Usage) -> Served:
    """Results of all requests, with the time and work of all servers."""
    return Served(
        arrival_s=np.array(requests.arrivals.arrival_s), start_s=np.array(requests.admitted_s),
        first_s=np.array(requests.first_token_s), finish_s=np.array(requests.finish_s),
        gap_s=np.array(requests.max_gap_s),
        preempted=np.array(requests.preemptions) - np.array(requests.interruptions),
        known=np.array(requests.cached_tokens), usage=usage,
    )  # fmt: skip


class ReplicaServer:
    """State of a server between two steps.

    totals       fields of Usage so far
    arrivals     requests on their way to it
    launched_s   start of the last step, before which the next one was scheduled if steps are launched ahead
    unpolled     decode steps since the scheduler last looked for requests; policy.poll or more: it looks now
    """

    def __init__(
        self, steps: Steps, traffic: Traffic, policy: Policy, *, max_batch: int, requests: RequestStates,
        caches: Caches, arrivals: Arrivals | Inbox,
    ) -> None:  # fmt: skip
        self.steps, self.policy, self.requests, self.arrivals = steps, policy, requests, arrivals
        self.totals: defaultdict[str, float] = defaultdict(float)
        waiting = waiting_queue(policy, self.requests, steps, traffic)
        self.scheduler = Scheduler(steps, policy, max_batch, caches, self.requests, waiting=waiting, totals=self.totals)
        self.batches = self.scheduler.batches
        self.clock_s, self.peak_bytes = 0.0, 0.0
        self._fewest_passes = min(requests.total_passes)
        self._num_received = 0  # requests of a router
        self._earliest_finish_s: float | None = None  # unless it has changed since
        self._new: set[int] = set()  # those of them that are not yet admitted; kv_bytes drops the others
        self.launched_s, self.unpolled, self._ahead = 0.0, policy.poll, requests.frontend.ahead

    @property
    def _finished(self) -> int:
        return self.arrivals.count - len(self.scheduler.waiting) - self.scheduler.num_running

    def run(self, progress: Callable[[int], object]) -> Served:
        requests, scheduler, count, reported = self.requests, self.scheduler, len(self.requests), 0
        while self.arrivals.count < count or scheduler.waiting or scheduler.num_running:
            self._queue_arrivals()
            if not (scheduler.waiting or scheduler.num_running):
                self.clock_s = self.arrivals.next_ready_s
                continue
            scheduler.admit_waiting(self.clock_s)
            self._step()
            if scheduler.num_finished > reported:
                reported = scheduler.num_finished
                progress(reported)
        return served(requests, self.usage())

    @property
    def num_requests(self) -> int:
        """Unfinished requests of a server behind a router."""
        return self._num_received - self.scheduler.num_finished

    @property
    def kv_bytes(self) -> float:
        """KV memory in use, and what requests that a router has sent and that were never admitted need at first. [B]"""
        self._new = {request for request in self._new if isnan(self.requests.admitted_s[request])}
        new_bytes = sum([self.scheduler.admission_bytes(request) for request in self._new])
        return new_bytes + sum([self.scheduler.used_bytes(rank) for rank in self.scheduler.ranks])

    def receive(self, request: int, ready_s: float) -> None:
        """Adds a request from a router."""
        assert isinstance(self.arrivals, Inbox)
        self.arrivals.append(request, ready_s)
        self._num_received += 1
        self._earliest_finish_s = None
        self._new.add(request)

    def advance(self, horizon_s: float) -> None:
        """Runs a step, or decode steps up to the next event, of a server behind a router; no further than to the first
        step that ends after `horizon_s`.
        """
        assert isinstance(self.arrivals, Inbox)
        self.arrivals.horizon_s = horizon_s
        self._earliest_finish_s = None
        self._queue_arrivals()
        self.scheduler.admit_waiting(self.clock_s)
        self._step()

    def earliest_finish_s(self) -> float:
        """Lower limit of the time at which a request finishes, of a server behind a router. [s]"""
        if self._earliest_finish_s is None:
            self._earliest_finish_s = self.clock_s + self._fastest_finish_s()
        return self._earliest_finish_s

    def _fastest_finish_s(self) -> float:
        """Least time in which a request can finish: each pass takes at least a decode step of now. [s]"""
        requests = self.requests
        if not any(batch.decoding for batch in self.batches):
            return 0.0
        starting = [requests.total_passes[i] - requests.passes[i] for batch in self.batches for i in batch.prefilling]
        passes = min([*(batch.remaining_steps for batch in self.batches), *starting])
        if self.num_requests > self.scheduler.num_running:
            passes = min(passes, self._fewest_passes)
        return passes * self.steps.decoding_s([self._decode_group(each, 0) for each in self.batches])

    def usage(self) -> Usage:
        """Time and work so far."""
        return self._usage({**self.totals, "known_at_most": self.scheduler.known_at_most()})

    def run_saturated(self, progress: Callable[[int], object]) -> Span | None:
        """Measures from when all requests admitted at first are finished until the waiting queue is empty."""
        requests, scheduler = self.requests, self.scheduler

        def step() -> None:
            self._step()
            scheduler.admit_waiting(self.clock_s)
            progress(self._finished)

        self._queue_arrivals()
        scheduler.admit_waiting(self.clock_s)
        admitted_first = [i for i, admitted_s in enumerate(requests.admitted_s) if not isnan(admitted_s)]
        unfinished = admitted_first.copy()
        while unfinished:
            step()
            unfinished = [i for i in unfinished if isnan(requests.finish_s[i])]
        start_s, start_totals, start_preemptions = self.clock_s, dict(self.totals), sum(requests.preemptions)
        while scheduler.waiting:
            step()
        finish_s, first_token_s = np.array(requests.finish_s), np.array(requests.first_token_s)
        finished, gen = finish_s > start_s, np.array(requests.gen)
        if np.count_nonzero(finished) < len(admitted_first):
            return None
        has_tpot, decode_s = finished & (gen > 1), finish_s - first_token_s
        return Span(
            begun=int(np.count_nonzero(first_token_s > start_s)), answered=int(np.count_nonzero(finished)),
            decoding_s=float(np.mean(decode_s[finished])),
            tpot_s=decode_s[has_tpot] / (gen[has_tpot] - 1), gap_s=np.array(requests.max_gap_s)[has_tpot],
            preemptions=sum(requests.preemptions) - start_preemptions,
            usage=self._usage({name: value - start_totals.get(name, 0.0) for name, value in self.totals.items()}),
        )  # fmt: skip

    def _usage(self, totals: Mapping[str, float]) -> Usage:
        room_bytes = self.scheduler.kv_budget_bytes * len(self.scheduler.ranks)
        return Usage(**totals, peak_bytes=self.peak_bytes, room_bytes=room_bytes)

    def largest_kv_bytes(self) -> float:
        """KV memory of the running sequences on a device when all are at their ends. [B]"""
        requests, own_bytes = self.requests, self.scheduler.caches.own_of_one
        return max([
            sum([
                own_bytes(i, requests.prompt[i] + requests.gen[i])
                for batch in rank.batches
                for i in (*batch.decoding, *batch.prefilling)
            ])
            for rank in self.scheduler.ranks
        ])  # fmt: skip

    def take_waiting(self) -> list[int]:
        """Removes the requests that wait, and returns them; those with a KV cache of their own lose it."""
        assert isinstance(self.arrivals, Inbox)
        waiting = self.arrivals.clear()
        while self.scheduler.waiting:
            waiting.append(self.scheduler.waiting.popleft())
        for request in waiting:
            if self.requests.generated[request] and request not in self.requests.migrated:
                self.requests.interrupt(request)
        self.scheduler.drop_paused()
        self._num_received -= len(waiting)
        self._earliest_finish_s = None
        return waiting

    def take_running(self) -> list[tuple[int, int, float]]:
        """Removes the running requests; the result as that of Scheduler.take_running()."""
        running = self.scheduler.take_running()
        self._num_received -= len(running)
        self._earliest_finish_s = None
        return running

    def _queue_arrivals(self) -> None:
        idle = not self.scheduler.num_running
        if not idle and self.unpolled < self.policy.poll:
            return
        self.unpolled = 0
        seen_until_s = self.launched_s if self._ahead and not idle else self.clock_s
        while self.arrivals.next_ready_s <= seen_until_s:
            self.scheduler.waiting.append(self.arrivals.take())

    def _step(self) -> None:
        """Runs a step, or decode steps up to the next event, or preempts a request in place of a step."""
        scheduler = self.scheduler
        if self.policy.padded:
            self._run_padded_batch()
        elif any(chunks := [scheduler.prefill_chunks(batch) for batch in self.batches]):
            if scheduler.prefills_due(chunks):
                self._run_prefills(chunks)
            else:
                self._run_decode_steps(self.policy.hold - 1 - scheduler.steps_since_prefill)
        elif scheduler.num_running:
            self._run_decode_steps()
            if self.policy.fill:  # which holds back for steps in which a prompt waits
                scheduler.steps_since_prefill = 0

    def _advance_clock(self, time_s: float, kind: str, steps: int = 1) -> None:
        """Adds the time of steps to the clock, and to the totals under `kind`, a field of Usage."""
        scheduler = self.scheduler
        scheduler.num_steps += steps
        self.launched_s = self.clock_s
        self.clock_s += time_s
        scheduler.just_preempted = False
        self.totals[kind] += time_s
        self.totals["sequence_s"] += time_s * scheduler.num_running
        if scheduler.order is not None:
            self.totals["paused_s"] += time_s * scheduler.num_paused
        if scheduler.blocked_by:
            self.totals[scheduler.blocked_by] += time_s
        most_bytes = 0.0
        for rank in scheduler.ranks:
            most_bytes += scheduler.max_used_bytes(rank)
        if most_bytes > self.peak_bytes:
            self.peak_bytes = max(self.peak_bytes, sum([scheduler.used_bytes(rank) for rank in scheduler.ranks]))

    def _run_prefills(self, chunks: Sequence[Chunks]) -> None:
        """Runs a step in which some batches prefill; a batch that does also decodes only if the policy mixes."""
        decodes = [
            bool(batch.decoding) and (self.policy.mixes or not batch_chunks)
            for batch, batch_chunks in zip(self.batches, chunks, strict=True)
        ]
        if True in decodes and (rank := self.scheduler.overflowing_rank(1)):
            self.scheduler.free_memory(rank, self.clock_s)
            return
        work = list(zip(self.batches, chunks, decodes, strict=True))
        step_s = max(self.steps.step_s([self._groups(*each) for each in work]), self.scheduler.take_swap_s())
        self._advance_clock(step_s, "mixed_s" if True in decodes else "reading_s")
        self.scheduler.steps_since_prefill, self.unpolled = 0, self.policy.poll
        for batch, batch_chunks, batch_decodes in work:
            if batch_decodes:
                self._count_decoded(batch, batch.advance(1, self.clock_s, last_s=0.0, rest_s=0.0))
            self._complete_chunks(batch, batch_chunks)

    def _groups(self, batch: RunningBatch, chunks: Chunks, decodes: bool) -> Groups:
        """The prefill chunks of a batch and, if it `decodes`, its decoding sequences."""
        groups = tuple([self._chunk_group(request, batch.prefilling[request] + size, size) for request, size in chunks])
        if not decodes:
            return groups
        return (self.steps.decoding_group(float(len(batch.decoding)), batch.mean_context()), *groups)

    def _chunk_group(self, request: int, end: int, size: int) -> Spans:
        return _chunk_group(size, end, end == self.requests.num_tokens(request))

    def _complete_chunks(self, batch: RunningBatch, chunks: Chunks) -> None:
        """Counts the computed tokens; requests whose prefill is complete start to decode."""
        requests, complete = self.requests, []
        for request, size in chunks:
            self.totals["reread" if requests.preemptions[request] else "read"] += size
            computed = batch.prefilling[request] = batch.prefilling[request] + size
            if computed == requests.num_tokens(request):
                complete.append(request)
        for request in complete:
            batch.reserved_bytes -= self.scheduler.admission_bytes(request)
            del batch.prefilling[request]
            self.totals["written"] += requests.record_token(request, self.clock_s)
        batch.reserved_bytes = batch.reserved_bytes if batch.prefilling else 0.0  # drops the rounding error
        self.scheduler.start_decoding(batch, complete, self.clock_s)

    def _run_decode_steps(self, max_steps: float = inf) -> None:
        """Runs decode steps until a sequence finishes, KV memory is full, or a request arrives that may be admitted;
        `max_steps` at most.
        """
        scheduler = self.scheduler
        remaining_steps = min([batch.remaining_steps for batch in self.batches])
        steps = self._fitting_steps(int(min(remaining_steps, max_steps)))
        if not steps and (rank := scheduler.overflowing_rank(1)):
            scheduler.free_memory(rank, self.clock_s)
            return
        first_s = last_s = self.steps.decoding_s([self._decode_group(batch, 0) for batch in self.batches])
        if steps > 1:
            last_s = self.steps.decoding_s([self._decode_group(batch, steps - 1) for batch in self.batches])
        slope_s = (last_s - first_s) / max(steps - 1, 1)
        sees_arrivals = not self.policy.drains and (scheduler.order is not None or not scheduler.waiting)
        if (self.arrivals.routed or sees_arrivals) and self.arrivals.horizon_s < inf:
            until_ready_s = self.arrivals.horizon_s - self.clock_s
            steps = min(steps, self._steps_until_seen(until_ready_s, first_s, slope_s))
        if isinstance(scheduler.order, PreemptiveQueue):
            unchanged_s, swap_s = scheduler.order.unchanged_s(self.batches, self.clock_s), scheduler.take_swap_s()
            if unchanged_s < inf:
                steps = min(steps, _steps_until(unchanged_s, first_s, slope_s))
            if swap_s > first_s:  # this step waits for it
                steps, first_s, slope_s = 1, swap_s, 0.0
        total_s = steps * (first_s + slope_s * (steps - 1) / 2)
        self._advance_clock(total_s, "decoding_s", steps)
        scheduler.steps_since_prefill = (scheduler.steps_since_prefill + steps) % self.policy.hold
        last_s = first_s + slope_s * (steps - 1)
        self.launched_s = self.clock_s - last_s
        self.unpolled = (self.unpolled + steps - 1) % self.policy.poll + 1
        for batch in self.batches:
            if batch.decoding:
                self._count_decoded(batch, batch.advance(steps, self.clock_s, last_s, rest_s=total_s - first_s))
                scheduler.finish_sequences(batch, self.clock_s)

    def _count_decoded(self, batch: RunningBatch, tokens: int) -> None:
        """Counts the new output tokens of a batch."""
        self.totals["written"] += tokens
        if self.scheduler.order is not None:
            self.scheduler.order.decoded(batch, tokens)

    def _steps_until_seen(self, ready_s: float, first_s: float, slope_s: float) -> int:
        """The fewest decode steps after which the scheduler sees a request that is ready in `ready_s`."""
        scheduled_before = self._ahead and ready_s > 0  # as the step after these, when the last of them starts
        steps = _steps_until(ready_s, first_s, slope_s) + scheduled_before
        return -(-(self.unpolled + steps) // self.policy.poll) * self.policy.poll - self.unpolled

    def _fitting_steps(self, steps: int) -> int:
        """Decode steps, up to `steps`, after which all ranks still have KV memory."""
        if not self.scheduler.overflowing_rank(steps):
            return steps
        fitting = 0
        while steps - fitting > 1:
            middle = (fitting + steps) // 2
            fitting, steps = (fitting, middle) if self.scheduler.overflowing_rank(middle) else (middle, steps)
        return fitting

    def _decode_group(self, batch: RunningBatch, steps: int) -> tuple[int, float]:
        """Sequences in a decode batch, and the tokens that each attends to on average after `steps` more steps."""
        return (len(batch.decoding), batch.mean_context(steps)) if batch.decoding else (0, 0.0)

    def _run_padded_batch(self) -> None:
        """Runs a static batch, padded to its longest prompt and output; every rank takes as long as the fullest."""
        requests, batches = self.requests, self.batches
        cached = {request: tokens for batch in batches for request, tokens in batch.prefilling.items()}
        size = max(batch.num_running for batch in batches)
        prompt, gen = (max([lengths[request] for request in cached]) for lengths in (requests.prompt, requests.gen))
        new_tokens = [requests.prompt[request] - tokens for request, tokens in cached.items()]
        q_len = max(new_tokens)
        prefill = (Spans(batch=float(size), q_len=float(q_len), kv_len=float(prompt)),)
        prefill_s = self.steps.step_s([prefill if batch.num_running else () for batch in batches])
        self._advance_clock(prefill_s, "reading_s")
        self.totals["written"] += sum([requests.record_token(request, self.clock_s) for request in cached])
        last_s = float(self.steps.decode_s(batch=float(size), kv_len=prompt + gen - 1.0))
        steps = max([requests.total_passes[request] for request in cached]) - 1
        decode_s = self.steps.padded_decode_s(size, first=prompt + 1, last=prompt + gen - 1, steps=steps)
        self._advance_clock(decode_s, "decoding_s")
        for request in cached:
            requests.record_passes(request, requests.total_passes[request], self.clock_s, 0.0)
            requests.max_gap_s[request] = last_s if requests.gen[request] > 1 else 0.0
        input_tokens, output_tokens = sum(new_tokens), sum([requests.gen[request] for request in cached])
        self.totals["read"] += input_tokens
        self.totals["written"] += output_tokens - len(cached)  # the first tokens are counted
        self.totals["padding"] += len(cached) * (q_len + gen) - (input_tokens + output_tokens)
        for batch in batches:
            self.scheduler.finish(batch, list(batch.prefilling), self.clock_s)
            batch.prefilling, batch.reserved_bytes = {}, 0.0


@lru_cache(maxsize=1 << 14)
def _chunk_group(size: int, end: int, is_last: bool) -> Spans:
    """A prefill chunk of `size` tokens, up to token `end` of a prompt; the last one gives an output token."""
    return Spans(batch=1.0, q_len=float(size), kv_len=float(end), logits=float(is_last))


def _steps_until(time_s: float, first_s: float, slope_s: float) -> int:
    """The fewest steps that take at least `time_s`, where the first takes `first_s` and each next `slope_s` more."""
    if slope_s <= 0:
        return max(ceil(time_s / first_s), 1)
    half_s = first_s - slope_s / 2
    return max(ceil((sqrt(half_s * half_s + 2 * slope_s * max(time_s, 0.0)) - half_s) / slope_s), 1)
