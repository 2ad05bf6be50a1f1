"""Trinity (AFMoE): gated attention with norms on both sides, windows without which positions are none, many experts."""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import FeedForward, Layer, Residual
from ._fields import decoder, grouped_heads, sliding_layers
from ._moe import costless, dense, experts
from ._parts import NormKind


@architecture("afmoe")
def build(config: Section, fmt: Format) -> Graph:
    costless(
        config, "mup_enabled", "n_group", "num_expert_groups", "num_limited_groups", "route_norm", "route_scale",
        "score_func", "load_balance_coeff", "use_grouped_mm",
    )  # fmt: skip
    if config.flag("attention_bias", default=False):
        raise config.error("attention_bias", "must be false: biases of this attention are not modelled")
    heads = grouped_heads(config, head_dim=128)
    unrotated = SelfAttention(heads=heads, qk_norm=NormKind.RMS, gated=True)
    window = Causal(config.integer("sliding_window", 1024))
    mixers = {
        "local": replace(unrotated, heads=replace(heads, mask=window), rotary_dim=heads.head_dim),
        "global": unrotated,
    }
    inner = config.integer("moe_intermediate_size")
    moe = experts(
        config,
        "num_experts",
        "num_experts_per_tok",
        inner=inner,
        shared=config.integer("num_shared_experts", 2) * inner,
    )
    networks: dict[str, FeedForward] = {"moe": replace(moe, router_bias=True), "dense": dense(config)}
    first = config.integer("num_dense_layers", 1, least=0)
    pattern = config.integer("global_attn_every_n_layers", 4)
    layers = []
    for index, slides in enumerate(sliding_layers(config, pattern=pattern)):
        reach, network = "local" if slides else "global", "dense" if index < first else "moe"
        layer = Layer(mixer=mixers[reach], feed_forward=networks[network], residual=Residual.SANDWICH)
        layers.append(replace(layer, name=f"{reach}_{network}"))
    return decoder(config, layers).graph(fmt)
