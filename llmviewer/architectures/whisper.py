"""Whisper: an audio encoder behind two convolutions, a decoder that transcribes (arXiv:2212.04356).

A token of the encoder stands for 20 ms: audio comes in frames of 10 ms, and the second convolution takes every other
one. Speech is padded to 30 s, so that the encoder always reads max_source_positions tokens: a prompt has 1500.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import SEQUENCES, TOKENS, table_rows
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.convolution import Conv1d
from ..operators.elementwise import Add
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer
from .blocks.encoder import CrossAttention, CrossLayer, Encoder, bidirectional, mean_pooled, pair, task
from .blocks.feed_forward import Mlp
from .blocks.fields import labels_of, require_false
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of, result, with_rows

_TASKS: Final = {"ForConditionalGeneration": "pair", "ForAudioClassification": "classes", "Model": "pair"}
_TAPS: Final = 3
_STRIDE: Final = 2  # frames of a token
_IGNORED: Final = """
    is_encoder_decoder scale_embedding encoder_layerdrop decoder_layerdrop num_hidden_layers suppress_tokens
    begin_suppress_tokens forced_decoder_ids max_length apply_spec_augment
    mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length mask_feature_min_masks
    median_filter_width alignment_heads
"""


@frozen(kw_only=True)
class KeysWithoutBias:
    """Self-attention whose queries and values have a bias, and whose keys have none."""

    attention: SelfAttention

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches = self.attention.operators(parts, x)
        return tuple(replace(op, weights=op.weights[:1]) if op.name == "k_proj" else op for op in launches)


@architecture("whisper")
def build(config: Section, fmt: Format) -> Graph:
    """Whisper: two convolutions and an encoder over 30 s of audio, a decoder with cross-attention."""
    kind = task(config, _TASKS, "ForConditionalGeneration")
    config.ignore(*_IGNORED.split())
    vocab, hidden = config.integer("vocab_size"), config.integer("d_model")
    act = activation(config, "activation_function", "gelu")
    encoder_heads, other = (heads_of(config, hidden, f"{side}_attention_heads") for side in ("encoder", "decoder"))
    ahead, behind = (
        KeysWithoutBias(attention=SelfAttention(heads=heads, qkv_bias=True, o_bias=True))
        for heads in (bidirectional(encoder_heads), other)
    )
    cross = CrossAttention(heads=other, q_bias=True, v_bias=True, o_bias=True)
    reading, writing = (
        Mlp(inner=config.integer(f"{side}_ffn_dim"), act=act, bias=True) for side in ("encoder", "decoder")
    )
    encoder = Encoder(
        vocab=0,
        hidden=hidden,
        layers=[Layer(mixer=ahead, feed_forward=reading, name="encoder")] * config.count("encoder_layers"),
        final_norm=True,
    )
    if kind == "classes":
        return _classifier(config, encoder, fmt)
    layer = CrossLayer(mixer=behind, cross=cross, feed_forward=writing)
    decoder = Decoder(
        vocab=vocab,
        hidden=hidden,
        layers=[layer] * config.count("decoder_layers"),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=True),
        positions=config.integer("max_target_positions", 448),
    )
    return pair(encoder, decoder, fmt, front=front(config, fmt, hidden))


def _classifier(config: Section, encoder: Encoder, fmt: Format) -> Graph:
    """The encoder, a projection of every token, and classes of their mean."""
    require_false(config, "use_weighted_layer_sum", "sums over layers are not known for this architecture")
    parts, width = Parts(format=fmt), config.integer("classifier_proj_size", 256)
    project = parts.project("projector", parts.tensor(HIDDEN, encoder.hidden), width, bias=True)
    pool = mean_pooled(parts, project.result, config.integer("max_source_positions", 1500))
    out = with_rows(parts.tensor("classifier", labels_of(config)), SEQUENCES)
    classifier = parts.linear("classifier", pool.result, out, bias=True)
    head = Block(name="head", operators=(project, pool, classifier), input=HIDDEN, output=out.name)
    return Graph((*encoder.graph(fmt, front(config, fmt, encoder.hidden)).blocks, head))


def front(config: Section, fmt: Format, hidden: int) -> Block:
    """Tokens of frames: convolutions with GeLU, and the table of positions."""
    parts = Parts(format=fmt)
    frames = _STRIDE * TOKENS
    mel = with_rows(parts.tensor("mel", config.integer("num_mel_bins", 80)), frames)
    operators: tuple[Operator, ...] = ()
    x = mel
    for name, rows in (("conv1", frames), ("conv2", TOKENS)):
        weights = (parts.weight(f"{name}.weight", hidden, x.width, _TAPS), parts.weight(f"{name}.bias", hidden))
        conv = Conv1d(name=name, inputs=(x,), outputs=(with_rows(parts.tensor(name, hidden), rows),), weights=weights)
        operators = (*operators, conv, parts.activate(f"{name}_act", "gelu", conv.result))
        x = result(operators)
    count = config.integer("max_source_positions", 1500)
    table = replace(parts.weight("embed_positions.weight", count, hidden), rows=table_rows(count))
    out = parts.tensor("position_add", hidden)
    add = Add(name="position_add", inputs=(x,), outputs=(out,), weights=(table,), ops_per_element=1)
    return Block(name="embedding", operators=(*operators, add), input="mel", output=out.name)
