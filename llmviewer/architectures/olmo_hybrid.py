"""OLMo Hybrid: layers of OLMo 2 (post-norms) and layers of gated delta rule."""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.decoder import Layer, Residual
from .blocks.fields import attention, decoder, gated_mlp
from .blocks.moe import kinds
from .blocks.parts import NormKind
from .blocks.state_space import GatedDeltaNet


@architecture("olmo_hybrid")
def build_olmo_hybrid(config: Section, fmt: Format) -> Graph:
    """Norms precede the gated delta rule; without rope_parameters no layer has rotary positions."""
    config.ignore(
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
    full = attention(config, qk_norm=NormKind.RMS, qk_norm_whole=True)
    if config.get("rope_parameters") is None and config.get("rope_theta") is None:
        full = replace(full, rotary_dim=0)
    layers = {
        "linear_attention": Layer(mixer=delta, feed_forward=gated_mlp(config), name="linear"),
        "full_attention": Layer(mixer=full, feed_forward=gated_mlp(config), residual=Residual.INNER, name="full"),
    }
    return decoder(config, [layers[kind] for kind in kinds(config, "layer_types", tuple(layers))]).graph(fmt)
