"""Attention masks: pairs to compute, scores to store, and keys to read and cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import ClassVar, Final

from ..forms import (
    SEQUENCES,
    TOKENS,
    Form,
    all_pairs,
    batch_share,
    cells,
    chosen_kv,
    chunked_kv,
    chunked_pairs,
    cross_pairs,
    images,
    kv_streams,
    kv_tokens,
    near_pairs,
    pairs,
    source_kv,
    source_tokens,
    total,
)
from ..records import frozen


@frozen
class Mask(ABC):
    """The keys that each query attends to, as forms for one query head and one key head.

    is_cached  whether keys and values are cached for later passes
    """

    is_cached: ClassVar[bool] = True

    @property
    @abstractmethod
    def pairs(self) -> Form:
        """(query, key) pairs that the mask allows."""

    @property
    @abstractmethod
    def cells(self) -> Form:
        """Scores that eager attention stores."""

    @property
    @abstractmethod
    def keys_read(self) -> Form:
        """Distinct keys that a pass reads."""

    @property
    def keys_cached(self) -> Form:
        """Keys that stay in the cache."""
        return self.keys_read

    def streamed(self, tile: float, resident: float) -> Form | None:  # noqa: ARG002
        """Keys read by tiles of `tile` queries if at most `resident` keys stay on the chip; None: each is read once."""
        return None

    def __str__(self) -> str:
        return ""


@frozen
class Causal(Mask):
    """Positions up to the query's own; the last `window` of them."""

    window: float = inf

    @property
    def pairs(self) -> Form:
        return pairs(self.window)

    @property
    def cells(self) -> Form:
        return cells(self.window)

    @property
    def keys_read(self) -> Form:
        return kv_tokens(self.window)

    def streamed(self, tile: float, resident: float) -> Form | None:
        return kv_streams(tile, resident, self.window)

    def __str__(self) -> str:
        return f"window {self.window:g}" if self.window < inf else ""


CAUSAL: Final = Causal()


class UncachedCausal(Causal):
    """Causal attention in one pass over the whole input; keys are not cached."""

    is_cached: ClassVar[bool] = False

    @property
    def keys_read(self) -> Form:
        return TOKENS

    def streamed(self, tile: float, resident: float) -> None:  # noqa: ARG002
        return None


@frozen
class CausalWithImages(Causal):
    """Causal attention, bidirectional among the `tokens` of an image (Gemma 3)."""

    tokens: int = 0

    @property
    def pairs(self) -> Form:
        return pairs(self.window) + self.tokens * (self.tokens - 1) // 2 * SEQUENCES.on(images(self.tokens))


class Prefix(Causal):
    """Causal attention, bidirectional within the prompt, which is one pass (PaliGemma)."""

    @property
    def pairs(self) -> Form:
        return self.cells


@frozen
class Chunked(Mask):
    """Positions up to the query's own within its chunk (Llama 4, attention_chunk_size)."""

    chunk: int

    @property
    def pairs(self) -> Form:
        return chunked_pairs(self.chunk)

    @property
    def cells(self) -> Form:
        return cells(self.chunk)

    @property
    def keys_read(self) -> Form:
        return chunked_kv(self.chunk)

    @property
    def keys_cached(self) -> Form:
        return kv_tokens(self.chunk)

    def __str__(self) -> str:
        return f"chunks of {self.chunk}"


@frozen
class TopK(Mask):
    """The `count` earlier keys that an indexer scores highest for each query (arXiv:2512.02556)."""

    count: int

    @property
    def pairs(self) -> Form:
        return pairs(self.count)

    @property
    def cells(self) -> Form:
        return pairs(self.count)

    @property
    def keys_read(self) -> Form:
        return chosen_kv(self.count)

    @property
    def keys_cached(self) -> Form:
        return kv_tokens()

    def __str__(self) -> str:
        return f"top-{self.count}"


