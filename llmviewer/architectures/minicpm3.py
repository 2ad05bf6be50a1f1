"""MiniCPM3: latent attention (arXiv:2405.04434) and an MLP; embeddings, branches and logits are scaled by constants."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import LatentAttention
from ._decoder import Layer
from ._fields import decoder, gated_mlp
from ._moe import latent_attention


@architecture("minicpm3")
def build(config: Section, fmt: Format) -> Graph:
    config.costless("scale_emb", "scale_depth", "dim_model_base", "qk_head_dim", "head_dim", "num_key_value_heads")
    attention = latent_attention(
        config, LatentAttention, q_rank=768, kv_rank=256, nope_dim=64, rope_dim=32, value_dim=64
    )
    layer = Layer(mixer=attention, feed_forward=gated_mlp(config))
    return decoder(config, layer, tied=True).graph(fmt)
