"""BERT and its variants: bidirectional layers with post-norms and learned positions.

The head is that of the class that `architectures` names: BertForMaskedLM predicts a token at every
position, BertModel has a pooled first token where its family has a pooler. Without a class in
the config it is the bare model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.masks import UncachedCausal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Residual, SharedLayer
from .blocks.encoder import Encoder, Head, bidirectional, task
from .blocks.feed_forward import Mlp
from .blocks.fields import labels_of, require_false
from .blocks.parts import activation, heads_of
from .t5 import TABLE, RelativeAttention

_TASKS: Final = {
    "ForMaskedLM": "words",
    "LMHeadModel": "words",
    "ForCausalLM": "words",
    "ForPreTraining": "pretraining",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "answer",
    "ForMultipleChoice": "choice",
    "ForNextSentencePrediction": "next",
    "Model": "bare",
}
_DECODERS: Final = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")
_IGNORED: Final = """
    hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob down_scale_factor
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type summary_last_dropout gap_size net_structure_type num_memory_blocks
    output_past problem_type mask_token_id cls_token_id qa_dropout seq_classif_dropout attention_dropout
    dropout num_labels sinusoidal_pos_embds position_biased_input
    finetuning_task tie_weights_
"""


@architecture("bert")
def build_bert(config: Section, fmt: Format) -> Graph:
    """Token types, and a pooler (arXiv:1810.04805)."""
    return encoder(config, fmt, pooler=True)


@architecture("roberta", "xlm-roberta", "camembert", "data2vec-text")
def build_roberta(config: Section, fmt: Format) -> Graph:
    """BERT in all that is counted; the first rows of the positions stand for padding (arXiv:1907.11692)."""
    return encoder(config, fmt, pooler=True)


@architecture("electra")
def build_electra(config: Section, fmt: Format) -> Graph:
    """Embeddings that may be narrower than the layers; it tells replaced tokens from others (arXiv:2003.10555)."""
    return encoder(config, fmt, pooler=False, embed_width=128, pool_act="gelu")


@architecture("distilbert")
def build_distilbert(config: Section, fmt: Format) -> Graph:
    """BERT with half the layers, no token types and no pooler (arXiv:1910.01108)."""
    plain = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    renamed = plain | {"hidden_dim": "intermediate_size", "activation": "hidden_act"}
    renamed_fields = {new: value for old, new in renamed.items() if (value := config.get(old)) is not None}
    data = {**config.data, **renamed_fields, "type_vocab_size": None}
    config.ignore(*renamed)
    return encoder(config.with_data(data), fmt, pooler=False, pool_act="relu", types=0)


@architecture("albert")
def build_albert(config: Section, fmt: Format) -> Graph:
    """Layers that share their weights, narrow embeddings (arXiv:1909.11942)."""
    count, groups = config.count("num_hidden_layers"), config.count("num_hidden_groups", 1)
    inner = config.count("inner_group_num", 1, times=count)
    layer = _layer(config, act="gelu_new")
    group = [index * groups // count for index in range(count)]
    first = [index == 0 or group[index] != group[index - 1] for index in range(count)]
    shared_layer = SharedLayer.of(layer)
    layers = [layer if owns else shared_layer for owns in first for _ in range(inner)]
    return encoder(config, fmt, pooler=True, layers=layers, embed_width=128, act="gelu_new")


@architecture("mpnet")
def build_mpnet(config: Section, fmt: Format) -> Graph:
    """BERT without token types, whose layers share a table of biases of scores by distance (arXiv:2004.09297)."""
    buckets = config.integer("relative_attention_num_buckets", 32)
    mixer = RelativeAttention(attention=replace(_attention(config), alibi=True), buckets=buckets)
    layers = [replace(_layer(config, act="gelu"), mixer=mixer)] * config.count("num_hidden_layers")
    shapes = {TABLE: (buckets, config.integer("num_attention_heads"))}
    return encoder(config, fmt, pooler=True, types=0, layers=layers, shared_shapes=shapes)


def encoder(
    config: Section,
    fmt: Format,
    *,
    pooler: bool,
    pool_act: str = "tanh",
    embed_width: int = 0,
    types: int = 2,
    positions: int = 512,
    act: str = "gelu",
    layers: list[Layer] | None = None,
    shared_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Graph:
    """`embed_width`, `types`, `positions` and `act` are what the class has where the config does not say; 0 is none.

    pooler  the bare model ends with one
    shared_shapes  shapes of weights that all layers share, by name
    """
    if config.text("model_type") not in _DECODERS:
        require_false(config, "is_decoder", "this encoder is not known as a decoder; got true")
    require_false(config, "add_cross_attention", "cross-attention of a decoder by itself is not known; got true")
    config.choice("position_embedding_type", ("absolute",), "absolute")
    config.ignore(*_IGNORED.split())
    hidden = config.integer("hidden_size")
    width = config.integer("embedding_size", embed_width) if embed_width else hidden
    return Encoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=layers or [_layer(config, act=act)] * config.count("num_hidden_layers"),
        positions=config.integer("max_position_embeddings", positions) if positions else 0,
        types=config.integer("type_vocab_size", types, least=0) if types else 0,
        embed_width=width,
        projected=config.text("model_type") == "albert",
        embed_norm=True,
        shared_shapes=shared_shapes,
        heads=_heads(config, hidden, width, pooler=pooler, pool_act=pool_act, act=act),
    ).graph(fmt)


def _attention(config: Section) -> SelfAttention:
    """Self-attention: bidirectional in an encoder, causal in a decoder, with a KV cache if the decoder generates."""
    heads = heads_of(config)
    if not _decodes(config):
        heads = bidirectional(heads)
    elif task(config, _TASKS, "Model") != "words":
        heads = replace(heads, mask=UncachedCausal())
    return SelfAttention(heads=heads, qkv_bias=True, o_bias=True)


def _decodes(config: Section) -> bool:
    return config.flag("is_decoder", default=False)


def _layer(config: Section, *, act: str) -> Layer:
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", act), bias=True)
    return Layer(mixer=_attention(config), feed_forward=mlp, residual=Residual.POST)


def _heads(config: Section, hidden: int, width: int, *, pooler: bool, pool_act: str, act: str) -> tuple[Head, ...]:
    """Prediction head of the class in `architectures`."""
    act = activation(config, "hidden_act", act)
    words = Head(
        dense=width,
        act=act,
        norm=True,
        classes=config.integer("vocab_size"),
        words=True,
        with_logits=_decodes(config),
        tied=config.flag("tie_word_embeddings", default=True),
    )
    pooled = Head(first=True, dense=hidden, act=pool_act)
    labels = labels_of(config)
    kind = config.text("model_type")
    heads = {
        "words": (words,),
        "pretraining": (Head(dense=hidden, act=act, classes=1),)
        if kind == "electra"
        else (words, replace(pooled, classes=labels if kind == "albert" else 2)),
        "sequence": (replace(pooled, classes=labels),),
        "token": (Head(classes=labels),),
        "answer": (Head(classes=labels),),
        "choice": (replace(pooled, classes=1),),
        "next": (replace(pooled, classes=2),),
        "bare": (pooled,) if pooler else (),
    }
    return heads[task(config, _TASKS, "Model")]
