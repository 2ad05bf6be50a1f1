"""CodeGen: GPT-J with one projection for q, k and v (arXiv:2203.13474)."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Decoder, Layer, Residual
from ._feed_forward import Mlp
from ._parts import NormKind, activation, heads_of

_ROTARY_DIM = 64


@architecture("codegen")
def build(config: Section, fmt: Format) -> Graph:
    hidden = config.integer("n_embd")
    heads = heads_of(config, hidden, "n_head")
    rotary_dim = config.integer("rotary_dim", _ROTARY_DIM)
    if rotary_dim > heads.head_dim:
        raise config.error("rotary_dim", f"must be at most the {heads.head_dim} of a head; got {rotary_dim}")
    act = activation(config, "activation_function", "gelu_new")
    layer = Layer(
        mixer=SelfAttention(heads=heads, rotary_dim=rotary_dim, fused_qkv=True),
        feed_forward=Mlp(inner=config.integer("n_inner", 4 * hidden), act=act, bias=True),
        residual=Residual.PARALLEL,
    )
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[layer] * config.integer("n_layer"),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=False),
        head_bias=True,
    ).graph(fmt)