@frozen
class Strided(Mask):
    """The last `window` keys, and of those before them one block in `stride` (arXiv:2404.14219, section 2.1).

    Blocks count as fractions, which keeps lengths linear.

    blocks_read  blocks in `stride` that the query heads of a key head need together
    """

    window: int
    stride: int
    blocks_read: int = 1

    @property
    def pairs(self) -> Form:
        return pairs() / self.stride + (1 - 1 / self.stride) * pairs(self.window)

    @property
    def cells(self) -> Form:
        return cells()

    @property
    def keys_read(self) -> Form:
        share = self.blocks_read / self.stride
        return share * kv_tokens() + (1 - share) * kv_tokens(self.window)

    @property
    def keys_cached(self) -> Form:
        return kv_tokens()

    def __str__(self) -> str:
        return f"window {self.window} + every {self.stride}th block"


@frozen
class Bidirectional(Mask):
    """Attention to the whole sequence, as in encoders; keys are not cached.

    reach  positions that a query attends to on either side
    """

    is_cached: ClassVar[bool] = False

    reach: float = inf

    @property
    def pairs(self) -> Form:
        return all_pairs() if self.reach == inf else near_pairs(int(self.reach))

    @property
    def cells(self) -> Form:
        return all_pairs()

    @property
    def keys_read(self) -> Form:
        return TOKENS

    def __str__(self) -> str:
        return "bidirectional" if self.reach == inf else f"bidirectional within {self.reach:g}"


class WholePrompt(Bidirectional):
    """Attention to the whole prompt in one pass; keys are cached for a decoder that reads them in every step."""

    is_cached: ClassVar[bool] = True

    @property
    def keys_cached(self) -> Form:
        return kv_tokens()

    def __str__(self) -> str:
        return "bidirectional prompt"


@frozen
class BidirectionalWithExtra(Mask):
    """Bidirectional attention over each sequence joined with `tokens` tokens of another input (MMDiT)."""

    is_cached: ClassVar[bool] = False

    tokens: int

    @property
    def pairs(self) -> Form:
        return all_pairs() + 2 * self.tokens * TOKENS + self.tokens**2 * SEQUENCES

    @property
    def cells(self) -> Form:
        return self.pairs

    @property
    def keys_read(self) -> Form:
        return TOKENS + self.tokens * SEQUENCES

    def __str__(self) -> str:
        return f"bidirectional + {self.tokens} tokens"


@frozen
class Tiled(Mask):
    """Attention within windows of an image.

    pairs_per_image  (query, key) pairs per image
    """

    is_cached: ClassVar[bool] = False

    pairs_per_image: int

    @property
    def pairs(self) -> Form:
        return self.pairs_per_image * SEQUENCES

    @property
    def cells(self) -> Form:
        return self.pairs

    @property
    def keys_read(self) -> Form:
        return TOKENS

    def __str__(self) -> str:
        return "windows"


class PoolingMask(Mask):
    """Attention pooling: one learned query per sequence attends to all its tokens."""

    is_cached: ClassVar[bool] = False

    @property
    def pairs(self) -> Form:
        return TOKENS

    @property
    def cells(self) -> Form:
        return TOKENS

    @property
    def keys_read(self) -> Form:
        return TOKENS

    def __str__(self) -> str:
        return "pooling"


@frozen
class _FixedCount(Mask):
    """Each query attends to `keys` keys, whatever the length of its sequence."""

    is_cached: ClassVar[bool] = False

    keys: int

    @property
    def pairs(self) -> Form:
        return self.keys * TOKENS

    @property
    def cells(self) -> Form:
        return self.keys * TOKENS


class FixedKeys(_FixedCount):
    """`keys` features per sequence from another network, which every query attends to."""

    @property
    def keys_read(self) -> Form:
        return self.keys * SEQUENCES

    def __str__(self) -> str:
        return f"{self.keys} fixed keys"


