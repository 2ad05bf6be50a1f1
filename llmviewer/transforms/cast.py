"""Casts a network to another floating-point format, such as fp32 weights to 16 bits or bf16 to fp16."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Transform
from ..operators.base import Operator, Role, Tensor, Weight
from ..precision import Format, resolved


def cast(*, weight: Format | None = None, activation: Format | None = None) -> Transform:
    """A transform of all weights, and of all activations and the KV cache, to the formats given; None: unchanged."""

    def stored(w: Weight) -> Weight:
        return replace(w, format=resolved(weight, w.format)) if weight else w

    def moved(t: Tensor) -> Tensor:
        if activation is None or t.role is Role.STATE or t.left_as_published:
            return t
        return replace(t, format=resolved(activation, t.format))

    def one(op: Operator) -> Operator:
        return op.with_weights(stored).with_tensors(moved)

    return lambda graph: graph.map(one)
