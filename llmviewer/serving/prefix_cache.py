"""The prefix cache of a rank: blocks of earlier prompts in memory that running sequences leave free.

The least recently used block is evicted first, as in vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from math import inf
from typing import NamedTuple


class PrefixBlock(NamedTuple):
    """A block of a prompt or its answer; requests that are equal up to its end share it. [tokens], [B]"""

    id: int
    tokens: int
    nbytes: float


Prompt = Sequence[PrefixBlock]  # from the first token on


@dataclass(eq=False)
class PrefixCache:
    """The prefix cache of a rank.

    in_use        blocks of each running request
    references    number of running requests that use each block
    idle          cached blocks without references, least recently used first
    idle_bytes    their memory
    shared_bytes  memory that running requests save by sharing blocks
    """

    in_use: dict[int, Prompt] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)
    idle: dict[int, PrefixBlock] = field(default_factory=dict)
    idle_bytes: float = 0.0
    shared_bytes: float = 0.0

    def hit_tokens(self, prompt: Prompt) -> int:
        """Tokens of the longest cached prefix of a prompt."""
        cached_blocks = takewhile(lambda block: block.id in self.references or block.id in self.idle, prompt)
        return sum(block.tokens for block in cached_blocks)

    def held_bytes(self, prompt: Prompt) -> float:
        """Memory of the blocks of a prompt that running requests hold already. [B]"""
        return sum(block.nbytes for block in prompt if block.id in self.references)

    def acquire(self, request: int, prompt: Prompt) -> None:
        """References the blocks of a request that starts to run, cached or not."""
        self.in_use[request] = prompt
        for block in prompt:
            if block.id in self.references:
                self.shared_bytes += block.nbytes
            elif self.idle.pop(block.id, None):
                self.idle_bytes -= block.nbytes
            self.references[block.id] = self.references.get(block.id, 0) + 1

    def release(self, request: int, computed: float = inf) -> None:
        """Releases the blocks of a request; those within its `computed` tokens become idle.

        The end of a prompt is evicted before its beginning, without which it is not found.
        """
        prompt = self.in_use.pop(request)
        ends = list(accumulate(block.tokens for block in prompt))
        for block, end in zip(reversed(prompt), reversed(ends), strict=True):
            self.references[block.id] -= 1
            if self.references[block.id]:
                self.shared_bytes -= block.nbytes
                continue
            del self.references[block.id]
            if end <= computed:
                self.idle[block.id] = block
                self.idle_bytes += block.nbytes

    def evict(self, spare_bytes: float) -> int:
        """Evicts idle blocks until they fit `spare_bytes`, and returns the evicted tokens."""
        tokens = 0
        while self.idle and self.idle_bytes > spare_bytes:
            block = self.idle.pop(next(iter(self.idle)))
            self.idle_bytes = self.idle_bytes - block.nbytes if self.idle else 0.0  # drops the rounding error
            tokens += block.tokens
        return tokens
