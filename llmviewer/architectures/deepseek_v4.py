"""DeepSeek-V4: a sliding window plus compressed entries, which an indexer selects in some layers; hyper-connections;
experts selected by token id in the first layers (arXiv:2606.19348).

That choice is a table of ids, in training no parameter and in a pass a few bytes a token: it is not counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Route
from ..precision import NAMED, Format
from ..records import frozen
from . import architecture
from .blocks.attention import Index
from .blocks.compressed_attention import CompressedAttention
from .blocks.decoder import FeedForward, Layer, Prediction
from .blocks.feed_forward import Experts
from .blocks.fields import decoder, require_false, rotary_dim
from .blocks.hyper_connections import HyperConnections
from .blocks.moe import experts, ignore_router_fields, integers, kinds
from .blocks.parts import Parts

_WINDOW: Final = "sliding_attention"
_CHOSEN: Final = "compressed_sparse_attention"
_ALL: Final = "heavily_compressed_attention"
_TYPES: Final = {0: _WINDOW, 4: _CHOSEN, 128: _ALL}  # what compress_ratios says
_NAMES: Final = {_WINDOW: "window", _CHOSEN: "csa", _ALL: "hca"}


@architecture("deepseek_v4", "deepseek_ref")
def build(config: Section, fmt: Format) -> Graph:
    """DeepSeek-V4: windowed attention with compressed entries, hyper-connections and experts."""
    ignore_router_fields(config, "swiglu_limit", "hc_eps", "compress_rope_theta", "expert_dtype", "mlp_bias")
    if config.integer("num_key_value_heads", 1) != 1:
        raise config.error("num_key_value_heads", "must be 1: queries of all heads share their keys and values")
    require_false(config, "attention_bias", "biases of this attention are not known")
    hyper = HyperConnections(streams=config.integer("hc_mult", 4), iterations=config.integer("hc_sinkhorn_iters", 20))
    layers = config.count("num_hidden_layers")
    mixers = {kind: _mixer(config, kind) for kind in _NAMES}
    moe = _experts(config)
    networks: dict[bool, FeedForward] = {False: moe, True: HashedExperts(experts=moe)}

    def layer(kind: str, *, hashed: bool) -> Layer:
        name = f"{_NAMES[kind]}_{'hash' if hashed else 'moe'}"
        return Layer(mixer=mixers[kind], feed_forward=networks[hashed], hyper=hyper, name=name)

    types = _layer_types(config)
    all_layers = [layer(kind, hashed=hashed) for kind, hashed in zip(types, _hashed(config), strict=False)]
    prediction_kind = types[layers] if len(types) > layers else _WINDOW
    prediction = Prediction.of(config, "num_nextn_predict_layers", layer(prediction_kind, hashed=False))
    return decoder(config, all_layers, hyper=hyper, prediction=prediction).graph(fmt)


@frozen(kw_only=True)
class HashedExperts:
    """Experts that a table chooses by the token's id: logits weigh them, and none are compared."""

    experts: Experts

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches = self.experts.operators(parts, x)
        return tuple(replace(op, top_k=0) if isinstance(op, Route) else op for op in launches)


def _layer_types(config: Section) -> list[str]:
    """The kind of attention of each layer and, where compress_ratios goes on, of those that predict further tokens."""
    layers = config.count("num_hidden_layers")
    if config.get("layer_types") is not None:
        config.ignore("compress_ratios")
        return kinds(config, "layer_types", tuple(_NAMES))
    ratios = integers(config, "compress_ratios")
    if not ratios:
        return [_ALL if index < 2 or index % 2 == 0 else _CHOSEN for index in range(layers)]
    if len(ratios) < layers or not set(ratios) <= _TYPES.keys():
        ratios_text = ", ".join(map(str, _TYPES))
        raise config.error("compress_ratios", f"must have {layers} entries or more, each one of {ratios_text}")
    return [_TYPES[ratio] for ratio in ratios]


def _hashed(config: Section) -> list[bool]:
    """Whether the experts of each layer are chosen by token id."""
    layers = config.count("num_hidden_layers")
    if config.get("mlp_layer_types") is not None:
        config.ignore("num_hash_layers")
        return [kind == "hash_moe" for kind in kinds(config, "mlp_layer_types", ("hash_moe", "moe"))]
    first = config.count("num_hash_layers", 3, least=0)
    return [index < first for index in range(layers)]


def _mixer(config: Section, kind: str) -> CompressedAttention:
    head_dim = config.integer("head_dim", 512)
    heads = config.integer("num_attention_heads", 64)
    groups = config.integer("o_groups", 8)
    if heads * head_dim % groups:
        raise config.error("o_groups", f"must divide the {heads} heads of {head_dim}; got {groups}")
    return CompressedAttention(
        num_heads=heads,
        head_dim=head_dim,
        rope_dim=_rope_dim(config, head_dim),
        q_rank=config.integer("q_lora_rank", 1024),
        window=config.integer("sliding_window", 128),
        o_groups=groups,
        o_rank=config.integer("o_lora_rank", 1024),
        ratio=0 if kind == _WINDOW else _ratio(config, kind),
        index=_index(config) if kind == _CHOSEN else None,
    )


def _rope_dim(config: Section, head_dim: int) -> int:
    if config.get("partial_rotary_factor") is None:
        return config.integer("qk_rope_head_dim", head_dim // 8)
    config.ignore("qk_rope_head_dim")
    return rotary_dim(config, head_dim)


def _ratio(config: Section, kind: str) -> int:
    """Tokens that an entry stands for: of compress_rates, or what compress_ratios names the kind by."""
    default_ratio = next(ratio for ratio, name in _TYPES.items() if name == kind)
    if config.get("compress_rates") is None:
        return config.integer("compress_rate_csa" if kind == _CHOSEN else "compress_rate_hca", default_ratio)
    return config.section("compress_rates").integer(kind, default_ratio)


def _index(config: Section) -> Index:
    """Queries and keys are in 4 bits with a scale of each 32 elements, as the code that was published with DeepSeek-V4
    has them (inference/model.py: fp4_act_quant of Indexer and of its compressor).
    """
    return Index(
        num_heads=config.integer("index_n_heads", 64),
        head_dim=config.integer("index_head_dim", 128),
        chosen=config.integer("index_topk", 512),
        format=NAMED["mxfp4"],
    )


def _experts(config: Section) -> Experts:
    inner = config.integer("moe_intermediate_size", 2048)
    config.ignore("n_shared_experts")  # the class has one, whatever it says
    mixture = experts(config, "n_routed_experts", "num_experts_per_tok", inner=inner, shared=inner)
    assert mixture.shared
    return replace(mixture, shared=replace(mixture.shared, bias=config.flag("mlp_bias", default=False)))
