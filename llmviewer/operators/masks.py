"""Which keys a query sees: pairs to compute, scores to store, and what of the cache is kept and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

from ..forms import (
    SEQUENCES,
    TOKENS,
    Form,
    all_pairs,
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


@dataclass(frozen=True)
class Mask(ABC):
    """Forms for one head of the queries and one of the keys.

    keeps  whether keys and values stay for later passes: they are written to the cache, and read from it
    """

    keeps: ClassVar[bool] = True

    @property
    @abstractmethod
    def pairs(self) -> Form:
        """(query, key) pairs that it leaves."""

    @property
    @abstractmethod
    def cells(self) -> Form:
        """Scores that are stored where they are stored."""

    @property
    @abstractmethod
    def read(self) -> Form:
        """Keys that a pass reads."""

    @property
    def held(self) -> Form:
        """Keys that stay for later passes."""
        return self.read

    def streamed(self, tile: float, resident: float) -> Form | None:  # noqa: ARG002
        """Keys read when queries are taken `tile` at a time and no more than `resident` keys stay meanwhile; None
        where each is read once.
        """
        return None

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class Causal(Mask):
    """The query's own position and those before it, the last `window` of them."""

    window: float = inf

    @property
    def pairs(self) -> Form:
        return pairs(self.window)

    @property
    def cells(self) -> Form:
        return cells(self.window)

    @property
    def read(self) -> Form:
        return kv_tokens(self.window)

    def streamed(self, tile: float, resident: float) -> Form:
        return kv_streams(tile, resident, self.window)

    def __str__(self) -> str:
        return f"{self.window:g}" if self.window < inf else ""


CAUSAL: Final = Causal()


@dataclass(frozen=True)
class Once(Causal):
    """Causal, in a model that reads all at once and writes nothing: keys are used at once and not kept."""

    keeps: ClassVar[bool] = False


@dataclass(frozen=True)
class AroundPictures(Causal):
    """Causal, but that the `tokens` of one picture see those of it that come after, too (Gemma 3)."""

    tokens: int = 0

    @property
    def pairs(self) -> Form:
        return pairs(self.window) + self.tokens * (self.tokens - 1) // 2 * SEQUENCES.on(images(self.tokens))


@dataclass(frozen=True)
class Prefix(Causal):
    """Causal, but that the tokens of a prompt all see each other (PaliGemma): what a pass reads at once is one."""

    @property
    def pairs(self) -> Form:
        return self.cells


@dataclass(frozen=True)
class Chunked(Mask):
    """Those before it in the query's own chunk of positions (Llama 4, attention_chunk_size)."""

    chunk: int

    @property
    def pairs(self) -> Form:
        return chunked_pairs(self.chunk)

    @property
    def cells(self) -> Form:
        return cells(self.chunk)

    @property
    def read(self) -> Form:
        return chunked_kv(self.chunk)

    @property
    def held(self) -> Form:
        return kv_tokens(self.chunk)

    def __str__(self) -> str:
        return f"chunks of {self.chunk}"


@dataclass(frozen=True)
class Chosen(Mask):
    """As many of those before it as `count`, which an indexer has chosen for each query (arXiv:2512.02556)."""

    count: int

    @property
    def pairs(self) -> Form:
        return pairs(self.count)

    @property
    def cells(self) -> Form:
        return pairs(self.count)

    @property
    def read(self) -> Form:
        return chosen_kv(self.count)

    @property
    def held(self) -> Form:
        return kv_tokens()

    def __str__(self) -> str:
        return f"best {self.count}"


@dataclass(frozen=True)
class Everything(Mask):
    """All of the sequence, before and after: what encoders do; keys are used at once and not kept.

    reach  how far a token sees to either side
    """

    keeps: ClassVar[bool] = False

    reach: float = inf

    @property
    def pairs(self) -> Form:
        return all_pairs() if self.reach == inf else near_pairs(int(self.reach))

    @property
    def cells(self) -> Form:
        return all_pairs()

    @property
    def read(self) -> Form:
        return TOKENS

    def __str__(self) -> str:
        return "both ways" if self.reach == inf else f"both ways, {self.reach:g}"


