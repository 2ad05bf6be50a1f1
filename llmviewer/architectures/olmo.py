"""OLMo 1 to 3: LLaMA's layers with norms that learn nothing (1), or norms after attention and MLP (2, 3).

OLMo 2 and 3 also normalize queries and keys, all heads together; of OLMo 3 three layers in four have a window
(arXiv:2402.00838, arXiv:2501.00656, arXiv:2512.13961).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Residual
from .blocks.fields import alternating, attention, decoder, gated_mlp, grouped_heads, sliding_layers, sliding_window
from .blocks.moe import costless, experts, kinds
from .blocks.parts import NormKind
from .blocks.state_space import GatedDeltaNet

_WINDOW = 4096


@architecture("olmo")
def build_olmo(config: Section, fmt: Format) -> Graph:
    layer = Layer(mixer=attention(config), feed_forward=gated_mlp(config))
    config.costless("clip_qkv")
    return decoder(config, layer, norm=NormKind.PLAIN).graph(fmt)


@architecture("olmo2")
def build_olmo2(config: Section, fmt: Format) -> Graph:
    return decoder(config, _inner(config)).graph(fmt)


@architecture("olmo3")
def build_olmo3(config: Section, fmt: Format) -> Graph:
    layers = alternating(
        _inner(config, sliding_window(config, _WINDOW)), _inner(config), sliding_layers(config, pattern=4)
    )
    return decoder(config, layers).graph(fmt)


@architecture("flex_olmo")
def build_flex_olmo(config: Section, fmt: Format) -> Graph:
    """OLMo 2 with experts (arXiv:2507.07024)."""
    costless(config)
    moe = experts(config, "num_experts", "num_experts_per_tok", inner=config.integer("intermediate_size"))
    return decoder(config, [replace(_inner(config), feed_forward=moe)] * config.count("num_hidden_layers")).graph(fmt)


@architecture("olmo_hybrid")
def build_olmo_hybrid(config: Section, fmt: Format) -> Graph:
    """OLMo 2's layers, and between them others with a gated delta rule, whose norms precede; without rope_parameters
    nothing is rotated.
    """
    config.costless(
        "linear_allow_neg_eigval", "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max",
        "linear_dt_init_floor",
    )  # fmt: skip
    keys = config.integer("linear_num_key_heads", config.integer("num_attention_heads"))
    delta = GatedDeltaNet(
        key_heads=keys,
        value_heads=config.integer("linear_num_value_heads", keys),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        taps=config.integer("linear_conv_kernel_dim", 4),
        fused=False,
    )
    full = _inner(config)
    if config.get("rope_parameters") is None and config.get("rope_theta") is None:
        full = replace(full, mixer=replace(_inner_attention(config), rotary_dim=0))
    layers = {
        "linear_attention": Layer(mixer=delta, feed_forward=gated_mlp(config), name="linear"),
        "full_attention": replace(full, name="full"),
    }
    return decoder(config, [layers[kind] for kind in kinds(config, "layer_types", tuple(layers))]).graph(fmt)


def _inner(config: Section, window: float = inf) -> Layer:
    return Layer(mixer=_inner_attention(config, window), feed_forward=gated_mlp(config), residual=Residual.INNER)


def _inner_attention(config: Section, window: float = inf) -> SelfAttention:
    return attention(config, grouped_heads(config, window=window), qk_norm=NormKind.RMS, qk_norm_whole=True)
