"""T5Gemma: encoder and decoder of Gemma 2's layers, which may differ in size, each with a token embedding
(arXiv:2504.06225). The encoder is bidirectional, with a window in every other layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.decoder import Decoder, Layer, Residual
from .blocks.encoder import CrossAttention, CrossLayer, Encoder, bidirectional, pair, task
from .blocks.feed_forward import Mlp
from .blocks.fields import attention, filled, gated_mlp, grouped_heads, sliding_layers, sliding_window
from .blocks.parts import NormKind

_TASKS: Final = {"ForConditionalGeneration": "pair", "Model": "pair"}
_WINDOW: Final = 4096
_IGNORED: Final = "is_encoder_decoder dropout_rate classifier_dropout_rate vocab_size"
_SIDE_IGNORED: Final = """
    query_pre_attn_scalar final_logit_softcapping attn_logit_softcapping tie_word_embeddings dropout_rate
    cross_attention_hidden_size hidden_act
"""


@architecture("t5gemma")
def build(config: Section, fmt: Format) -> Graph:
    """T5Gemma: an encoder and a decoder of Gemma 2's layers with sandwich norms."""
    task(config, _TASKS, "ForConditionalGeneration")
    config.ignore(*_IGNORED.split())
    reading, writing = _side(config, "encoder"), _side(config, "decoder")
    read = reading.integer("hidden_size")
    encoder = Encoder(
        vocab=reading.integer("vocab_size"),
        hidden=read,
        layers=[
            Layer(mixer=mixer, feed_forward=_mlp(reading), residual=Residual.SANDWICH, name=name)
            for name, mixer in _mixers(reading, "encoder")
        ],
        norm=NormKind.RMS,
        final_norm=True,
    )
    heads = grouped_heads(writing)
    bias = writing.flag("attention_bias", default=False)
    cross = CrossAttention(heads=heads, q_bias=bias, k_bias=bias, v_bias=bias, o_bias=bias, encoded_width=read)
    decoder = Decoder(
        vocab=writing.integer("vocab_size"),
        hidden=writing.integer("hidden_size"),
        layers=[
            CrossLayer(mixer=mixer, cross=cross, feed_forward=_mlp(writing), residual=Residual.SANDWICH, name=name)
            for name, mixer in _mixers(writing, "decoder")
        ],
        tied=config.flag("tie_word_embeddings", default=True),
    )
    return pair(encoder, decoder, fmt, one_table=False)


def _side(config: Section, key: str) -> Section:
    section = config.section(key) if config.get(key) is not None else Section({}, config.file, f"{key}.")
    section.ignore(*_SIDE_IGNORED.split())
    return filled(section, TEXT_CLASSES["T5GemmaModuleConfig"])


def _mixers(side: Section, name: str) -> Sequence[tuple[str, SelfAttention]]:
    """The attention of each layer, and what its block is called."""
    heads, window = grouped_heads(side), sliding_window(side, _WINDOW)

    def mixer(*, slides: bool) -> SelfAttention:
        return attention(side, _masked_heads(heads, window if slides else inf, ahead=name == "encoder"))

    return [
        (f"{name}_{'local' if slides else 'global'}", mixer(slides=slides))
        for slides in sliding_layers(side, pattern=2)
    ]


def _masked_heads(heads: Heads, window: float, *, ahead: bool) -> Heads:
    return bidirectional(heads, None if window == inf else window) if ahead else replace(heads, mask=Causal(window))


def _mlp(side: Section) -> Mlp:
    return gated_mlp(side, key="hidden_activation", act="gelu_pytorch_tanh")
