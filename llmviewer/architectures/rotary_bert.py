"""BERT-like encoders with rotary positions: Nomic BERT (arXiv:2402.01613) and its mixture of experts
(arXiv:2502.07972), GTE (arXiv:2407.19669), Jina Embeddings v3 (arXiv:2409.10173); EuroBERT is a bidirectional LLaMA
(arXiv:2503.05500).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from . import architecture
from .bert import encoder
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Residual
from .blocks.encoder import Encoder, Head, bidirectional, task
from .blocks.feed_forward import BiasedExperts, Mlp
from .blocks.fields import gated_mlp, grouped_heads, labels_of, require_false
from .blocks.parts import NormKind, Parts, activation, heads_of

_NOMIC: Final = {  # what its published files call the fields
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size", "n_layer":
    "num_hidden_layers", "layer_norm_epsilon": "layer_norm_eps",
}  # fmt: skip
_GATED: Final = {"swiglu": "silu", "geglu": "gelu"}
_NOMIC_IGNORED: Final = """
    n_positions attn_pdrop embd_pdrop resid_pdrop moe_resid_pdrop fused_bias_fc fused_dropout_add_ln
    max_trained_positions pad_vocab_size_multiple reorder_and_upcast_attn rotary_emb_base rotary_emb_interleaved
    rotary_emb_scale_base rotary_scaling_factor scale_attn_by_inverse_layer_idx scale_attn_weights
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj use_flash_attn
    use_rms_norm use_xentropy moe_impl ffn_div moe_normalize_expert_weights add_pooling_layer dense_seq_output
"""
_GTE_IGNORED: Final = """
    pack_qkv unpad_inputs use_memory_efficient_attention layer_norm_type logn_attention_clip1 logn_attention_scale
    max_position_embeddings
"""
_EURO_IGNORED: Final = "classifier_pooling mask_token_id num_labels clf_pooling"


class BiasedDown(Mlp):
    """An MLP of whose projections only the last has a bias."""

    def operators(self, parts: Parts, x: Tensor, prefix: str = "", act_name: str = "mlp_act") -> tuple[Operator, ...]:
        *launches, down = super().operators(parts, x, prefix, act_name)
        return (*launches, replace(down, weights=(*down.weights, parts.weight(f"{down.name}.bias", x.width))))


@architecture("nomic_bert")
def build_nomic(config: Section, fmt: Format) -> Graph:
    """Nomic BERT: biases only in experts, which every second layer has; gated MLPs if act is "swiglu"."""
    config.ignore(*_NOMIC, *_NOMIC_IGNORED.split())
    if config.number("rotary_emb_fraction", 1.0) != 1:
        raise config.error("rotary_emb_fraction", "must be 1: learned positions beside rotated ones are not known here")
    for key in ("prenorm", "parallel_block", "causal", "expert_choice_router"):
        require_false(config, key, "no published model of this architecture is so")
    gated, act = _nomic_act(config)
    named = {_NOMIC.get(key, key): value for key, value in config.data.items()} | {"hidden_act": act}
    renamed = config.with_data(named)
    bias = config.flag("qkv_proj_bias", default=False)
    mlp_bias = config.flag("mlp_fc1_bias", default=False)
    if config.flag("mlp_fc2_bias", default=mlp_bias) != mlp_bias:
        raise config.error("mlp_fc2_bias", "must be as mlp_fc1_bias")
    mlp = Mlp(inner=renamed.integer("intermediate_size"), act=act, gated=gated, bias=mlp_bias)
    every = config.integer("moe_every_n_layers", 0, least=0)
    networks: dict[bool, FeedForward] = {False: mlp}
    if every:
        count, chosen = config.integer("num_experts"), config.integer("moe_top_k", 1)
        if config.integer("num_shared_experts", 0, least=0):
            raise config.error("num_shared_experts", "must be 0: no published model of this architecture has them")
        networks[True] = BiasedExperts(experts=count, chosen=chosen, inner=mlp.inner, act=act, gated=gated)
    plain = _layer(renamed, mlp, bias=bias)
    layers = [
        replace(plain, feed_forward=networks[sparse], name="moe" if sparse else "layer")
        for sparse in (every > 0 and index % every == 1 for index in range(renamed.count("num_hidden_layers")))
    ]
    return encoder(renamed, fmt, pooler=False, positions=0, layers=layers)


def _nomic_act(config: Section) -> tuple[bool, str]:
    """Whether MLPs have a gate, and their activation: published files name both in one word, transformers gates all."""
    if config.get("activation_function") is None:
        return True, activation(config, "hidden_act", "silu")
    config.ignore("hidden_act")
    gate = _GATED.get(config.text("activation_function"))
    return (True, gate) if gate else (False, activation(config, "activation_function", "gelu"))


@architecture("gte", "new")
def build_gte(config: Section, fmt: Format) -> Graph:
    """A gated MLP with a bias at its end alone; its published files say "new"."""
    config.ignore(*_GTE_IGNORED.split())
    config.choice("position_embedding_type", ("rope",), "rope")
    mlp = BiasedDown(
        inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "gelu"), gated=True
    )
    layers = [_layer(config, mlp, bias=True)] * config.count("num_hidden_layers")
    plain = config.with_data({key: value for key, value in config.data.items() if key != "position_embedding_type"})
    return encoder(plain, fmt, pooler=False, positions=0, types=1, layers=layers)


@architecture("jina_embeddings_v3")
def build_jina(config: Section, fmt: Format) -> Graph:
    """Jina Embeddings v3: BERT with rotary positions and biases."""
    config.ignore("max_position_embeddings")
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "gelu"), bias=True)
    layers = [_layer(config, mlp, bias=True)] * config.count("num_hidden_layers")
    return encoder(config, fmt, pooler=True, positions=0, types=1, layers=layers)


@architecture("eurobert")
def build_eurobert(config: Section, fmt: Format) -> Graph:
    """EuroBERT: LLaMA with bidirectional attention."""
    config.ignore(*_EURO_IGNORED.split())
    bias = config.flag("attention_bias", default=False)
    heads = bidirectional(grouped_heads(config))
    mixer = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias, o_bias=bias)
    hidden, labels = config.integer("hidden_size"), labels_of(config)
    words = Head(
        classes=config.integer("vocab_size"),
        words=True,
        bias=config.flag("mlp_bias", default=False),
        tied=config.flag("tie_word_embeddings", default=False),
    )
    pooled = config.choice("classifier_pooling", ("late", "bos", "mean"), "late") != "late"
    task_heads = {
        "words": (words,),
        "sequence": (Head(first=pooled, dense=hidden, act="gelu", classes=labels),),
        "token": (Head(classes=labels),),
        "bare": (),
    }
    kinds = {"ForMaskedLM": "words", "ForSequenceClassification": "sequence", "ForTokenClassification": "token",
             "Model": "bare"}  # fmt: skip
    return Encoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[Layer(mixer=mixer, feed_forward=gated_mlp(config))] * config.count("num_hidden_layers"),
        norm=NormKind.RMS,
        final_norm=True,
        heads=task_heads[task(config, kinds, "Model")],
    ).graph(fmt)


def _layer(config: Section, network: FeedForward, *, bias: bool) -> Layer:
    heads = bidirectional(heads_of(config))
    mixer = SelfAttention(heads=heads, rotary_dim=heads.head_dim, qkv_bias=bias, o_bias=bias)
    return Layer(mixer=mixer, feed_forward=network, residual=Residual.POST)
