"""GPT, GPT-2, GPT-Neo, GPT-J, CodeGen, BLOOM, StarCoder, OPT and MPT: LayerNorm, an MLP of two matrices; learned,
rotary or ALiBi positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer, Residual
from .blocks.feed_forward import Mlp
from .blocks.fields import alternating, decoder, rotated
from .blocks.parts import NormKind, activation, heads_of

_CODEGEN_ROTARY_DIM = 64
_NEO_LAYERS = [[["global", "local"], 12]]
_POSITION_OFFSET = 2  # rows at the head of the position table that stand for padding
_MPT_KV_HEADS = {"multihead_attention": None, "multiquery_attention": 1, "grouped_query_attention": 0}


@architecture("gpt2", "gpt-sw3")
def build_gpt2(config: Section, fmt: Format) -> Graph:
    """Learned positions, one projection for q, k and v, biases everywhere, tied head."""
    hidden = config.integer("n_embd")
    mixer = SelfAttention(heads=heads_of(config, hidden, "n_head"), fused_qkv=True, qkv_bias=True, o_bias=True)
    return decoder(
        config,
        [Layer(mixer=mixer, feed_forward=_mlp(config))] * config.count("n_layer"),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        positions=config.integer("n_positions"),
    ).graph(fmt)


@architecture("openai-gpt")
def build_gpt(config: Section, fmt: Format) -> Graph:
    """GPT-2 with norms after the additions."""
    hidden = config.integer("n_embd", 768)
    heads = heads_of(config.with_data({"n_head": 12, **config.data}), hidden, "n_head")
    mixer = SelfAttention(heads=heads, fused_qkv=True, qkv_bias=True, o_bias=True)
    act = activation(config, "afn", "gelu")
    mlp = Mlp(inner=4 * hidden, act="gelu_tanh" if act == "gelu" else act, bias=True)  # as its code means "gelu"
    layer = Layer(mixer=mixer, feed_forward=mlp, residual=Residual.POST)
    return Decoder(
        vocab=config.integer("vocab_size", 40478),
        hidden=hidden,
        layers=[layer] * config.count("n_layer", 12),
        norm=NormKind.LAYER,
        tied=config.flag("tie_word_embeddings", default=True),
        positions=config.integer("n_positions", 512),
        final_norm=False,
    ).graph(fmt)


@architecture("gpt_neo")
def build_gpt_neo(config: Section, fmt: Format) -> Graph:
    """GPT-2 without biases on q, k and v; every other layer has a window."""
    hidden, window = config.integer("hidden_size"), config.integer("window_size", 256)
    heads = heads_of(config, hidden, config.first("num_heads", "num_attention_heads"))
    inner = config.integer("intermediate_size", 4 * hidden)
    mlp = Mlp(inner=inner, act=activation(config, "activation_function", "gelu_new"), bias=True)
    other, local = (
        Layer(mixer=SelfAttention(heads=kind_heads, o_bias=True), feed_forward=mlp)
        for kind_heads in (heads, replace(heads, mask=Causal(window)))
    )
    return decoder(
        config,
        alternating(local, other, _local(config)),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        positions=config.integer("max_position_embeddings", 2048),
    ).graph(fmt)


def _local(config: Section) -> list[bool]:
    """Whether each layer has a window: attention_types has kinds that are repeated so often."""
    config.ignore("attention_layers")
    layers = config.count(config.first("num_layers", "num_hidden_layers"))
    attention_types: Any = _NEO_LAYERS if config.get("attention_types") is None else config.get("attention_types")
    try:
        sizes = [len(kind_list) * times for kind_list, times in attention_types]
        kinds = (
            [kind for kind_list, times in attention_types for _ in range(times) for kind in kind_list]
            if sum(sizes) == layers
            else []
        )
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or not set(kinds) <= {"global", "local"}:
        raise config.error("attention_types", f"must be lists of global and local, and how often, for {layers} layers")
    return [kind == "local" for kind in kinds]


@architecture("gptj")
def build_gptj(config: Section, fmt: Format) -> Graph:
    """Attention and MLP side by side under one norm; part of each head is rotated; the head has a bias."""
    return _side_by_side(config, fmt)


@architecture("codegen")
def build_codegen(config: Section, fmt: Format) -> Graph:
    """GPT-J with one projection for q, k and v (arXiv:2203.13474)."""
    return _side_by_side(config, fmt, rotary_dim=_CODEGEN_ROTARY_DIM, fused_qkv=True)


def _side_by_side(config: Section, fmt: Format, *, rotary_dim: int | None = None, fused_qkv: bool = False) -> Graph:
    """`rotary_dim` is what the class has where the config does not say; None is all of a head."""
    hidden = config.integer("n_embd")
    heads = heads_of(config, hidden, "n_head")
    turned = rotated(config, heads.head_dim, rotary_dim)
    mixer = SelfAttention(heads=heads, rotary_dim=turned, fused_qkv=fused_qkv)
    layer = Layer(mixer=mixer, feed_forward=_mlp(config), residual=Residual.PARALLEL)
    return decoder(config, [layer] * config.count("n_layer"), hidden=hidden, norm=NormKind.LAYER, head_bias=True).graph(
        fmt
    )


def _mlp(config: Section) -> Mlp:
    inner = config.integer("n_inner", 4 * config.integer("n_embd"))
    return Mlp(inner=inner, act=activation(config, "activation_function", "gelu_new"), bias=True)


@architecture("bloom")
def build_bloom(config: Section, fmt: Format) -> Graph:
    """ALiBi positions, LayerNorm after the embedding too (arXiv:2211.05100)."""
    hidden = config.integer(config.first("hidden_size", "n_embed"))
    heads = heads_of(config, hidden, config.first("n_head", "num_attention_heads"))
    mixer = SelfAttention(heads=heads, alibi=True, fused_qkv=True, qkv_bias=True, o_bias=True)
    layer = Layer(mixer=mixer, feed_forward=Mlp(inner=4 * hidden, act="gelu_tanh", bias=True))
    return decoder(
        config,
        [layer] * config.count(config.first("n_layer", "num_hidden_layers")),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        embed_norm=True,
    ).graph(fmt)


@architecture("gpt_bigcode")
def build_bigcode(config: Section, fmt: Format) -> Graph:
    """StarCoder: GPT-2 with one KV head (arXiv:2305.06161)."""
    hidden = config.integer("n_embd")
    kv_heads = 1 if config.flag("multi_query", default=True) else None
    heads = heads_of(config, hidden, "n_head", num_kv_heads=kv_heads)
    mixer = SelfAttention(heads=heads, fused_qkv=True, qkv_bias=True, o_bias=True)
    act = activation(config, "activation_function", "gelu_pytorch_tanh")
    mlp = Mlp(inner=config.integer("n_inner", 4 * hidden), act=act, bias=True)
    config.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "runner_max_sequence_length")
    config.ignore("inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_sequence_length")
    config.ignore("max_batch_size", "pad_key_length")
    return decoder(
        config,
        [Layer(mixer=mixer, feed_forward=mlp)] * config.count("n_layer"),
        hidden=hidden,
        norm=NormKind.LAYER,
        tied=True,
        positions=config.integer("n_positions"),
    ).graph(fmt)


@architecture("opt")
def build_opt(config: Section, fmt: Format) -> Graph:
    """A ReLU MLP (arXiv:2205.01068). OPT-350m has norms after the additions, and embeddings narrower than the layers,
    projected in and out.
    """
    hidden = config.integer("hidden_size")
    bias = config.flag("enable_bias", default=True)
    before = config.flag("do_layer_norm_before", default=True)
    learned = config.flag("layer_norm_elementwise_affine", default=True)
    heads = heads_of(config, hidden, "num_attention_heads")
    mlp = Mlp(inner=config.integer("ffn_dim"), act=activation(config, "activation_function", "relu"), bias=bias)
    layer = Layer(
        mixer=SelfAttention(heads=heads, qkv_bias=bias, o_bias=bias),
        feed_forward=mlp,
        residual=Residual.PRE if before else Residual.POST,
    )
    return decoder(
        config,
        layer,
        hidden=hidden,
        norm=NormKind.LAYER if learned else NormKind.PLAIN,
        tied=True,
        positions=config.integer("max_position_embeddings") + _POSITION_OFFSET,
        embed_width=config.integer("word_embed_proj_dim", hidden),
        final_norm=before and not config.flag("_remove_final_layer_norm", default=False),
    ).graph(fmt)


@architecture("xglm")
def build_xglm(config: Section, fmt: Format) -> Graph:
    """OPT with GeLU and computed positions (arXiv:2112.10668)."""
    config.ignore("scale_embedding", "layerdrop", "init_std", "decoder_start_token_id", "add_cross_attention")
    names = {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"}
    named = {new: config.first(old, new) for new, old in names.items()}
    return _with_gelu(
        config, fmt, heads=named["num_attention_heads"], hidden=named["hidden_size"],
        layers=named["num_hidden_layers"], inner="ffn_dim", act="activation_function",
    )  # fmt: skip


@architecture("biogpt")
def build_biogpt(config: Section, fmt: Format) -> Graph:
    """OPT with GeLU under other names (arXiv:2210.10341)."""
    config.ignore("scale_embedding", "layerdrop")
    positions = config.integer("max_position_embeddings", 1024) + _POSITION_OFFSET
    return _with_gelu(
        config, fmt, heads="num_attention_heads", hidden="hidden_size", layers="num_hidden_layers",
        inner="intermediate_size", act="hidden_act", positions=positions,
    )  # fmt: skip


def _with_gelu(
    config: Section, fmt: Format, *, heads: str, hidden: str, layers: str, inner: str, act: str, positions: int = 0
) -> Graph:
    """Graph by fields of these names."""
    width = config.integer(hidden)
    mixer = SelfAttention(heads=heads_of(config, width, heads), qkv_bias=True, o_bias=True)
    mlp = Mlp(inner=config.integer(inner), act=activation(config, act, "gelu"), bias=True)
    return decoder(
        config,
        [Layer(mixer=mixer, feed_forward=mlp)] * config.count(layers),
        hidden=width,
        norm=NormKind.LAYER,
        tied=True,
        positions=positions,
    ).graph(fmt)


@architecture("mpt")
def build_mpt(config: Section, fmt: Format) -> Graph:
    """ALiBi positions, one projection for q, k and v, no biases (MosaicML's llm-foundry)."""
    hidden = config.integer("d_model")
    bias = not config.flag("no_bias", default=True)
    attn = config.section("attn_config") if config.get("attn_config") is not None else Section({}, config.file)
    kv_heads = _MPT_KV_HEADS[attn.choice("attn_type", _MPT_KV_HEADS, "multihead_attention")]
    if kv_heads == 0:
        kv_heads = attn.integer("kv_n_heads")
    rope = attn.flag("rope", default=False)
    alibi = attn.flag("alibi", default=not rope)
    norm = NormKind.LAYER if bias else NormKind.LAYER_NO_BIAS
    heads = heads_of(config, hidden, "n_heads", num_kv_heads=kv_heads)
    mixer = SelfAttention(
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
    config.ignore("max_seq_len", "emb_pdrop", "emb_init_std", "embedding_fraction", "init_config", "init_device")
    config.choice("norm_type", ("low_precision_layernorm", "layernorm"), "low_precision_layernorm")
    config.ignore("logit_scale", "tokenizer_name", "verbose", "use_pad_tok_in_ffn")
    learned = config.flag("learned_pos_emb", default=True) and not alibi and not rope
    return decoder(
        config,
        [Layer(mixer=mixer, feed_forward=mlp)] * config.count("n_layers"),
        hidden=hidden,
        norm=norm,
        tied=True,
        positions=config.integer("max_seq_len") if learned else 0,
    ).graph(fmt)
