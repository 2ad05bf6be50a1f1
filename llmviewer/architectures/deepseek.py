"""DeepSeek-V2 and V3, and models of their form: latent attention, dense layers first, shared and routed experts
(arXiv:2405.04434, arXiv:2412.19437); V3.2 and GLM-5 attend to keys selected by an indexer (arXiv:2512.02556).

The correction bias of V3's router is no parameter: it steers training and is kept as a buffer. The layers that predict
further tokens (num_nextn_predict_layers) are not in the count of 671 billion, and part of a pass where that is asked.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import NAMED, Format
from ..records import frozen
from . import architecture
from .blocks.attention import Index, LatentAttention
from .blocks.decoder import FeedForward, Layer, Prediction
from .blocks.feed_forward import Experts
from .blocks.fields import decoder, filled, gated_mlp, require_false
from .blocks.moe import (
    dense,
    experts_beside_shared,
    first_dense,
    ignore_router_fields,
    kinds,
    latent_attention,
    listed,
    sparse_layers,
)
from .blocks.parts import Parts, result


@architecture("deepseek_v2")
def build_v2(config: Section, fmt: Format) -> Graph:
    """DeepSeek-V2: latent attention and routed experts beside shared ones; no leading dense layers by default."""
    require_false(config, "mlp_bias", "biases of these MLPs are not modelled")
    return _graph(config, fmt, first_dense(config, default=0))


@architecture("deepseek_v3", "kimi_k2")
def build_v3(config: Section, fmt: Format) -> Graph:
    """DeepSeek-V3, R1 and Kimi K2: latent attention, three leading dense layers by default, then experts."""
    ignore_router_fields(config, "rope_interleave")
    return _graph(config, fmt, first_dense(config, default=3))


@architecture("sarvam_mla")
def build_sarvam_mla(config: Section, fmt: Format) -> Graph:
    """Sarvam 105B, whose queries have no latent."""
    ignore_router_fields(config, "rope_interleave", "q_head_dim", "moe_router_enable_expert_bias")
    config = filled(config, {"q_lora_rank": None, "n_shared_experts": 1})
    return _graph(config, fmt, first_dense(config, default=1))


@frozen
class Normed:
    """A norm follows what experts have made together."""

    experts: Experts

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches = self.experts.operators(parts, x)
        return (*launches, parts.norm("experts_norm", result(launches)))


@architecture("axk1")
def build_axk1(config: Section, fmt: Format) -> Graph:
    """A.X K1."""
    ignore_router_fields(config, "rope_interleave")
    return _graph(config, fmt, sparse_layers(config, default=1), normed=True)


@architecture("youtu")
def build_youtu(config: Section, fmt: Format) -> Graph:
    """Latent attention without experts (arXiv:2512.24618)."""
    ignore_router_fields(config, "rope_interleave", "embedding_initializer_range")
    return _graph(config, fmt, [False] * config.count("num_hidden_layers"), tied=True)


@architecture("mistral4")
def build_mistral4(config: Section, fmt: Format) -> Graph:
    """Mistral Small 4."""
    ignore_router_fields(config, "rope_interleave")
    return _graph(config, fmt, first_dense(config, default=0))


@architecture("deepseek_v32")
def build_v32(config: Section, fmt: Format) -> Graph:
    """DeepSeek-V3.2: every layer attends to the keys that its indexer chooses."""
    ignore_router_fields(config, "rope_interleave")
    check_sparse(config)
    return _graph(config, fmt, sparse_layers(config, default=3), published_index(config, heads=64))


@architecture("glm_moe_dsa")
def build_glm_moe_dsa(config: Section, fmt: Format) -> Graph:
    """GLM-5: as DeepSeek-V3.2, but that layers may attend to what the indexer of one before them chose."""
    ignore_router_fields(
        config, "rope_interleave", "indexer_rope_interleave", "index_share_for_mtp_iteration", "moe_router_dtype",
        "num_experts",
    )  # fmt: skip
    check_sparse(config)
    return _graph(config, fmt, sparse_layers(config, default=3), published_index(config, heads=32), own_index(config))


@architecture("glm4_moe_lite")
def build_glm4_moe_lite(config: Section, fmt: Format) -> Graph:
    """GLM-4.7-Flash."""
    ignore_router_fields(config, "rope_interleave", "partial_rotary_factor")  # the rotated part is qk_rope_head_dim
    return _graph(config, fmt, sparse_layers(config, default=1))


def check_sparse(config: Section) -> None:
    """Raises InputError where layers are of another kind, or have biases."""
    require_false(config, "mlp_bias", "biases of these MLPs are not modelled")
    listed(config, "layer_types", ("deepseek_sparse_attention", "indexed_attention"))  # names of one thing


def published_index(config: Section, heads: int) -> Index:
    """Queries and keys are in fp8 with an fp32 scale of each 128 elements, as the code that was published with
    DeepSeek-V3.2-Exp has them (inference/model.py, Indexer.k_cache and k_scale_cache); vLLM and SGLang, which GLM-5
    names for it, run the indexers of both in one kernel.
    """
    head_dim = config.integer("index_head_dim", 128)
    return Index(
        num_heads=config.integer("index_n_heads", heads),
        head_dim=head_dim,
        chosen=config.integer("index_topk", 2048),
        format=replace(NAMED["fp8_e4m3"], group=min(head_dim, 128), scale_bits=32),
    )


def own_index(config: Section, first: int = 0) -> list[bool]:
    """Whether each layer has an indexer of its own: as a list or a pattern says, or the first ones and every n-th.

    Raises InputError where layer `first`, the first that attends to chosen keys, has none.
    """
    layers = config.count("num_hidden_layers")
    every, offset = config.integer("index_topk_freq", 1), config.integer("index_skip_topk_offset", 2, least=0)
    pattern = config.get("index_topk_pattern")
    if config.get("indexer_types") is not None:
        has_indexer = [kind == "full" for kind in kinds(config, "indexer_types", ("full", "shared"))]
    elif isinstance(pattern, str) and set(pattern) <= {"F", "S"} and len(pattern) == layers:
        has_indexer = [letter == "F" for letter in pattern]
    elif pattern is None:
        has_indexer = [max(index - offset + 1, 0) % every == 0 for index in range(layers)]
    else:
        raise config.error("index_topk_pattern", f"must be {layers} letters F and S; got {pattern!r}")
    if not has_indexer[first]:
        place = f"layer {first}" if first else "the first layer"
        raise config.error("indexer_types", f"must give {place} an indexer of its own; there is none before it")
    return has_indexer


def _graph(
    config: Section,
    fmt: Format,
    sparse: list[bool],
    index: Index | None = None,
    has_indexer: list[bool] | None = None,
    *,
    tied: bool = False,
    normed: bool = False,
) -> Graph:
    """Layers with `has_indexer`, or all, choose keys by `index`; the others attend to the choice before them."""
    ignore_router_fields(config)
    # Keys and values are expanded for every head, and heads are as wide as their parts.
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    plain = _attention(config)
    mixers = {True: replace(plain, index=index), False: replace(plain, chosen=index.chosen if index else 0)}
    if index and not plain.q_rank:
        raise config.error("q_lora_rank", "must not be null: the indexer takes its queries from their latent")
    networks: dict[bool, FeedForward] = {False: dense(config)}
    if any(sparse):
        moe = experts_beside_shared(config, "n_routed_experts", default=0)
        networks[True] = Normed(moe) if normed else moe
    has_indexer = has_indexer or [True] * len(sparse)
    layers = [
        Layer(
            mixer=mixers[indexes],
            feed_forward=networks[has_experts],
            name=("moe" if has_experts else "dense") + ("" if indexes else "_shared"),
        )
        for has_experts, indexes in zip(sparse, has_indexer, strict=True)
    ]
    prediction_layer = Layer(mixer=mixers[True], feed_forward=networks[sparse[-1]])
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer)
    return decoder(config, layers, tied=tied, prediction=prediction).graph(fmt)


def _attention(config: Section) -> LatentAttention:
    required_sizes = dict.fromkeys(("kv_rank", "nope_dim", "rope_dim", "value_dim"))
    return latent_attention(config, LatentAttention, q_rank=1536, **required_sizes)


@architecture("minicpm3")
def build_minicpm3(config: Section, fmt: Format) -> Graph:
    """Latent attention and an MLP; embeddings, branches and logits are scaled by constants."""
    config.ignore("scale_emb", "scale_depth", "dim_model_base", "qk_head_dim", "head_dim", "num_key_value_heads")
    value_dim = config.integer("hidden_size") // config.integer("num_attention_heads")
    sizes = {"q_rank": 768, "kv_rank": 256, "nope_dim": 64, "rope_dim": 32, "value_dim": value_dim}
    mixer = latent_attention(config, LatentAttention, **sizes)
    layer = Layer(mixer=mixer, feed_forward=gated_mlp(config))
    return decoder(config, layer, tied=True).graph(fmt)
