"""Progress of answers: the tokens generated after each pass, one or several per pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from .lengths import Tokens

Requests = npt.NDArray[np.int64]  # places in the traffic

_SETTLED: Final = 64  # answers of so many times the tokens of a pass, beyond which passes are a line in the tokens


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The first pass of each request reads its prompt and gives a token; the last gives no more than are wanted.

    passes  of each
    starts  where those of each begin in `ends`
    ends    tokens after 0, 1, 2, ... passes, of one request after the other; None where each pass gives one
    """

    passes: Tokens
    starts: Requests
    ends: Tokens | None = None

    @classmethod
    def even(cls, gen: Tokens) -> Self:
        """A token a pass."""
        return cls(passes=gen, starts=np.zeros(len(gen), dtype=np.int64))

    @classmethod
    def drawn(cls, gen: Tokens, leaves: Sequence[float], generator: np.random.Generator) -> Self:
        """Passes that leave at least 1, 2, ... tokens as likely as `leaves` says, each by itself."""
        rising = -np.array(leaves)
        ends = []
        for count in gen.tolist():
            each = np.searchsorted(rising, -generator.random(count - 1), side="left")
            grown = np.concatenate(([0, 1], 1 + np.cumsum(each)))
            ends.append(np.minimum(grown[: np.searchsorted(grown, count) + 1], count))
        sizes = np.array(list(map(len, ends)))
        return cls(passes=sizes - 1, starts=np.cumsum(sizes) - sizes, ends=np.concatenate(ends))

    def written(self, ids: Requests, passes: Tokens) -> Tokens:
        """Tokens of some requests after so many passes of each."""
        return passes if self.ends is None else self.ends[self.starts[ids] + passes]

    def only(self, which: npt.NDArray[np.intp]) -> Progress:
        """Of some requests."""
        return Progress(passes=self.passes[which], starts=self.starts[which], ends=self.ends)


def mean_passes(tokens: int, leaves: Sequence[float]) -> float:
    """Passes that it takes on average until there are so many more tokens, where each leaves at least 1, 2, ... as
    likely as `leaves` says: the last often leaves more than are wanted.

    N(m) = 1 + sum over k of p(k) N(m - k), which soon is a line (renewal theorem).
    """
    if tokens < 1 or len(leaves) == 1:
        return float(max(tokens, 0))
    each = np.array(leaves) - np.append(leaves[1:], 0.0)
    settled = min(tokens, _SETTLED * len(leaves))
    found = list(accumulate(range(settled), lambda known, _: _one_more(known, each), initial=np.zeros(len(each))))
    return float(found[-1][0]) + (tokens - settled) / sum(leaves)


def _one_more(known: npt.NDArray[np.float64], each: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """N(m), N(m - 1), ... from N(m - 1), N(m - 2), ...: as many as a pass may leave."""
    return np.concatenate(([1 + each @ known], known[:-1]))
