"""MPT: ALiBi positions, LayerNorm, one projection for q, k and v, no biases (MosaicML's llm-foundry)."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._feed_forward import Mlp
from ._fields import decoder
from ._parts import NormKind, heads_of

_KV_HEADS = {"multihead_attention": None, "multiquery_attention": 1, "grouped_query_attention": 0}


@architecture("mpt")
def build(config: Section, fmt: Format) -> Graph:
    hidden = config.integer("d_model")
    bias = not config.flag("no_bias", default=True)
    attn = config.section("attn_config") if config.get("attn_config") is not None else Section({}, config.file)
    kv_heads = _KV_HEADS[attn.choice("attn_type", _KV_HEADS, "multihead_attention")]
    if kv_heads == 0:
        kv_heads = attn.integer("kv_n_heads")
    rope = attn.flag("rope", default=False)
    alibi = attn.flag("alibi", default=not rope)
    norm = NormKind.LAYER if bias else NormKind.LAYER_NO_BIAS
    heads = heads_of(config, hidden, "n_heads", num_kv_heads=kv_heads)
    attention = SelfAttention(
        heads=heads,
        rotary_dim=heads.head_dim if rope else 0,
        alibi=alibi,
        fused_qkv=True,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=norm if attn.flag("qk_ln", default=False) else None,
        qk_norm_whole=True,
    )
    mlp = Mlp(inner=config.integer("expansion_ratio", 4) * hidden, act="gelu", bias=bias)
    config.costless("max_seq_len", "emb_pdrop", "emb_init_std", "embedding_fraction", "init_config", "init_device")
    config.costless("logit_scale", "norm_type", "tokenizer_name", "verbose", "use_pad_tok_in_ffn")
    learned = config.flag("learned_pos_emb", default=True) and not alibi and not rope
    return decoder(
        config,
        [Layer(mixer=attention, feed_forward=mlp)] * config.integer("n_layers"),
        hidden=hidden,
        norm=norm,
        tied=True,
        positions=config.integer("max_seq_len") if learned else 0,
    ).graph(fmt)
