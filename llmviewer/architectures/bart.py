"""BART and translation models of its design: encoder and decoder with biases and LayerNorm, one token embedding.

They differ in where norms stand and in how positions come in. Positions that are computed and not learned are a table
all the same where the checkpoint has one. The bias of the logits, zeros in every checkpoint, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, FeedForward, Layer, Residual
from .blocks.encoder import CrossAttention, CrossLayer, Encoder, bidirectional, holding, pair, task
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import require_true
from .blocks.parts import NormKind, Parts, activation, heads_of
from .blocks.tower import auxiliary_block, unused_weights

_TASKS: Final = {"ForConditionalGeneration": "pair", "ForCausalLM": "decoder", "MTModel": "pair", "Model": "pair"}
_IGNORED: Final = """
    is_encoder_decoder scale_embedding classifier_dropout classif_dropout encoder_layerdrop decoder_layerdrop
    forced_bos_token_id forced_eos_token_id num_hidden_layers num_labels output_past
    max_length min_length length_penalty early_stopping no_repeat_ngram_size bad_words_ids max_position_embeddings
    add_final_layer_norm add_bias_logits normalize_before normalize_embedding static_position_embeddings
    extra_pos_embeddings force_bos_token_to_be_generated tokenizer_class
    router_dtype router_z_loss_coef router_aux_loss_coef router_ignore_padding_tokens expert_capacity
    second_expert_policy normalize_router_prob_before_dropping batch_prioritized_routing moe_token_dropout
    moe_eval_capacity_token_fraction output_router_logits
