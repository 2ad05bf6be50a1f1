"""Scheduler of one server: a waiting queue, the batches that run, and the KV memory of each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isnan
from operator import attrgetter
from typing import Final

from .kv_cache import Caches
from .policy import Policy
from .prefix_cache import PrefixCache
from .request_states import RequestStates
from .running_batch import RunningBatch
from .steps import Steps

WATERMARK: Final = 0.01  # fraction of the KV memory that an admission to a busy rank must leave free, as in vLLM

Chunks = Sequence[tuple[int, int]]  # (request, tokens) of each prefill chunk of a running batch in one step


@dataclass(eq=False)
class Rank:
    """Running batches that share the KV memory of one rank, and the prompt blocks cached in it."""

    batches: Sequence[RunningBatch]
    prefix_cache: PrefixCache = field(default_factory=PrefixCache)

    @property
    def num_running(self) -> int:
        return sum([batch.num_running for batch in self.batches])


class Scheduler:
    """Admits, preempts and finishes requests.

    max_batch            maximum running sequences per rank
    totals               fields of Usage so far, to which cached and evicted tokens are added
    kv_budget_bytes      KV memory of each rank [B]
    prompt_blocks        shareable KV blocks of a request; cached, as the head of the queue is tried in every step
    waiting              queue in the order of arrival; preempted requests are in front
    blocked_by           field of Usage for the time in which the head of the queue waits for memory, or for a place in
                         the batch; "" if it does not
    just_preempted       a request was preempted since the last step; admitted at once, it would take back the memory
                         that it freed for others
    steps_since_prefill  steps for which prefills have been held back
    num_running          number of running sequences of all ranks
    """

    def __init__(
        self,
        steps: Steps,
        policy: Policy,
        max_batch: int,
        caches: Caches,
        requests: RequestStates,
        *,
        totals: MutableMapping[str, float],
    ) -> None:
        self.steps, self.policy, self.max_batch = steps, policy, max_batch
        self.caches, self.requests, self.totals = caches, requests, totals
        self.kv_budget_bytes = caches.blocks.room_bytes
        self.prompt_blocks = lru_cache(maxsize=1)(caches.of_prompt)
        kv_prompt = (
            caches.traffic.prompt - caches.common + caches.ahead - 1
        ).tolist()  # the last token is not in the cache yet
        self.ranks = [
            Rank([RunningBatch(rank, requests, caches.blocks, kv_prompt) for _ in range(steps.micro_batches)])
            for rank in range(steps.ranks)
        ]
        self.batches = [batch for rank in self.ranks for batch in rank.batches]
        self.waiting: deque[int] = deque()
        self.blocked_by, self.just_preempted, self.steps_since_prefill = "", False, 0
        self.num_running = 0

    def admit_waiting(self, now_s: float) -> None:
        """Admits waiting requests first-come first-served while KV memory and `max_batch` allow.

        Each goes to the rank with the fewest running sequences that has memory for it.
        """
        if self.just_preempted:
            return
        self.blocked_by = ""
        if not self.waiting or (self.policy.drains and self.num_running):
            return
        used_bytes = [self.used_bytes(rank) for rank in self.ranks]
        while self.waiting:
            request = self.waiting[0]
            blocks, request_bytes = self.prompt_blocks(request), self.admission_bytes(request)
            new_bytes = [request_bytes - rank.prefix_cache.held_bytes(blocks) for rank in self.ranks]
            running = [rank.num_running for rank in self.ranks]
            below_limit = [i for i, count in enumerate(running) if count < self.max_batch]
            fitting = [i for i in below_limit if self._fits(request, used_bytes[i] + new_bytes[i], running[i])]
            if not fitting:
                self.blocked_by = "full_s" if below_limit else "crowded_s"
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
        cached_tokens = self._allocate_prompt(request, rank, used_bytes)
        if isnan(requests.admitted_s[request]):
            requests.admitted_s[request], requests.cached_tokens[request] = now_s, cached_tokens
        if requests.generated[request] and not requests.preemptions[request]:  # arrived with its KV cache
            requests.first_token_s[request] = requests.last_token_s[request] = requests.arrivals.arrival_s[request]
            self.start_decoding(batch, [request], now_s)
        else:
            batch.prefilling[request] = cached_tokens
            batch.reserved_bytes += request_bytes
            self.totals["known"] += cached_tokens

    def prefill_chunks(self, batch: RunningBatch) -> Chunks:
        """Prefill chunks of the next step, within the token budget; a whole prompt may exceed it if it is alone."""
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
        """Whether prefills run in the next step; False while they are held back until every rank has some.

        As in _balance_adp_requests() of TensorRT-LLM, which counts steps without prefills too.
        """
        if self.steps_since_prefill + 1 >= self.policy.hold:
            return True
        size = self.steps.micro_batches
        has_chunks = [any(chunks[i : i + size]) for i in range(0, len(chunks), size)]
        return all(has_chunks) or not all(any(batch.decoding for batch in rank.batches) for rank in self.ranks)

    def start_decoding(self, batch: RunningBatch, ids: Iterable[int], now_s: float) -> None:
        """Adds requests whose prefill is complete to a decode batch."""
        for request in ids:
            batch.join(request)
        self.finish_sequences(batch, now_s)

    def finish_sequences(self, batch: RunningBatch, now_s: float) -> None:
        """Finishes the sequences of a decode batch that have all of their output."""
        if ids := batch.finished():
            self.finish(batch, ids, now_s)  # releases prompt blocks while the sequences still use memory
            batch.remove(ids)

    def finish(self, batch: RunningBatch, ids: list[int], now_s: float) -> None:
        """Finishes requests that a batch ran."""
        self.num_running -= len(ids)
        self.requests.finish(ids, now_s)
        self.release_prompts(self.ranks[batch.rank], ids)

    def preempt_newest(self, rank: Rank) -> None:
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
        self.waiting.appendleft(request)
        self.num_running -= 1
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
        return sum([batch.reserved_bytes + batch.max_kv_bytes(steps) for batch in rank.batches])

    def used_bytes(self, rank: Rank, steps: int = 0) -> float:
        """KV memory that running sequences of a rank use, after `steps` more decode steps. [B]"""
        reserved_bytes = sum([batch.reserved_bytes for batch in rank.batches])
        decoding_bytes = sum([batch.kv_bytes(steps) for batch in rank.batches])
        return reserved_bytes + decoding_bytes - rank.prefix_cache.shared_bytes

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

    def _evict_idle(self, rank: Rank, used_bytes: float) -> None:
        """Evicts idle prompt blocks that do not fit beside `used_bytes` of running sequences."""
        self.totals["evicted"] += rank.prefix_cache.evict(self.kv_budget_bytes - used_bytes)
