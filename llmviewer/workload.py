"""What one forward pass is asked to do: sequences of q_len new tokens that attend to kv_len tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from operator import add

import numpy as np

from .errors import InputError
from .forms import Num


@dataclass(frozen=True, kw_only=True)
class Spans:
    """`batch` sequences alike, or a part of what happens to each. Fields are numbers or arrays that broadcast.

    q_len   new tokens of each sequence in this pass
    kv_len  tokens each attends to, the new ones included
    logits  positions of each whose logits are wanted
    source  of kv_len, those that an encoder has read or reads; of use to encoder-decoder models alone
    images  pictures of each sequence that a tower reads in this pass
    seen    pictures of each that it has read so far; of use to models that keep keys and values of them apart
    """

    batch: Num
    q_len: Num
    kv_len: Num
    logits: Num = 1
    source: Num = 0
    images: Num = 0
    seen: Num = 0

    @property
    def past(self) -> Num:
        """Tokens of each that earlier passes have left."""
        return self.kv_len - self.q_len

    def times(self, number: Num) -> Spans:
        """`number` times as many sequences."""
        return replace(self, batch=self.batch * number)

    def of_source(self) -> Spans:
        """What the encoder reads in this pass: the part of the new tokens that is its input."""
        total, past = np.minimum(self.kv_len, self.source), np.minimum(self.past, self.source)
        return Spans(batch=self.batch, q_len=total - past, kv_len=total, logits=0)

    def of_target(self) -> Spans:
        """What the decoder beside it reads: a token to start with when the source is complete, and those it wrote."""
        total, past = (np.maximum(length - self.source + 1, 0) for length in (self.kv_len, self.past))
        new, read = total - past, np.minimum(self.kv_len, self.source)
        return Spans(batch=self.batch, q_len=new, kv_len=total, logits=np.minimum(self.logits, new), source=read)

    def of_images(self, patches: float, tiles: float) -> Spans:
        """What a tower reads: tiles of pictures as sequences of `patches`."""
        return Spans(batch=self.batch * self.images * tiles, q_len=patches, kv_len=patches, logits=0)

    def of_texts(self, tokens: float) -> Spans:
        """The new tokens that are none of the `tokens` of each picture."""
        new = np.maximum(self.q_len - self.images * tokens, 0)
        return Spans(batch=self.batch, q_len=new, kv_len=self.kv_len, logits=self.logits)

    def of_seen(self, tokens: float) -> Spans:
        """What cross-attention to `tokens` of each picture has to do: nothing where no picture was seen."""
        new, read = self.q_len * np.minimum(self.seen, 1), self.seen * tokens
        return Spans(batch=self.batch, q_len=new, kv_len=self.kv_len, logits=0, source=read)

    def kv_tokens(self, window: float) -> Num:
        return np.minimum(self.kv_len, window + self.q_len - 1)

    def pairs(self, window: float) -> Num:
        past = self.past
        most = np.minimum(self.kv_len, window)  # keys the last query sees
        growing: Num = np.minimum(np.maximum(most - past, 0), self.q_len)  # queries that see every key before them
        return growing * past + growing * (growing + 1) / 2 + (self.q_len - growing) * most

    def chunked_pairs(self, chunk: float) -> Num:
        new: Num = _triangles(self.kv_len, chunk) - _triangles(self.past, chunk)
        return new

    def chunked_kv(self, chunk: float) -> Num:
        return self.kv_len - np.floor_divide(self.past, chunk) * chunk

    def near_pairs(self, reach: float) -> Num:
        near = np.minimum(reach, np.maximum(self.q_len - 1, 0))
        pairs: Num = self.q_len * (2 * near + 1) - near * (near + 1)
        return pairs

    def chunk_pairs(self, chunk: float) -> Num:
        return _triangles(self.q_len, chunk)

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        held = self.kv_tokens(window)
        stays = np.less_equal(held, resident)
        return held if stays.all() else np.where(stays, held, self._kv_tiled(tile, window))

    def _kv_tiled(self, tile: float, window: float) -> Num:
        past = self.past
        full = np.floor_divide(self.q_len, tile)
        rest = self.q_len - full * tile
        most = window - 1 + tile  # keys that a full tile sees once the window is full
        growing = np.clip(np.floor((most - past) / tile), 0, full)  # full tiles that see every key before them
        keys: Num = growing * past + tile * growing * (growing + 1) / 2
        keys = keys + np.where(full > growing, (full - growing) * np.minimum(most, self.kv_len), 0)
        last: Num = np.where(rest > 0, np.minimum(self.kv_len, window - 1 + rest), 0)
        return keys + last

    def fft(self) -> Num:
        points = 2 * np.maximum(self.q_len, 1)
        return np.where(np.greater(self.q_len, 1), points * np.log2(points), 0)


@dataclass(frozen=True, kw_only=True)
class Sequences(Spans):
    """Spans that a pass can be asked for.

    Raises InputError where batch or q_len is below 1, kv_len below q_len, or logits outside 0..q_len.
    """

    def __post_init__(self) -> None:
        for name, value in tuple(vars(self).items()):
            if isinstance(value, np.ndarray | np.generic):  # whole numbers of few bits would overflow
                object.__setattr__(self, name, np.asarray(value, dtype=np.float64)[()])
        for name in ("batch", "q_len"):
            if not np.greater_equal(getattr(self, name), 1).all():
                raise InputError(f"{name} must be at least 1; got {_least(getattr(self, name))}")
        if not np.greater_equal(self.kv_len, self.q_len).all():
            raise InputError(
                "kv_len must be >= q_len, as new tokens attend to themselves; "
                f"got q_len={self.q_len}, kv_len={self.kv_len}"
            )
        if not (np.greater_equal(self.logits, 0) & np.less_equal(self.logits, self.q_len)).all():
            raise InputError(f"logits must be between 0 and q_len={self.q_len}; got {self.logits}")

    def times(self, number: Num) -> Spans:
        return Spans(**{f.name: getattr(self, f.name) for f in fields(Spans)}).times(number)


@dataclass(frozen=True, kw_only=True)
class Thinned(Spans):
    """Spans of whose tokens, new and before, only the part `share` takes part."""

    share: float

    def pairs(self, window: float) -> Num:
        return self.share**2 * super().pairs(window)

    def kv_tokens(self, window: float) -> Num:
        return self.share * super().kv_tokens(window)

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        return np.minimum(self.share * self.q_len, 1.0) * super().kv_streams(tile, resident, window)

    def _kv_tiled(self, tile: float, window: float) -> Num:
        """Queries of a tile are as many places apart as it takes to have them all; of those keys too a part is left."""
        return self.share * super()._kv_tiled(tile / self.share, window)


@dataclass(frozen=True)
class Workload:
    """One forward pass. Operators see the features below and never a phase, so each needs one formula.

    Prefill, decode, chunked prefill, speculative verification and mixed batches differ in q_len and kv_len alone.
    """

    groups: tuple[Spans, ...]

    @classmethod
    def prefill(cls, *, batch: Num, prompt: Num, images: Num = 0) -> Workload:
        """All of a prompt at once, with the pictures that it has."""
        return cls((Sequences(batch=batch, q_len=prompt, kv_len=prompt, source=prompt, images=images, seen=images),))

    @classmethod
    def decode(cls, *, batch: Num, kv_len: Num, prompt: Num = 0, images: Num = 0) -> Workload:
        """One new token that attends to `kv_len` tokens, itself included.

        prompt  those of them that were an encoder's input, where the model has one
        images  pictures that the prompt had
        """
        return cls((Sequences(batch=batch, q_len=1, kv_len=kv_len, source=prompt, seen=images),))

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

    def source(self) -> Workload:
        """The part of the pass that an encoder sees."""
        return _Part(tuple(s.of_source() for s in self.groups))

    def target(self) -> Workload:
        """The part of the pass that the decoder beside it sees."""
        return _Target(tuple(s.of_target() for s in self.groups))

    def images(self, patches: float, tiles: float = 1) -> Workload:
        """The part of the pass that a tower sees, which cuts each picture into `tiles`, and those into `patches`."""
        return _Part(tuple(s.of_images(patches, tiles) for s in self.groups))

    def texts(self, tokens: float) -> Workload:
        """The part of the pass that is no picture, where each takes `tokens` of the new ones."""
        return _Part(tuple(s.of_texts(tokens) for s in self.groups))

    def seeing(self, tokens: float) -> Workload:
        """The part of the pass whose sequences have pictures, with `tokens` of each to attend to besides their own."""
        return _Target(tuple(s.of_seen(tokens) for s in self.groups))

    def replicas(self, ranks: float) -> Workload:
        """What `ranks` devices that each have such a pass have together."""
        return _Part(tuple(s.times(ranks) for s in self.groups))

    def sampled(self, share: float) -> Workload:
        """The work on the part `share` of the tokens that goes on, each token by itself."""
        return _Sampled(tuple(s.times(share) for s in self.groups), share=share)

    def together(self, share: float) -> Workload:
        """The work on the part `share` of such passes that goes on with all of its tokens, on average."""
        return _Together(tuple(s.times(share) for s in self.groups), share=share)

    def thinned(self, share: float) -> Workload:
        """What the part `share` of the tokens does, which sees none but its like."""
        values = ({f.name: getattr(s, f.name) for f in fields(Spans)} for s in self.groups)
        return _Thinned(tuple(Thinned(**value, share=share) for value in values), share=share)

    def single(self) -> Workload:
        """Each sequence as if it were one token."""
        return Workload(tuple(Spans(batch=s.batch, q_len=1, kv_len=1) for s in self.groups))

    def evicted(self, budget: float) -> Workload:
        """The same where no more than `budget` tokens of each sequence are left of those before the pass."""
        return Workload(tuple(replace(s, kv_len=s.q_len + np.minimum(s.past, budget)) for s in self.groups))

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

    def chunked_pairs(self, chunk: float) -> Num:
        """(query, key) pairs where a query sees the keys of its own chunk of positions, none after it."""
        return self._sum(lambda s: s.chunked_pairs(chunk))

    def chunked_kv(self, chunk: float) -> Num:
        """Cached positions that such queries attend to."""
        return self._sum(lambda s: s.chunked_kv(chunk))

    def chosen_kv(self, chosen: float) -> Num:
        """Cached positions read by queries that attend to `chosen` keys each: no fewer than where all differ."""
        return self._sum(lambda s: np.minimum(s.kv_len, chosen * s.q_len))

    def kv_pages(self, page: float, window: float) -> Num:
        """Cached positions that pages of `page` tokens have room for, the last one of each sequence not full."""
        return self._sum(lambda s: np.ceil(s.kv_tokens(window) / page) * page)

    def touched_kv(self, density: float) -> Num:
        """Cached positions that a sequence's queries read, each the part `density` of all, no two the same."""
        return self._sum(lambda s: np.minimum(density * s.q_len, 1.0) * s.kv_len)

    def near_pairs(self, reach: float) -> Num:
        """(token, token) pairs no further apart than `reach`, before or after."""
        return self._sum(lambda s: s.near_pairs(reach))

    def cross_pairs(self) -> Num:
        """(new token of a decoder, token of its encoder) pairs."""
        return self._sum(lambda s: s.of_target().q_len * s.source)

    def source_kv(self) -> Num:
        """Tokens of the encoder that new tokens of the decoder attend to."""
        return self._sum(lambda s: np.minimum(s.of_target().q_len, 1) * s.source)

    def source_tokens(self) -> Num:
        """Tokens that the encoder has read so far."""
        return self._sum(lambda s: np.minimum(s.kv_len, s.source))

    def chunk_pairs(self, chunk: float) -> Num:
        """Pairs of a new token and one not after it in the same chunk; chunks begin where the pass does."""
        return self._sum(lambda s: s.chunk_pairs(chunk))

    def distinct_experts(self, experts: float, chosen: float, skew: float = 0) -> Num:
        """E (1 - (1 - k/E)^tokens): experts that at least one token reaches, where all are alike likely; with a skew,
        the sum of 1 - (1 - q)^tokens over experts with their shares q of the tokens.
        """
        tokens = self.tokens()
        if not skew:
            return experts * (1 - (1 - chosen / experts) ** tokens)
        return reduce(add, (1 - (1 - share) ** tokens for share in popularity(int(experts), int(chosen), skew)))

    def expert_rows(self, experts: float, chosen: float, factor: float) -> Num:
        """Rows that experts take, each of which has places for `factor` times its even part of the tokens: a whole
        number of them, at least one.
        """
        rows: Num = experts * np.maximum(np.rint(factor * chosen * self.tokens() / experts), 1.0)
        return rows

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

    def fft(self) -> Num:
        """N log2 n of transforms over all new tokens of a sequence, each with a zero beside it; none for one token."""
        return self._sum(lambda s: s.fft())

    def _sum(self, f: Callable[[Spans], Num]) -> Num:
        return reduce(add, (s.batch * f(s) for s in self.groups))