class PerQueryKeys(_FixedCount):
    """`keys` keys of each query alone, such as the patches that a query pools."""

    @property
    def keys_read(self) -> Form:
        return self.keys * TOKENS

    def __str__(self) -> str:
        return f"{self.keys} keys per query"


class Cross(Mask):
    """Cross-attention to all tokens of the encoder."""

    @property
    def pairs(self) -> Form:
        return cross_pairs()

    @property
    def cells(self) -> Form:
        return cross_pairs()

    @property
    def keys_read(self) -> Form:
        return source_kv()

    @property
    def keys_cached(self) -> Form:
        return source_tokens()

    def __str__(self) -> str:
        return "cross"


@frozen
class Compressed(Mask):
    """The `count` best compressed entries before the query; an entry stands for `ratio` positions.

    An unfinished group counts as a fraction of an entry, which keeps lengths linear; the error is below one entry.
    """

    ratio: int
    count: float = inf

    @property
    def pairs(self) -> Form:
        return pairs(self.count * self.ratio) / self.ratio

    @property
    def cells(self) -> Form:
        return (cells() if self.count == inf else pairs(self.count * self.ratio)) / self.ratio

    @property
    def keys_read(self) -> Form:
        return (kv_tokens() if self.count == inf else chosen_kv(int(self.count) * self.ratio)) / self.ratio

    @property
    def keys_cached(self) -> Form:
        return kv_tokens() / self.ratio

    def __str__(self) -> str:
        best = f" top-{self.count:g}" if self.count < inf else ""
        return f"{self.ratio}:1 compressed{best}"


@frozen
class DerivedMask(Mask):
    """A mask whose amounts follow from those of another."""

    mask: Mask

    @abstractmethod
    def amount(self, form: Form) -> Form:
        """An amount of this mask, from that of the other."""

    @property
    def pairs(self) -> Form:
        return self.amount(self.mask.pairs)

    @property
    def cells(self) -> Form:
        return self.amount(self.mask.cells)

    @property
    def keys_read(self) -> Form:
        return self.amount(self.mask.keys_read)

    @property
    def keys_cached(self) -> Form:
        return self.amount(self.mask.keys_cached)

    def streamed(self, tile: float, resident: float) -> Form | None:
        rows = self.mask.streamed(tile, resident)
        return None if rows is None else self.amount(rows)

    def __str__(self) -> str:
        return str(self.mask)


@frozen
class ShardedKeys(DerivedMask):
    """A mask on one of `ranks` devices that divide keys evenly."""

    ranks: int

    def amount(self, form: Form) -> Form:
        return form / self.ranks

    def streamed(self, tile: float, resident: float) -> Form | None:  # noqa: ARG002
        return None


class ShardedQueries(ShardedKeys):
    """A mask on one of `ranks` devices that divide queries round-robin; each query attends to all keys."""

    @property
    def keys_read(self) -> Form:
        return self.mask.keys_read

    def streamed(self, tile: float, resident: float) -> Form | None:
        return self.mask.streamed(tile * self.ranks, resident)


@frozen
class ShardedSequences(DerivedMask):
    """A mask on the one of `ranks` devices with most sequences, which they divide."""

    ranks: int

    def amount(self, form: Form) -> Form:
        return form.on(batch_share(self.ranks))


@frozen
class Joint(Mask):
    """Several masks under one softmax, each over its own keys."""

    masks: tuple[Mask, ...]

    @property
    def pairs(self) -> Form:
        return total(mask.pairs for mask in self.masks)

    @property
    def cells(self) -> Form:
        return total(mask.cells for mask in self.masks)

    @property
    def keys_read(self) -> Form:
        return total(mask.keys_read for mask in self.masks)

    @property
    def keys_cached(self) -> Form:
        return total(mask.keys_cached for mask in self.masks)

    def __str__(self) -> str:
        return " + ".join(map(str, self.masks))
