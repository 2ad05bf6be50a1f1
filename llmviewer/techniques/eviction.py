"""Caches that keep some tokens, and attention that looks at some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ..forms import Form, evicted, kv_tokens, pairs, touched_kv
from ..graph import Graph
from ..operators.masks import CAUSAL, Chosen, Mask
from . import technique
from ._masks import causal, masked
from ._parameters import parameter
from ._technique import Kind, Machine, Technique, Touches
from .window import Windowed


@dataclass(frozen=True)
class Budget(Mask):
    """All new tokens before the query, and as many as `budget` of those from before the pass."""

    budget: int

    @property
    def pairs(self) -> Form:
        return CAUSAL.pairs.on(evicted(self.budget))

    @property
    def cells(self) -> Form:
        return CAUSAL.cells.on(evicted(self.budget))

    @property
    def read(self) -> Form:
        return CAUSAL.read.on(evicted(self.budget))

    @property
    def held(self) -> Form:
        return kv_tokens(self.budget)

    def streamed(self, tile: float, resident: float) -> Form:
        return CAUSAL.streamed(tile, resident).on(evicted(self.budget))

    def __str__(self) -> str:
        return f"budget {self.budget}"


@dataclass(frozen=True)
class Scattered(Mask):
    """The part `density` of the keys before the query, blocks of them here and there."""

    density: float

    @property
    def pairs(self) -> Form:
        return self.density * pairs()

    @property
    def cells(self) -> Form:
        return self.density * CAUSAL.cells

    @property
    def read(self) -> Form:
        return touched_kv(self.density)

    @property
    def held(self) -> Form:
        return kv_tokens()

    def __str__(self) -> str:
        return f"density {self.density:g}"


@dataclass(frozen=True, kw_only=True)
class _Fewer(Technique):
    """Full attention becomes attention to fewer keys; windows that a model has stay."""

    kind = Kind.ATTENTION
    touches = Touches.ANSWERS

    @property
    def mask(self) -> Mask:
        """What queries see instead."""
        raise NotImplementedError

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return masked(graph, lambda own: self.mask if own.window == inf else None)

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        other = next((other for other in others if isinstance(other, _Fewer | Windowed)), None)
        if other:
            return f"{other.name} says which keys are seen too"
        if not any(own.window == inf for own in causal(machine.model.graph)):
            return f"{machine.model.name} has no attention that sees all before it"
        return ""


@technique("h2o")
@dataclass(frozen=True, kw_only=True)
class HeavyHitters(_Fewer):
    """H2O and its kin (SnapKV, Scissorhands): the cache keeps heavy hitters and the last tokens, and drops the others.

    Changes: the prompt is read in full; what stays of it and of the answer is at most heavy + recent tokens, which each
    further step reads.
    Formula: context s of a step becomes min(s, heavy + recent); the prefill is as it was.
    Source: arXiv:2306.14048, section 4; arXiv:2404.14469.
    Helps: long prompts at large batches, where the cache is most of what is read and held.
    Cannot: shorten the prefill, nor bring back what was dropped.
    Left out: adding up the scores that say which tokens are heavy, one OP a pair, and that a fused attention does not
    show them.
    """

    heavy: int = parameter("tokens kept for their scores", 512, unit="tokens", least=0)
    recent: int = parameter("last tokens kept", 512, unit="tokens", least=1)

    @property
    def mask(self) -> Mask:
        return Budget(self.heavy + self.recent)


@technique("block-sparse")
@dataclass(frozen=True, kw_only=True)
class BlockSparse(_Fewer):
    """Block-sparse attention: a query sees the part `density` of the keys, in blocks (SemSA, MInference, Quest).

    Changes: pairs of attention; a decode step reads that part of the cache, all of which is held.
    Formula: pairs x density; keys read = min(1, density x queries) of all.
    Source: arXiv:2404.14294, section 5.2.2.
    Helps: long prompts through OPs, long contexts in decode through bytes.
    Cannot: save memory. Choosing the blocks is not counted; the queries of a prompt together read nearly all keys.
    """

    density: float = parameter("part of the pairs that is left", 0.1, least=0, most=1, open=True)

    @property
    def mask(self) -> Mask:
        return Scattered(self.density)


@technique("sparse-pattern")
@dataclass(frozen=True, kw_only=True)
class Pattern(_Fewer):
    """Fixed patterns: each query sees a local window, some global tokens and some at random (Longformer, BigBird).

    Changes: pairs of attention; a step reads as many keys, all of which are held. A dilated window of so many tokens
    counts alike.
    Formula: keys of a query = min(context, local + global + random).
    Source: arXiv:2007.14062, section 2; arXiv:2004.05150, section 3.1.
    Helps: long prompts, whose attention becomes linear in their length.
    Cannot: save memory, as any token may be asked for. Left out: rows of global tokens, which see all.
    """

    touches = Touches.MODEL

    local: int = parameter("last tokens", 192, unit="tokens", least=1)
    globals: int = parameter("tokens that all see", 128, unit="tokens", least=0)
    random: int = parameter("tokens at random", 192, unit="tokens", least=0)

    @property
    def mask(self) -> Mask:
        return Chosen(self.local + self.globals + self.random)
