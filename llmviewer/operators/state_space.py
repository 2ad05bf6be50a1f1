"""Operators with a state of fixed size: causal convolutions, scans and linear attention."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from ..forms import TOKENS, Form, chunk_pairs
from ..records import frozen
from ..resource import Resource, matrix, vector
from .attention import Heads
from .base import RETAINED_ROLES, Operator, Sharding, Tensor
from .kinds import OperatorGroup, declare


@frozen(kw_only=True)
class CausalConv(Operator):
    """A depthwise causal convolution over `taps` tokens, then SiLU; the last taps - 1 tokens are kept.

    OPs per element: a multiply-add per tap, and four of SiLU.
    """

    sharding: ClassVar[Sharding] = Sharding.ELEMENTS

    taps: int

    kind: str = declare("conv", "A convolution over neighbouring tokens.", group=OperatorGroup.STATE, symbol="pentagon")

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (2 * self.taps + 4) * self.outputs[0].elements}


@frozen(kw_only=True)
class LinearScan(Operator):
    """out = phi(q) (phi(k)^T v), normalized, in chunks; each key head has a state of features x (value + 1) elements.

    Inputs are queries, keys, values and the state; outputs the result and the state. OPs: 4 per feature of queries and
    keys for phi, as of elu(x) + 1, and a product with `features` directions if given; per token a multiply-add per
    element of state, of each key head to update it and of each query head to read it; and per pair within a chunk
    products of query and key and with the value, of each query head.

    ranks     devices among which the tokens are divided
    features  that phi makes of a head of a query or key; 0: as many as it has elements
    """

    sharding: ClassVar[Sharding] = Sharding.HEADS

    heads: Heads
    chunk: int
    ranks: int = 1
    features: int = 0

    kind: str = declare(
        "scan",
        "A recurrence over tokens: each updates a state of fixed size.",
        group=OperatorGroup.STATE,
        symbol="diamond-wide",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        heads, features = self.heads, self.features or self.heads.head_dim
        state, mapped = features * (heads.out_dim + 1), 4 * features + 2 * heads.head_dim * self.features
        a_token = (2 * state + mapped) * (heads.num_heads + heads.num_kv_heads)
        a_pair = 2 * heads.num_heads * (features + heads.out_dim)
        ops = a_pair * chunk_pairs(self.chunk) + a_token * TOKENS
        return {matrix(self.inputs[0].format.compute): ops / self.ranks}


@frozen(kw_only=True)
class Scan(Operator):
    """h[t] = decay[t] h[t-1] + (k[t] outer v[t]); out[t] = q[t] . h[t], for all heads.

    In chunks, the tokens of a chunk are products over pairs, and states pass between chunks: `pair_ops` per pair and
    `token_ops` per token on the matrix units (arXiv:2405.21060, section 6). Without chunks, a scan runs token by token
    on the vector units, and every channel is a head.

    The first input has q and k of each group of heads and, if it is wider than the result, v of each head. Other inputs
    have one part per head, or are shared by all heads if narrower.

    heads   independent parts; 0: unknown
    groups  groups of heads that share q and k
    rule    recurrence of which kernels are named: gdn, kda, mamba2; "" for others
    """

    sharding: ClassVar[Sharding] = Sharding.SCAN

    token_ops: float
    rule: str = ""
    heads: int = 0
    groups: int = 0
    pair_ops: float = 0
    chunk: int = 0

    kind: str = LinearScan.kind

    def arithmetic(self) -> dict[Resource, Form]:
        if not self.chunk:
            return {vector("fp32"): self.token_ops * TOKENS}
        dtype = self.inputs[0].format.compute
        return {matrix(dtype): self.pair_ops * chunk_pairs(self.chunk) + self.token_ops * TOKENS}

    @property
    def depth(self) -> int:
        """Elements of state per element of the result: the width of a key."""
        state = next(t for t in self.inputs if t.role in RETAINED_ROLES)
        return state.width // self.outputs[0].width

    @property
    def shared(self) -> int:
        """Elements of the first input that are queries and keys, not values."""
        return max(self.inputs[0].width - self.outputs[0].width, 0)

    def has_part(self, t: Tensor) -> bool:
        """Whether `t`, apart from the queries and keys of groups, divides into equal parts per head."""
        unshared_width = t.width - (self.shared if t == self.inputs[0] else 0)
        return bool(self.heads) and unshared_width % self.heads == 0

    def part(self, ranks: int) -> Self:
        """The scan of one of `ranks` that divide heads, and groups if there are enough; else a rank copies one.

        Products of queries and keys, a multiply-add per element of a key, are done once per group.
        """
        copied = self.shared // min(self.groups, ranks)
        pairs = 2 * self.groups * self.depth if self.chunk else 0

        def shard(t: Tensor) -> Tensor:
            if t == self.inputs[0]:
                return replace(t, width=(t.width - self.shared) // ranks + copied)
            return replace(t, width=t.width // ranks) if self.has_part(t) else t

        return replace(
            self.with_tensors(shard),
            heads=self.heads // ranks,
            groups=max(self.groups // ranks, 1),
            weights=tuple(replace(w, shape=(w.shape[0] // ranks, *w.shape[1:])) for w in self.weights),
            pair_ops=(self.pair_ops - pairs) / ranks + pairs / min(self.groups, ranks),
            token_ops=self.token_ops / ranks,
        )
