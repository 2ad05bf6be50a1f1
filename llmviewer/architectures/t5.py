"""T5, its successors, mT5 and UMT5: encoder and decoder with relative position biases and no others
(arXiv:1910.10683).

Version 1.1, Flan and mT5 have a gated MLP and a head of their own. Switch Transformers put experts into every few
layers (arXiv:2101.03961): each token goes to one, and none is dropped here, however many choose the same. ST-MoE has
gated experts, two to a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads, Softmax
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, FeedForward, Layer
from .blocks.encoder import CrossAttention, CrossLayer, Encoder, Head, bidirectional, pair, task
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import labels_of, require_false
from .blocks.parts import NormKind, Parts

TABLE: Final = "relative_attention_bias.weight"
_TASKS: Final = {
    "ForConditionalGeneration": "pair",
    "WithLMHeadModel": "pair",
    "EncoderModel": "encoder",
    "ForTokenClassification": "tokens",
    "Model": "pair",
}
_ACTIVATIONS: Final = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"}
_IGNORED: Final = """
    is_encoder_decoder relative_attention_max_distance dropout_rate initializer_factor dense_act_fn is_gated_act
    output_past classifier_dropout scale_decoder_outputs router_dtype router_jitter_noise router_type router_z_loss_coef
    router_aux_loss_coef router_ignore_padding_tokens add_router_probs expert_capacity batch_prioritized_routing
    num_selected_experts encoder_sparse_step decoder_sparse_step
"""


@frozen(kw_only=True)
class RelativeAttention:
    """Self-attention whose scores get a learned number by distance; the stack holds a table of them, or it is `own`."""

    attention: SelfAttention
    buckets: int
    own: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.attention.heads.num_heads
        table = parts.weight(TABLE, self.buckets, heads, tied=not self.own)
        launches = self.attention.operators(parts, x)
        return tuple(replace(op, weights=(table,)) if isinstance(op, Softmax) else op for op in launches)


@architecture("t5")
def build_t5(config: Section, fmt: Format) -> Graph:
    """The head is the embedding's matrix, unless the config says otherwise, as those of version 1.1 do."""
    mlp = _mlp(config)
    return _built(config, fmt, [mlp] * config.count("num_layers"), [mlp] * _decoders(config))


@architecture("mt5")
def build_mt5(config: Section, fmt: Format) -> Graph:
    """T5 1.1 with a vocabulary of many languages (arXiv:2010.11934)."""
    mlp = _mlp(config, "gated-gelu")
    layers = [mlp] * config.count("num_layers"), [mlp] * _decoders(config)
    return _built(config, fmt, *layers, tied=False)


@architecture("umt5")
def build_umt5(config: Section, fmt: Format) -> Graph:
    """MT5 with a table of distances in each layer (arXiv:2304.09151)."""
    mlp = _mlp(config, "gated-gelu")
    layers = [mlp] * config.count("num_layers"), [mlp] * _decoders(config)
    return _built(config, fmt, *layers, tables=True)


@architecture("switch_transformers")
def build_switch(config: Section, fmt: Format) -> Graph:
    """Switch Transformers: T5 with top-1 experts in every few layers."""
    inner, act = config.integer("d_ff"), _ACTIVATIONS[config.choice("dense_act_fn", _ACTIVATIONS, "relu")]
    experts = Experts(
        experts=config.integer("num_experts", 8),
        chosen=1,
        inner=inner,
        act=act,
        gated=False,
        router_bias=config.flag("router_bias", default=False),
    )
    dense = Mlp(inner=inner, act=act)
    config.ignore("feed_forward_proj")

    def networks(layers: int, sparse: int) -> list[FeedForward]:
        step = layers // sparse if sparse else layers  # as transformers has it, the second of every `step`
        return [experts if step == 1 or (step and index % step == 1) else dense for index in range(layers)]

    return _built(
        config,
        fmt,
        networks(config.count("num_layers"), config.count("num_sparse_encoder_layers", 3, least=0)),
        networks(_decoders(config), config.count("num_sparse_decoder_layers", 3, least=0)),
    )


