"""Choice of the keys of sparse attention: indexers and scorers of blocks, and clusters."""

from __future__ import annotations

from typing import ClassVar

from ..forms import Form
from ..records import frozen
from ..resource import Resource, vector
from .attention import Attention
from .base import Sharding
from .kinds import OperatorGroup, declare


class BlockIndexer(Attention):
    """Selects the best blocks of keys of each query and head: a block scores as its best key.

    score[query, key] = q[query, head, :] . k[key, :]. Scores stay on the chip, and each is compared once. The output is
    an index per chosen block.
    """

    def arithmetic(self) -> dict[Resource, Form]:
        return self._product(self.inputs[1], self.heads.head_dim) | {vector("fp32"): self.heads.pairs}


class BlockScorer(BlockIndexer):
    """Scores blocks by vectors that stand for their keys, one head for each head of attention (arXiv:2406.10774)."""

    sharding: ClassVar[Sharding] = Sharding.HEADS


@frozen(kw_only=True)
class ClusterScorer(Attention):
    """Compares each query with the directions or centroids of its head, which stay on the chip, and keeps the best."""

    sharding: ClassVar[Sharding] = Sharding.HEADS

    kind: str = declare(
        "cluster",
        "Queries compared with the centroids of clusters of keys.",
        group=OperatorGroup.ATTENTION,
        measured="add",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        return self._product(self.inputs[0], self.heads.head_dim) | {vector("fp32"): self.heads.pairs}