"""

Network = Callable[[Section, str, int], FeedForward]


@frozen(kw_only=True)
class TranslatorFamily:
    """Differences between encoders and decoders of BART's build.

    residual    placement of norms; if they precede the branches, a last norm follows the layers
    positions   whether the checkpoint has a table of positions
    offset      rows of that table for padding
    embed_norm  whether a norm follows the embedding
    act         activation function where the config has none
    """

    residual: Residual
    positions: bool = True
    offset: int = 0
    embed_norm: bool = False
    act: str = "gelu"


_MARIAN: Final = TranslatorFamily(residual=Residual.POST)  # arXiv:1804.00344, such as the OPUS-MT models
_M2M_100: Final = TranslatorFamily(  # NLLB's dense models too: arXiv:2010.11125, arXiv:2207.04672
    residual=Residual.PRE, positions=False, act="relu"
)
_FAMILIES: Final[Mapping[tuple[str, ...], TranslatorFamily]] = {  # by model types
    ("bart", "plbart"): TranslatorFamily(residual=Residual.POST, offset=2, embed_norm=True),  # arXiv:1910.13461
    ("mbart",): TranslatorFamily(residual=Residual.PRE, offset=2, embed_norm=True),  # arXiv:2001.08210
    ("pegasus",): TranslatorFamily(residual=Residual.PRE),  # arXiv:1912.08777
    ("blenderbot",): TranslatorFamily(residual=Residual.PRE),  # arXiv:2004.13637
    ("blenderbot-small",): TranslatorFamily(residual=Residual.POST, embed_norm=True),
    ("m2m_100",): _M2M_100,
}


def _register(model_types: tuple[str, ...], family: TranslatorFamily) -> None:
    @architecture(*model_types)
    def build(config: Section, fmt: Format) -> Graph:
        return _built(config, fmt, family)


for _model_types, _family in _FAMILIES.items():
    _register(_model_types, _family)


@architecture("marian")
def build_marian(config: Section, fmt: Format) -> Graph:
    """BART: encoder and decoder share a table of token embeddings."""
    require_true(config, "share_encoder_decoder_embeddings", "two tables of words are not known here")
    vocab = config.integer("vocab_size")
    if (other := config.integer("decoder_vocab_size", vocab)) != vocab:
        raise config.error(
            "decoder_vocab_size", f"must be the vocab_size {vocab}, as both sides share one table; got {other}"
        )
    return _built(config, fmt, _MARIAN)


@architecture("nllb-moe")
def build_nllb_moe(config: Section, fmt: Format) -> Graph:
    """NLLB with experts in every fourth layer, of which each token takes two (arXiv:2207.04672, section 6)."""

    def network(config: Section, side: str, index: int) -> FeedForward:
        step = config.integer(f"{side}_sparse_step", 4, least=0)
        dense = _mlp(config, side, "relu")
        if not step or (index + 1) % step:
            return dense
        router_bias = config.flag("router_bias", default=False)
        return Experts(
            experts=config.integer("num_experts", 128, least=2),
            chosen=2,
            inner=dense.inner,
            act=dense.act,
            gated=False,
            bias=True,
            router_bias=router_bias,
        )

    return _built(config, fmt, _M2M_100, network)


def _built(config: Section, fmt: Format, family: TranslatorFamily, network: Network | None = None) -> Graph:
    """`network` is that of a side's layer, which is dense if it is not given."""
    kind = task(config, _TASKS, "ForConditionalGeneration")  # a classifier runs its decoder over all of the input
    config.ignore(*_IGNORED.split())
    vocab, hidden = config.integer("vocab_size"), config.integer("d_model")
    positions = config.integer("max_position_embeddings", 1024) + family.offset if family.positions else 0

    def networks(side: str) -> list[FeedForward]:
        layers = range(config.count(f"{side}_layers"))
        if network:
            return [network(config, side, index) for index in layers]
        return [_mlp(config, side, family.act)] * len(layers)

    encoder_heads, other = (heads_of(config, hidden, f"{side}_attention_heads") for side in ("encoder", "decoder"))
    ahead, behind = (
        SelfAttention(heads=heads, qkv_bias=True, o_bias=True) for heads in (bidirectional(encoder_heads), other)
    )
    cross = CrossAttention(heads=other, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
    last = family.residual is Residual.PRE
    encoder = Encoder(
        vocab=vocab,
        hidden=hidden,
        layers=[
            Layer(mixer=ahead, feed_forward=each, residual=family.residual, name=f"encoder{_kind(each)}")
            for each in networks("encoder")
        ],
        positions=positions,
        embed_norm=family.embed_norm,
        final_norm=last,
    )
    decoder = Decoder(
        vocab=vocab,
        hidden=hidden,
        layers=[
            CrossLayer(
                mixer=behind, cross=cross, feed_forward=each, residual=family.residual, name=f"decoder{_kind(each)}"
            )
            for each in networks("decoder")
        ],
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=True),
        positions=positions,
        embed_norm=family.embed_norm,
        final_norm=last,
    )
    if kind == "decoder":
        return _decoder_only(decoder, behind, config, fmt)
    if decoder.tied:
        return pair(encoder, decoder, fmt)
    # Untied, both sides have a table of their own, beside one that nothing reads.
    first, *others = pair(encoder, decoder, fmt, one_table=False).blocks
    embed = holding(first.operators[0], Parts(format=fmt), {"shared.weight": (vocab, hidden)})
    return Graph((replace(first, operators=(embed, *first.operators[1:])), *others))


def _decoder_only(decoder: Decoder, attention: SelfAttention, config: Section, fmt: Format) -> Graph:
    """The decoder without an encoder; its layers hold cross-attention that nothing runs."""
    config.ignore(*(f"encoder_{field}" for field in ("layers", "ffn_dim", "attention_heads")))
    layers = [
        Layer(mixer=attention, feed_forward=layer.feed_forward, residual=layer.residual, name=layer.name)
        for layer in decoder.layers
    ]
    width = decoder.hidden
    shapes: dict[str, tuple[int, ...]] = {f"cross_{name}.weight": (width, width) for name in "qkvo"}
    shapes |= {name.replace("weight", "bias"): (width,) for name in shapes}
    shapes |= {f"cross_norm.{part}": (width,) for part in ("weight", "bias")}
    unused = unused_weights("cross", Parts(format=fmt), shapes, len(layers))
    return Graph((auxiliary_block(unused, name="unused"), *replace(decoder, layers=layers).graph(fmt).blocks))


def _mlp(config: Section, side: str, act: str) -> Mlp:
    inner = config.integer(f"{side}_ffn_dim")
    return Mlp(inner=inner, act=activation(config, "activation_function", act), bias=True)


def _kind(network: FeedForward) -> str:
    return "_moe" if isinstance(network, Experts) else ""
