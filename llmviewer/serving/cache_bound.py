"""Bound of prefix-cache hits: what no eviction policy can exceed for the same admissions and memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from .prefix_cache import Prompt


class Acquired(NamedTuple):
    """A request is admitted, of whose tokens the first `reusable` may be found in the cache."""

    request: int
    reusable: int


class Released(NamedTuple):
    """A request stops running; its blocks are idle from then on, if no other has them."""

    request: int


class Evicted(NamedTuple):
    """Idle blocks must fit `spare_bytes`."""

    spare_bytes: float


Event = Acquired | Released | Evicted


class _IdleTokens:
    """Idle tokens of blocks, of which those used again last are dropped first."""

    def __init__(self) -> None:
        self._tokens: dict[int, float] = {}  # by block
        self._next_use: dict[int, int] = {}
        self._furthest: list[tuple[int, int, int]] = []  # heap of (-next use, -end, block)
        self._sum = 0.0

    def keep(self, block: int, *, tokens: float, end: int, use: int) -> None:
        """Adds the tokens of a block, up to token `end` of prompts, that is used again in event `use`."""
        self._tokens[block], self._next_use[block] = tokens, use
        self._sum += tokens
        heapq.heappush(self._furthest, (-use, -end, block))

    def take(self, block: int) -> float:
        """Removes a block, and returns its tokens; 0 if it is not there."""
        tokens = self._tokens.pop(block, 0.0)
        self._sum = self._sum - tokens if self._tokens else 0.0  # drops the rounding error
        return tokens

    def shrink(self, room: float) -> None:
        """Drops tokens until there are `room`."""
        while self._tokens and self._sum > room:
            use, _, block = self._furthest[0]
            if block not in self._tokens or self._next_use[block] != -use:  # used since
                heapq.heappop(self._furthest)
                continue
            remaining = self._tokens[block] - (self._sum - max(room, 0.0))
            self.take(block)
            if remaining > 0:
                self._tokens[block] = remaining
                self._sum += remaining
                return


def most_hit_tokens(events: Sequence[Event], prompt_of: Callable[[int], Prompt]) -> float:
    """Hit tokens with an optimal eviction policy: what is used again last is evicted first, here token by token.

    That is Belady's (doi:10.1147/sj.52.0078). A token is idle from the release of its block to the next request that
    has it, and is hit if it is kept all that time. Of these intervals, as many may overlap at each moment as there is
    memory; dropping those that end last, whenever there are too many, keeps the most of them. If bytes per token
    differ, all count as the least of them, and a request preempted during its prefill as complete: it stays a bound.

    events     admissions, releases and evictions in their order
    prompt_of  shareable blocks of a request
    """
    uses: dict[int, list[int]] = {}  # events that acquire each block, the latest first
    token_bytes = inf
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if isinstance(event, Acquired):
            for block in prompt_of(event.request):
                uses.setdefault(block.id, []).append(at)
                token_bytes = min(token_bytes, block.nbytes / block.tokens)
    idle, references, hit_tokens = _IdleTokens(), dict.fromkeys(uses, 0), 0.0

    def needed(end: int, tokens: int, use: int) -> int:
        acquired = events[use]
        assert isinstance(acquired, Acquired)
        return max(min(end, acquired.reusable) - (end - tokens), 0)

    for at, event in enumerate(events):
        if isinstance(event, Evicted):
            idle.shrink(event.spare_bytes / token_bytes if token_bytes else inf)
            continue
        prompt = prompt_of(event.request)
        for block, end in zip(prompt, accumulate(block.tokens for block in prompt), strict=True):
            id_ = block.id
            if isinstance(event, Acquired):
                uses[id_].pop()
                tokens = needed(end, block.tokens, at)
                hit_tokens += tokens if references[id_] else min(idle.take(id_), tokens)
                references[id_] += 1
                continue
            references[id_] -= 1
            if not references[id_] and uses[id_]:
                use = uses[id_][-1]
                idle.keep(id_, tokens=needed(end, block.tokens, use), end=end, use=use)
    return hit_tokens
