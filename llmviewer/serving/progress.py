"""Output tokens of requests after each forward pass, one or several per pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ..records import frozen
from .lengths import Tokens

Requests = npt.NDArray[np.int64]  # indices of requests in the traffic

_LINEAR_FROM: Final = 64  # passes from which the mean number of passes is linear in the tokens


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
        """Progress by one token per pass."""
        return cls(passes=gen, starts=np.zeros(len(gen), dtype=np.int64))

    @classmethod
    def drawn(
        cls,
        gen: Tokens,
        leaves: Sequence[Sequence[float]],
        generator: np.random.Generator,
        models: Tokens | None = None,
    ) -> Self:
        """Independent passes that give at least 1, 2, ... tokens with the probabilities `leaves` of each model.

        models  number of the model of each request; None: the first
        """
        rising = [-np.array(each) for each in leaves]
        ends = []
        for count, model in zip(gen.tolist(), repeat(0) if models is None else models.tolist(), strict=False):
            each = np.searchsorted(rising[model], -generator.random(count - 1), side="left")
            grown = np.concatenate(([0, 1], 1 + np.cumsum(each)))
            ends.append(np.minimum(grown[: np.searchsorted(grown, count) + 1], count))
        sizes = np.array(list(map(len, ends)))
        return cls(passes=sizes - 1, starts=np.cumsum(sizes) - sizes, ends=np.concatenate(ends))

    def written(self, ids: Requests, passes: Tokens) -> Tokens:
        """Output tokens of requests after their numbers of passes."""
        return passes if self.ends is None else self.ends[self.starts[ids] + passes]

    def written_by(self, request: int, passes: int) -> int:
        """Output tokens of one request after a number of passes."""
        return passes if self.ends is None else int(self.ends[self.starts[request] + passes])

    def only(self, selection: npt.NDArray[np.intp]) -> Progress:
        """Passes of a selection of the requests."""
        return Progress(passes=self.passes[selection], starts=self.starts[selection], ends=self.ends)


def mean_passes(tokens: int, leaves: Sequence[float]) -> float:
    """Mean passes to generate `tokens`, of which the last often gives more than remain.

    leaves  probability that a pass gives at least 1, 2, ... tokens

    N(m) = 1 + sum over k of p(k) N(m - k), which soon is linear in m (renewal theorem).
    """
    if tokens < 1 or len(leaves) == 1:
        return float(max(tokens, 0))
    probabilities = np.array(leaves) - np.append(leaves[1:], 0.0)
    exact_tokens = min(tokens, _LINEAR_FROM * len(leaves))
    history = list(
        accumulate(
            range(exact_tokens),
            lambda means, _: _extend_means(means, probabilities),
            initial=np.zeros(len(probabilities)),
        )
    )
    return float(history[-1][0]) + (tokens - exact_tokens) / sum(leaves)


def _extend_means(means: npt.NDArray[np.float64], probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Shifts [N(m - 1), N(m - 2), ...] to [N(m), N(m - 1), ...]."""
    return np.concatenate(([1 + probabilities @ means], means[:-1]))