class _Part(Workload):
    """What some blocks see of a pass, which may be nothing: then they do not run."""

    def one(self) -> Num:
        return np.minimum(self.tokens(), 1.0)

    def sequences(self) -> Num:
        return self._sum(lambda s: np.minimum(s.q_len, 1.0))


@dataclass(frozen=True)
class _Sampled(Workload):
    """What some tokens do: what a pass does once is done if there is any of them."""

    share: float = 1.0

    def one(self) -> Num:
        return 1 - (1 - self.share) ** (self.tokens() / self.share)


@dataclass(frozen=True)
class _Together(_Sampled):
    """What some passes do, over all of them: what a pass does once is done in these."""

    def one(self) -> Num:
        return self.share


@dataclass(frozen=True)
class _Thinned(_Sampled):
    """The same of Thinned sequences, whose lengths are those of all tokens."""

    def tokens(self) -> Num:
        return self.share * super().tokens()


class _Target(_Part):
    """What a decoder sees, whose spans count no token of its encoder's input, or of pictures."""

    def cross_pairs(self) -> Num:
        return self._sum(lambda s: s.q_len * s.source)

    def source_kv(self) -> Num:
        return self._sum(lambda s: np.minimum(s.q_len, 1) * s.source)

    def source_tokens(self) -> Num:
        return self._sum(lambda s: s.source)


