"""StableLM 3B and 2: LLaMA's layers with LayerNorm and part of each head rotated (arXiv:2402.17834).

The 12B has attention and MLP side by side under one norm, and a norm for each head of queries and keys.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer, Residual
from ._fields import decoder, gated_mlp, grouped_heads, rotary_dim
from ._parts import NormKind


@architecture("stablelm", "stablelm_epoch")
def build(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config)
    attention = SelfAttention(
        heads=heads,
        rotary_dim=rotary_dim(
            config, heads.head_dim, key=config.first("partial_rotary_factor", "rope_pct"), default=0.25
        ),
        qkv_bias=config.flag("use_qkv_bias", default=False),
        qk_norm=NormKind.LAYER_NO_BIAS if config.flag("qk_layernorm", default=False) else None,
        qk_norm_whole=True,  # each head has weights of its own, so they are as many as the heads are wide
    )
    parallel = config.flag("use_parallel_residual", default=False)
    layer = Layer(
        mixer=attention,
        feed_forward=gated_mlp(config),
        residual=Residual.PARALLEL if parallel else Residual.PRE,
    )
    config.costless("norm_eps", "rotary_scaling_factor", "use_bias")
    return decoder(config, layer, norm=NormKind.LAYER).graph(fmt)
