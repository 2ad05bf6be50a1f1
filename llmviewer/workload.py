"""`Workload`: one forward pass over sequences of q_len new tokens that attend to kv_len tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, reduce
from math import lgamma
from operator import add
from typing import Any, Final

import numpy as np

from .errors import InputError
from .forms import Num
from .records import frozen

_MIN_PROBABILITY: Final = 1e-15  # has a finite logarithm, and so has the difference from 1


@frozen(kw_only=True)
class Spans:
    """`batch` equal sequences, or a part of them. Fields are numbers, or arrays that broadcast.

    q_len   new tokens per sequence in this pass
    kv_len  tokens per sequence that are attended to, new ones included
    logits  positions per sequence that need logits
    source  tokens of kv_len that are the encoder's, in encoder-decoder models
    images  images per sequence that a tower processes in this pass
    total_images  images per sequence processed so far, for models with a separate cache for images
    """

    batch: Num
    q_len: Num
    kv_len: Num
    logits: Num = 1
    source: Num = 0
    images: Num = 0
    total_images: Num = 0

    @property
    def past(self) -> Num:
        """Tokens per sequence of earlier passes."""
        return self.kv_len - self.q_len

    @property
    def prefixes(self) -> tuple[tuple[Num, Num], ...]:
        """(tokens, sequences that share them) of prefixes that are stored and read once, each within the next one."""
        return ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all fields broadcast to; empty if all are numbers."""
        return np.broadcast_shapes(*(np.shape(getattr(self, f.name)) for f in fields(Spans)))

    def times(self, number: Num) -> Spans:
        """The spans with `number` times as many sequences."""
        return replace(self, batch=self.batch * number)

    def of_source(self) -> Spans:
        """The encoder's part: the new tokens that are its input."""
        total, past = np.minimum(self.kv_len, self.source), np.minimum(self.past, self.source)
        return Spans(batch=self.batch, q_len=total - past, kv_len=total, logits=0)

    def of_target(self) -> Spans:
        """The decoder's part: a start token once the source is complete, and the tokens it generated."""
        total, past = (np.maximum(length - self.source + 1, 0) for length in (self.kv_len, self.past))
        new, read = total - past, np.minimum(self.kv_len, self.source)
        return Spans(batch=self.batch, q_len=new, kv_len=total, logits=np.minimum(self.logits, new), source=read)

    def of_images(self, patches: float, tiles: float) -> Spans:
        """An image tower's part: tiles as sequences of `patches` patches."""
        return Spans(batch=self.batch * self.images * tiles, q_len=patches, kv_len=patches, logits=0)

    def of_text_tokens(self, tokens: float) -> Spans:
        """The new tokens without the `tokens` of each image."""
        new = np.maximum(self.q_len - self.images * tokens, 0)
        return Spans(batch=self.batch, q_len=new, kv_len=self.kv_len, logits=self.logits)

    def of_denoising(self, tokens: float) -> Spans:
        """The passes of a decoder over `tokens` tokens, each of which sees all of the encoder's."""
        steps = self.of_target()
        return Spans(batch=self.batch * steps.q_len, q_len=tokens, kv_len=tokens, logits=0, source=steps.source)

    def of_image_readers(self, tokens: float) -> Spans:
        """The part of cross-attention to `tokens` per image; empty if there are no images."""
        new, read = self.q_len * np.minimum(self.total_images, 1), self.total_images * tokens
        return Spans(batch=self.batch, q_len=new, kv_len=self.kv_len, logits=0, source=read)

    def tokens(self) -> Num:
        return self.q_len

    def kv_tokens(self, window: float) -> Num:
        return _least(self.kv_len, window + self.q_len - 1)

    def pairs(self, window: float) -> Num:
        past = self.past
        keys_of_last = _least(self.kv_len, window)  # keys the last query sees
        growing = _least(_most(keys_of_last - past, 0.0), self.q_len)  # queries that see every key before them
        return growing * past + growing * (growing + 1) / 2 + (self.q_len - growing) * keys_of_last

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
        keys = self.kv_tokens(window)
        if type(keys) is type(resident) is float:
            return keys if keys <= resident else self._kv_tiled(tile, window)
        stays_on_chip = np.less_equal(keys, resident)
        return keys if stays_on_chip.all() else np.where(stays_on_chip, keys, self._kv_tiled(tile, window))

    def _kv_tiled(self, tile: float, window: float) -> Num:
        past = self.past
        full = np.floor_divide(self.q_len, tile)
        rest = self.q_len - full * tile
        keys_of_full_tile = window - 1 + tile  # keys that a full tile sees once the window is full
        growing = np.clip(
            np.floor((keys_of_full_tile - past) / tile), 0, full
        )  # full tiles that see every key before them
        keys: Num = growing * past + tile * growing * (growing + 1) / 2
        keys = keys + np.where(full > growing, (full - growing) * np.minimum(keys_of_full_tile, self.kv_len), 0)
        last: Num = np.where(rest > 0, np.minimum(self.kv_len, window - 1 + rest), 0)
        return keys + last

    def fft(self) -> Num:
        points = 2 * np.maximum(self.q_len, 1)
        return np.where(np.greater(self.q_len, 1), points * np.log2(points), 0)

    def history_fft(self) -> Num:
        points = 2 * np.maximum(self.kv_len, 1)
        terms: Num = np.minimum(self.q_len, 1) * points * np.log2(points)
        return terms


