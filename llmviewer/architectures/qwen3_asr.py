"""Qwen3-ASR: strided convolutions over audio and an encoder with windows of 8 s, before a Qwen3.

An audio clip lasts sound_seconds of the config, 30 s without that field, and counts as an image: 13 tokens a second.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from ..documents import Section
from ..forms import images
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.convolution import Conv2d
from ..operators.elementwise import Permute
from ..operators.masks import Tiled
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional, stack
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of, result, with_rows
from .blocks.tower import image_rows, joined, language, part, projector
from .granite_speech import sound_tokens

_ENCODER: Final = {  # as transformers.Qwen3ASREncoderConfig has it
    "num_mel_bins": 128, "encoder_layers": 24, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "d_model": 1024,
    "n_window": 50, "n_window_infer": 800, "output_dim": 3584, "downsample_hidden_size": 480,
}  # fmt: skip
_TEXT: Final = {  # as transformers.Qwen3ASRConfig has it
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8,
}  # fmt: skip
_FRAMES_A_SECOND: Final = 100
_HALVINGS: Final = 3
_IGNORED: Final = """
    audio_token_id timestamp_token_id token_classification_bias audio_start_token_id audio_end_token_id
    support_languages
"""
_SOUND_IGNORED: Final = """
    model_type scale_embedding activation_dropout encoder_layerdrop conv_chunksize max_source_positions
    num_hidden_layers max_position_embeddings
"""


@architecture("qwen3_asr")
def build(config: Section, fmt: Format) -> Graph:
    """Fields stand in thinker_config in the repositories of Qwen."""
    thinker = config.section("thinker_config") if config.get("thinker_config") is not None else config
    config.ignore(*_IGNORED.split())
    thinker.ignore(*_IGNORED.split())
    text_config = thinker.get("text_config") or {}
    filled_config = filled(thinker, {"tie_word_embeddings": True}, instead={"text_config": _with_sizes(text_config)})
    text, _ = language(filled_config, fmt, "qwen3")
    section = filled(part(thinker, "audio_config"), _ENCODER)
    section.ignore(*_SOUND_IGNORED.split())
    chunk = 2 * section.integer("n_window")
    frames = sound_tokens(config, _FRAMES_A_SECOND)
    chunks, rest = divmod(frames, chunk)
    if rest:
        raise config.error("sound_seconds", f"must be whole chunks of {chunk} frames; got {frames} frames")
    each = _halved(chunk)[-1]
    blocks = _encoder(section, Parts(format=fmt, norm_kind=NormKind.LAYER), chunks, each)
    parts, hidden = Parts(format=fmt), section.integer("d_model")
    act = activation(section, "activation_function", "gelu")
    project = projector(parts, parts.tensor(HIDDEN, hidden), (hidden, section.integer("output_dim")), act, bias=True)
    return joined(blocks, project, text, tokens=chunks * each, name="audio")


def _with_sizes(text_config: object) -> object:
    return {**_TEXT, **text_config} if isinstance(text_config, dict) else text_config


def _halved(length: int) -> list[int]:
    """`length` and what is left of it after each convolution with stride 2."""
    lengths = [length]
    for _ in range(_HALVINGS):
        lengths.append((lengths[-1] + 1) // 2)
    return lengths


def _encoder(config: Section, parts: Parts, chunks: int, each: int) -> list[Block]:
    """`chunks` chunks of audio with `each` tokens; a token attends to those of n_window_infer frames."""
    hidden, chunk = config.integer("d_model"), 2 * config.integer("n_window")
    reach = config.integer("n_window_infer")
    if reach < chunk:
        raise config.error("n_window_infer", f"must be at least one chunk of {chunk} frames; got {reach}")
    window, tokens = each * (reach // chunk), chunks * each
    pairs = tokens // window * window**2 + (tokens % window) ** 2
    heads = replace(bidirectional(heads_of(config, hidden, "encoder_attention_heads")), mask=Tiled(pairs))
    act = activation(config, "activation_function", "gelu")
    layer = Layer(
        mixer=SelfAttention(heads=heads, qkv_bias=True, o_bias=True),
        feed_forward=Mlp(inner=config.integer("encoder_ffn_dim"), act=act, bias=True),
    )
    stream, norm = images(tokens), parts.norm("final_norm", parts.tensor(HIDDEN, hidden))
    first = _convolved(config, parts, chunks, chunk)
    return [
        Block(name="embedding", operators=first, input="mel", output=result(first).name, stream=stream),
        *stack(parts, [layer] * config.count("encoder_layers"), hidden, stream=stream),
        Block(name="norm", operators=(norm,), input=HIDDEN, output=norm.name, stream=stream),
    ]


def _convolved(config: Section, parts: Parts, chunks: int, chunk: int) -> tuple[Operator, ...]:
    """Three convolutions over bins and frames, a projection of all bins of a frame, and sines of positions."""
    bins, frames = _halved(config.integer("num_mel_bins")), _halved(chunk)
    channels, x = config.integer("downsample_hidden_size"), parts.tensor("mel", 1)
    x = with_rows(x, image_rows(chunks * bins[0] * frames[0]))
    operators: tuple[Operator, ...] = ()
    for place, sizes in enumerate(zip(bins[1:], frames[1:], strict=True), start=1):
        out = with_rows(parts.tensor(f"conv{place}", channels), image_rows(chunks * prod(sizes)))
        weights = (parts.weight(f"{out.name}.weight", channels, x.width, 9), parts.weight(f"{out.name}.bias", channels))
        conv = Conv2d(name=out.name, inputs=(x,), outputs=(out,), weights=weights)
        operators = (*operators, conv, parts.activate(f"{out.name}_act", "gelu", out))
        x = result(operators)
    wide = parts.tensor("conv_flatten", channels * bins[-1])
    flatten = Permute(name=wide.name, inputs=(x,), outputs=(wide,))  # channels of a frame's bins come together
    project = parts.project("conv_out", wide, config.integer("d_model"))
    return (*operators, flatten, project, parts.elementwise("position_add", project.result, ops=1))
