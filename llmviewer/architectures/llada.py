"""Diffusion language models: LLaDA, LLaDA-MoE and Dream (arXiv:2502.09992, arXiv:2509.24389, arXiv:2508.15487).

Attention is bidirectional. A pass processes the prompt and the masked tokens after it, keeps no cache, and predicts
all tokens; the technique `denoising` counts the passes of an answer.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer
from .blocks.encoder import Encoder, Head, bidirectional
from .blocks.feed_forward import Mlp
from .blocks.fields import attention, gated_mlp, grouped_heads
from .blocks.moe import dense, experts, ignore_router_fields, integers
from .blocks.parts import NormKind, activation

_SAMPLING = """
    mask_token_id init_device init_fn init_cutoff_factor embedding_dropout attention_dropout residual_dropout
    flash_attention precision rope_full_precision layer_norm_with_affine attention_layer_norm_with_affine
    multi_query_attention scale_logits input_emb_norm block_group_size max_sequence_length mlp_ratio
"""


@architecture("llada", "llada_moe", "lladamoe")
def build(config: Section, fmt: Format) -> Graph:
    """LLaDA by the fields of OLMo, on which its code is built; LLaDA-MoE by its own."""
    config.ignore(*_SAMPLING.split())
    if config.get(config.first("expert_intermediate_size", "num_experts")) is not None:
        return _build_moe(config, fmt)
    config.choice("block_type", ("llama",), "llama")
    config.choice("layer_norm_type", ("rms",), "rms")
    for key in ("alibi", "attention_layer_norm", "bias_for_layer_norm"):
        if config.flag(key, default=False):
            raise config.error(key, "must be false; no published model has it")
    hidden, number = config.integer("d_model"), config.integer("n_heads")
    kv_heads = config.integer("n_kv_heads", 1 if config.flag("multi_query_attention", default=False) else number)
    if hidden % number or number % kv_heads:
        must = f"must divide d_model, {hidden}, and be a multiple of n_kv_heads, {kv_heads}"
        raise config.error("n_heads", f"{must}; got {number}")
    heads = Heads(num_heads=number, num_kv_heads=kv_heads, head_dim=hidden // number)
    bias = config.flag("include_bias", default=False)
    mixer = SelfAttention(
        heads=bidirectional(heads),
        rotary_dim=heads.head_dim if config.flag("rope", default=True) else 0,
        qkv_bias=config.flag("include_qkv_bias", default=bias),
        o_bias=bias,
    )
    inner = config.integer("mlp_hidden_size", int(hidden * config.number("mlp_ratio", 4)))
    mlp = Mlp(inner=inner, act=activation(config, "activation_type", "silu"), gated=True, bias=bias)
    layers = [Layer(mixer=mixer, feed_forward=mlp)] * config.count("n_layers")
    rows = config.integer("embedding_size", config.integer("vocab_size"))
    return _denoiser(hidden, rows, layers, tied=config.flag("weight_tying", default=False)).graph(fmt)


def _build_moe(config: Section, fmt: Format) -> Graph:
    ignore_router_fields(
        config, "router_num_group", "router_topk_group", "routed_scaling_factor", "clip_qkv",
        "moe_router_score_function", "moe_router_enable_expert_bias", "shared_expert_intermediate_size",
    )  # fmt: skip
    if config.get("shared_expert_intermediate_size"):
        raise config.error("shared_expert_intermediate_size", "must be null; no published model has a shared expert")
    norm = NormKind.RMS if config.flag("qk_layernorm", default=True) else None
    heads = grouped_heads(config)
    mixer = attention(config, heads=bidirectional(heads), qk_norm=norm)
    sparse = integers(config, "moe_layer_freq") or (1,) * config.count("num_hidden_layers")
    if len(sparse) != config.count("num_hidden_layers"):
        raise config.error("moe_layer_freq", f"must have an entry for each layer; got {len(sparse)}")
    inner = config.integer("expert_intermediate_size")
    networks: dict[bool, FeedForward] = {
        True: experts(config, "num_experts", "num_experts_per_tok", inner=inner),
        **({} if all(sparse) else {False: dense(config, "dense_intermediate_size")}),
    }
    config.ignore("dense_intermediate_size")
    layers = [Layer(mixer=mixer, feed_forward=networks[bool(each)], name="moe" if each else "dense") for each in sparse]
    tied = config.flag("tie_word_embeddings", default=False)
    return _denoiser(config.integer("hidden_size"), config.integer("vocab_size"), layers, tied=tied).graph(fmt)


@architecture("Dream")
def build_dream(config: Section, fmt: Format) -> Graph:
    """The layers of Qwen2, without a causal mask."""
    config.ignore(*_SAMPLING.split())
    heads = bidirectional(grouped_heads(config))
    mixer = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=True)
    layers = [Layer(mixer=mixer, feed_forward=gated_mlp(config))] * config.count("num_hidden_layers")
    tied = config.flag("tie_word_embeddings", default=False)
    return _denoiser(config.integer("hidden_size"), config.integer("vocab_size"), layers, tied=tied).graph(fmt)


def _denoiser(hidden: int, words: int, layers: list[Layer], *, tied: bool) -> Encoder:
    """Embedding, layers, norm, and a head at every token."""
    return Encoder(
        vocab=words,
        hidden=hidden,
        layers=layers,
        norm=NormKind.RMS,
        final_norm=True,
        heads=(Head(classes=words, bias=False, words=True, tied=tied),),
    )
