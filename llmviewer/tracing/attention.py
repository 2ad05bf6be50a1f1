"""Recognizes attention: two products and a softmax between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..forms import SEQUENCES
from ..operators.attention import QK, SV, Attention, Heads, Softmax
from ..operators.base import Operator, Role, Tensor
from ..operators.masks import CAUSAL, Mask
from .naming import SHARED
from .operators import Pointwise, Sized, TracedProduct


def recognize_attention(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Turns two products and a softmax between them into scores, softmax and weighted sum."""
    recognized: list[Operator] = []
    for op in operators:
        recognized.append(op)
        match recognized[-3:]:
            case [TracedProduct() as first, Pointwise() as middle, TracedProduct() as second]:
                if "softmax" not in middle.name or len(first.inputs) != 2 or len(second.inputs) != 2:
                    continue
                if first.inputs[1].rows.features() == SEQUENCES.features():
                    first, middle, second = _by_heads(first, middle, second)
                heads = _heads(first, middle, second)
                if heads:
                    recognized[-3:] = _attention_operators(heads, first, middle, second)
    return tuple(recognized)


def _by_heads(
    first: TracedProduct, middle: Pointwise, second: TracedProduct
) -> tuple[TracedProduct, Pointwise, TracedProduct]:
    """Products of a head's matrices as those of rows with all heads side by side, where sizes are fixed.

    What they see are [queries, dim] and [dim, keys], then [queries, keys] and [keys, dim], of as many heads.
    """
    (query, key), (_, value) = first.inputs, second.inputs
    scores, out = first.result, second.result
    dim, keys = query.width, key.width
    heads, rest = divmod(_sequence_elements(key), max(dim * keys, 1))
    queries, left = divmod(_sequence_elements(scores), max(heads * keys, 1))
    mask = Sized(queries=queries, keys=keys)
    rows = {query.name: queries, key.name: keys, value.name: keys, out.name: queries}

    def aside(t: Tensor) -> Tensor:
        if t.name not in rows:
            return replace(t, width=heads, rows=mask.pairs)
        return replace(t, width=_sequence_elements(t) // rows[t.name], rows=rows[t.name] * SEQUENCES)

    fits = heads and queries and not rest and not left
    if not fits or any(
        _sequence_elements(t) % rows.get(t.name, 1) for op in (first, second) for t in (*op.inputs, *op.outputs)
    ):
        return first, middle, second
    first, second = (replace(op.with_tensors(aside), mask=mask) for op in (first, second))
    return first, middle.with_tensors(aside), second


def _sequence_elements(t: Tensor) -> int:
    """Elements of one sequence."""
    return round(sum(c for _, c in t.elements.terms))


def _heads(first: TracedProduct, middle: Pointwise, second: TracedProduct) -> Heads | None:
    if first.mask != second.mask:
        return None
    query, key = first.inputs
    probs, value = second.inputs
    scores = first.result
    if first.mask.is_cached and (key.role, value.role) != (Role.KV_CACHE, Role.KV_CACHE):
        return None
    if probs.name != middle.result.name:
        return None
    if {t.name for t in middle.inputs} - {SHARED} != {scores.name}:
        return None
    count = scores.width
    dim, out = query.width // count, second.result.width // count
    if not dim or key.width % dim or (key.width // dim) * out != value.width:
        return None
    heads = Heads(num_heads=count, num_kv_heads=key.width // dim, head_dim=dim, value_dim=out if out != dim else 0)
    return heads if first.mask.is_cached else replace(heads, mask=first.mask)


def _attention_operators(
    heads: Heads, first: TracedProduct, middle: Pointwise, second: TracedProduct
) -> list[Operator]:
    softmax = Softmax(
        name=middle.name, inputs=middle.inputs, outputs=middle.outputs, weights=middle.weights, heads=heads
    )
    attention: list[Operator] = [
        QK(name=first.name, inputs=first.inputs, outputs=first.outputs, heads=heads),
        replace(softmax, bias=len(middle.inputs) > 1),
        SV(name=second.name, inputs=second.inputs, outputs=second.outputs, heads=heads),
    ]
    same = attention[0].arithmetic() == first.arithmetic() and attention[2].arithmetic() == second.arithmetic()
    if not same:
        return [first, middle, second]
    return (
        [_with_mask(op, first.mask) for op in attention] if first.mask.is_cached and first.mask != CAUSAL else attention
    )


def _with_mask(op: Operator, mask: Mask) -> Operator:
    """A part of attention that saw all keys, under `mask`."""
    rows = {CAUSAL.keys_read: mask.keys_read, CAUSAL.cells: mask.cells}
    masked = op.with_tensors(lambda t: replace(t, rows=rows.get(t.rows, t.rows)))
    return replace(masked, heads=replace(masked.heads, mask=mask)) if isinstance(masked, Attention) else masked
