"""Bamba: Mamba-2 in most layers, attention in those that the config lists, an MLP in all.

Half of each head is rotated, whatever the config says: its class in transformers has it so.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._fields import attention, decoder, gated_mlp, grouped_heads
from ._mamba2_fields import mamba2
from ._moe import integers


@architecture("bamba")
def build(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config, kv_heads=8)
    mixer = attention(config, heads, rotary_dim=heads.head_dim // 2)
    mlp = gated_mlp(config)
    kinds = {
        True: Layer(mixer=mixer, feed_forward=mlp, name="attention"),
        False: Layer(mixer=mamba2(config), feed_forward=mlp, name="mamba"),
    }
    attending = integers(config, "attn_layer_indices")
    layers = [kinds[index in attending] for index in range(config.integer("num_hidden_layers"))]
    config.costless("partial_rotary_factor", "attn_rotary_emb", "num_logits_to_keep", "z_loss_coefficient")
    config.costless("mamba_dt_rank", "use_mamba_kernels")
    return decoder(config, layers).graph(fmt)
