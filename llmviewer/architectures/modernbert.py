"""ModernBERT: rotary positions, pre-norms, a gated MLP, no biases; two layers of three attend to at most 64 tokens on
either side (arXiv:2412.13663). Its decoder is causal (arXiv:2507.11412).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import LOGITS
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.masks import Causal
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer, UnnormedLayer
from .blocks.encoder import Encoder, Head, bidirectional, task
from .blocks.feed_forward import Mlp
from .blocks.fields import labels_of, sliding_layers
from .blocks.parts import NormKind, Parts, activation, heads_of, with_rows

_TASKS: Final = {
    "ForMaskedLM": "words",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "answer",
    "Model": "bare",
}
_IGNORED: Final = """
    norm_eps global_rope_theta local_rope_theta initializer_cutoff_factor embedding_dropout mlp_dropout
    classifier_dropout classifier_pooling deterministic_flash_attn sparse_prediction sparse_pred_ignore_index
    reference_compile repad_logits_with_grad position_embedding_type cls_token_id num_labels
"""


@architecture("modernbert")
def build(config: Section, fmt: Format) -> Graph:
    """ModernBERT: a pre-norm encoder with GeGLU and local attention in two of three layers."""
    config.ignore(*_IGNORED.split())
    config.choice("classifier_pooling", ("cls", "mean"), "cls")
    hidden = config.integer("hidden_size")
    norm = NormKind.LAYER if config.flag("norm_bias", default=False) else NormKind.LAYER_NO_BIAS
    heads = heads_of(config, hidden, "num_attention_heads")
    reach = config.integer("local_attention", 128) // 2
    return Encoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=_layers(config, bidirectional(heads, reach), bidirectional(heads), fused_qkv=True),
        norm=norm,
        embed_norm=True,
        final_norm=True,
        heads=_heads(config, hidden),
    ).graph(fmt)


@frozen(kw_only=True)
class WordsAfterHead(Decoder):
    """A decoder that makes words of norm(act(dense(x)))."""

    head: Head

    def _logits(self, parts: Parts, x: Tensor, norm: str, *, tied: bool) -> tuple[Operator, ...]:
        *before, words = super()._logits(parts, x, norm, tied=tied)
        operators = tuple(
            op.with_tensors(lambda t: with_rows(t, LOGITS)) for op in self.head.operators(parts, words.inputs[0])
        )
        return (*before, *operators, replace(words, inputs=operators[-1].outputs))


@architecture("modernbert-decoder")
def build_decoder(config: Section, fmt: Format) -> Graph:
    """Queries, keys and values are made apart; keys stay."""
    config.ignore(*_IGNORED.split())
    hidden, heads = (
        config.integer("hidden_size"),
        heads_of(config),
    )
    window = Causal(config.integer("local_attention", 128) // 2)
    near, far = (replace(heads, mask=mask) for mask in (window, heads.mask))
    norm = NormKind.LAYER if config.flag("norm_bias", default=False) else NormKind.LAYER_NO_BIAS
    return WordsAfterHead(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=_layers(config, near, far, fused_qkv=False),
        norm=norm,
        embed_norm=True,
        tied=config.flag("tie_word_embeddings", default=True),
        head_bias=config.flag("decoder_bias", default=True),
        head=_head(config, hidden),
    ).graph(fmt)


def _layers(config: Section, near: Heads, far: Heads, *, fused_qkv: bool) -> list[Layer]:
    """`near` are the heads of layers that slide."""
    bias = config.flag("attention_bias", default=False)
    mlp = Mlp(
        inner=config.integer("intermediate_size"),
        act=activation(config, "hidden_activation", "gelu"),
        gated=True,
        fused=True,
        bias=config.flag("mlp_bias", default=False),
    )

    def layer(*, slides: bool) -> Layer:
        heads = near if slides else far
        attention = SelfAttention(
            heads=heads, rotary_dim=heads.head_dim, fused_qkv=fused_qkv, qkv_bias=bias, o_bias=bias
        )
        return Layer(mixer=attention, feed_forward=mlp, name="local" if slides else "global")

    every = config.integer("global_attn_every_n_layers", 3)  # of which the first attends to all
    layers = [layer(slides=slides) for slides in sliding_layers(config, pattern=every, first=True)]
    first = UnnormedLayer(mixer=layers[0].mixer, feed_forward=mlp, name="first")
    return [first, *layers[1:]]


def _head(config: Section, hidden: int) -> Head:
    act = activation(config, "classifier_activation", "gelu")
    return Head(dense=hidden, act=act, dense_bias=config.flag("classifier_bias", default=False), norm=True)


def _heads(config: Section, hidden: int) -> tuple[Head, ...]:
    """Prediction head of the class in `architectures`; a classifier pools tokens before it."""
    head = _head(config, hidden)
    words = replace(
        head,
        classes=config.integer("vocab_size"),
        bias=config.flag("decoder_bias", default=True),
        words=True,
        tied=config.flag("tie_word_embeddings", default=True),
    )
    classifier = replace(head, classes=labels_of(config))
    heads = {
        "words": (words,),
        "sequence": (replace(classifier, first=True),),
        "token": (classifier,),
        "answer": (replace(head, classes=2),),
        "bare": (),
    }
    return heads[task(config, _TASKS, "Model")]
