"""GPT, GPT-2, GPT-Neo, GPT-J and CodeGen: LayerNorm, a GeLU MLP of two matrices; learned or rotary positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Decoder, Layer, Residual
from ._feed_forward import Mlp
from ._fields import alternating, decoder, rotated
from ._parts import NormKind, activation, heads_of

_CODEGEN_ROTARY_DIM = 64
_NEO_LAYERS = [[["global", "local"], 12]]


@architecture("gpt2", "gpt-sw3")
def build_gpt2(config: Section, fmt: Format) -> Graph:
    """Learned positions, one projection for q, k and v, biases everywhere, tied head."""
    hidden = config.integer("n_embd")
    attention = SelfAttention(heads=heads_of(config, hidden, "n_head"), fused_qkv=True, qkv_bias=True, o_bias=True)
    return decoder(
        config,
        [Layer(mixer=attention, feed_forward=_mlp(config))] * config.integer("n_layer"),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        positions=config.integer("n_positions"),
    ).graph(fmt)


@architecture("openai-gpt")
def build_gpt(config: Section, fmt: Format) -> Graph:
    """GPT-2 with norms after the additions."""
    hidden = config.integer("n_embd", 768)
    heads = heads_of(config.with_data({"n_head": 12, **config.data}), hidden, "n_head")
    attention = SelfAttention(heads=heads, fused_qkv=True, qkv_bias=True, o_bias=True)
    act = activation(config, "afn", "gelu")
    mlp = Mlp(inner=4 * hidden, act="gelu_tanh" if act == "gelu" else act, bias=True)  # as its code means "gelu"
    layer = Layer(mixer=attention, feed_forward=mlp, residual=Residual.POST)
    return Decoder(
        vocab=config.integer("vocab_size", 40478),
        hidden=hidden,
        layers=[layer] * config.integer("n_layer", 12),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=True),
        positions=config.integer("n_positions", 512),
        final_norm=False,
    ).graph(fmt)


@architecture("gpt_neo")
def build_gpt_neo(config: Section, fmt: Format) -> Graph:
    """GPT-2 without biases on q, k and v; every other layer has a window."""
    hidden, window = config.integer("hidden_size"), config.integer("window_size", 256)
    heads = heads_of(config, hidden, config.first("num_heads", "num_attention_heads"))
    inner = config.integer("intermediate_size", 4 * hidden)
    mlp = Mlp(inner=inner, act=activation(config, "activation_function", "gelu_new"), bias=True)
    other, local = (
        Layer(mixer=SelfAttention(heads=own, o_bias=True), feed_forward=mlp)
        for own in (heads, replace(heads, mask=Causal(window)))
    )
    return decoder(
        config,
        alternating(local, other, _local(config)),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        positions=config.integer("max_position_embeddings", 2048),
    ).graph(fmt)


def _local(config: Section) -> list[bool]:
    """Whether each layer has a window: attention_types has kinds that are repeated so often."""
    config.costless("attention_layers")
    layers = config.integer(config.first("num_layers", "num_hidden_layers"))
    given: Any = _NEO_LAYERS if config.get("attention_types") is None else config.get("attention_types")
    try:
        kinds = [kind for some, times in given for _ in range(times) for kind in some]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or not set(kinds) <= {"global", "local"}:
        raise config.error("attention_types", f"must be lists of global and local, and how often, for {layers} layers")
    return [kind == "local" for kind in kinds]


@architecture("gptj")
def build_gptj(config: Section, fmt: Format) -> Graph:
    """Attention and MLP side by side under one norm; part of each head is rotated; the head has a bias."""
    return _side_by_side(config, fmt)


@architecture("codegen")
def build_codegen(config: Section, fmt: Format) -> Graph:
    """GPT-J with one projection for q, k and v (arXiv:2203.13474)."""
    return _side_by_side(config, fmt, rotary_dim=_CODEGEN_ROTARY_DIM, fused_qkv=True)


def _side_by_side(config: Section, fmt: Format, *, rotary_dim: int | None = None, fused_qkv: bool = False) -> Graph:
    """`rotary_dim` is what the class has where the config does not say; None is all of a head."""
    hidden = config.integer("n_embd")
    heads = heads_of(config, hidden, "n_head")
    turned = rotated(config, heads.head_dim, rotary_dim)
    attention = SelfAttention(heads=heads, rotary_dim=turned, fused_qkv=fused_qkv)
    layer = Layer(mixer=attention, feed_forward=_mlp(config), residual=Residual.PARALLEL)
    return decoder(
        config, [layer] * config.integer("n_layer"), hidden=hidden, norm=NormKind.LAYER, head_bias=True
    ).graph(fmt)


def _mlp(config: Section) -> Mlp:
    inner = config.integer("n_inner", 4 * config.integer("n_embd"))
    return Mlp(inner=inner, act=activation(config, "activation_function", "gelu_new"), bias=True)
