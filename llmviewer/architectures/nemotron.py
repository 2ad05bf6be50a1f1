"""Dense networks with relu(x)^2 and no gate: Nemotron-4 and Minitron (arXiv:2402.16819), Arcee's AFM, Jais 2."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import attention, decoder, grouped_heads, rotary_dim
from ._parts import NormKind, activation


@architecture("nemotron")
def build_nemotron(config: Section, fmt: Format) -> Graph:
    """LayerNorm with 1 + weight, half of each head rotated."""
    return _build(config, fmt, norm=NormKind.LAYER, rotated=0.5, bias=False)


@architecture("arcee")
def build_arcee(config: Section, fmt: Format) -> Graph:
    return _build(config, fmt, norm=NormKind.RMS, rotated=1, bias=False)


@architecture("jais2")
def build_jais2(config: Section, fmt: Format) -> Graph:
    return _build(config, fmt, norm=NormKind.LAYER, rotated=1, bias=True)


def _build(config: Section, fmt: Format, *, norm: NormKind, rotated: float, bias: bool) -> Graph:
    heads = grouped_heads(config, head_dim=config.integer("kv_channels", 0))
    key = config.first("partial_rotary_factor", "rope_percent", "rope_percentage")
    mixer = attention(config, heads, bias=bias, rotary_dim=rotary_dim(config, heads.head_dim, key=key, default=rotated))
    mlp = Mlp(
        inner=config.integer("intermediate_size"),
        act=activation(config, "hidden_act", "relu2"),
        bias=config.flag("mlp_bias", default=bias),
    )
    config.costless("norm_eps", "rope_percent", "rope_percentage")
    layers = [Layer(mixer=mixer, feed_forward=mlp)] * config.integer("num_hidden_layers")
    return decoder(config, layers, norm=norm).graph(fmt)
