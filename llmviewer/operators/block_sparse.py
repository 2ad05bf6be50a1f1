"""What chooses blocks of keys for an attention to look at."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import Form
from ..resource import Resource, vector
from .attention import Attention


@dataclass(frozen=True, kw_only=True)
class BlockIndexer(Attention):
    """The best blocks of keys of each query, each head's own: a block is as good as the best of its keys.

    score[query, key] = q[query, head, :] . k[key, :]. Scores stay on the chip; each is compared once. What is written
    is a number for each block chosen.
    """

    def arithmetic(self) -> dict[Resource, Form]:
        return self._product(self.inputs[1], self.heads.head_dim) | {vector("fp32"): self.heads.pairs}
