"""K-EXAONE: the attention of EXAONE 4, norms before it, and experts after the first layers."""

from __future__ import annotations

from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import FeedForward
from ._fields import decoder, grouped_heads, sliding_window
from ._moe import costless, dense, experts_beside_shared, sparse_layers, windows_and_experts
from ._parts import NormKind
from .exaone import sliding

_WINDOW = 4096


@architecture("exaone_moe")
def build(config: Section, fmt: Format) -> Graph:
    """Layers with a window have positions; where some have, the others have none."""
    costless(config, "first_last_k_dense_replace", "is_moe_layer", "mtp_loss_type", "mtp_share_layers")
    heads, window = grouped_heads(config), sliding_window(config, _WINDOW)
    far = SelfAttention(heads=heads, qk_norm=NormKind.RMS)
    local = far.within(window)
    mixers = {True: local, False: far if window < inf else local}
    networks: dict[bool, FeedForward] = {
        True: experts_beside_shared(config, "num_experts", usual=1),
        False: dense(config),
    }
    each = zip(sliding(config), sparse_layers(config, default=1), strict=True)
    return decoder(config, windows_and_experts(mixers, networks, each)).graph(fmt)
