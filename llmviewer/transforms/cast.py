"""The whole network in another floating-point format: fp32 weights served in 16 bits, bf16 ones in fp16."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Transform
from ..operators.base import Operator, Role, Tensor, Weight
from ..precision import Format, resolved


def cast(*, weight: Format | None = None, activation: Format | None = None) -> Transform:
    """All weights, and all activations with the KV cache, in the formats given; None leaves them as they are."""

    def stored(w: Weight) -> Weight:
        return replace(w, format=resolved(weight, w.format)) if weight else w

    def moved(t: Tensor) -> Tensor:
        if activation is None or t.role is Role.STATE or t.left_as_published:
            return t
        return replace(t, format=resolved(activation, t.format))

    def one(op: Operator) -> Operator:
        return op.with_weights(stored).with_tensors(moved)

    return lambda graph: graph.map(one)
