"""Phi 1 to 4: attention and MLP side by side with biases (1, 1.5, 2); LLaMA's layers, projections fused (3, 4).

arXiv:2309.05463, arXiv:2404.14219, arXiv:2412.08905.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Residual
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, gated_mlp, grouped_heads, rotary_dim, sliding_window, without
from .blocks.parts import NormKind, activation


@architecture("phi")
def build_phi(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config)
    attention = SelfAttention(
        heads=heads,
        rotary_dim=rotary_dim(config, heads.head_dim, default=0.5),
        qkv_bias=True,
        o_bias=True,
        qk_norm=NormKind.LAYER if config.flag("qk_layernorm", default=False) else None,
    )
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "gelu_new"), bias=True)
    layer = Layer(mixer=attention, feed_forward=mlp, residual=Residual.PARALLEL)
    return decoder(config, layer, norm=NormKind.LAYER, head_bias=True).graph(fmt)


@architecture("phi3")
def build_phi3(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config, window=sliding_window(config))
    rotated = rotary_dim(config, heads.head_dim)
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):  # files have them, the class does not
        without(config, key, "no model of this architecture has a bias")
    layer = Layer(
        mixer=SelfAttention(heads=heads, rotary_dim=rotated, fused_qkv=True), feed_forward=gated_mlp(config, fused=True)
    )
    config.costless("original_max_position_embeddings", "full_attn_mod", "interpolate_factor", "_attn_implementation")
    return decoder(config, layer).graph(fmt)
