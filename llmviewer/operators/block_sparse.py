"""The indexer of block-sparse attention."""

from __future__ import annotations

from ..forms import Form
from ..resource import Resource, vector
from .attention import Attention


class BlockIndexer(Attention):
    """Selects the best blocks of keys of each query and head: a block scores as its best key.

    score[query, key] = q[query, head, :] . k[key, :]. Scores stay on the chip, and each is compared once. The output is
    an index per chosen block.
    """

    def arithmetic(self) -> dict[Resource, Form]:
        return self._product(self.inputs[1], self.heads.head_dim) | {vector("fp32"): self.heads.pairs}
