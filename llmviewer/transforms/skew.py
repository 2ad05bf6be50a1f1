"""Uneven expert popularity: it falls with rank as a power law (Zipf's law).

The same tokens then reach fewer experts, and fewer weights are read. OPs do not change, because each token uses as many
experts. On one device the busiest expert costs no extra time, because all experts are one launch.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..errors import InputError
from ..forms import Feature, Form, distinct_experts, total
from ..graph import Graph, Transform
from ..operators.base import Weight


def skew(exponent: float) -> Transform:
    """A transform to experts of popularity rank^-exponent; 0: uniform.

    Raises InputError if `exponent` is negative or not finite.
    """
    if not 0 <= exponent < inf:
        raise InputError(f"expert_skew must be a finite number of at least 0; got {exponent:g}")

    def one(weight: Weight) -> Weight:
        return weight if weight.rows is None else replace(weight, rows=_skewed(weight.rows, exponent))

    return lambda graph: graph.map(lambda op: op.with_weights(one)) if exponent else graph


def has_experts(graph: Graph) -> bool:
    """Whether `graph` has routed experts."""
    return any(_is_choice(f) for _, op in graph for w in op.weights if w.rows is not None for f in w.rows.features())


def _skewed(rows: Form, exponent: float) -> Form:
    return total(
        coefficient * (_skewed_experts(feature, exponent) if _is_choice(feature) else Form(((feature, 1.0),)))
        for feature, coefficient in rows.terms
    )


def _skewed_experts(feature: Feature, exponent: float) -> Form:
    experts, chosen = (int(argument) for argument in feature.arguments[:2])
    return distinct_experts(experts, chosen, exponent).on(feature.stream)


def _is_choice(feature: Feature) -> bool:
    return feature.name == "distinct_experts"
