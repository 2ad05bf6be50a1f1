"""Gemma 1 to 3: RMSNorm with 1 + weight, a gated GeLU MLP, tied embeddings, wide heads (arXiv:2403.08295).

Gemma 2 alternates layers with a window and without, and has norms after attention and MLP too (arXiv:2408.00118).
Gemma 3 has five layers with a window for one without, and norms of queries and keys (arXiv:2503.19786).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.decoder import Layer, Residual
from .blocks.feed_forward import Mlp
from .blocks.fields import alternating, attention, decoder, gated_mlp, grouped_heads, sliding_layers, sliding_window
from .blocks.parts import NormKind, activation

_HEAD_DIM = 256
_ACT = "gelu_pytorch_tanh"
_WINDOW = 4096
_COSTLESS = (
    "hidden_act",
    "cache_implementation",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "use_bidirectional_attention",  # as_named reads it, of a model by itself
)


@architecture("gemma")
def build_gemma(config: Section, fmt: Format) -> Graph:
    key = config.first("hidden_activation", "hidden_act")
    meant = config.get(key) == "gelu"  # the first files say "gelu" and mean the form with tanh
    act = "gelu_tanh" if meant else activation(config, key, _ACT)
    mixer = attention(config, grouped_heads(config, head_dim=_HEAD_DIM))
    layer = Layer(mixer=mixer, feed_forward=Mlp(inner=config.integer("intermediate_size"), act=act, gated=True))
    config.costless("hidden_activation", *_COSTLESS)
    return decoder(config, layer, tied=True).graph(fmt)


@architecture("gemma2")
def build_gemma2(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config, head_dim=_HEAD_DIM)
    return _alternating(config, fmt, heads, pattern=2)


@architecture("vaultgemma")
def build_vaultgemma(config: Section, fmt: Format) -> Graph:
    """Gemma 2 without norms after attention and MLP (arXiv:2510.15001)."""
    heads = grouped_heads(config, head_dim=_HEAD_DIM)
    return _alternating(config, fmt, heads, pattern=2, residual=Residual.PRE)


@architecture("gemma3_text")
def build_gemma3(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config, head_dim=_HEAD_DIM)
    return _alternating(config, fmt, heads, pattern=6, qk_norm=NormKind.RMS)


def _alternating(
    config: Section,
    fmt: Format,
    heads: Heads,
    *,
    pattern: int,
    qk_norm: NormKind | None = None,
    residual: Residual = Residual.SANDWICH,
) -> Graph:
    mlp = gated_mlp(config, key="hidden_activation", act=_ACT)
    other = Layer(mixer=attention(config, heads, qk_norm=qk_norm), feed_forward=mlp, residual=residual)
    windowed = replace(heads, mask=Causal(sliding_window(config, _WINDOW)))
    local = replace(other, mixer=attention(config, windowed, qk_norm=qk_norm))
    config.costless(*_COSTLESS)
    return decoder(config, alternating(local, other, sliding_layers(config, pattern=pattern)), tied=True).graph(fmt)
