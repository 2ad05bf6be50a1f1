"""Command-R and Aya: attention and MLP side by side under one LayerNorm without bias, tied embeddings.

Command-R+ normalizes each head of queries and keys. Of the second generation three layers in four have a window and
rotary positions, the fourth sees all and has no positions (arXiv:2504.00698).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer, Residual
from ._fields import alternating, decoder, gated_mlp, grouped_heads, sliding_layers, sliding_window
from ._parts import NormKind

_WINDOW = 4096


@architecture("cohere")
def build_cohere(config: Section, fmt: Format) -> Graph:
    layer = _layer(config, _attention(config))
    layers = [layer] * config.integer("num_hidden_layers")
    return decoder(config, layers, norm=NormKind.LAYER_NO_BIAS, tied=True).graph(fmt)


@architecture("cohere2")
def build_cohere2(config: Section, fmt: Format) -> Graph:
    attention = _attention(config)
    windowed = replace(attention.heads, mask=Causal(sliding_window(config, _WINDOW)))
    local = _layer(config, replace(attention, heads=windowed))
    unrotated = _layer(config, replace(attention, rotary_dim=0))
    config.costless("order_of_interleaved_layers", "position_embedding_type", "rotary_pct", "use_embedding_sharing")
    config.costless("use_gated_activation", "use_parallel_block", "use_parallel_embedding", "cache_implementation")
    config.costless("layer_switch")
    layers = alternating(local, unrotated, sliding_layers(config, pattern=4))
    return decoder(config, layers, norm=NormKind.LAYER_NO_BIAS, tied=True).graph(fmt)


def _attention(config: Section) -> SelfAttention:
    heads, bias = grouped_heads(config), config.flag("attention_bias", default=False)
    return SelfAttention(
        heads=heads,
        rotary_dim=heads.head_dim,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=NormKind.LAYER_NO_BIAS if config.flag("use_qk_norm", default=False) else None,
        qk_norm_whole=True,  # each head has weights of its own, so they are as many as the heads are wide
    )


def _layer(config: Section, attention: SelfAttention) -> Layer:
    config.costless("logit_scale")
    return Layer(mixer=attention, feed_forward=gated_mlp(config), residual=Residual.PARALLEL)
