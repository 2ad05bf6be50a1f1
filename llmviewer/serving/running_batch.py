"""Sequences that run together, whose progress is counted once per step for all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

import numpy as np

from .kv_cache import Blocks
from .lengths import Tokens
from .request_states import RequestStates


class RunningBatch:
    """Sequences of a rank or, in a pipeline, of one of its micro-batches.

    Every decode step is a pass of each sequence of the decode batch, so `steps` and the step at which a sequence joined
    determine its passes. RequestStates has them once a sequence leaves.

    rank            index of the rank
    prefilling      computed tokens, by request, of admitted requests whose prefill is incomplete
    reserved_bytes  KV memory reserved for `prefilling` [B]
    decoding        requests in the decode batch
    steps           decode steps so far
    """

    def __init__(self, rank: int, requests: RequestStates, blocks: Blocks, kv_prompt: list[int]) -> None:
        """Empty batch.

        kv_prompt  tokens of each request in the KV cache besides its output
        """
        self.rank, self._requests, self._blocks, self._kv_prompt = rank, requests, blocks, kv_prompt
        self.prefilling: dict[int, int] = {}
        self.reserved_bytes = 0.0
        self.decoding: list[int] = []
        self.steps = 0
        self._starts: list[int] = []  # `steps` of each sequence when it joined, less its passes until then
        self._joined_at: list[int] = []  # `steps` when it joined
        self._ends: list[int] = []  # `steps` when it is finished
        self._joined: list[int] = []  # requests that joined since the last step
        self._last_token_s = 0.0  # end of the last step
        self._gaps = _MaxGaps()
        self._next_end: float = inf
        self._start_sum = self._prompt_sum = self._kv_prompt_sum = 0  # of all sequences
        self._arrays: tuple[Tokens, Tokens, Tokens] | None = None
        self._is_even = requests.progress.ends is None  # each pass is a token

    @property
    def num_running(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    @property
    def newest(self) -> tuple[int, int]:
        """The running request that arrived last, after its place in the order of arrivals; -1 if none is running."""
        place = self._requests.arrivals.place
        return max(((place[request], request) for request in (*self.decoding, *self.prefilling)), default=(-1, -1))

    @property
    def remaining_steps(self) -> float:
        """Decode steps until a sequence finishes; inf without any."""
        return self._next_end - self.steps

    def computed_tokens(self, request: int) -> int:
        """Tokens of a running request in the KV cache."""
        if request in self.prefilling:
            return self.prefilling[request]
        passes = self.steps - self._starts[self.decoding.index(request)]
        return self._requests.prompt[request] + self._requests.progress.written_by(request, passes) - 1

    def kv_bytes(self, steps: int = 0) -> float:
        """KV memory of the decode batch after `steps` more decode steps. [B]"""
        if not self.decoding:
            return 0.0
        return self._blocks.bytes_of(self._members[2] + self._generated(steps))

    def generated(self) -> Tokens:
        """Output tokens of each sequence of the decode batch."""
        return self._generated(0)

    def max_kv_bytes(self, steps: int = 0) -> float:
        """Upper limit of kv_bytes(), without a look at each sequence. [B]"""
        if not self.decoding:
            return 0.0
        return self._blocks.max_bytes(len(self.decoding), self._kv_prompt_sum + self._generated_sum(steps))

    def mean_context(self, steps: int = 0) -> float:
        """Mean tokens that a decoding sequence attends to after `steps` more decode steps."""
        return float(self._prompt_sum + self._generated_sum(steps)) / len(self.decoding)

    def join(self, request: int) -> None:
        """Adds a request whose prefill is complete to the decode batch."""
        passes = self._requests.passes[request]
        self.decoding.append(request)
        self._starts.append(self.steps - passes)
        self._joined_at.append(self.steps)
        end = self.steps - passes + self._requests.total_passes[request]
        self._ends.append(end)
        self._joined.append(request)
        self._next_end = min(self._next_end, end)
        self._count(request, self.steps - passes, 1)

    def advance(self, steps: int, now_s: float, last_s: float, rest_s: float) -> int:
        """Counts decode steps that end at `now_s`, and returns the number of new output tokens.

        last_s  duration of the last of the steps [s]
        rest_s  duration of all but the first [s]
        """
        new_tokens = self._new_tokens(steps)
        for request in self._joined:
            self._requests.record_gap(request, max(now_s - rest_s - self._requests.last_token_s[request], last_s))
        self._joined.clear()
        self._gaps.record(self.steps, max(now_s - rest_s - self._last_token_s, last_s))
        self.steps += steps
        self._last_token_s = now_s
        return new_tokens

    def finished(self) -> list[int]:
        """Requests of the decode batch that have all of their output."""
        if self.steps < self._next_end:
            return []
        return [request for request, end in zip(self.decoding, self._ends, strict=True) if end <= self.steps]

    def remove(self, requests: Sequence[int]) -> None:
        """Removes those of these requests that are in the decode batch, and records their progress."""
        indices = [i for i, request in enumerate(self.decoding) if request in requests]
        for i in reversed(indices):
            request, start, joined_at = self.decoding[i], self._starts[i], self._joined_at[i]
            if self.steps > joined_at:
                gap_s = self._gaps.max_after(joined_at)
                self._requests.record_passes(request, self.steps - start, self._last_token_s, gap_s)
            else:
                self._joined.remove(request)
            self._count(request, start, -1)
            del self.decoding[i], self._starts[i], self._joined_at[i], self._ends[i]
        self._next_end = min(self._ends, default=inf)

    def _count(self, request: int, start: int, sign: int) -> None:
        """Adds a sequence to the sums, or subtracts it."""
        self._start_sum += sign * start
        self._prompt_sum += sign * self._requests.prompt[request]
        self._kv_prompt_sum += sign * self._kv_prompt[request]
        self._arrays = None

    @property
    def _members(self) -> tuple[Tokens, Tokens, Tokens]:
        """Requests of the decode batch, their starts, and their tokens in the KV cache besides the output."""
        if self._arrays is None:
            ids, starts = (np.array(column, dtype=np.int64) for column in (self.decoding, self._starts))
            kv_prompt = np.array([self._kv_prompt[request] for request in self.decoding], dtype=np.int64)
            self._arrays = ids, starts, kv_prompt
        return self._arrays

    def _generated(self, steps: int) -> Tokens:
        """Output tokens of each sequence after `steps` more decode steps."""
        ids, starts, _ = self._members
        return self._requests.progress.written(ids, self.steps + steps - starts)

    def _new_tokens(self, steps: int) -> int:
        """Output tokens of `steps` more decode steps."""
        if self._is_even:
            return len(self.decoding) * steps
        return self._generated_sum(steps) - self._generated_sum(0)

    def _generated_sum(self, steps: int) -> int:
        if self._is_even:
            return len(self.decoding) * (self.steps + steps) - self._start_sum
        return int(self._generated(steps).sum()) if self.decoding else 0


class _MaxGaps:
    """Longest times between two steps since any step: of each, only those that no later one exceeds are kept."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._gaps: list[float] = []  # decreasing

    def record(self, start: int, gap_s: float) -> None:
        """Adds the time before a step, or the longest step of several, from step `start` on."""
        while self._gaps and self._gaps[-1] <= gap_s:
            self._gaps.pop()
            self._starts.pop()
        self._gaps.append(gap_s)
        self._starts.append(start)

    def max_after(self, start: int) -> float:
        """The longest time of those that begin after step `start`; 0 if there are none. [s]"""
        i = bisect_right(self._starts, start)
        return self._gaps[i] if i < len(self._gaps) else 0.0
