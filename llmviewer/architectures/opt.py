"""OPT: LayerNorm, learned positions, biases, a ReLU MLP of two matrices (arXiv:2205.01068).

OPT-350m differs: norms after the additions, and embeddings narrower than the layers, projected in and out. XGLM has
computed positions (arXiv:2112.10668), BioGPT other names (arXiv:2210.10341); both take GeLU.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer, Residual
from ._feed_forward import Mlp
from ._fields import decoder
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
    return decoder(
        config,
        layer,
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        positions=config.integer("max_position_embeddings") + _POSITION_OFFSET,
        embed_width=config.integer("word_embed_proj_dim", hidden),
        final_norm=before and not config.flag("_remove_final_layer_norm", default=False),
    ).graph(fmt)


@architecture("xglm")
def build_xglm(config: Section, fmt: Format) -> Graph:
    config.costless("scale_embedding", "layerdrop", "init_std", "decoder_start_token_id", "add_cross_attention")
    names = {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"}
    named = {new: config.first(old, new) for new, old in names.items()}
    return _with_gelu(
        config, fmt, heads=named["num_attention_heads"], hidden=named["hidden_size"],
        layers=named["num_hidden_layers"], inner="ffn_dim", act="activation_function",
    )  # fmt: skip


@architecture("biogpt")
def build_biogpt(config: Section, fmt: Format) -> Graph:
    config.costless("scale_embedding", "layerdrop")
    positions = config.integer("max_position_embeddings", 1024) + _POSITION_OFFSET
    return _with_gelu(
        config, fmt, heads="num_attention_heads", hidden="hidden_size", layers="num_hidden_layers",
        inner="intermediate_size", act="hidden_act", positions=positions,
    )  # fmt: skip


def _with_gelu(
    config: Section, fmt: Format, *, heads: str, hidden: str, layers: str, inner: str, act: str, positions: int = 0
) -> Graph:
    """What fields of these names describe."""
    width = config.integer(hidden)
    attention = SelfAttention(heads=heads_of(config, width, heads), qkv_bias=True, o_bias=True)
    mlp = Mlp(inner=config.integer(inner), act=activation(config, act, "gelu"), bias=True)
    return decoder(
        config,
        [Layer(mixer=attention, feed_forward=mlp)] * config.integer(layers),
        hidden=width,
        norm=NormKind.LAYER,
        tied=True,
        positions=positions,
    ).graph(fmt)
