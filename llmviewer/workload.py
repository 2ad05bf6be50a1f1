"""What one forward pass is asked to do: sequences of q_len new tokens that attend to kv_len tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from .errors import InputError
from .forms import Num


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """`batch` sequences alike. Fields are numbers or arrays that broadcast.

    q_len   new tokens of each sequence in this pass
    kv_len  tokens each attends to, the new ones included
    logits  positions of each whose logits are wanted

    Raises InputError where batch or q_len is below 1, kv_len below q_len, or logits outside 0..q_len.
    """

    batch: Num
    q_len: Num
    kv_len: Num
    logits: Num = 1

    def __post_init__(self) -> None:
        for name in ("batch", "q_len", "kv_len", "logits"):  # whole numbers of few bits would overflow
            value = getattr(self, name)
            if isinstance(value, np.ndarray | np.generic):
                object.__setattr__(self, name, np.asarray(value, dtype=np.float64)[()])
        for field in ("batch", "q_len"):
            if not np.all(np.greater_equal(getattr(self, field), 1)):
                raise InputError(f"{field} must be at least 1; got {_least(getattr(self, field))}")
        if not np.all(np.greater_equal(self.kv_len, self.q_len)):
            raise InputError(
                "kv_len must be >= q_len, as new tokens attend to themselves; "
                f"got q_len={self.q_len}, kv_len={self.kv_len}"
            )
        if not np.all((np.asarray(self.logits) >= 0) & np.less_equal(self.logits, self.q_len)):
            raise InputError(f"logits must be between 0 and q_len={self.q_len}; got {self.logits}")

    def kv_tokens(self, window: float) -> Num:
        return np.minimum(self.kv_len, window + self.q_len - 1)

    def pairs(self, window: float) -> Num:
        past = self.kv_len - self.q_len
        most = np.minimum(self.kv_len, window)  # keys the last query sees
        growing = np.clip(most - past, 0, self.q_len)  # queries that still see every key before them
        return growing * past + growing * (growing + 1) / 2 + (self.q_len - growing) * most

    def chunk_pairs(self, chunk: float) -> Num:
        full = np.floor_divide(self.q_len, chunk)
        rest = self.q_len - full * chunk
        return full * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        held = self.kv_tokens(window)
        return np.where(np.less_equal(held, resident), held, self._kv_tiled(tile, window))

    def _kv_tiled(self, tile: float, window: float) -> Num:
        past = self.kv_len - self.q_len
        full = np.floor_divide(self.q_len, tile)
        rest = self.q_len - full * tile
        most = window - 1 + tile  # keys that a full tile sees once the window is full
        growing = np.clip(np.floor((most - past) / tile), 0, full)  # full tiles that see every key before them
        keys: Num = growing * past + tile * growing * (growing + 1) / 2
        keys = keys + np.where(full > growing, (full - growing) * np.minimum(most, self.kv_len), 0)
        last: Num = np.where(rest > 0, np.minimum(self.kv_len, window - 1 + rest), 0)
        return keys + last


@dataclass(frozen=True)
class Workload:
    """One forward pass. Operators see the features below and never a phase, so each needs one formula.

    Prefill, decode, chunked prefill, speculative verification and mixed batches differ in q_len and kv_len alone.
    """

    groups: tuple[Sequences, ...]

    @classmethod
    def prefill(cls, *, batch: Num, prompt: Num) -> Workload:
        """All of a prompt at once."""
        return cls.chunk(batch=batch, chunk=prompt, past=0)

    @classmethod
    def decode(cls, *, batch: Num, kv_len: Num) -> Workload:
        """One new token that attends to `kv_len` tokens, itself included."""
        return cls((Sequences(batch=batch, q_len=1, kv_len=kv_len),))

    @classmethod
    def chunk(cls, *, batch: Num, chunk: Num, past: Num) -> Workload:
        """`chunk` tokens of a prompt of which `past` are in the cache."""
        return cls((Sequences(batch=batch, q_len=chunk, kv_len=past + chunk),))

    @classmethod
    def verify(cls, *, batch: Num, draft: Num, past: Num) -> Workload:
        """`draft` proposed tokens and the one they follow, logits wanted for all."""
        q_len = draft + 1
        return cls((Sequences(batch=batch, q_len=q_len, kv_len=past + q_len, logits=q_len),))

    def __add__(self, other: Workload) -> Workload:
        """Both in one pass, as a scheduler that mixes prefill chunks into decode batches does."""
        return Workload(self.groups + other.groups)

    def one(self) -> Num:
        """Once per pass, whatever it holds: the reading of a weight."""
        return 1.0

    def sequences(self) -> Num:
        """Sequences in the pass."""
        return self._sum(lambda s: 1.0)

    def tokens(self) -> Num:
        """New tokens in the pass."""
        return self._sum(lambda s: s.q_len)

    def logits(self) -> Num:
        """Positions whose logits are wanted."""
        return self._sum(lambda s: s.logits)

    def wanted(self) -> Num:
        """1 where any logits are wanted, else 0: whether the prediction head is run."""
        return np.minimum(self.logits(), 1.0)

    def table_rows(self, rows: float) -> Num:
        """Rows of a table that are read to look up a row for every token: no more than it has."""
        return np.minimum(self.tokens(), rows)

    def chunk_pairs(self, chunk: float) -> Num:
        """Pairs of a new token and one not after it in the same chunk; chunks begin where the pass does."""
        return self._sum(lambda s: s.chunk_pairs(chunk))

    def distinct_experts(self, experts: float, chosen: float) -> Num:
        """E (1 - (1 - k/E)^tokens): experts that at least one token reaches, where all are alike likely."""
        return experts * (1 - (1 - chosen / experts) ** self.tokens())

    def pairs(self, window: float) -> Num:
        """(query, key) pairs left by a causal mask of `window` keys."""
        return self._sum(lambda s: s.pairs(window))

    def cells(self, window: float) -> Num:
        """(query, key) cells of whole score matrices."""
        return self._sum(lambda s: s.q_len * s.kv_tokens(window))

    def kv_tokens(self, window: float) -> Num:
        """Cached positions attended to."""
        return self._sum(lambda s: s.kv_tokens(window))

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        """Cached positions read when each tile of queries reads the keys it needs, unless `resident` can stay."""
        return self._sum(lambda s: s.kv_streams(tile, resident, window))

    def _sum(self, f: Callable[[Sequences], Num]) -> Num:
        return reduce(add, (s.batch * f(s) for s in self.groups))


def _least(value: Num) -> Num:
    return value if np.ndim(value) == 0 else np.min(value)
