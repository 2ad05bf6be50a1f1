"""K-EXAONE: the attention of EXAONE 4, norms before it, and experts after the first layers."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import FeedForward, Layer
from ._fields import decoder, grouped_heads, sliding_window
from ._moe import costless, dense, experts, sparse_layers
from ._parts import NormKind
from .exaone import sliding

_WINDOW = 4096


@architecture("exaone_moe")
def build(config: Section, fmt: Format) -> Graph:
    """Layers with a window have positions; where some have, the others have none."""
    costless(config, "first_last_k_dense_replace", "is_moe_layer", "mtp_loss_type", "mtp_share_layers")
    heads, window = grouped_heads(config), sliding_window(config, _WINDOW)
    rotated = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qk_norm=NormKind.RMS)
    local = replace(rotated, heads=replace(heads, mask=Causal(window)))
    mixers = {True: local, False: replace(rotated, rotary_dim=0) if window < inf else rotated}
    inner = config.integer("moe_intermediate_size")
    shared = config.integer("num_shared_experts", 1, least=0) * inner
    moe = experts(config, "num_experts", "num_experts_per_tok", inner=inner, shared=shared)
    networks: dict[bool, FeedForward] = {True: moe, False: dense(config)}
    layers = [
        Layer(
            mixer=mixers[slides],
            feed_forward=networks[sparse],
            name=("local" if slides else "global") + ("_moe" if sparse else "_dense"),
        )
        for slides, sparse in zip(sliding(config), sparse_layers(config, default=1), strict=True)
    ]
    return decoder(config, layers).graph(fmt)
