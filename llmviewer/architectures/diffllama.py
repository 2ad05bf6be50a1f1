"""DiffLlama: LLaMA with differential attention, the difference of two softmax maps over values of twice the width
(arXiv:2410.05258).

Scores are made once here; its class makes them twice, for each half of the values.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention, scored
from .blocks.decoder import Layer
from .blocks.fields import decoder, gated_mlp, grouped_heads
from .blocks.parts import Parts

_DIFFERENCE = 6  # OPs of an element: product and difference, three of a norm without weights, a factor


class DifferentialAttention(SelfAttention):
    """Each head sees the values of two; of the results, those of the second half, scaled, are taken off the first."""

    def _scores(self, parts: Parts, q: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        k, v = (parts.cache(name, heads.kv_width, heads.mask) for name in ("k_cache", "v_cache"))
        operators = scored(parts, replace(heads, value_dim=2 * heads.head_dim), q, (k,), v)
        lambdas = {f"lambda_{half}": heads.head_dim for half in ("q1", "k1", "q2", "k2")}
        summed, width = operators[-1].result, 2 * heads.head_dim
        difference = parts.elementwise(
            "difference", summed, width=heads.q_width, ops=_DIFFERENCE, weights=lambdas, normed=width
        )
        return (*operators, difference)


@architecture("diffllama")
def build(config: Section, fmt: Format) -> Graph:
    """DiffLlama: LLaMA with differential attention over pairs of heads."""
    config.ignore("lambda_std_dev")
    heads, bias = grouped_heads(config), config.flag("attention_bias", default=False)
    if heads.num_kv_heads % 2:
        raise config.error("num_key_value_heads", f"must be even; got {heads.num_kv_heads}")
    attention = DifferentialAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias, o_bias=bias)
    return decoder(config, Layer(mixer=attention, feed_forward=gated_mlp(config))).graph(fmt)
