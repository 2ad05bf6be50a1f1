"""DeepSeek-V2 and V3, and models of their form: latent attention, dense layers first, shared and routed experts
(arXiv:2405.04434, arXiv:2412.19437).

The correction bias of V3's router is no parameter: it steers training and is kept as a buffer. The layers that predict
further tokens (num_nextn_predict_layers) are neither in the count of 671 billion nor part of a pass.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._attention import LatentAttention
from ._decoder import Layer
from ._feed_forward import Experts
from ._fields import decoder
from ._moe import costless, dense, experts, first_dense, for_each_layer, language_model


@architecture("deepseek_v2")
def build_v2(config: Section, fmt: Format) -> Graph:
    if config.flag("mlp_bias", default=False):
        raise config.error("mlp_bias", "must be false: biases of these MLPs are not modelled")
    return _graph(config, fmt, first_dense(config, default=0))


@architecture("deepseek_v3", "kimi_k2")
def build_v3(config: Section, fmt: Format) -> Graph:
    costless(config, "rope_interleave")
    return _graph(config, fmt, first_dense(config, default=3))


@architecture("glm4_moe_lite")
def build_glm4_moe_lite(config: Section, fmt: Format) -> Graph:
    """GLM-4.7-Flash."""
    costless(config, "rope_interleave", "partial_rotary_factor")  # the rotated part is qk_rope_head_dim
    sparse = first_dense(config, default=1)
    if config.get("mlp_layer_types") is not None:
        kinds = config.texts("mlp_layer_types")
        for_each_layer(config, "mlp_layer_types", kinds)
        if not set(kinds) <= {"dense", "sparse"}:
            raise config.error("mlp_layer_types", "must be made of dense and sparse")
        sparse = [kind == "sparse" for kind in kinds]
    return _graph(config, fmt, sparse)


@architecture("kimi_k25")
def build_kimi_k25(config: Section, fmt: Format) -> Graph:
    """The language model of the pair; the tower that makes tokens of pictures is left out."""
    text = language_model(config)
    config.costless("tie_word_embeddings")  # the text_config has its own
    text.choice("model_type", ("deepseek_v3", "kimi_k2"), "deepseek_v3")
    return build_v3(text, fmt)


def _graph(config: Section, fmt: Format, sparse: list[bool]) -> Graph:
    costless(config)
    # Keys and values are expanded for every head, and heads are as wide as their parts.
    config.costless("num_key_value_heads", "head_dim", "qk_head_dim")
    mixer = _attention(config)
    layers = {
        True: Layer(mixer=mixer, feed_forward=_experts(config), name="moe"),
        False: Layer(mixer=mixer, feed_forward=dense(config), name="dense"),
    }
    return decoder(config, [layers[has_experts] for has_experts in sparse]).graph(fmt)


def _attention(config: Section) -> LatentAttention:
    direct = "q_lora_rank" in config and config.get("q_lora_rank") is None  # null: queries have no latent
    return LatentAttention(
        num_heads=config.integer("num_attention_heads"),
        q_rank=0 if direct else config.integer("q_lora_rank", 1536),
        kv_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        bias=config.flag("attention_bias", default=False),
    )


def _experts(config: Section) -> Experts:
    inner = config.integer("moe_intermediate_size")
    shared = config.integer("n_shared_experts", 0, least=0) * inner
    return experts(config, "n_routed_experts", "num_experts_per_tok", inner=inner, shared=shared)
