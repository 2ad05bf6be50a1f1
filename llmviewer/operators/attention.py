"""Scaled dot-product attention, in three launches (eager) or one (flash)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import ClassVar, Final

from ..forms import Form
from ..precision import product
from ..records import frozen
from ..resource import Resource, matrix, vector
from .base import Operator, Sharding, Tensor
from .kinds import OperatorGroup, declare
from .masks import CAUSAL, Mask

_ACCUMULATOR: Final = 4  # bytes per element of the fp32 output accumulator


@frozen(kw_only=True)
class Heads:
    """`num_heads` query heads over `num_kv_heads` key and value heads, under a mask."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int = 0  # 0: head_dim
    mask: Mask = CAUSAL

    @property
    def out_dim(self) -> int:
        """Elements of one head's output."""
        return self.value_dim or self.head_dim

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA: query heads have keys of their own, share them in groups, or share a single one."""
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def pairs(self) -> Form:
        """(head, query, key) triples that the mask allows."""
        return self.num_heads * self.mask.pairs


@frozen(kw_only=True)
class Attention(Operator):
    """Base class: grouped heads under a mask."""

    heads: Heads

    kind: str = declare(
        "attention",
        "Every new token compared with the keys before it, and their values weighed by that.",
        group=OperatorGroup.ATTENTION,
        symbol="diamond",
    )

    def _product(self, b: Tensor, width: int) -> dict[Resource, Form]:
        """OPs of a multiply-add per (head, query, key) triple and element of a key or value of `width`."""
        return {matrix(product(self.inputs[0].format, b.format)): 2 * width * self.heads.pairs}

    def dequantized(self) -> tuple[Form, ...]:
        query_dtype = self.inputs[0].format.compute
        return tuple(t.elements for t in self.reads()[1:] if t.format.compute != query_dtype)


class QK(Attention):
    """scores[head, query, key] = q[head, query, :] . k[kv_head, key, :]; several inputs may hold parts of k."""

    sharding: ClassVar[Sharding] = Sharding.HEADS

    def arithmetic(self) -> dict[Resource, Form]:
        return self._product(self.inputs[1], self.heads.head_dim)


@frozen(kw_only=True)
class Softmax(Attention):
    """probs[head, query, key] = softmax over keys of (scores + bias): maximum, subtract, exp, sum, divide."""

    sharding: ClassVar[Sharding] = Sharding.HEADS
    ops_per_pair: ClassVar[int] = 5

    bias: bool = False  # a position bias such as ALiBi: one more OP per pair

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (self.ops_per_pair + self.bias) * self.heads.pairs}


class SV(Attention):
    """out[query, head, :] = sum over keys of probs[head, query, key] * v[kv_head, key, :]"""

    sharding: ClassVar[Sharding] = Sharding.HEADS

    def arithmetic(self) -> dict[Resource, Form]:
        return self._product(self.inputs[1], self.heads.out_dim)


class Indexer(Attention):
    """Selects the best keys of each query for sparse attention (arXiv:2512.02556, equation 1).

    score[query, key] = sum over heads of w[query, head] * relu(q[query, head, :] . k[key, :]), or of relu(...) if
    `inputs` have no w. Scores stay on the chip, and each is compared once. The output is an index per chosen key.
    """

    def arithmetic(self) -> dict[Resource, Form]:
        weighted = len(self.inputs) > 2  # then a matrix product also sums over heads
        products = self._product(self.inputs[1], self.heads.head_dim + weighted)
        ops = self.heads.num_heads * (1 if weighted else 2) + 1
        return products | {vector("fp32"): ops * self.heads.mask.pairs}

    def dequantized(self) -> tuple[Form, ...]:
        """Keys in another format than queries; w is multiplied in fp32."""
        query, key, *_ = self.inputs
        return (key.elements,) if key.format.compute != query.format.compute else ()


@frozen(kw_only=True)
class FlashAttention(Attention):
    """QK, Softmax and SV in one launch; scores stay on the chip (arXiv:2205.14135, arXiv:2307.08691).

    on_chip_bytes holds either a tile of queries with fp32 accumulators, while keys and values stream, or the keys and
    values of a head, while queries stream. K and V are read once if all queries or all keys fit, else once per tile.

    splits  parts of a cache that different cores read in a decode step; 0: as many as a kernel library chooses
    """

    sharding: ClassVar[Sharding] = Sharding.HEADS

    bias: bool = False
    splits: int = 0
    on_chip_bytes: float = inf

    @property
    def tile(self) -> float:
        """Queries of one sequence that fit on the chip. [tokens]"""
        query, heads = self.inputs[0], self.heads
        row = heads.head_dim * query.format.stored_bits / 8 + heads.out_dim * _ACCUMULATOR
        row *= heads.num_heads / heads.num_kv_heads
        return max(self.on_chip_bytes // row, 1) if self.on_chip_bytes < inf else inf

    def reads(self) -> tuple[Tensor, ...]:
        if self.tile == inf:
            return self.inputs
        query, *keys_and_values = self.inputs
        bytes_per_key = sum(t.width * t.format.stored_bits / 8 for t in keys_and_values)
        resident = self.on_chip_bytes // (bytes_per_key / self.heads.num_kv_heads)
        rows = self.heads.mask.streamed(self.tile, resident)
        return self.inputs if rows is None else (query, *(replace(t, rows=rows) for t in keys_and_values))

    def arithmetic(self) -> dict[Resource, Form]:
        amounts = {vector("fp32"): (Softmax.ops_per_pair + self.bias) * self.heads.pairs}
        key, value = self.inputs[1], self.inputs[-1]
        for part in (self._product(key, self.heads.head_dim), self._product(value, self.heads.out_dim)):
            for resource, ops in part.items():
                amounts[resource] = amounts.get(resource, Form()) + ops
        return amounts
