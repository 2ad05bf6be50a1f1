"""OPT: LayerNorm, learned positions, biases, a ReLU MLP of two matrices (arXiv:2205.01068).

OPT-350m differs: norms after the additions, and embeddings narrower than the layers, projected in and out.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Decoder, Layer, Residual
from ._feed_forward import Mlp
from ._parts import NormKind, activation, heads_of

_POSITION_OFFSET = 2  # rows at the head of the position table that stand for padding


@architecture("opt")
def build(config: Section, fmt: Format) -> Graph:
    hidden = config.integer("hidden_size")
    bias = config.flag("enable_bias", default=True)
    before = config.flag("do_layer_norm_before", default=True)
    heads = heads_of(config, hidden, "num_attention_heads")
    mlp = Mlp(inner=config.integer("ffn_dim"), act=activation(config, "activation_function", "relu"), bias=bias)
    layer = Layer(
        mixer=SelfAttention(heads=heads, qkv_bias=bias, o_bias=bias),
        feed_forward=mlp,
        residual=Residual.PRE if before else Residual.POST,
    )
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[layer] * config.integer("num_hidden_layers"),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=True),
        positions=config.integer("max_position_embeddings") + _POSITION_OFFSET,
        embed_width=config.integer("word_embed_proj_dim", hidden),
        final_norm=before and not config.flag("_remove_final_layer_norm", default=False),
    ).graph(fmt)
