"""Sparse attention: queries attend to keys that a pattern or a cheap score chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ..forms import Form, kv_tokens, pairs, touched_kv
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.block_sparse import ClusterScorer
from ..operators.masks import CAUSAL, Bidirectional, FixedKeys, Mask, Strided, TopK
from ..precision import FP32
from ..records import frozen
from . import technique
from ._parameters import Condition, parameter
from ._sparse import SparseAttention, block_scorer
from ._technique import Requirement

_EXTREMES: Final = 2  # vectors of a block: the least and the largest of each element of its keys


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


@technique("block-sparse")
@frozen(kw_only=True)
class BlockSparse(SparseAttention):
    """Block-sparse attention (Quest, MInference, SemSA): queries attend to the fraction `density` of keys, in blocks.

    Effect: fewer query-key pairs. A decode step reads that fraction of the cache, all of which stays in memory. A
    launch before attention chooses the blocks: it compares each query with the least and the largest of each element of
    a block's keys, which the cache holds too.
    Formula: pairs x density; keys read = min(1, density x queries) of all; choosing: 2 x 2 x head size OPs for each
    query and block, and 2 x key width x bytes read per block.
    Source: arXiv:2406.10774, section 3 (Quest, blocks of 16); arXiv:2404.14294, section 5.2.2.
    Use when: prompts are long (fewer OPs), or contexts of decode are (fewer bytes).
    Limits: it saves no memory. The queries of a prompt together read nearly all keys. With block=0 the blocks are known
    beforehand and choosing is free (SemSA).
    Not modeled: keeping the extremes of blocks up to date.
    """

    density: float = parameter("fraction of the pairs that is computed", 0.1, least=0, most=1, open=True)
    block: int = parameter("keys of a block; 0: the pattern is fixed", 16, unit="tokens", least=0)

    @property
    def mask(self) -> Mask:
        return Scattered(self.density)

    def choosing(self, query: Tensor, key: Tensor, heads: Heads) -> Iterator[Operator]:
        if self.block:
            yield block_scorer(query, key, heads, self.block, _EXTREMES)


@technique("sparse-pattern")
@frozen(kw_only=True)
class Pattern(SparseAttention):
    """Fixed patterns (Longformer, BigBird, Sparse Transformer): a local window, global, random and strided tokens.

    Effect: fewer query-key pairs. A step reads that many keys, all of which stay in memory. A dilated window of as many
    tokens counts the same. In encoders the window has half of its tokens on either side, and global tokens attend to
    all.
    Formula: keys per query = min(context, local + global + random), and (context - that) / stride; encoders: twice
    global, as global queries attend to all keys.
    Source: arXiv:2007.14062, section 2; arXiv:2004.05150, section 3.1; strided: arXiv:1904.10509, section 4.2.
    Use when: prompts are long, as attention becomes linear in their length (with strides n sqrt(n) at best).
    Limits: it saves no memory, as a later query can read any token. The model must be trained with it.
    """

    requires = Requirement.NEW_WEIGHTS

    local: int = parameter("last tokens that a query attends to", 192, unit="tokens", least=1)
    globals: int = parameter("global tokens, to which all queries attend", 128, unit="tokens", least=0)
    random: int = parameter("random tokens that a query attends to", 192, unit="tokens", least=0)
    stride: int = parameter("of the tokens before those, one in so many; 0: none", 0, unit="tokens", least=0)

    @property
    def _keys(self) -> int:
        return self.local + self.globals + self.random

    @property
    def mask(self) -> Mask:
        return Strided(self._keys, self.stride) if self.stride else TopK(self._keys)

    @property
    def bidirectional_mask(self) -> Mask:
        return Bidirectional((self._keys + self.globals) // 2)


@technique("clustered-attention")
@frozen(kw_only=True)
class Clustered(SparseAttention):
    """Clustered attention (Reformer, Routing Transformer, Sinkhorn): queries attend to keys of the same cluster.

    Effect: fewer query-key pairs, and a launch before attention that assigns queries and keys to clusters, or sorts
    blocks. All keys stay in memory.
    Formula: lsh: 2 x size keys for each of `rounds`, and size / 2 directions per round to hash with; routing: context /
    clusters keys, and as many centroids to compare with; sinkhorn: 2 x size keys, its own block and a sorted one.
    Assigning takes 2 x head size OPs for each direction or centroid, query and head.
    Source: arXiv:2001.04451, section 2 (lsh); arXiv:2003.05997, section 4 (routing); arXiv:2002.11296, section 3.
    Use when: prompts are long.
    Limits: it saves no memory. The model must be trained with it.
    Not modeled: sorting tokens by cluster, and clusters of unequal size.
    """

    requires = Requirement.NEW_WEIGHTS

    by: str = parameter("how clusters are made", "lsh", choices=("lsh", "routing", "sinkhorn"))
    size: int = parameter(
        "tokens of a cluster or block", 64, unit="tokens", least=1, condition=Condition("by", ("lsh", "sinkhorn"))
    )
    rounds: int = parameter("hashings", 4, least=1, condition=Condition("by", ("lsh",)))
    clusters: int = parameter("number of clusters", 64, least=1, condition=Condition("by", ("routing",)))

    @property
    def mask(self) -> Mask:
        if self.by == "routing":
            return Scattered(1 / self.clusters)
        return TopK(2 * self.size * (self.rounds if self.by == "lsh" else 1))

    def choosing(self, query: Tensor, key: Tensor, heads: Heads) -> Iterator[Operator]:  # noqa: ARG002
        vectors = {"lsh": max(self.rounds * self.size // 2, 1), "routing": self.clusters}.get(self.by, 0)
        if not vectors:
            return
        choice = Tensor(name="cluster_choice", width=heads.num_heads, format=FP32)
        compared = replace(heads, value_dim=0, mask=FixedKeys(vectors))
        yield ClusterScorer(name="choose_clusters", inputs=(query,), outputs=(choice,), heads=compared)
