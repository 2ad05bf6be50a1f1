"""GPT-2, GPT-J and CodeGen: LayerNorm, a GeLU MLP of two matrices; learned or rotary positions."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Decoder, Layer, Residual
from ._feed_forward import Mlp
from ._parts import NormKind, activation, heads_of

_CODEGEN_ROTARY_DIM = 64


@architecture("gpt2")
def build_gpt2(config: Section, fmt: Format) -> Graph:
    """Learned positions, one projection for q, k and v, biases everywhere, tied head."""
    hidden = config.integer("n_embd")
    attention = SelfAttention(heads=heads_of(config, hidden, "n_head"), fused_qkv=True, qkv_bias=True, o_bias=True)
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[Layer(mixer=attention, feed_forward=_mlp(config))] * config.integer("n_layer"),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=True),
        positions=config.integer("n_positions"),
    ).graph(fmt)


@architecture("gptj")
def build_gptj(config: Section, fmt: Format) -> Graph:
    """Attention and MLP side by side under one norm; part of each head is rotated; the head has a bias."""
    return _side_by_side(config, fmt)


@architecture("codegen")
def build_codegen(config: Section, fmt: Format) -> Graph:
    """GPT-J with one projection for q, k and v (arXiv:2203.13474)."""
    return _side_by_side(config, fmt, rotary_dim=_CODEGEN_ROTARY_DIM, fused_qkv=True)


def _side_by_side(config: Section, fmt: Format, *, rotary_dim: int = 0, fused_qkv: bool = False) -> Graph:
    """`rotary_dim` is what the class has where the config does not say; 0 is all of a head."""
    hidden = config.integer("n_embd")
    heads = heads_of(config, hidden, "n_head")
    rotary_dim = config.integer("rotary_dim", rotary_dim or heads.head_dim)
    if rotary_dim > heads.head_dim:
        raise config.error("rotary_dim", f"must be at most the {heads.head_dim} of a head; got {rotary_dim}")
    attention = SelfAttention(heads=heads, rotary_dim=rotary_dim, fused_qkv=fused_qkv)
    layer = Layer(mixer=attention, feed_forward=_mlp(config), residual=Residual.PARALLEL)
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[layer] * config.integer("n_layer"),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=False),
        head_bias=True,
    ).graph(fmt)


def _mlp(config: Section) -> Mlp:
    inner = config.integer("n_inner", 4 * config.integer("n_embd"))
    return Mlp(inner=inner, act=activation(config, "activation_function", "gelu_new"), bias=True)