def _triangles(length: Num, chunk: float) -> Num:
    """Pairs of a position and one not after it in the same chunk, up to `length`."""
    full: Num = np.floor_divide(length, chunk)
    rest = length - full * chunk
    pairs: Num = full * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2
    return pairs


@cache
def popularity(experts: int, chosen: int, skew: float) -> tuple[float, ...]:
    """The part of all tokens that each expert gets, in order of popularity, which is rank^-skew; they sum to `chosen`.

    A token takes an expert once. What would be more than all tokens is all of them, and the others share the places
    that are left in proportion to their popularity.
    """
    rank = np.arange(1, experts + 1, dtype=np.float64)
    rest = np.ones(experts)  # popularity of an expert and all after it, over its own: powers of ranks would underflow
    for i in range(experts - 2, -1, -1):
        rest[i] += rest[i + 1] * (rank[i] / rank[i + 1]) ** skew
    share = (chosen - np.arange(experts)) / rest  # where all before it get every token
    full = min(int(np.argmax(share <= 1)), chosen) if np.any(share <= 1) else experts
    found = np.ones(experts)
    if full < experts:
        found[full:] = share[full] * (rank[full] / rank[full:]) ** skew
    return tuple(found.tolist())


def _least(value: Num) -> Num:
    return value if np.ndim(value) == 0 else np.min(value)