@dataclass(frozen=True)
class Tiled(Mask):
    """Windows of a picture, in which each token sees all: `seen` (token, token) pairs of one picture share a window."""

    keeps: ClassVar[bool] = False

    seen: int

    @property
    def pairs(self) -> Form:
        return self.seen * SEQUENCES

    @property
    def cells(self) -> Form:
        return self.pairs

    @property
    def read(self) -> Form:
        return TOKENS

    def __str__(self) -> str:
        return "windows"


@dataclass(frozen=True)
class Probe(Mask):
    """One learned query for each sequence, which sees all of it: attention that pools."""

    keeps: ClassVar[bool] = False

    @property
    def pairs(self) -> Form:
        return TOKENS

    @property
    def cells(self) -> Form:
        return TOKENS

    @property
    def read(self) -> Form:
        return TOKENS

    def __str__(self) -> str:
        return "pooling"


@dataclass(frozen=True)
class _AsMany(Mask):
    """Each query sees `keys`, however long its sequence is."""

    keeps: ClassVar[bool] = False

    keys: int

    @property
    def pairs(self) -> Form:
        return self.keys * TOKENS

    @property
    def cells(self) -> Form:
        return self.keys * TOKENS


@dataclass(frozen=True)
class Features(_AsMany):
    """`keys` features of each sequence that something else has made, all of which each query sees."""

    @property
    def read(self) -> Form:
        return self.keys * SEQUENCES

    def __str__(self) -> str:
        return f"{self.keys} features"


@dataclass(frozen=True)
class Own(_AsMany):
    """`keys` of its own for each query: what it is the mean of, or what else stands for it alone."""

    @property
    def read(self) -> Form:
        return self.keys * TOKENS

    def __str__(self) -> str:
        return f"{self.keys} of its own"


@dataclass(frozen=True)
class Across(Mask):
    """All that the encoder has read: the cross-attention of a decoder."""

    @property
    def pairs(self) -> Form:
        return cross_pairs()

    @property
    def cells(self) -> Form:
        return cross_pairs()

    @property
    def read(self) -> Form:
        return source_kv()

    @property
    def held(self) -> Form:
        return source_tokens()

    def __str__(self) -> str:
        return "cross"


@dataclass(frozen=True)
class Compressed(Mask):
    """Entries that stand for `ratio` positions each, of those before the query; the best `count` of them.

    A group that is not full counts as the part that it has, which keeps lengths linear: less than an entry a query.
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
    def read(self) -> Form:
        return (kv_tokens() if self.count == inf else chosen_kv(int(self.count) * self.ratio)) / self.ratio

    @property
    def held(self) -> Form:
        return kv_tokens() / self.ratio

    def __str__(self) -> str:
        best = f", best {self.count:g}" if self.count < inf else ""
        return f"{self.ratio} to 1{best}"


@dataclass(frozen=True)
class Part(Mask):
    """What one of `ranks` devices has of a mask that share out keys evenly."""

    mask: Mask
    ranks: int

    @property
    def pairs(self) -> Form:
        return self.mask.pairs / self.ranks

    @property
    def cells(self) -> Form:
        return self.mask.cells / self.ranks

    @property
    def read(self) -> Form:
        return self.mask.read / self.ranks

    @property
    def held(self) -> Form:
        return self.mask.held / self.ranks

    def __str__(self) -> str:
        return str(self.mask)


@dataclass(frozen=True)
class PartOfQueries(Part):
    """The same where they share out queries in turn, each of which looks at the keys of all devices."""

    @property
    def read(self) -> Form:
        return self.mask.read

    def streamed(self, tile: float, resident: float) -> Form | None:
        return self.mask.streamed(tile * self.ranks, resident)


@dataclass(frozen=True)
class Joint(Mask):
    """Several at once, each over keys of its own, under one softmax."""

    masks: tuple[Mask, ...]

    @property
    def pairs(self) -> Form:
        return total(mask.pairs for mask in self.masks)

    @property
    def cells(self) -> Form:
        return total(mask.cells for mask in self.masks)

    @property
    def read(self) -> Form:
        return total(mask.read for mask in self.masks)

    @property
    def held(self) -> Form:
        return total(mask.held for mask in self.masks)

    def __str__(self) -> str:
        return " and ".join(map(str, self.masks))
