"""K-EXAONE: attention of EXAONE 4, norms before it, and experts (arXiv:2412.04862, arXiv:2507.11407)."""

from __future__ import annotations

from math import inf

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Prediction
from .blocks.fields import decoder, grouped_heads, sliding_window
from .blocks.moe import dense, experts_beside_shared, ignore_router_fields, sparse_layers, windows_and_experts
from .blocks.parts import NormKind
from .llama import exaone_windows

_WINDOW = 4096


@architecture("exaone_moe")
def build_exaone_moe(config: Section, fmt: Format) -> Graph:
    """Experts after the first layers. Layers with a window have positions; if some have one, the others have none."""
    ignore_router_fields(config, "first_last_k_dense_replace", "is_moe_layer", "mtp_loss_type", "mtp_share_layers")
    heads, window = grouped_heads(config), sliding_window(config, _WINDOW)
    far = SelfAttention(heads=heads, qk_norm=NormKind.RMS)
    local = far.within(window)
    mixers = {True: local, False: far if window < inf else local}
    networks: dict[bool, FeedForward] = {
        True: experts_beside_shared(config, "num_experts", default=1),
        False: dense(config),
    }
    slides = exaone_windows(config)
    each = zip(slides, sparse_layers(config, default=1), strict=True)
    prediction_layer = Layer(mixer=mixers[slides[0]], feed_forward=networks[False])  # vLLM builds it as the first layer
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer)
    return decoder(config, windows_and_experts(mixers, networks, each), prediction=prediction).graph(fmt)
