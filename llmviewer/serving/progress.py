"""Progress of answers: the tokens generated after each pass, one or several per pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .lengths import Tokens

Requests = npt.NDArray[np.int64]  # places in the traffic

_LINEAR_FROM: Final = 64  # passes, beyond which their mean number is linear in the tokens


@frozen(kw_only=True)
class Progress:
    """Passes of each request: the first is its prefill and gives a token; the last gives no more than remain.

    passes  number of passes of each request
    starts  index of each request's first entry in `ends`
    ends    output tokens after 0, 1, 2, ... passes, request by request; None if each pass gives one
    """

    passes: Tokens
    starts: Requests
    ends: Tokens | None = None

    @classmethod
    def even(cls, gen: Tokens) -> Self:
        """One token per pass."""
        return cls(passes=gen, starts=np.zeros(len(gen), dtype=np.int64))

    @classmethod
    def drawn(cls, gen: Tokens, leaves: Sequence[float], generator: np.random.Generator) -> Self:
        """Independent passes that give at least 1, 2, ... tokens with the probabilities `leaves`."""
        rising = -np.array(leaves)
        ends = []
        for count in gen.tolist():
            each = np.searchsorted(rising, -generator.random(count - 1), side="left")
            grown = np.concatenate(([0, 1], 1 + np.cumsum(each)))
            ends.append(np.minimum(grown[: np.searchsorted(grown, count) + 1], count))
        sizes = np.array(list(map(len, ends)))
        return cls(passes=sizes - 1, starts=np.cumsum(sizes) - sizes, ends=np.concatenate(ends))

    def written(self, ids: Requests, passes: Tokens) -> Tokens:
        """Output tokens of requests after their numbers of passes."""
        return passes if self.ends is None else self.ends[self.starts[ids] + passes]

    def only(self, which: npt.NDArray[np.intp]) -> Progress:
        """Passes of a selection of the requests."""
        return Progress(passes=self.passes[which], starts=self.starts[which], ends=self.ends)


def mean_passes(tokens: int, leaves: Sequence[float]) -> float:
    """Mean passes to generate `tokens`, where each gives at least 1, 2, ... with the probabilities `leaves`; the last
    often gives more than remain.

    N(m) = 1 + sum over k of p(k) N(m - k), which soon is linear in m (renewal theorem).
    """
    if tokens < 1 or len(leaves) == 1:
        return float(max(tokens, 0))
    each = np.array(leaves) - np.append(leaves[1:], 0.0)
    settled = min(tokens, _LINEAR_FROM * len(leaves))
    found = list(accumulate(range(settled), lambda known, _: _one_more(known, each), initial=np.zeros(len(each))))
    return float(found[-1][0]) + (tokens - settled) / sum(leaves)


def _one_more(known: npt.NDArray[np.float64], each: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """N(m), N(m - 1), ... from N(m - 1), N(m - 2), ...: as many as a pass may give."""
    return np.concatenate(([1 + each @ known], known[:-1]))
