"""What mixes tokens through a state of fixed size: causal convolutions and scans."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import TOKENS, Form, chunk_pairs
from ..resource import Resource, matrix, vector
from .base import Operator


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
    without chunks goes token by token on the vector units.
    """

    token_ops: float
    pair_ops: float = 0
    chunk: int = 0

    kind: str = "scan"

    def arithmetic(self) -> dict[Resource, Form]:
        if not self.chunk:
            return {vector("fp32"): self.token_ops * TOKENS}
        dtype = self.inputs[0].format.compute
        return {matrix(dtype): self.pair_ops * chunk_pairs(self.chunk) + self.token_ops * TOKENS}
