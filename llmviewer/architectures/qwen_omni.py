"""Thinkers of Qwen2.5-Omni and Qwen3-Omni: text, images and audio in, text out (arXiv:2503.20215, arXiv:2509.17765).

The audio encoder is loaded and not run, as a request has no audio. The talker and the codec decoder are left out: an
engine that generates text does not load them.
"""

from __future__ import annotations

from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.fields import filled
from .blocks.moe import language_model
from .blocks.parts import Parts
from .blocks.tower import Shapes, linears, part, unused_weights, vision
from .llama import FAMILIES
from .qwen_vl import as_qwen2, behind_qwen2_5_tower, seeing

_SOUND: Final = {  # as transformers.Qwen2_5OmniAudioEncoderConfig and Qwen3OmniMoeAudioEncoderConfig have it
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "encoder_ffn_dim": 5120,
    "d_model": 1280,
    "output_dim": 3584,
    "downsample_hidden_size": 480,
}
_SPARSE_TEXT: Final = TEXT_CLASSES["Qwen3OmniMoeTextConfig"] | {
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
}
_DEEP_LAYERS: Final = (8, 16, 24)
_TAPS: Final = 3  # of every convolution, to each side
_MOUTH: Final = """
    talker_config token2wav_config code2wav_config enable_audio_output enable_talker im_start_token_id im_end_token_id
    tts_pad_token_id tts_bos_token_id tts_eos_token_id system_token_id assistant_token_id user_token_id
"""
_IGNORED: Final = """
    audio_token_id audio_token_index video_token_index audio_start_token_id audio_end_token_id user_token_id
    position_id_per_seconds seconds_per_chunk
"""
_SOUND_IGNORED: Final = """
    encoder_attention_heads num_hidden_layers n_window n_window_infer conv_chunksize max_source_positions
    scale_embedding activation_function encoder_layerdrop
"""


@architecture("qwen2_5_omni", "qwen2_5_omni_thinker")
def build_qwen2_5(config: Section, fmt: Format) -> Graph:
    """Qwen2.5-VL, whose tower has projections apart."""
    config = _thinker(config)
    text = filled(
        language_model(config), TEXT_CLASSES["Qwen2_5OmniTextConfig"], instead={"tie_word_embeddings": _tied(config)}
    )
    language = as_qwen2(config, text, fmt)
    vision_graph = behind_qwen2_5_tower(vision(config), language, fmt, fused_qkv=False)
    section, parts = _sound(config), Parts(format=fmt)
    hidden, out, bins = (section.integer(key) for key in ("d_model", "output_dim", "num_mel_bins"))
    around = {
        **linears({"conv1": (hidden, bins, _TAPS), "conv2": (hidden, hidden, _TAPS), "proj": (out, hidden)}),
        "audio_bos_eos_token.weight": (2, out),
    }
    layer = {name: shape for name, shape in _layer(section).items() if name != "k_proj.bias"}
    return _hearing(section, parts, around, layer, vision_graph)


@architecture("qwen3_omni_moe", "qwen3_omni_moe_thinker")
def build_qwen3(config: Section, fmt: Format) -> Graph:
    """Qwen3-VL with experts."""
    config = _thinker(config)
    text = filled(language_model(config), _SPARSE_TEXT, instead={"tie_word_embeddings": _tied(config)})
    vision(config).ignore("apply_vit_abs_pos_embed")
    vision_graph = seeing(config, FAMILIES["qwen3_moe"].graph(text, fmt), fmt, deep=_DEEP_LAYERS)
    section, parts = _sound(config), Parts(format=fmt)
    hidden, out, channels = (section.integer(key) for key in ("d_model", "output_dim", "downsample_hidden_size"))
    left = section.integer("num_mel_bins")
    for _ in range(3):
        left = (left + 1) // 2
    around = {
        **linears({f"conv{n}": (channels, channels if n > 1 else 1, _TAPS, _TAPS) for n in (1, 2, 3)}),
        "conv_out.weight": (hidden, channels * left),
        **linears({"proj1": (hidden, hidden), "proj2": (out, hidden)}),
    }
    return _hearing(section, parts, around, _layer(section), vision_graph)


def _thinker(config: Section) -> Section:
    config.ignore(*_MOUTH.split())
    thinker = config.section("thinker_config") if config.get("thinker_config") is not None else config
    thinker.ignore(*_IGNORED.split())
    return thinker


def _tied(config: Section) -> bool:
    """Whether the head is the embedding's matrix; what text_config says of it is not heard."""
    return config.flag("tie_word_embeddings", default=False)


def _sound(config: Section) -> Section:
    section = part(config, "audio_config")
    section.ignore(*_SOUND_IGNORED.split())
    return filled(section, _SOUND)


def _layer(section: Section) -> Shapes:
    """Weights of a layer of the audio encoder."""
    hidden, inner = section.integer("d_model"), section.integer("encoder_ffn_dim")
    return {
        **{f"{name}_norm.{suffix}": (hidden,) for name in ("attn", "mlp") for suffix in ("weight", "bias")},
        **linears({f"{name}_proj": (hidden, hidden) for name in "qkvo"}),
        **linears({"up_proj": (inner, hidden), "down_proj": (hidden, inner)}),
    }


def _hearing(section: Section, parts: Parts, around: Shapes, layer: Shapes, vision_graph: Graph) -> Graph:
    """`vision_graph` beside the audio encoder."""
    norm = {f"final_norm.{suffix}": (section.integer("d_model"),) for suffix in ("weight", "bias")}
    blocks = (
        unused_weights("hearing", parts, {**around, **norm}),
        unused_weights("hearing_layer", parts, layer, section.count("encoder_layers")),
    )
    return Graph((*blocks, *vision_graph.blocks))
