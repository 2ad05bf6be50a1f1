"""BitNet b1.58: LLaMA with a squared-ReLU MLP and norms before the output projections of attention and MLP
(arXiv:2504.12285).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, gated_mlp, grouped_heads
from .blocks.parts import Parts, result


class NormedAttention(SelfAttention):
    """Attention whose result has a norm before its projection."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return _normed(parts, super().operators(parts, x), "attn_sub_norm")


class NormedMlp(Mlp):
    """An MLP whose inner elements have a norm before they are brought back."""

    def operators(self, parts: Parts, x: Tensor, prefix: str = "", act_name: str = "mlp_act") -> tuple[Operator, ...]:
        return _normed(parts, super().operators(parts, x, prefix, act_name), f"{prefix}mlp_sub_norm")


@architecture("bitnet")
def build(config: Section, fmt: Format) -> Graph:
    """BitNet b1.58: LLaMA with a squared-ReLU MLP and norms before the output projections."""
    heads, bias = grouped_heads(config), config.flag("attention_bias", default=False)
    attention = NormedAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias, o_bias=bias)
    mlp = NormedMlp(**vars(gated_mlp(config, act="relu2")))
    layer = Layer(mixer=attention, feed_forward=mlp)
    return decoder(config, layer).graph(fmt)


def _normed(parts: Parts, operators: tuple[Operator, ...], name: str) -> tuple[Operator, ...]:
    """`operators` with a norm before the last of them."""
    *before, last = operators
    norm = parts.norm(name, result(tuple(before)))
    return (*before, norm, replace(last, inputs=norm.outputs))
