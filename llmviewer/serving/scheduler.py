"""Scheduler of one server: a waiting queue, the batches that run, and the KV memory of each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isnan
from operator import attrgetter
from typing import Final

from .cache_bound import Acquired, Event, Evicted, Released, most_hit_tokens
from .kv_cache import Caches
from .orders import PreemptiveQueue, WaitingQueue
from .policy import Policy
from .prefix_cache import PrefixCache
from .request_states import RequestStates
from .running_batch import RunningBatch
from .steps import Steps

WATERMARK: Final = 0.01  # fraction of the KV memory that an admission to a busy rank must leave free, as in vLLM

Chunks = Sequence[tuple[int, int]]  # (request, tokens) of each prefill chunk of a running batch in one step


@dataclass(eq=False)
class Rank:
    """Running batches that share the KV memory of one rank, and the prompt blocks cached in it.

    cache_events  admissions, releases and evictions so far, if prompts have named blocks
    paused        KV cache of each request that waits with it on the device [B]
    paused_bytes  their memory [B]
    """

    batches: Sequence[RunningBatch]
    prefix_cache: PrefixCache = field(default_factory=PrefixCache)
    cache_events: list[Event] = field(default_factory=list)
    paused: dict[int, float] = field(default_factory=dict)
    paused_bytes: float = 0.0

    @property
    def num_running(self) -> int:
        return sum([batch.num_running for batch in self.batches])

    def pause(self, request: int, kv_bytes: float) -> None:
        """Keeps the KV cache of a request that stops to run."""
        self.paused[request] = kv_bytes
        self.paused_bytes += kv_bytes

    def unpause(self, request: int) -> float:
        """Returns the KV cache of a request that waits with it on the device. [B]"""
        kv_bytes = self.paused.pop(request)
        self.paused_bytes = self.paused_bytes - kv_bytes if self.paused else 0.0  # drops the rounding error
        return kv_bytes


class Scheduler:
    """Admits, preempts and finishes requests.

    max_batch            maximum running sequences per rank
    totals               fields of Usage so far, to which cached and evicted tokens are added
    kv_budget_bytes      KV memory of each rank [B]
    prompt_blocks        shareable KV blocks of a request; cached, as the head of the queue is tried in every step
    waiting              queue in the order of arrival, with preempted requests in front, or by another `order`
    swapped              KV cache of each request that waits with it in host memory [B]
    blocked_by           field of Usage for the time in which the head of the queue waits for memory, or for a place in
                         the batch; "" if it does not
    just_preempted       a request was preempted since the last step; admitted at once, it would take back the memory
                         that it freed for others
    steps_since_prefill  steps for which prefills have been held back
    num_running          number of running sequences of all ranks
    num_finished         number of finished requests
    num_steps            number of steps so far
    """

    def __init__(
        self,
        steps: Steps,
        policy: Policy,
        max_batch: int,
        caches: Caches,
        requests: RequestStates,
        *,
        waiting: deque[int] | WaitingQueue,
        totals: MutableMapping[str, float],
    ) -> None:
        self.steps, self.policy, self.max_batch = steps, policy, max_batch
        self.caches, self.requests, self.totals = caches, requests, totals
        self.kv_budget_bytes = caches.blocks.room_bytes
        self.prompt_blocks = lru_cache(maxsize=1)(caches.of_prompt)
        self.ranks = [
            Rank([RunningBatch(rank, requests, caches.blocks, caches.kv_prompt) for _ in range(steps.micro_batches)])
            for rank in range(steps.ranks)
        ]
        self.batches = [batch for rank in self.ranks for batch in rank.batches]
        self.waiting = waiting
        self.order = waiting if isinstance(waiting, WaitingQueue) else None
        self.swapped: dict[int, float] = {}
        self._moved_bytes = [0.0, 0.0]  # to and from the host since the last step
        self.blocked_by, self.just_preempted, self.steps_since_prefill = "", False, 0
        self._departures = 0  # events that leave memory or a place in a batch to others
        self._blocked = -1, -1, ""  # those before a request last had no room, the request, and `blocked_by`
        self.num_running = self.num_finished = self.num_steps = 0

    @property
    def num_paused(self) -> int:
        """Number of requests that wait with their KV cache, on the device or in host memory."""
        return sum([len(rank.paused) for rank in self.ranks]) + len(self.swapped)

    def admit_waiting(self, now_s: float) -> None:
        """Admits waiting requests in their order while KV memory and `max_batch` allow.

        Each goes to the rank with the fewest running sequences that has memory for it. An order other than that of
        arrival admits no more prompts than fit the next step, as requests with lower keys may arrive, and may preempt.
        """
        if self.just_preempted:
            return
        self.blocked_by = ""
        if self.order is not None:
            self.order.update(now_s, self.num_steps)
        if not self.waiting or (self.policy.drains and self.num_running):
            return
        departures, blocked_request, blocked_by = self._blocked
        if departures == self._departures and isinstance(self.waiting, deque) and self.waiting[0] == blocked_request:
            self.blocked_by = blocked_by  # as before: running sequences have only grown
            return
        # Upper limits of the used memory, which take less time, for as long as they leave room.
        is_exact = self.caches.named or self.order is not None
        used_bytes = [self.used_bytes(rank) if is_exact else self.max_used_bytes(rank) for rank in self.ranks]
        while self.waiting:
            request = self.waiting[0] if isinstance(self.waiting, deque) else self.waiting.first()
            if not is_exact and self.requests.generated[request]:
                is_exact, used_bytes = True, [self.used_bytes(rank) for rank in self.ranks]
            blocks, request_bytes = self.prompt_blocks(request), self.admission_bytes(request)
            new_bytes = [
                request_bytes - (rank.paused.get(request) or rank.prefix_cache.held_bytes(blocks))
                for rank in self.ranks
            ]
            running = [rank.num_running for rank in self.ranks]
            ranks = self._ranks_for(request) if self.order is not None else range(len(running))
            if not ranks:
                return
            below_limit = [i for i in ranks if running[i] < self.max_batch]
            fitting = [i for i in below_limit if self._fits(request, used_bytes[i] + new_bytes[i], running[i])]
            if not fitting:
                if below_limit and not is_exact:
                    is_exact, used_bytes = True, [self.used_bytes(rank) for rank in self.ranks]
                    continue
                if isinstance(self.order, PreemptiveQueue) and self._make_room(self.order, request, ranks, now_s):
                    used_bytes = [self.used_bytes(rank) for rank in self.ranks]
                    continue
                self.blocked_by = "full_s" if below_limit else "crowded_s"
                self._blocked = self._departures, request, self.blocked_by
                return
            emptiest = min(fitting, key=running.__getitem__)
            used_bytes[emptiest] += new_bytes[emptiest]
            self.waiting.popleft()
            self._admit(request, self.ranks[emptiest], now_s, request_bytes, used_bytes[emptiest])

    def _fits(self, request: int, used_bytes: float, num_running: int) -> bool:
        """Whether a rank with `num_running` sequences can admit one more, which raises its use to `used_bytes`."""
        if self.policy.padded and self.num_running:
            ids = [*(each for batch in self.batches for each in batch.prefilling), request]
            prompt, gen = (max([lengths[i] for i in ids]) for lengths in (self.requests.prompt, self.requests.gen))
            return self.steps.max_fitting(len(ids), prompt=prompt, gen=gen) == len(ids)
        return used_bytes <= self.kv_budget_bytes * (1 - (WATERMARK if num_running else 0.0))

    def _admit(self, request: int, rank: Rank, now_s: float, request_bytes: float, used_bytes: float) -> None:
        """Adds a request to the smallest batch of a rank; `used_bytes` of the rank include it."""
        batch, requests = min(rank.batches, key=attrgetter("num_running")), self.requests
        self.num_running += 1
        if self.order is not None:
            self.order.admitted(request, now_s)
            if request in rank.paused or request in self.swapped:
                self._resume(request, rank, batch, used_bytes)
                return
        cached_tokens = self._allocate_prompt(request, rank, used_bytes)
        if isnan(requests.admitted_s[request]):
            requests.admitted_s[request], requests.cached_tokens[request] = now_s, cached_tokens
        if request in requests.migrated:
            requests.migrated.discard(request)
            self.start_decoding(batch, [request], now_s)
        elif requests.generated[request] and not requests.preemptions[request]:  # arrived with its KV cache
            requests.first_token_s[request] = requests.last_token_s[request] = requests.arrivals.arrival_s[request]
            self.start_decoding(batch, [request], now_s)
        else:
            batch.prefilling[request] = cached_tokens
            batch.reserved_bytes += request_bytes
            self.totals["known"] += cached_tokens

    def prefill_chunks(self, batch: RunningBatch) -> Chunks:
        """Prefill chunks of the next step, within the token budget; a whole prompt may exceed it if it is alone."""
        if not batch.prefilling:
            return ()
        decode_tokens = len(batch.decoding) * self.steps.width if self.policy.shares else 0
        budget = self.policy.budget - decode_tokens
        chunks: list[tuple[int, int]] = []
        for request, computed in batch.prefilling.items():
            remaining = self.requests.num_tokens(request) - computed
            tokens = min(remaining, budget) if self.policy.cuts else remaining
            if tokens < 1 or (chunks and tokens > budget):
                break
            chunks.append((request, tokens))
            budget -= tokens
        return chunks

    def prefills_due(self, chunks: Sequence[Chunks]) -> bool:
        """Whether prefills run in the next step; False while they are held back until every rank has some, or until
        they fill the step.

        As in _balance_adp_requests() of TensorRT-LLM, which counts steps without prefills too, and in its
        _waiting_requests(), which counts steps for which prompts wait.
        """
        if self.steps_since_prefill + 1 >= self.policy.hold:
            return True
        if self.policy.fill:
            tokens = sum(tokens for batch_chunks in chunks for _, tokens in batch_chunks)
            decoding = sum(len(batch.decoding) for batch in self.batches) * self.steps.width
            return not decoding or tokens + decoding >= self.policy.fill * self.policy.budget
        size = self.steps.micro_batches
        has_chunks = [any(chunks[i : i + size]) for i in range(0, len(chunks), size)]
        return all(has_chunks) or not all(any(batch.decoding for batch in rank.batches) for rank in self.ranks)

    def start_decoding(self, batch: RunningBatch, ids: Iterable[int], now_s: float) -> None:
        """Adds requests whose prefill is complete to a decode batch."""
        for request in ids:
            batch.join(request)
            self._departures += 1  # of the memory reserved for its prefill, which may be a block more
        self.finish_sequences(batch, now_s)

    def finish_sequences(self, batch: RunningBatch, now_s: float) -> None:
        """Finishes the sequences of a decode batch that have all of their output."""
        if ids := batch.finished():
            self.finish(batch, ids, now_s)  # releases prompt blocks while the sequences still use memory
            batch.remove(ids)

    def finish(self, batch: RunningBatch, ids: list[int], now_s: float) -> None:
        """Finishes requests that a batch ran."""
        self.num_running -= len(ids)
        self.num_finished += len(ids)
        self._departures += len(ids)
        self.requests.finish(ids, now_s)
        self.release_prompts(self.ranks[batch.rank], ids)

    def take_running(self) -> list[tuple[int, int, float]]:
        """Removes the running requests, and returns them with their rank and the KV cache of each on one of its
        devices; 0 of those whose prefill is incomplete. [B]
        """
        running: list[tuple[int, int, float]] = []
        for batch in self.batches:
            decoding = list(batch.decoding)
            batch.remove(decoding)
            kv_bytes = (self.caches.own_of_one(i, self.requests.num_tokens(i) - 1) for i in decoding)
            running += [(i, batch.rank, each) for i, each in zip(decoding, kv_bytes, strict=True)]
            running += [(i, batch.rank, 0.0) for i in batch.prefilling]
            batch.prefilling, batch.reserved_bytes = {}, 0.0
        self.num_running = 0
        self._departures += 1
        return running

    def drop_paused(self) -> None:
        """Drops the KV caches of requests that wait with one."""
        self._departures += 1
        self.swapped.clear()
        for rank in self.ranks:
            rank.paused, rank.paused_bytes = {}, 0.0

    def _ranks_for(self, request: int) -> Sequence[int]:
        """Ranks that may admit the first request: that with its KV cache, or those whose next step has tokens left."""
        for i, rank in enumerate(self.ranks):
            if request in rank.paused:
                return (i,)
        ranks = range(len(self.ranks))
        if self.policy.drains or request in self.swapped:
            return ranks
        return [i for i in ranks if any(self._has_tokens_left(batch) for batch in self.ranks[i].batches)]

    def _has_tokens_left(self, batch: RunningBatch) -> bool:
        """Whether the prompts of a batch leave tokens of the next step to others."""
        tokens = sum([self.requests.num_tokens(i) - computed for i, computed in batch.prefilling.items()])
        return tokens < self.policy.budget

    def _make_room(self, order: PreemptiveQueue, request: int, ranks: Sequence[int], now_s: float) -> bool:
        """Takes memory or a place from a request with a higher key than the first waiting one; False if none has it."""
        for rank in [self.ranks[i] for i in ranks]:
            if rank.num_running < self.max_batch and self._swap_out_last(order, rank, but=request):
                return True
            if self._pause_last(order, rank, now_s, above=order.key(request)):
                return True
        return False

    def _pause_last(self, order: PreemptiveQueue, rank: Rank, now_s: float, above: float = -inf) -> bool:
        """Pauses the decoding request of a rank with the highest key; False if no key is `above`."""
        place = self.requests.arrivals.place
        last = max(
            [
                (key, place[request], request, i)
                for i, batch in enumerate(rank.batches)
                for key, request in zip(order.running_keys(batch, now_s), batch.decoding, strict=True)
            ],
            default=(-inf, -1, -1, -1),
        )
        if last[0] <= above:
            return False
        _, _, request, batch_index = last
        rank.batches[batch_index].remove([request])
        rank.pause(request, self.caches.own_of_one(request, self.requests.num_tokens(request) - 1))
        self.num_running -= 1
        self.totals["paused"] += 1
        order.paused(request, now_s)
        order.appendleft(request)
        return True

    def _swap_out_last(self, order: PreemptiveQueue, rank: Rank, but: int = -1) -> bool:
        """Moves the KV cache of the paused request with the highest key to the host; False if there is none.

        but  request whose cache stays

        Without a link to the host, the cache is dropped and computed again later.
        """
        requests = [request for request in rank.paused if request != but]
        if not requests:
            return False
        place = self.requests.arrivals.place
        request = max(requests, key=lambda each: (order.key(each), place[each]))
        kv_bytes = rank.unpause(request)
        self.release_prompts(rank, (request,), self.requests.num_tokens(request) - 1)
        if self.steps.host_bytes_per_s > 0:
            self.swapped[request] = kv_bytes
            self._move(kv_bytes, 0)
        else:
            self.requests.preemptions[request] += 1
        return True

    def _resume(self, request: int, rank: Rank, batch: RunningBatch, used_bytes: float) -> None:
        """Continues a request that waited with its KV cache; `used_bytes` of the rank include it."""
        if request in rank.paused:
            rank.unpause(request)
        else:
            self._move(self.swapped.pop(request), 1)
            if self.caches.named:
                rank.prefix_cache.acquire(request, self.prompt_blocks(request))
                rank.cache_events.append(Acquired(request, 0))
                self._evict_idle(rank, used_bytes)
        batch.join(request)

    def _move(self, kv_bytes: float, way: int) -> None:
        """Counts KV cache that is moved to (0) or from (1) the host."""
        self._moved_bytes[way] += kv_bytes
        self.totals["swapped"] += kv_bytes

    def take_swap_s(self) -> float:
        """Returns the least time of the next step, in which KV caches are moved to and from the host at once. [s]"""
        if not any(self._moved_bytes):
            return 0.0
        time_s = max(self._moved_bytes) / self.steps.host_bytes_per_s
        self._moved_bytes = [0.0, 0.0]
        return time_s

    def free_memory(self, rank: Rank, now_s: float) -> None:
        """Preempts a request of a rank that runs out of KV memory, or moves the KV cache of a paused one."""
        if isinstance(self.order, PreemptiveQueue):
            if self._swap_out_last(self.order, rank):
                return
            if self._pause_last(self.order, rank, now_s):
                self._swap_out_last(self.order, rank)
                self.just_preempted = True
                return
        self._preempt_newest(rank, now_s)

    def _preempt_newest(self, rank: Rank, now_s: float) -> None:
        """Preempts the newest request of a rank by recomputation (arXiv:2309.06180); it waits in front of the queue."""
        batch = max(rank.batches, key=attrgetter("newest"))
        _, request = batch.newest
        self._evict_idle(rank, self.kv_budget_bytes)
        computed_tokens = batch.computed_tokens(request)
        if batch.prefilling.pop(request, None) is not None:
            batch.reserved_bytes -= self.admission_bytes(request)
        self.release_prompts(rank, (request,), computed_tokens)
        batch.remove([request])
        self.requests.preemptions[request] += 1
        if self.order is not None:
            self.order.paused(request, now_s)
        self.waiting.appendleft(request)
        self.num_running -= 1
        self._departures += 1
        self.just_preempted = True

    def overflowing_rank(self, steps: int) -> Rank | None:
        """The first rank that runs out of KV memory within `steps` decode steps."""
        if self.policy.drains:  # all output was reserved at admission
            return None
        for rank in self.ranks:
            may_overflow = self.max_used_bytes(rank, steps) > self.kv_budget_bytes
            if may_overflow and self.used_bytes(rank, steps) > self.kv_budget_bytes:
                return rank
        return None

    def max_used_bytes(self, rank: Rank, steps: int = 0) -> float:
        """Upper limit of used_bytes(), without a look at each sequence. [B]"""
        total_bytes = 0.0
        for batch in rank.batches:
            total_bytes += batch.reserved_bytes + batch.max_kv_bytes(steps)
        return total_bytes + rank.paused_bytes

    def used_bytes(self, rank: Rank, steps: int = 0) -> float:
        """KV memory that running sequences of a rank use, after `steps` more decode steps. [B]"""
        reserved_bytes = sum([batch.reserved_bytes for batch in rank.batches])
        decoding_bytes = sum([batch.kv_bytes(steps) for batch in rank.batches])
        return reserved_bytes + decoding_bytes + rank.paused_bytes - rank.prefix_cache.shared_bytes

    def admission_bytes(self, request: int) -> float:
        """KV memory reserved until the prefill is complete: up to the next token, or for all output where the policy
        drains. [B]
        """
        requests = self.requests
        output_tokens = requests.gen[request] if self.policy.drains else requests.generated[request] + 1
        return self.caches.own_of_one(request, requests.prompt[request] + output_tokens)

    def _allocate_prompt(self, request: int, rank: Rank, used_bytes: float) -> int:
        """Returns the cached tokens of a prompt, and evicts idle blocks where it needs their memory."""
        if not self.caches.named:
            preempted = self.requests.preemptions[request]  # blocks of its own are lost, those common to all are not
            return int((self.caches.common if preempted else self.caches.cached)[request])
        blocks, last_token = self.prompt_blocks(request), self.requests.num_tokens(request) - 1
        cached_tokens = min(rank.prefix_cache.hit_tokens(blocks), last_token)  # whose logits give the first output
        rank.prefix_cache.acquire(request, blocks)
        rank.cache_events.append(Acquired(request, last_token))
        self._evict_idle(rank, used_bytes)
        return cached_tokens

    def release_prompts(self, rank: Rank, ids: Iterable[int], computed_tokens: float = inf) -> None:
        """Makes the prompt blocks of requests that stop running idle; first evicts idle blocks whose memory decoding
        sequences have grown into.

        computed_tokens  computed tokens of requests that are not finished; blocks beyond them do not exist
        """
        if self.caches.named:
            self._evict_idle(rank, self.used_bytes(rank))
            for request in ids:
                rank.prefix_cache.release(request, computed_tokens)
                rank.cache_events.append(Released(request))

    def _evict_idle(self, rank: Rank, used_bytes: float) -> None:
        """Evicts idle prompt blocks that do not fit beside `used_bytes` of running sequences."""
        spare_bytes = self.kv_budget_bytes - used_bytes
        self.totals["evicted"] += rank.prefix_cache.evict(spare_bytes)
        if self.caches.named:
            rank.cache_events.append(Evicted(spare_bytes))

    def known_at_most(self) -> float:
        """Hit tokens that no eviction policy exceeds, for the same admissions and memory of each rank."""
        if not self.totals.get("evicted"):
            return self.totals.get("known", 0.0)
        return sum(most_hit_tokens(rank.cache_events, self.caches.of_prompt) for rank in self.ranks)
