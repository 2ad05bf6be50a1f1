"""The prefix cache of a rank: blocks of earlier prompts in memory that running sequences leave free.

The least recently used block is evicted first, as in vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from math import inf
from typing import NamedTuple


class Block(NamedTuple):
    """Some tokens of a prompt; others that are the same up to its end have the same one. [tokens], [B]"""

    id: int
    tokens: int
    nbytes: float


Prompt = Sequence[Block]  # from its first token on


@dataclass(eq=False)
class PrefixCache:
    """The prefix cache of a rank.

    in_use        blocks of each request that is worked on
    references    how many of these requests have each
    idle          the other blocks, from the one used last longest ago
    idle_bytes    that those take
    shared_bytes  that sequences which have the same block would take if each had one of its own, beyond one
    """

    in_use: dict[int, Prompt] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)
    idle: dict[int, Block] = field(default_factory=dict)
    idle_bytes: float = 0.0
    shared_bytes: float = 0.0

    def hit_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt whose blocks are there, from the first on."""
        there = takewhile(lambda block: block.id in self.references or block.id in self.idle, prompt)
        return sum(block.tokens for block in there)

    def held_bytes(self, prompt: Prompt) -> float:
        """Of what the blocks of a prompt take, what others that are worked on hold already. [B]"""
        return sum(block.nbytes for block in prompt if block.id in self.references)

    def acquire(self, request: int, prompt: Prompt) -> None:
        """While it is worked on: those that are there and those that it makes."""
        self.in_use[request] = prompt
        for block in prompt:
            if block.id in self.references:
                self.shared_bytes += block.nbytes
            elif self.idle.pop(block.id, None):
                self.idle_bytes -= block.nbytes
            self.references[block.id] = self.references.get(block.id, 0) + 1

    def release(self, request: int, made: float = inf) -> None:
        """It is worked on no more; of its prompt all is there, or so many tokens. The end of a prompt is evicted before
        its beginning, without which nobody finds it.
        """
        prompt = self.in_use.pop(request)
        ends = list(accumulate(block.tokens for block in prompt))
        for block, end in zip(reversed(prompt), reversed(ends), strict=True):
            self.references[block.id] -= 1
            if self.references[block.id]:
                self.shared_bytes -= block.nbytes
                continue
            del self.references[block.id]
            if end <= made:
                self.idle[block.id] = block
                self.idle_bytes += block.nbytes

    def evict(self, spare_bytes: float) -> int:
        """Leaves no more idle ones than fit `spare_bytes`; the tokens that had to go."""
        tokens = 0
        while self.idle and self.idle_bytes > spare_bytes:
            block = self.idle.pop(next(iter(self.idle)))
            self.idle_bytes = self.idle_bytes - block.nbytes if self.idle else 0.0  # what rounding leaves
            tokens += block.tokens
        return tokens
