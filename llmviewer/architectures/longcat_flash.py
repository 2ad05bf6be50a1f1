"""LongCat-Flash: two latent attentions and two MLPs a layer, with experts in parallel to the second half, some of them
identity experts (arXiv:2509.01322).

As many of a token's experts have matrices as would if all were alike likely: what the model is trained to hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import LatentAttention
from .blocks.decoder import Layer, Prediction
from .blocks.feed_forward import Experts
from .blocks.fields import decoder
from .blocks.moe import dense, experts, ignore_router_fields, latent_attention
from .blocks.parts import Parts, result

_SECOND: Final = "second_"
_NGRAMS: Final = ("ngram_vocab_size_ratio", "emb_neighbor_num", "emb_split_num")


@frozen(kw_only=True)
class ShortcutLayer(Layer):
    """Two layers with an attention and an MLP each; `experts` read what the first MLP does, and their result is added
    after the second.
    """

    experts: Experts

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        first, second = self._half(parts, x), self._half(parts, parts.tensor("mlp_add", x.width))
        norm = next(index for index, op in enumerate(first) if op.name == "mlp_norm")
        shortcut = self.experts.operators(parts, first[norm].result)
        *others, last = _renamed(second, output_name="mlp_add")
        out = parts.add(last.name, *last.inputs, result(shortcut))
        return (*first[: norm + 1], *shortcut, *first[norm + 1 :], *others, out)

    def _half(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return super().operators(parts, x)


def _renamed(operators: Iterable[Operator], output_name: str) -> list[Operator]:
    """Operators as those of the second half, with their tensors and weights; they read `output_name` of the first."""
    renamed_operators: list[Operator] = []
    for op in operators:
        inputs = tuple(t if t.name == output_name else replace(t, name=_SECOND + t.name) for t in op.inputs)
        outputs = tuple(replace(t, name=_SECOND + t.name) for t in op.outputs)
        weights = tuple(replace(w, name=_SECOND + w.name) for w in op.weights)
        renamed_operators.append(replace(op, name=_SECOND + op.name, inputs=inputs, outputs=outputs, weights=weights))
    return renamed_operators


@architecture("longcat_flash")
def build(config: Section, fmt: Format) -> Graph:
    """LongCat-Flash: two latent attentions and two MLPs a layer, experts in parallel, some without weights."""
    ignore_router_fields(
        config, "rope_interleave", "mla_scale_q_lora", "mla_scale_kv_lora", "router_dtype", "params_dtype"
    )
    # Keys and values are expanded for every head, and heads are as wide as their parts. Layers are twice num_layers for
    # those who count attentions.
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "num_hidden_layers")
    for key in _NGRAMS:
        if config.get(key):
            raise config.error(key, "must be absent: embeddings of several tokens are not known for this architecture")
    config.choice("attention_method", ("MLA", "mla"), "MLA")
    layer = ShortcutLayer(
        mixer=latent_attention(config, LatentAttention, q_rank=1536),
        feed_forward=dense(config, config.first("ffn_hidden_size", "intermediate_size")),
        experts=_experts(config),
    )
    prediction_layer = Layer(mixer=layer.mixer, feed_forward=layer.feed_forward)  # without experts
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer, default=1)
    return decoder(config, [layer] * config.count("num_layers"), prediction=prediction).graph(fmt)


def _experts(config: Section) -> Experts:
    chosen = config.first("moe_topk", "num_experts_per_tok")
    inner = config.integer(config.first("expert_ffn_hidden_size", "moe_intermediate_size"))
    zero = config.integer("zero_expert_num", 0, least=0)
    plain = experts(config, "n_routed_experts", chosen, inner=inner)
    if zero:
        config.choice("zero_expert_type", ("identity",), "identity")
    if plain.chosen * plain.experts % (plain.experts + zero):
        raise config.error(
            "zero_expert_num",
            f"must leave a whole number of the {plain.chosen} experts of a token to the {plain.experts} with matrices;"
            f" got {zero}",
        )
    return replace(plain, zero=zero, router_bias=config.flag("router_bias", default=False))
