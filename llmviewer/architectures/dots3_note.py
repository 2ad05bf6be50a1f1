"""Text part of Dots 3 Note: latent attention with a gate per head, to keys selected by an indexer or within a window
in layers with sizes of their own; experts.

Configs come in two dialects: that of the checkpoint has the sizes of layers with a window in fields that begin with
swa_, that of transformers in per_layer_config. Factors of the latents fold into their norms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import LatentAttention
from .blocks.decoder import FeedForward, Layer
from .blocks.fields import decoder, require_false
from .blocks.moe import (
    dense,
    experts_beside_shared,
    for_each_layer,
    ignore_router_fields,
    integers,
    latent_attention,
    listed,
    sparse_layers,
)
from .deepseek import published_index

_WINDOW: Final = 512
_SLIDING, _INDEXED, _FULL = _KINDS = ("sliding_attention", "indexed_attention", "full_attention")
_WINDOWED: Final = {  # sizes of layers with a window, as transformers.Dots3NoteTextConfig has them
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
_HEAD_DIM: Final = 256  # of those layers, the rotated part included
_MEDIA: Final = "audio_token_id image_token_id video_token_id"


@architecture("dots3_note_text")
def build(config: Section, fmt: Format) -> Graph:
    """Dots 3 Note: gated latent attention, sparse or windowed by layer, and experts."""
    # Keys and values are expanded for every head, and heads are as wide as their parts.
    ignore_router_fields(
        config, "rope_interleave", "num_key_value_heads", "head_dim", "qk_head_dim", "swa_num_key_value_heads"
    )
    require_false(config, "mlp_bias", "biases of these MLPs are not modelled")
    sparse = _sparse(config)
    inner = config.integer("moe_intermediate_size", 1536)
    shared = config.first("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size")
    each = config.integer(shared, 1536)
    moe = experts_beside_shared(config, "n_routed_experts", default=1, inner=inner, each=each)
    networks: dict[bool, FeedForward] = {True: moe, False: dense(config)}
    layers = [
        Layer(
            mixer=_attention(config, index, kind),
            feed_forward=networks[has_experts],
            name=f"{'local' if kind == _SLIDING else 'global'}_{'moe' if has_experts else 'dense'}",
        )
        for index, (kind, has_experts) in enumerate(zip(_layer_types(config), sparse, strict=True))
    ]
    return decoder(config, layers).graph(fmt)


@architecture("dots3_note")
def build_text_of(config: Section, fmt: Format) -> Graph:
    """The decoder of one with vision and audio: without those towers. Published configs have
    the fields of the text part beside those of the towers.
    """
    config.ignore(*_MEDIA.split())
    return build(config if config.get("text_config") is None else config.section("text_config"), fmt)


def _attention(config: Section, index: int, kind: str) -> LatentAttention:
    kind_config = _of_window(config, index) if kind == _SLIDING else config
    plain = latent_attention(kind_config, LatentAttention, q_rank=1024)
    plain = replace(plain, gates=plain.num_heads, k_rope_norm=True)
    if kind == _SLIDING:
        return replace(plain, window=config.integer(config.first("sliding_window", "sliding_window_size"), _WINDOW))
    return replace(plain, index=published_index(config, heads=64)) if kind == _INDEXED else plain


def _of_window(config: Section, index: int) -> Section:
    """The config as layer `index`, which has a window, has it."""
    if config.get("per_layer_config") is not None:
        each = config.section("per_layer_config")  # names of layers have as many digits as the last
        layer = next((each.section(name) for name in each if str(name).isdecimal() and int(name) == index), None)
        return config.with_data({**config.data, **({key: layer.get(key) for key in layer} if layer else {})})
    window_fields = {key: config.integer(f"swa_{key}", default) for key, default in _WINDOWED.items()}
    rest = config.integer("swa_head_dim", _HEAD_DIM) - window_fields["qk_nope_head_dim"]
    return config.with_data(
        {**config.data, **window_fields, "qk_rope_head_dim": config.integer("swa_qk_rope_head_dim", rest)}
    )


def _layer_types(config: Section) -> list[str]:
    """The kind of each layer: as listed, or the first two and every fourth without a window; full_attention is with an
    indexer where use_dsa says so, as it does in the dialect of the checkpoint if nothing is said.
    """
    windowed, layers = config.flag("use_sliding_window", default=True), config.count("num_hidden_layers")
    default_types = [_INDEXED if not windowed or i < 2 or i % 4 == 1 else _SLIDING for i in range(layers)]
    layer_types = listed(config, "layer_types", _KINDS) or default_types
    if config.get("use_dsa") is None and "per_layer_config" in config:
        return layer_types
    full_kind = _INDEXED if config.flag("use_dsa", default=True) else _FULL
    return [kind if kind == _SLIDING else full_kind for kind in layer_types]


def _sparse(config: Section) -> list[bool]:
    """Whether each layer has experts; moe_layer_freq may be a list, of which a 1 says so."""
    if not isinstance(config.get("moe_layer_freq"), list) or config.get("mlp_layer_types") is not None:
        return sparse_layers(config, default=1)
    each, first = integers(config, "moe_layer_freq"), config.integer("first_k_dense_replace", 1, least=0)
    for_each_layer(config, "moe_layer_freq", each)
    return [index >= first and bool(flag) for index, flag in enumerate(each)]
