"""What mixes tokens through a state of fixed size: causal convolutions and scans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from ..forms import TOKENS, Form, chunk_pairs
from ..resource import Resource, matrix, vector
from .base import KEPT, Operator, Tensor


@dataclass(frozen=True, kw_only=True)
class CausalConv(Operator):
    """Each channel of the last `taps` tokens by a filter of its own, then SiLU; the last taps - 1 tokens are kept.

    A multiply-add for each tap, and four OPs of SiLU.
    """

    taps: int

    kind: str = "conv"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (2 * self.taps + 4) * self.outputs[0].elements}


@dataclass(frozen=True, kw_only=True)
class Scan(Operator):
    """h[t] = decay[t] h[t-1] + (k[t] outer v[t]); out[t] = q[t] . h[t], for all heads.

    Taken in chunks, what happens within one is products over the pairs of its tokens, and states pass between chunks:
    `pair_ops` for each pair and `token_ops` for each token, on the matrix units (arXiv:2405.21060, section 6). A scan
    without chunks goes token by token on the vector units, and every channel is a head of its own.

    The first input has q and k of each group of heads, with v of each head beside them where it is wider than the
    result; other inputs have a part for each head, or are the same for all where they are narrower than that.

    heads   parts that can be computed apart from each other; 0 where that is not known
    groups  of heads that have q and k in common
    """

    token_ops: float
    heads: int = 0
    groups: int = 0
    pair_ops: float = 0
    chunk: int = 0

    kind: str = "scan"

    def arithmetic(self) -> dict[Resource, Form]:
        if not self.chunk:
            return {vector("fp32"): self.token_ops * TOKENS}
        dtype = self.inputs[0].format.compute
        return {matrix(dtype): self.pair_ops * chunk_pairs(self.chunk) + self.token_ops * TOKENS}

    @property
    def depth(self) -> int:
        """Elements of state for each element of the result: the width of a key."""
        state = next(t for t in self.inputs if t.role in KEPT)
        return state.width // self.outputs[0].width

    @property
    def shared(self) -> int:
        """Elements of the first input that are queries and keys of groups, beside values."""
        return max(self.inputs[0].width - self.outputs[0].width, 0)

    def has_part(self, t: Tensor) -> bool:
        """Whether each head reads an equal part of that input, what groups share apart."""
        own = t.width - (self.shared if t == self.inputs[0] else 0)
        return bool(self.heads) and own % self.heads == 0

    def part(self, ranks: int) -> Self:
        """What one of `ranks` does that share out heads, and groups where there are as many; else it copies one.

        Products of queries and keys, of a multiply-add for each element of a key, are those of a group.
        """
        copied = self.shared // min(self.groups, ranks)
        pairs = 2 * self.groups * self.depth if self.chunk else 0

        def own(t: Tensor) -> Tensor:
            if t == self.inputs[0]:
                return replace(t, width=(t.width - self.shared) // ranks + copied)
            return replace(t, width=t.width // ranks) if self.has_part(t) else t

        return replace(
            self.with_tensors(own),
            heads=self.heads // ranks,
            groups=max(self.groups // ranks, 1),
            weights=tuple(replace(w, shape=(w.shape[0] // ranks, *w.shape[1:])) for w in self.weights),
            pair_ops=(self.pair_ops - pairs) / ranks + pairs / min(self.groups, ranks),
            token_ops=self.token_ops / ranks,
        )
