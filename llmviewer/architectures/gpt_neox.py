"""GPT-NeoX, Pythia, Dolly, RedPajama: LayerNorm, biases, part of each head rotated (arXiv:2204.06745).

Attention and MLP stand side by side under a norm each, or one after the other where use_parallel_residual is false.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer, Residual
from ._feed_forward import Mlp
from ._fields import attention, decoder, rotary_dim
from ._parts import NormKind, activation, heads_of


@architecture("gpt_neox")
def build(config: Section, fmt: Format) -> Graph:
    heads = heads_of(config)
    turned = rotary_dim(config, heads.head_dim, key="rotary_pct", default=0.25)
    parallel = config.flag("use_parallel_residual", default=True)
    layer = Layer(
        mixer=attention(config, heads, bias=True, rotary_dim=turned, fused_qkv=True),
        feed_forward=Mlp(
            inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "gelu"), bias=True
        ),
        residual=Residual.PARALLEL_TWO if parallel else Residual.PRE,
    )
    config.costless("rotary_emb_base", "classifier_dropout")
    return decoder(config, layer, norm=NormKind.LAYER).graph(fmt)