@frozen(kw_only=True)
class Sequences(Spans):
    """Validated spans; all fields become floats, because products of integers overflow in numpy.

    Raises InputError if batch or q_len is below 1, kv_len below q_len, or logits outside 0..q_len.
    """

    def __post_init__(self) -> None:
        for name in ("batch", "q_len"):
            if not _holds(getattr(self, name) >= 1):
                raise InputError(f"{name} must be at least 1; got {_minimum(getattr(self, name))}")
        if not _holds(self.kv_len >= self.q_len):
            raise InputError(
                "kv_len must be >= q_len, as new tokens attend to themselves; "
                f"got q_len={self.q_len}, kv_len={self.kv_len}"
            )
        if not (_holds(self.logits >= 0) and _holds(self.logits <= self.q_len)):
            raise InputError(f"logits must be between 0 and q_len={self.q_len}; got {self.logits}")
        state = vars(self)
        for name, value in state.items():
            is_number = isinstance(value, float | int) or not np.ndim(value)
            state[name] = float(value) if is_number else np.asarray(value, dtype=np.float64)

    def times(self, number: Num) -> Spans:
        return Spans(**{f.name: getattr(self, f.name) for f in fields(Spans)}).times(number)


@frozen(kw_only=True)
class Thinned(Spans):
    """Spans of which only the fraction `share` of all tokens, new and cached, attend to each other."""

    share: float

    def pairs(self, window: float) -> Num:
        return self.share**2 * super().pairs(window)

    def kv_tokens(self, window: float) -> Num:
        return self.share * super().kv_tokens(window)

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        return np.minimum(self.share * self.q_len, 1.0) * super().kv_streams(tile, resident, window)

    def _kv_tiled(self, tile: float, window: float) -> Num:
        """Queries of a tile span 1 / `share` times as many positions, of whose keys the fraction `share` is left."""
        return self.share * super()._kv_tiled(tile / self.share, window)


