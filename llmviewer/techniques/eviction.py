"""Cache eviction: queries attend to the keys that are left."""

from __future__ import annotations

from ..forms import Form, evicted, kv_tokens
from ..operators.masks import CAUSAL, Mask
from ..records import frozen
from . import technique
from ._parameters import parameter
from ._sparse import SparseAttention


@frozen
class Budget(Mask):
    """All new tokens up to the query, and at most `budget` tokens from before the pass."""

    budget: int

    @property
    def pairs(self) -> Form:
        return CAUSAL.pairs.on(evicted(self.budget))

    @property
    def cells(self) -> Form:
        return CAUSAL.cells.on(evicted(self.budget))

    @property
    def keys_read(self) -> Form:
        return CAUSAL.keys_read.on(evicted(self.budget))

    @property
    def keys_cached(self) -> Form:
        return kv_tokens(self.budget)

    def streamed(self, tile: float, resident: float) -> Form | None:
        causal = CAUSAL.streamed(tile, resident)
        return causal.on(evicted(self.budget)) if causal else None

    def __str__(self) -> str:
        return f"budget {self.budget}"


@technique("h2o")
@frozen(kw_only=True)
class HeavyHitters(SparseAttention):
    """H2O and similar methods (SnapKV, Scissorhands): the cache keeps heavy hitters and the last tokens.

    Effect: the prompt is processed in full. Of it and of the answer, at most heavy + recent tokens stay in the cache,
    and only those are read by a step.
    Formula: context s of a step becomes min(s, heavy + recent); the prefill is unchanged.
    Source: arXiv:2306.14048, section 4; arXiv:2404.14469.
    Use when: prompts are long and batches large, so that the cache dominates memory and traffic.
    Limits: no gain for the prefill. Evicted tokens are lost.
    Not modeled: accumulating the scores that identify heavy hitters, one OP per pair, which fused attention kernels do
    not expose.
    """

    heavy: int = parameter("heavy hitters kept", 512, unit="tokens", least=0)
    recent: int = parameter("last tokens kept", 512, unit="tokens", least=1)

    @property
    def mask(self) -> Mask:
        return Budget(self.heavy + self.recent)
