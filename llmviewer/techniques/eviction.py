"""Cache eviction and sparse attention: queries see fewer keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ..forms import Form, evicted, kv_tokens, pairs, touched_kv
from ..graph import Graph
from ..operators.masks import CAUSAL, Mask, TopK
from ..records import frozen
from . import technique
from ._masks import causal_masks, replace_masks
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique
from .window import Windowed


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


@frozen
class Scattered(Mask):
    """The fraction `density` of the keys up to the query, in scattered blocks."""

    density: float

    @property
    def pairs(self) -> Form:
        return self.density * pairs()

    @property
    def cells(self) -> Form:
        return self.density * CAUSAL.cells

    @property
    def keys_read(self) -> Form:
        return touched_kv(self.density)

    @property
    def keys_cached(self) -> Form:
        return kv_tokens()

    def __str__(self) -> str:
        return f"density {self.density:g}"


class _SparseAttention(Technique):
    """Full attention becomes attention to fewer keys; the model's own windows are unchanged."""

    kind = Kind.ATTENTION
    requires = Requirement.OTHER_OUTPUT

    @property
    def mask(self) -> Mask:
        """The mask that replaces full causal masks."""
        raise NotImplementedError

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return replace_masks(graph, lambda mask: self.mask if mask.window == inf else None)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        conflicting = next((other for other in others if isinstance(other, _SparseAttention | Windowed)), None)
        if conflicting:
            return f"{conflicting.name} also selects the keys that queries see; give one of the two"
        if not any(mask.window == inf for mask in causal_masks(setting.model.graph)):
            return f"{setting.model.name} has no full causal attention"
        return ""


@technique("h2o")
@frozen(kw_only=True)
class HeavyHitters(_SparseAttention):
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


@technique("block-sparse")
@frozen(kw_only=True)
class BlockSparse(_SparseAttention):
    """Block-sparse attention (SemSA, MInference, Quest): queries see the fraction `density` of the keys, in blocks.

    Effect: fewer query-key pairs. A decode step reads that fraction of the cache, all of which stays in memory.
    Formula: pairs x density; keys read = min(1, density x queries) of all.
    Source: arXiv:2404.14294, section 5.2.2.
    Use when: prompts are long (fewer OPs), or contexts of decode are (fewer bytes).
    Limits: it saves no memory. The queries of a prompt together read nearly all keys.
    Not modeled: choosing the blocks.
    """

    density: float = parameter("fraction of the pairs that is computed", 0.1, least=0, most=1, open=True)

    @property
    def mask(self) -> Mask:
        return Scattered(self.density)


@technique("sparse-pattern")
@frozen(kw_only=True)
class Pattern(_SparseAttention):
    """Fixed patterns (Longformer, BigBird): queries see a local window, global tokens and random tokens.

    Effect: fewer query-key pairs. A step reads that many keys, all of which stay in memory. A dilated window of as many
    tokens counts the same.
    Formula: keys per query = min(context, local + global + random).
    Source: arXiv:2007.14062, section 2; arXiv:2004.05150, section 3.1.
    Use when: prompts are long, as attention becomes linear in their length.
    Limits: it saves no memory, as a later query can read any token. The model must be trained with it.
    Not modeled: queries of global tokens, which see all keys.
    """

    requires = Requirement.NEW_WEIGHTS

    local: int = parameter("last tokens that a query sees", 192, unit="tokens", least=1)
    globals: int = parameter("global tokens, which all queries see", 128, unit="tokens", least=0)
    random: int = parameter("random tokens that a query sees", 192, unit="tokens", least=0)

    @property
    def mask(self) -> Mask:
        return TopK(self.local + self.globals + self.random)
