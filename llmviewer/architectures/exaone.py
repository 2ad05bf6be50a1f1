"""EXAONE: LLaMA's layers under other names (3, 3.5); norms after attention and MLP and of each head (4).

Of the larger EXAONE 4, three layers in four have a window and positions; the fourth sees all and has no positions
(arXiv:2412.04862, arXiv:2507.11407). K-EXAONE has experts.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Prediction, Residual
from .blocks.fields import alternating, attention, decoder, gated_mlp, grouped_heads, sliding_layers, sliding_window
from .blocks.moe import costless, dense, experts_beside_shared, sparse_layers, windows_and_experts
from .blocks.parts import NormKind

_WINDOW = 4096


@architecture("exaone")
def build_exaone(config: Section, fmt: Format) -> Graph:
    mlp = gated_mlp(config, key=config.first("activation_function", "hidden_act"))
    layer = Layer(mixer=attention(config), feed_forward=mlp)
    config.costless("embed_dropout")
    return decoder(config, [layer] * config.count(config.first("num_layers", "num_hidden_layers"))).graph(fmt)


@architecture("exaone4")
def build_exaone4(config: Section, fmt: Format) -> Graph:
    heads, window = grouped_heads(config), sliding_window(config, _WINDOW)
    attention = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qk_norm=NormKind.RMS)
    layer = Layer(mixer=attention, feed_forward=gated_mlp(config), residual=Residual.INNER)
    layers = [layer] * config.count("num_hidden_layers")
    if config.get("sliding_window") is not None or "sliding_window" not in config:
        local = replace(layer, mixer=replace(attention, heads=replace(heads, mask=Causal(window))))
        unrotated = replace(layer, mixer=replace(attention, rotary_dim=0))
        layers = alternating(local, unrotated, sliding(config))
    config.costless("layer_types", "sliding_window_pattern")
    return decoder(config, layers).graph(fmt)


def sliding(config: Section) -> list[bool]:
    """The pattern may be a word such as LLLG, a letter for each layer in turn."""
    pattern = config.get("sliding_window_pattern")
    if config.get("layer_types") is not None or not isinstance(pattern, str):
        return sliding_layers(config, pattern=4)
    if not pattern or set(pattern) - set("LG"):
        raise config.error("sliding_window_pattern", f"must be a whole number or letters L and G; got {pattern!r}")
    return [pattern[index % len(pattern)] == "L" for index in range(config.count("num_hidden_layers"))]


@architecture("exaone_moe")
def build_exaone_moe(config: Section, fmt: Format) -> Graph:
    """K-EXAONE: the attention of EXAONE 4, norms before it, experts after the first layers. Layers with a window have
    positions; where some have, the others have none.
    """
    costless(config, "first_last_k_dense_replace", "is_moe_layer", "mtp_loss_type", "mtp_share_layers")
    heads, window = grouped_heads(config), sliding_window(config, _WINDOW)
    far = SelfAttention(heads=heads, qk_norm=NormKind.RMS)
    local = far.within(window)
    mixers = {True: local, False: far if window < inf else local}
    networks: dict[bool, FeedForward] = {
        True: experts_beside_shared(config, "num_experts", usual=1),
        False: dense(config),
    }
    slides = sliding(config)
    each = zip(slides, sparse_layers(config, default=1), strict=True)
    further = Layer(mixer=mixers[slides[0]], feed_forward=networks[False])  # vLLM builds it as the first layer
    prediction = Prediction.of(config, "num_nextn_predict_layers", further)
    return decoder(config, windows_and_experts(mixers, networks, each), prediction=prediction).graph(fmt)
