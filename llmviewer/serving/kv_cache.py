"""KV cache memory, allocated in blocks of tokens (PagedAttention, arXiv:2309.06180)."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .lengths import Tokens
from .policy import Policy
from .prefix_cache import PrefixBlock, Prompt
from .steps import Steps
from .traffic import Traffic


@frozen(kw_only=True)
class Blocks:
    """KV memory of a rank.

    room_bytes      KV budget [B]
    size            tokens of a block
    sequence_bytes  bytes of a sequence with 0, 1, ... blocks
    """

    room_bytes: float
    size: int
    sequence_bytes: npt.NDArray[np.float64]

    @classmethod
    def of(cls, steps: Steps, *, room_bytes: float, size: int, longest: int) -> Self:
        """Blocks for sequences of up to `longest` tokens."""
        tokens = size * np.arange(1.0, -(-longest // size) + 1)
        bytes_each = np.broadcast_to(steps.cache_bytes(tokens), tokens.shape)
        return cls(room_bytes=room_bytes, size=size, sequence_bytes=np.concatenate(([0.0], bytes_each)))

    def bytes_of(self, tokens: Tokens) -> float:
        """KV memory of sequences with so many tokens each. [B]"""
        return float(self.sequence_bytes[(tokens + (self.size - 1)) // self.size].sum())

    @cached_property
    def _max_block_bytes(self) -> float:
        return float(np.max(np.diff(self.sequence_bytes)))

    def max_bytes(self, sequences: int, tokens: int) -> float:
        """Upper limit of bytes_of() for sequences with so many tokens together. [B]"""
        return (tokens // self.size + sequences) * self._max_block_bytes

    def bytes_of_one(self, tokens: int) -> float:
        return float(self.sequence_bytes[-(-tokens // self.size)])


@frozen(kw_only=True)
class Caches:
    """KV caches of the requests of a traffic.

    blocks  KV memory without the prefix that all prompts share, which each rank holds once, in whole blocks
    cached  cached tokens of each prompt
    common  tokens of that shared prefix
    ahead   draft tokens for which each sequence also has room
    """

    blocks: Blocks
    cached: Tokens
    common: Tokens
    ahead: int
    traffic: Traffic

    @classmethod
    def of(
        cls, steps: Steps, traffic: Traffic, policy: Policy, size: int, served: npt.NDArray[np.intp] | None = None
    ) -> Self:
        """Caches in the memory that weights and activations leave.

        served  requests of the traffic that these caches are for; None: all

        Raises InputError if the cache of a request does not fit alone.
        """
        cached_tokens = steps.hit_tokens(traffic)
        common = (
            np.broadcast_to(steps.shared_prefix_tokens(traffic.prompt), len(traffic)).astype(np.int64) // size * size
        )
        rows = slice(None) if served is None else served
        request_tokens = (traffic.prompt + traffic.gen)[rows]
        prefill_tokens, longest = policy.most_read(int(np.max(traffic.prompt[rows]))), int(np.max(request_tokens))
        all_blocks = Blocks.of(
            steps, room_bytes=steps.kv_budget_bytes(prefill_tokens), size=size, longest=longest + steps.draft_tokens
        )
        shared_bytes = all_blocks.bytes_of_one(int(np.max(common[rows])))
        steps.check_fits(
            longest,
            prefill_tokens,
            shared_bytes + all_blocks.bytes_of_one(int(np.max(request_tokens - common[rows])) + steps.draft_tokens),
        )
        blocks = Blocks(
            room_bytes=all_blocks.room_bytes - shared_bytes, size=size, sequence_bytes=all_blocks.sequence_bytes
        )
        return cls(
            blocks=blocks, cached=cached_tokens, common=common, ahead=steps.draft_tokens, traffic=traffic
        )  # fmt: skip

    @cached_property
    def kv_prompt(self) -> list[int]:
        """Tokens of each request in the KV cache besides its output, the last of which is not there yet."""
        tokens: list[int] = (self.traffic.prompt - self.common + self.ahead - 1).tolist()
        return tokens

    @property
    def named(self) -> bool:
        """Whether prefix-cache hits follow from the names of blocks."""
        return self.traffic.blocks is not None

    def own_of_one(self, request: int, tokens: int) -> float:
        return self.blocks.bytes_of_one(tokens - int(self.common[request]) + self.ahead)

    def of_prompt(self, request: int) -> Prompt:
        """The shareable blocks of a request; none without names."""
        if self.traffic.blocks is None:
            return ()
        names = self.traffic.blocks[request]
        ends = np.concatenate(([0], self.traffic.block_ends(request, self.blocks.size)))
        nbytes = np.diff(self.blocks.sequence_bytes[-(-ends // self.blocks.size)])
        blocks = zip(names, np.diff(ends).tolist(), nbytes.tolist(), strict=True)
        return tuple(PrefixBlock(*block) for block in blocks if block[1])
