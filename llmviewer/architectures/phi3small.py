"""Phi-3 small: LayerNorm, biases, a GeGELU network, and block-sparse attention in every other layer (arXiv:2404.14219,
section 2.1).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Strided
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import alternating, decoder, grouped_heads
from .blocks.parts import NormKind

_IGNORED = """
    attention_dropout_prob embedding_dropout_prob ffn_dropout_prob dummy_token_indices gegelu_limit gegelu_pad_to_256
    mup_attn_multiplier mup_embedding_multiplier mup_use_scaling mup_width_multiplier pad_sequence_to_multiple_of_64
    rope_embedding_base rope_position_scale blocksparse_triton_kernel_block_size ff_dim_multiplier
"""


@architecture("phi3small")
def build(config: Section, fmt: Format) -> Graph:
    """GeGELU is x sigmoid(1.702 x) times another half, which counts as SiLU."""
    config.ignore(*_IGNORED.split())
    config.choice("hidden_act", ("gegelu",), "gegelu")
    heads = grouped_heads(config)
    plain = SelfAttention(heads=heads, rotary_dim=heads.head_dim, fused_qkv=True, qkv_bias=True, o_bias=True)
    mlp = Mlp(inner=config.integer("ff_intermediate_size"), act="silu", gated=True, bias=True, fused=True)
    every, layers = config.count("dense_attention_every_n_layers", 2, least=0), config.count("num_hidden_layers")
    sparse = [bool(every) and (index + 1) % every != 0 for index in range(layers)]
    every_layer = alternating(_sparse(config, plain, mlp), Layer(mixer=plain, feed_forward=mlp), sparse)
    return decoder(config, every_layer, norm=NormKind.LAYER, tied=True).graph(fmt)


def _sparse(config: Section, plain: SelfAttention, mlp: Mlp) -> Layer:
    """Blocks near the query and every `stride`-th before them, other ones for each head unless
    blocksparse_homo_head_pattern.
    """
    block, stride = config.integer("blocksparse_block_size", 64), config.integer("blocksparse_vert_stride", 8)
    alike = config.flag("blocksparse_homo_head_pattern", default=False)
    group = plain.heads.num_heads // plain.heads.num_kv_heads
    mask = Strided(
        window=block * config.count("blocksparse_num_local_blocks", 16),
        stride=stride,
        blocks_read=1 if alike else min(group, stride),
    )
    return Layer(mixer=replace(plain, heads=replace(plain.heads, mask=mask)), feed_forward=mlp)
