"""DBRX: 16 experts of which 4 are chosen, one projection for q, k and v, LayerNorm without biases.

Facts of attention and experts stand in attn_config and ffn_config.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Experts
from ._fields import decoder
from ._moe import at_most, costless
from ._parts import NormKind, activation, heads_of


@architecture("dbrx")
def build(config: Section, fmt: Format) -> Graph:
    costless(config, "max_seq_len", "emb_pdrop")
    hidden, attn = config.integer("d_model"), config.section("attn_config")
    attn.costless("clip_qkv")
    heads = heads_of(config, hidden, "n_heads", num_kv_heads=attn.integer("kv_n_heads", 1))
    mixer = SelfAttention(heads=heads, rotary_dim=heads.head_dim, fused_qkv=True)
    return decoder(
        config,
        [Layer(mixer=mixer, feed_forward=_experts(config), name="moe")] * config.integer("n_layers"),
        hidden=hidden,
        norm=NormKind.LAYER_NO_BIAS,
    ).graph(fmt)


def _experts(config: Section) -> Experts:
    ffn = config.section("ffn_config")
    ffn.costless("moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment")
    return Experts(
        experts=ffn.integer("moe_num_experts"),
        chosen=at_most(ffn, "moe_top_k", "moe_num_experts", ffn.integer("moe_top_k")),
        inner=ffn.integer("ffn_hidden_size"),
        act="silu" if ffn.get("ffn_act_fn") is None else activation(ffn.section("ffn_act_fn"), "name", "silu"),
    )
