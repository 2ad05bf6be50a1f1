"""Qwen2-Audio and Voxtral: language models with Whisper's encoder, over windows of 30 s of audio (arXiv:2407.10759,
arXiv:2507.13264).

Shorter audio is padded. Two tokens of the encoder are averaged to one of the prompt (Qwen2-Audio), or four are put side
by side (Voxtral): 750 or 375 tokens. Such an audio clip is asked for as an image is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import images
from ..graph import Block, Graph
from ..operators.base import Operator
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.decoder import Layer
from .blocks.encoder import bidirectional, stack
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of, with_rows
from .blocks.tower import image_rows, joined, language, pooled, projector
from .whisper import KeysWithoutBias, front

_SOUND: Final = {  # as transformers.Qwen2AudioEncoderConfig and VoxtralEncoderConfig have it
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "d_model": 1280,
    "max_source_positions": 1500,
}
_NAMES: Final = {  # in Voxtral: in Whisper
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_size": "d_model",
}
_IGNORED: Final = "model_type encoder_layerdrop layerdrop scale_embedding vocab_size use_cache initializer_factor"
_POOLED: Final = 2  # tokens of the encoder that Qwen2-Audio averages


@architecture("qwen2_audio")
def build(config: Section, fmt: Format) -> Graph:
    """Qwen2-Audio: Whisper's encoder, averaged to 750 tokens per 30 s, before Qwen2."""
    text, width = language(config, fmt, "qwen2")
    config.ignore("audio_token_index")
    section, parts = _sound(config), Parts(format=fmt, norm_kind=NormKind.LAYER)
    count, hidden = section.integer("max_source_positions"), section.integer("d_model")
    pool = pooled(parts, with_rows(parts.tensor(HIDDEN, hidden), image_rows(count)), _POOLED)
    norm = parts.norm("final_norm", pool.result)
    project = (pool, norm, parts.project("linear_1", norm.result, width, bias=True))
    return _heard(_encoder(section, fmt), project, text, tokens=count // _POOLED, count=count)


@architecture("voxtral")
def build_voxtral(config: Section, fmt: Format) -> Graph:
    """Voxtral: Whisper's encoder, stacked to 375 tokens per 30 s, before a Llama."""
    text_config = config.get("text_config") or {}
    text_fields = TEXT_CLASSES["VoxtralConfig"] | text_config if isinstance(text_config, dict) else text_config
    text, width = language(filled(config, instead={"text_config": text_fields}), fmt, "llama")
    config.ignore("audio_token_id", "hidden_size")
    section, parts = _sound(config), Parts(format=fmt, norm_kind=NormKind.LAYER)
    count, hidden, wide = (section.integer(k) for k in ("max_source_positions", "d_model", "encoder_ffn_dim"))
    if count * hidden % wide:
        raise section.error("intermediate_size", f"must be a width that {count} tokens of {hidden} can be put into")
    norm = parts.norm("final_norm", parts.tensor(HIDDEN, hidden))
    last = Block(name="norm", operators=(norm,), input=HIDDEN, output=norm.result.name)
    act = activation(config, "projector_hidden_act", "gelu")
    project = projector(parts, parts.tensor(HIDDEN, wide), (width, width), act, bias=False)
    return _heard((*_encoder(section, fmt), last), project, text, tokens=count * hidden // wide, count=count)


def _sound(config: Section) -> Section:
    """Section of the audio encoder, with the field names of Whisper's config."""
    section = config.section("audio_config") if config.get("audio_config") is not None else config.with_data({})
    section.ignore(*_IGNORED.split(), *_NAMES)
    renamed_fields = {new: section.get(old) for old, new in _NAMES.items() if old in section and new not in section}
    return filled(section, _SOUND, instead=renamed_fields)


def _encoder(config: Section, fmt: Format) -> tuple[Block, ...]:
    """Whisper's, without its last norm."""
    hidden, parts = config.integer("d_model"), Parts(format=fmt, norm_kind=NormKind.LAYER)
    attention = SelfAttention(
        heads=bidirectional(heads_of(config, hidden, "encoder_attention_heads")), qkv_bias=True, o_bias=True
    )
    act = activation(config, "activation_function", "gelu")
    mlp = Mlp(inner=config.integer("encoder_ffn_dim"), act=act, bias=True)
    layer = Layer(mixer=KeysWithoutBias(attention=attention), feed_forward=mlp)
    return (front(config, fmt, hidden), *stack(parts, [layer] * config.count("encoder_layers"), hidden))


def _heard(encoder: tuple[Block, ...], project: Sequence[Operator], text: Graph, *, tokens: int, count: int) -> Graph:
    """The language model behind an encoder of `count` tokens, which puts `tokens` into the prompt."""
    blocks = [replace(block, stream=images(count)) for block in encoder]
    return joined(blocks, project, text, tokens=tokens, name="audio")