@frozen
class Workload:
    """A forward pass. Operators use the features below and never a phase, so each needs one formula.

    Prefill, decode, chunked prefill, speculative verification and mixed batches differ only in q_len and kv_len.
    """

    groups: tuple[Spans, ...]

    @classmethod
    def prefill(cls, *, batch: Num, prompt: Num, images: Num = 0) -> Workload:
        """A whole prompt in one pass, with its images."""
        return cls(
            (Sequences(batch=batch, q_len=prompt, kv_len=prompt, source=prompt, images=images, total_images=images),)
        )

    @classmethod
    def decode(cls, *, batch: Num, kv_len: Num, prompt: Num = 0, images: Num = 0) -> Workload:
        """A decode step: one new token per sequence, which attends to `kv_len` tokens, itself included.

        prompt  tokens that were the encoder's input, if the model has one
        images  images per prompt
        """
        return cls((Sequences(batch=batch, q_len=1, kv_len=kv_len, source=prompt, total_images=images),))

    @classmethod
    def chunk(cls, *, batch: Num, chunk: Num, past: Num) -> Workload:
        """`chunk` tokens of a prompt after `past` cached ones."""
        return cls((Sequences(batch=batch, q_len=chunk, kv_len=past + chunk),))

    @classmethod
    def verify(cls, *, batch: Num, draft: Num, past: Num) -> Workload:
        """`draft` drafted tokens and the one before them, with logits for all."""
        q_len = draft + 1
        return cls((Sequences(batch=batch, q_len=q_len, kv_len=past + q_len, logits=q_len),))

    @property
    def prefills(self) -> bool:
        """Whether any new token needs no logits, as all but the last of a prompt."""
        return any(bool(np.any(np.not_equal(group.q_len, group.logits))) for group in self.groups)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the fields of all groups broadcast to."""
        return np.broadcast_shapes(*(group.shape for group in self.groups))

    def __add__(self, other: Workload) -> Workload:
        """Both in one pass, as in a batch of prefill chunks and decode steps."""
        return Workload(self.groups + other.groups)

    def source(self) -> Workload:
        """The encoder's part of the pass."""
        return _PartialPass(tuple(s.of_source() for s in self.groups))

    def target(self) -> Workload:
        """The decoder's part of the pass, after an encoder."""
        return _Target(tuple(s.of_target() for s in self.groups))

    def images(self, patches: float, tiles: float = 1) -> Workload:
        """An image tower's part of the pass: `tiles` per image, `patches` per tile."""
        return _PartialPass(tuple(s.of_images(patches, tiles) for s in self.groups))

    def denoising(self, tokens: float) -> Workload:
        """The decoder's passes over `tokens` tokens, one pass per token generated, after an encoder."""
        return _Target(tuple(s.of_denoising(tokens) for s in self.groups))

    def text_tokens(self, tokens: float) -> Workload:
        """The part of the pass without images, of `tokens` new tokens each."""
        return _PartialPass(tuple(s.of_text_tokens(tokens) for s in self.groups))

    def with_images(self, tokens: float) -> Workload:
        """The sequences with images, whose cross-attention reads `tokens` per image."""
        return _Target(tuple(s.of_image_readers(tokens) for s in self.groups))

    def logit_tokens(self) -> Workload:
        """The last new tokens of each sequence, whose logits are needed; all of a decode step."""
        return _PartialPass(tuple(replace(s, q_len=np.minimum(s.logits, s.q_len)) for s in self.groups))

    def replicas(self, ranks: float) -> Workload:
        """The passes of `ranks` devices with equal work, together."""
        return _PartialPass(tuple(s.times(ranks) for s in self.groups))

    def batch_share(self, ranks: float) -> Workload:
        """The pass of the rank with most sequences, of `ranks` that divide the batch; groups have equal shares."""
        batch = reduce(add, (s.batch for s in self.groups))
        share = np.ceil(np.divide(batch, ranks)) / np.maximum(batch, 1)
        return Workload(tuple(s.times(share) for s in self.groups))

    def sampled(self, share: float) -> Workload:
        """The fraction `share` of the tokens, chosen independently."""
        return _Sampled(tuple(s.times(share) for s in self.groups), share=share)

    def sampled_sequences(self, share: float) -> Workload:
        """All tokens of the fraction `share` of the sequences, chosen independently."""
        return _SampledSequences(tuple(s.times(share) for s in self.groups), share=share)

    def pass_fraction(self, share: float) -> Workload:
        """All tokens in the fraction `share` of such passes, on average."""
        return _PassFraction(tuple(s.times(share) for s in self.groups), share=share)

    def thinned(self, share: float) -> Workload:
        """The fraction `share` of the tokens, which attend only to each other."""
        values = ({f.name: getattr(s, f.name) for f in fields(Spans)} for s in self.groups)
        return _Thinned(tuple(Thinned(**value, share=share) for value in values), share=share)

    def resized(self, share: float) -> Workload:
        """The same sequences with the fraction `share` of their positions, or one, as at a lower resolution."""
        lengths = ((s, np.maximum(share * s.q_len, 1), np.maximum(share * s.kv_len, 1)) for s in self.groups)
        return Workload(tuple(replace(s, q_len=q_len, kv_len=kv_len) for s, q_len, kv_len in lengths))

    def single(self) -> Workload:
        """Each sequence as a single token."""
        return Workload(tuple(Spans(batch=s.batch, q_len=1, kv_len=1) for s in self.groups))

    def evicted(self, budget: float) -> Workload:
        """The pass with at most `budget` earlier tokens per sequence in the cache."""
        return Workload(tuple(replace(s, kv_len=s.q_len + np.minimum(s.past, budget)) for s in self.groups))

    def one(self) -> Num:
        """1 per pass, such as for reading a weight."""
        return 1.0

    def sequences(self) -> Num:
        """Sequences in the pass."""
        return self._sum(lambda s: 1.0)

    def tokens(self) -> Num:
        """New tokens in the pass."""
        return self._sum(lambda s: s.tokens())

    def logits(self) -> Num:
        """Positions that need logits."""
        return self._sum(lambda s: s.logits)

    def with_logits(self) -> Num:
        """1 if any logits are needed, so that the prediction head runs; else 0."""
        return np.minimum(self.logits(), 1.0)

    def table_rows(self, rows: float) -> Num:
        """Rows of a table read for one look-up per token, at most all of them."""
        return np.minimum(self.tokens(), rows)

    def chunked_pairs(self, chunk: float) -> Num:
        """(query, key) pairs under a causal mask within the query's chunk of positions."""
        return self._sum(lambda s: s.chunked_pairs(chunk))

    def chunked_kv(self, chunk: float) -> Num:
        """Cached positions that a pass attends to under a mask within chunks of positions."""
        return self._sum(lambda s: s.chunked_kv(chunk))

    def chosen_kv(self, chosen: float) -> Num:
        """Cached positions read by queries that attend to `chosen` different keys each."""
        return self._sum(lambda s: np.minimum(s.kv_len, chosen * s.q_len))

    def kv_pages(self, page: float, window: float) -> Num:
        """Positions in the pages of `page` tokens that sequences occupy, with a partly filled last page."""
        return self._sum(lambda s: np.ceil(s.kv_tokens(window) / page) * page)

    def touched_kv(self, density: float) -> Num:
        """Cached positions read if queries each read the fraction `density` of them, without overlap."""
        return self._sum(lambda s: np.minimum(density * s.q_len, 1.0) * s.kv_len)

    def near_pairs(self, reach: float) -> Num:
        """(query, key) pairs at most `reach` positions apart, before or after."""
        return self._sum(lambda s: s.near_pairs(reach))

    def cross_pairs(self) -> Num:
        """(new token of the decoder, token of the encoder) pairs."""
        return self._sum(lambda s: s.of_target().q_len * s.source)

    def source_kv(self) -> Num:
        """Tokens of the encoder that new tokens of the decoder attend to."""
        return self._sum(lambda s: np.minimum(s.of_target().q_len, 1) * s.source)

    def source_tokens(self) -> Num:
        """Tokens that the encoder has processed so far."""
        return self._sum(lambda s: np.minimum(s.kv_len, s.source))

    def chunk_pairs(self, chunk: float) -> Num:
        """Pairs of a new token and one up to it in the same chunk; chunks start with the pass."""
        return self._sum(lambda s: s.chunk_pairs(chunk))

    def distinct_experts(self, experts: float, chosen: float, skew: float = 0) -> Num:
        """E (1 - (1 - k/E)^tokens): mean distinct experts that tokens use, if all are equally likely.

        With a skew, the sum of 1 - (1 - q)^tokens over experts, with q their fractions of the tokens.
        """
        tokens = self.tokens()
        if not skew:
            return experts * (1 - (1 - chosen / experts) ** tokens)
        return reduce(add, (1 - (1 - share) ** tokens for share in popularity(int(experts), int(chosen), skew)))

    def busiest_experts(self, experts: float, chosen: float, ranks: float) -> Num:
        """Mean number of experts that tokens use on the rank where they use most, of `ranks` that divide the experts.

        All experts are equally likely; ranks are treated as independent.
        """
        return most_of_binomials(self.distinct_experts(experts, chosen) / experts, int(experts // ranks), ranks)

    def expert_rows(self, experts: float, chosen: float, factor: float) -> Num:
        """Rows of all experts, each with `factor` times its equal share of the tokens, rounded, at least one."""
        rows: Num = experts * np.maximum(np.rint(factor * chosen * self.tokens() / experts), 1.0)
        return rows

    def pairs(self, window: float) -> Num:
        """(query, key) pairs under a causal mask with a window of `window` keys."""
        return self._sum(lambda s: s.pairs(window))

    def cells(self, window: float) -> Num:
        """(query, key) cells of whole score matrices."""
        return self._sum(lambda s: s.q_len * s.kv_tokens(window))

    def kv_tokens(self, window: float) -> Num:
        """Cached positions attended to."""
        return self._sum(lambda s: s.kv_tokens(window))

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        """Cached positions read if each tile of queries reads its keys; once, if at most `resident` keys stay."""
        return self._sum(lambda s: s.kv_streams(tile, resident, window))

    def fft(self) -> Num:
        """Sum of n log2 n over sequences, with n twice the new tokens (zero-padded); 0 for one token."""
        return self._sum(lambda s: s.fft())

    def history_fft(self) -> Num:
        """Sum of n log2 n over sequences, with n twice the tokens of the context (zero-padded)."""
        return self._sum(lambda s: s.history_fft())

    def longest_context(self) -> Num:
        """Tokens of the longest sequence."""
        return reduce(np.maximum, (np.minimum(s.q_len, 1) * s.kv_len for s in self.groups))

    def _sum(self, f: Callable[[Spans], Num]) -> Num:
        return reduce(add, (s.batch * f(s) for s in self.groups))


class _PartialPass(Workload):
    """A part of a pass; blocks of an empty part do not run."""

    def one(self) -> Num:
        return np.minimum(self.tokens(), 1.0)

    def sequences(self) -> Num:
        return self._sum(lambda s: np.minimum(s.q_len, 1.0))


@frozen
class _Sampled(Workload):
    """Pass of a random part of the tokens; amounts per pass count with the probability of at least one token."""

    share: float = 1.0

    def one(self) -> Num:
        return 1 - (1 - self.share) ** (self.tokens() / self.share)


class _SampledSequences(_Sampled):
    """Pass of a random part of the sequences; amounts per pass count with the probability of at least one of them."""

    def one(self) -> Num:
        return 1 - (1 - self.share) ** (self.sequences() / self.share)


class _PassFraction(_Sampled):
    """A fraction of passes, averaged; amounts per pass count with that fraction."""

    def one(self) -> Num:
        return self.share


class _Thinned(_Sampled):
    """Pass over Thinned spans, whose lengths count all tokens."""

    def tokens(self) -> Num:
        return self.share * super().tokens()

    def cells(self, window: float) -> Num:
        return self.share * super().cells(window)

    def near_pairs(self, reach: float) -> Num:
        return self.share**2 * super().near_pairs(reach)


class _Target(_PartialPass):
    """The decoder's part; its spans count no tokens of the encoder's input or of images."""

    def cross_pairs(self) -> Num:
        return self._sum(lambda s: s.q_len * s.source)

    def source_kv(self) -> Num:
        return self._sum(lambda s: np.minimum(s.q_len, 1) * s.source)

    def source_tokens(self) -> Num:
        return self._sum(lambda s: s.source)


def _triangles(length: Num, chunk: float) -> Num:
    """Pairs of positions and earlier or equal ones in the same chunk, up to `length`."""
    full: Num = np.floor_divide(length, chunk)
    rest = length - full * chunk
    pairs: Num = full * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2
    return pairs


@cache
def popularity(experts: int, chosen: int, skew: float) -> tuple[float, ...]:
    """The fraction of all tokens that each expert gets, the most popular first; fractions sum to `chosen`.

    Popularity is rank^-skew. A token uses an expert at most once, so fractions are capped at 1; the others share the
    rest in proportion to popularity.
    """
    rank = np.arange(1, experts + 1, dtype=np.float64)
    rest = np.ones(experts)  # popularity from each rank on, relative to that rank: avoids underflow
    for i in range(experts - 2, -1, -1):
        rest[i] += rest[i + 1] * (rank[i] / rank[i + 1]) ** skew
    share = (chosen - np.arange(experts)) / rest  # if all before it get every token
    full = min(int(np.argmax(share <= 1)), chosen) if np.any(share <= 1) else experts
    fractions = np.ones(experts)
    if full < experts:
        fractions[full:] = share[full] * (rank[full] / rank[full:]) ** skew
    return tuple(fractions.tolist())


def _least(a: Num, b: Num) -> Num:
    """The smaller of two quantities; two numbers, of which simulations compare many, are not made arrays."""
    return min(a, b) if type(a) is type(b) is float else np.minimum(a, b)


def _most(a: Num, b: Num) -> Num:
    """The larger of two quantities; two numbers are not made arrays."""
    return max(a, b) if type(a) is type(b) is float else np.maximum(a, b)


def most_of_binomials(share: Num, trials: int, draws: float) -> Num:
    """Mean of the largest of `draws` independent binomial numbers of `trials`, each a success with chance `share`."""
    chances, place = np.unique(np.clip(share, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY), return_inverse=True)
    numbers = np.arange(trials)
    logs = _log_ways(trials) + numbers * np.log(chances)[:, None] + (trials - numbers) * np.log1p(-chances)[:, None]
    at_most = np.minimum(np.cumsum(np.exp(logs), axis=1), 1.0)
    most: Num = (1 - at_most**draws).sum(axis=1)[place].reshape(np.shape(share))
    return most if np.ndim(share) else float(most)


@cache
def _log_ways(trials: int) -> np.ndarray:
    """Logarithms of the numbers of ways to choose 0, 1, ... of `trials`, but not all."""
    return np.array([lgamma(trials + 1) - lgamma(n + 1) - lgamma(trials - n + 1) for n in range(trials)])


def _holds(condition: Any) -> bool:
    """Whether a condition on a number, or on each of an array, holds."""
    return condition if isinstance(condition, bool) else bool(condition.all())


def _minimum(value: Num) -> Num:
    return value if np.ndim(value) == 0 else np.min(value)