@architecture("st_moe")
def build_st_moe(config: Section, fmt: Format) -> Graph:
    """ST-MoE (arXiv:2202.08906): every few layers have experts, and beside them the network of the other layers.

    Its `extra_mlp` follows the experts, with a norm of its own; here it runs beside them, with theirs.
    """
    dense = _mlp(config, "gated-gelu")
    experts = Experts(
        experts=config.integer("num_experts"),
        chosen=config.integer("num_selected_experts", 2),
        inner=config.integer("d_ff"),
        act=dense.act,
        gated=dense.gated,
        shared=dense,
    )

    def networks(layers: int, key: str) -> list[FeedForward]:
        step = layers // config.count(key)
        return [experts if index % step == step - 1 else dense for index in range(layers)]

    layers = config.count("num_layers"), _decoders(config)
    keys = ("num_sparse_encoder_layers", "num_sparse_decoder_layers")
    return _built(config, fmt, *map(networks, layers, keys), tied=False)


def _built(
    config: Section,
    fmt: Format,
    reading: Sequence[FeedForward],
    writing: Sequence[FeedForward],
    *,
    tied: bool = True,
    tables: bool = False,
) -> Graph:
    """Layers with these networks; `tied` is what the class has where the config does not say. Every layer has a table
    of distances where there are `tables`, else they share that of their stack.
    """
    require_false(config, "is_decoder", "a decoder by itself is not known here; got true")
    config.ignore(*_IGNORED.split())
    kind = task(config, _TASKS, "ForConditionalGeneration")
    vocab, hidden = config.integer("vocab_size"), config.integer("d_model")
    heads = Heads(
        num_heads=config.integer("num_heads"),
        num_kv_heads=config.integer("num_heads"),
        head_dim=config.integer("d_kv", 64),
    )
    buckets = config.integer("relative_attention_num_buckets", 32)
    bias_tables: dict[str, tuple[int, ...]] = {} if tables else {TABLE: (buckets, heads.num_heads)}
    ahead, behind = (
        RelativeAttention(attention=SelfAttention(heads=side_heads, alibi=True), buckets=buckets, own=tables)
        for side_heads in (bidirectional(heads), heads)
    )
    encoder = Encoder(
        vocab=vocab,
        hidden=hidden,
        layers=[
            Layer(mixer=ahead, feed_forward=network, name=f"encoder{_kind(network, reading)}") for network in reading
        ],
        norm=NormKind.RMS,
        final_norm=True,
        shared_shapes=bias_tables,
        heads=(Head(classes=labels_of(config)),) if kind == "tokens" else (),
    )
    if kind != "pair":
        config.ignore("num_decoder_layers", "tie_word_embeddings")
        return encoder.graph(fmt)
    cross = CrossAttention(heads=heads)
    # What transformers 5 saves is tied by its fields, and does not scale where the checkpoint has a head of its own.
    own_head = "scale_decoder_outputs" in config and not config.flag("scale_decoder_outputs", default=True)
    decoder = Decoder(
        vocab=vocab,
        hidden=hidden,
        layers=[
            CrossLayer(mixer=behind, cross=cross, feed_forward=network, name=f"decoder{_kind(network, writing)}")
            for network in writing
        ],
        norm=NormKind.RMS,
        tied=config.flag("tie_word_embeddings", default=tied) and not own_head,
    )
    return pair(encoder, decoder, fmt, shared_shapes=bias_tables)


def _kind(network: FeedForward, among: Sequence[FeedForward]) -> str:
    """Suffix of a layer's name where a stack has several kinds of layers."""
    if len(set(among)) == 1:
        return ""
    return "_moe" if isinstance(network, Experts) else "_dense"


def _decoders(config: Section) -> int:
    return config.count("num_decoder_layers", config.count("num_layers"))


def _mlp(config: Section, default: str = "relu") -> Mlp:
    """The feed-forward network that a word such as "relu" or "gated-gelu" describes, whose gelu is the one by tanh."""
    acts = {**_ACTIVATIONS, **{f"gated-{name}": act for name, act in _ACTIVATIONS.items()}, "gated-gelu": "gelu_tanh"}
    act_text = config.choice("feed_forward_proj", acts, default)
    return Mlp(inner=config.integer("d_ff"), act=acts[act_text], gated=act_text.startswith("gated-"))
