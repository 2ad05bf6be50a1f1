"""MiMo-V2-Flash: five layers in six with a sliding window of 128 tokens, twice the KV heads and a sink; values
narrower than keys (arXiv:2601.02780).

Configs come in two dialects, that of the checkpoint and that of transformers. Values are scaled by a constant,
which is not counted.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.masks import CAUSAL, Causal, Mask
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Prediction
from .blocks.fields import decoder, rotary_dim
from .blocks.moe import dense, experts, flagged, ignore_router_fields, listed, listed_sparse, windows_and_experts

_KINDS = ("full_attention", "sliding_attention")
_ROTATED = 0.334  # of each head
_PREDICTION_LAYERS = 3  # layers of multi-token prediction in the published checkpoint, whose config does not count them


@architecture("mimo_v2_flash")
def build(config: Section, fmt: Format) -> Graph:
    """MiMo-V2-Flash: sliding-window attention with sinks in five of six layers, narrower values, experts."""
    ignore_router_fields(
        config, "attention_value_scale", "swa_rope_theta", "layernorm_epsilon", "attention_chunk_size",
        "hybrid_block_size", "rope_parameters",
    )  # fmt: skip
    if config.integer("n_shared_experts", 0, least=0):
        raise config.error("n_shared_experts", "must be null: transformers has none for this architecture")
    bias = config.flag("attention_bias", default=False)
    windowed = config.flag("add_swa_attention_sink_bias", default=True)
    everywhere = config.flag("add_full_attention_sink_bias", default=False)
    plain = SelfAttention(heads=_heads(config, "", CAUSAL), qkv_bias=bias, sinks=everywhere)
    local = SelfAttention(heads=_heads(config, "swa_", Causal(_window(config))), qkv_bias=bias, sinks=windowed)
    mixers = {
        slides: replace(mixer, rotary_dim=rotary_dim(config, mixer.heads.head_dim, default=_ROTATED) // 2 * 2)
        for slides, mixer in ((False, plain), (True, local))
    }
    inner = config.integer("moe_intermediate_size")
    moe = experts(config, "n_routed_experts", "num_experts_per_tok", inner=inner)
    each = zip(_sliding(config), _sparse(config), strict=True)
    layers = windows_and_experts(mixers, {True: moe, False: dense(config)}, each)
    prediction_layer = Layer(mixer=mixers[True], feed_forward=dense(config))
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer, default=_PREDICTION_LAYERS)
    return decoder(config, layers, prediction=prediction).graph(fmt)


def _heads(config: Section, kind: str, mask: Mask) -> Heads:
    """Heads of a kind of layer, the prefix of its fields; by default windows have twice the KV heads."""
    num_kv_heads = config.integer("num_key_value_heads", 4)
    return Heads(
        num_heads=config.integer(f"{kind}num_attention_heads", config.integer("num_attention_heads")),
        num_kv_heads=config.integer(f"{kind}num_key_value_heads", 2 * num_kv_heads if kind else num_kv_heads),
        head_dim=config.integer(f"{kind}head_dim", config.integer("head_dim", 192)),
        value_dim=config.integer(f"{kind}v_head_dim", config.integer("v_head_dim", 128)),
        mask=mask,
    )


def _window(config: Section) -> int:
    """Keys that a query attends to, itself included: the checkpoint's field counts those before it."""
    if config.get("sliding_window_size") is None:
        return config.integer("sliding_window", 129)
    return config.integer("sliding_window_size") + 1


def _sliding(config: Section) -> list[bool]:
    """Whether each layer has a window: all but the first and every sixth where the config does not say."""
    windowed = [kind == _KINDS[1] for kind in listed(config, "layer_types", _KINDS)]
    default_flags = [index > 0 and (index + 1) % 6 != 0 for index in range(config.count("num_hidden_layers"))]
    return windowed or flagged(config, "hybrid_layer_pattern") or default_flags


def _sparse(config: Section) -> list[bool]:
    """Whether each layer has experts: all but the first where the config does not say."""
    default_flags = [index > 0 for index in range(config.count("num_hidden_layers"))]
    return listed_sparse(config) or flagged(config, "moe_layer_freq") or default_flags
