"""Trinity (AFMoE): gated attention with norms on both sides, windows without which positions are none, many experts."""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Residual
from ._fields import decoder, grouped_heads, sliding_layers
from ._moe import costless, dense, experts_beside_shared, windows_and_experts
from ._parts import NormKind


@architecture("afmoe")
def build(config: Section, fmt: Format) -> Graph:
    costless(
        config, "mup_enabled", "n_group", "num_expert_groups", "num_limited_groups", "route_norm", "route_scale",
        "score_func", "load_balance_coeff", "use_grouped_mm",
    )  # fmt: skip
    if config.flag("attention_bias", default=False):
        raise config.error("attention_bias", "must be false: biases of this attention are not modelled")
    far = SelfAttention(heads=grouped_heads(config, head_dim=128), qk_norm=NormKind.RMS, gated=True)
    mixers = {True: far.within(config.integer("sliding_window", 1024)), False: far}
    moe = replace(experts_beside_shared(config, "num_experts", usual=2), router_bias=True)
    first = config.integer("num_dense_layers", 1, least=0)
    pattern = config.integer("global_attn_every_n_layers", 4)
    each = ((slides, index >= first) for index, slides in enumerate(sliding_layers(config, pattern=pattern)))
    layers = windows_and_experts(mixers, {True: moe, False: dense(config)}, each, Residual.SANDWICH)
    return decoder(config, layers).graph(fmt)
