"""LLaMA (arXiv:2407.21783) and decoders that differ from it by flags alone, dense and with experts, a row each.

A row has what differs from LLaMA: RMSNorm before attention and MLP, rotary positions of whole heads, grouped queries,
biases of attention and MLP by attention_bias and mlp_bias, a gated SiLU MLP, an untied head.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.decoder import Residual
from .blocks.family import (
    ConfigFlag,
    DecoderFamily,
    ExpertFields,
    NormPlacement,
    QkNorm,
    RotaryShare,
    SlidingWindow,
    all_but_first_of,
    all_but_last_of,
    listed_or_every,
)
from .blocks.fields import filled, require_true, sliding_layers
from .blocks.moe import first_dense, integers, sparse_layers
from .blocks.parts import NormKind


def sparse_steps(config: Section) -> list[bool]:
    """Layers with experts of Qwen's mixtures: every decoder_sparse_step, but those of mlp_only_layers."""
    step, plain = config.integer("decoder_sparse_step", 1), integers(config, "mlp_only_layers")
    layers = config.count("num_hidden_layers")
    return [index not in plain and (index + 1) % step == 0 for index in range(layers)]


def _qwen_windows(config: Section) -> list[bool]:
    """Layers with a window of Qwen2 and 3, if use_sliding_window: by layer_types, or from max_window_layers on."""
    layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window", default=False):
        config.ignore("layer_types")
        return [False] * layers
    full = config.integer("max_window_layers", 28, least=0)
    if config.get("layer_types") is not None:
        return sliding_layers(config, pattern=1)
    return [index >= full for index in range(layers)]


def exaone_windows(config: Section) -> list[bool]:
    """Layers with a window of EXAONE 4: by layer_types or sliding_window_pattern, a number or letters such as LLLG."""
    pattern = config.get("sliding_window_pattern")
    if config.get("layer_types") is not None or not isinstance(pattern, str):
        return sliding_layers(config, pattern=4)
    if not pattern or set(pattern) - set("LG"):
        raise config.error("sliding_window_pattern", f"must be a whole number or letters L and G; got {pattern!r}")
    return [pattern[index % len(pattern)] == "L" for index in range(config.count("num_hidden_layers"))]


def _qwen3_moe_windows(config: Section) -> list[bool]:
    """All layers, if use_sliding_window."""
    return [config.flag("use_sliding_window", default=False)] * config.count("num_hidden_layers")


def _check_minicpm(config: Section) -> Section:
    if config.get("num_experts") is not None:
        raise config.error("num_experts", "no architecture for a MiniCPM with experts")
    return config


def _check_internlm3(config: Section) -> Section:
    """qkv_bias and bias are one, of attention and MLP, in configs of transformers too."""
    bias = config.flag(config.first("attention_bias", "qkv_bias"), default=False)
    mlp = config.first("mlp_bias", "bias")
    if config.flag(mlp, default=False) != bias:
        raise config.error(mlp, "must be as that of the projections of attention")
    return filled(config, instead={"attention_bias": bias, "mlp_bias": bias})


def _gemma_activation(config: Section) -> Section:
    """The first files of Gemma have "gelu" and mean the approximation by tanh."""
    key = config.first("hidden_activation", "hidden_act")
    act = "gelu_pytorch_tanh" if config.get(key) == "gelu" else config.get(key)
    return filled(config, instead={"hidden_activation": act})


def _nemotron_heads(config: Section) -> Section:
    """Converted checkpoints have kv_channels in place of head_dim."""
    width = config.get("kv_channels")
    return config if width is None else filled(config, {"head_dim": config.integer("kv_channels")})


def _exaone_names(config: Section) -> Section:
    """Published configs have num_layers and activation_function."""
    layers, act = config.first("num_layers", "num_hidden_layers"), config.first("activation_function", "hidden_act")
    return filled(config, instead={"num_hidden_layers": config.count(layers), "hidden_act": config.get(act)})


def _check_dots1(config: Section) -> Section:
    layers = config.count("num_hidden_layers")
    windowed = config.get("sliding_window") is not None and config.integer("max_window_layers", 62) < layers
    if windowed or config.get("layer_types") not in (None, ["full_attention"] * layers):
        raise config.error("sliding_window", "must leave all layers without a window; others are not modelled")
    return config


def _sarvam_moe_defaults(config: Section) -> Section:
    """Published configs have use_qkv_bias in place of attention_bias."""
    return filled(config, {"n_shared_experts": 1, "head_dim": 64, "attention_bias": config.get("use_qkv_bias")})


def _check_qwen3_moe(config: Section) -> Section:
    for absent in ("shared_expert_intermediate_size", "qkv_bias"):  # some configs have them nevertheless
        if config.get(absent):
            raise config.error(absent, "must be absent, 0 or false: qwen3_moe has no such thing")
    require_true(config, "use_qk_norm", "qwen3_moe always has the norms")
    return config


_GRANITE: Final = "embedding_multiplier attention_multiplier residual_multiplier logits_scaling"
_GEMMA2: Final = """
    hidden_act cache_implementation query_pre_attn_scalar rope_local_base_freq final_logit_softcapping
    attn_logit_softcapping use_bidirectional_attention
"""
_COHERE2: Final = """
    logit_scale order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_sharing
    use_gated_activation use_parallel_block use_parallel_embedding cache_implementation layer_switch
"""
_COHERE_QK: Final = QkNorm(  # each head has weights of its own, so there are as many as the heads are wide
    kind=NormKind.LAYER_NO_BIAS, whole=True, when=ConfigFlag("use_qk_norm")
)
_NEMOTRON_ROTARY: Final = ("partial_rotary_factor", "rope_percent", "rope_percentage")
_MLP_WIDTH: Final = "intermediate_size"
_MTP: Final = "num_nextn_predict_layers"
_GLM_EXPERTS: Final = ExpertFields(
    count="n_routed_experts", shared_count="n_shared_experts", layers=partial(first_dense, default=1)
)

FAMILIES: Final[dict[str, DecoderFamily]] = {
    "llama": DecoderFamily(also=("iquestcoder",)),
    "mistral": DecoderFamily(window=SlidingWindow(4096)),
    "ministral": DecoderFamily(window=SlidingWindow(4096, listed_or_every), qkv_bias=False, o_bias=False),
    "ministral3": DecoderFamily(head_dim=128, window=SlidingWindow(), qkv_bias=False, o_bias=False),
    "qwen2": DecoderFamily(window=SlidingWindow(4096, _qwen_windows), qkv_bias=True),
    "qwen3": DecoderFamily(  # arXiv:2505.09388
        also=("qwen3_vl_text",), head_dim=128, window=SlidingWindow(4096, _qwen_windows), qk_norm=QkNorm()
    ),
    "hunyuan_v1_dense": DecoderFamily(  # the norms follow the rotation, which costs the same
        qk_norm=QkNorm(),
        ignored="use_qk_norm use_rotary_pos_emb org_vocab_size attention_head_dim norm_type use_cla",
    ),
    "granite": DecoderFamily(ignored=_GRANITE),  # embeddings, scores, branches, logits are scaled: arXiv:2405.04324
    "hyperclovax": DecoderFamily(
        residual=NormPlacement(ConfigFlag("use_post_norm", default=True), Residual.SANDWICH), ignored=_GRANITE
    ),
    "cwm": DecoderFamily(  # arXiv:2510.02387
        head_dim=128, window=SlidingWindow(8192, all_but_first_of(4)), qkv_bias=False, o_bias=False
    ),
    "minicpm": DecoderFamily(  # arXiv:2404.06395
        config=_check_minicpm,
        tied=True,
        ignored="scale_emb dim_model_base scale_depth max_length",
    ),
    "mimo": DecoderFamily(
        qkv_bias=ConfigFlag("attention_bias", default=True),
        o_bias=False,
        prediction=_MTP,
        ignored="use_mrope",
        refused={"use_sliding_window": "no published model of this architecture has a window"},
    ),
    "internlm": DecoderFamily(qkv_bias=ConfigFlag("bias", default=True), o_bias=ConfigFlag("bias", default=True)),
    "internlm2": DecoderFamily(  # arXiv:2403.17297
        fused_qkv=True,
        qkv_bias=ConfigFlag("bias", default=True),
        o_bias=ConfigFlag("bias", default=True),
        ignored="attn_implementation",
    ),
    "internlm3": DecoderFamily(config=_check_internlm3, head_dim=128),
    "seed_oss": DecoderFamily(
        head_dim=128,
        qkv_bias=ConfigFlag("attention_bias", default=True),
        o_bias=ConfigFlag("attention_out_bias"),
        ignored="residual_dropout",
    ),
    "ernie4_5": DecoderFamily(
        head_dim=128,
        qkv_bias=ConfigFlag("use_bias"),
        o_bias=ConfigFlag("use_bias"),
        mlp_bias=ConfigFlag("use_bias"),
        tied=True,
    ),
    "helium": DecoderFamily(head_dim=128, o_bias=False),
    "exaone": DecoderFamily(config=_exaone_names, ignored="embed_dropout"),
    "exaone4": DecoderFamily(  # arXiv:2507.11407
        window=SlidingWindow(4096, exaone_windows, full_rotary=False),
        qkv_bias=False,
        o_bias=False,
        qk_norm=QkNorm(),
        residual=Residual.INNER,
        ignored="layer_types sliding_window_pattern",
    ),
    "nanochat": DecoderFamily(  # queries and keys are normalized after their rotation, which costs the same
        qk_norm=QkNorm(kind=NormKind.UNIT),
        act="relu2",
        gated=False,
        mlp_bias=False,
        norm=NormKind.UNIT,
        embed_norm=True,
        ignored="final_logit_softcapping",
    ),
    "arcee": DecoderFamily(
        rotary=RotaryShare(1, _NEMOTRON_ROTARY),
        act="relu2",
        gated=False,
        ignored="norm_eps rope_percent rope_percentage",
    ),
    "nemotron": DecoderFamily(  # Nemotron-4 and Minitron; LayerNorm with 1 + weight: arXiv:2402.16819
        config=_nemotron_heads,
        rotary=RotaryShare(0.5, _NEMOTRON_ROTARY),
        act="relu2",
        gated=False,
        norm=NormKind.LAYER,
        ignored="norm_eps rope_percent rope_percentage",
    ),
    "jais2": DecoderFamily(
        rotary=RotaryShare(1, _NEMOTRON_ROTARY),
        qkv_bias=ConfigFlag("attention_bias", default=True),
        o_bias=ConfigFlag("attention_bias", default=True),
        act="relu2",
        gated=False,
        mlp_bias=ConfigFlag("mlp_bias", default=True),
        norm=NormKind.LAYER,
        ignored="norm_eps rope_percent rope_percentage",
    ),
    "stablelm": DecoderFamily(  # arXiv:2402.17834; the 12B has parallel branches and norms of queries and keys
        also=("stablelm_epoch",),
        rotary=RotaryShare(0.25, ("partial_rotary_factor", "rope_pct")),
        qkv_bias=ConfigFlag("use_qkv_bias"),
        o_bias=False,
        qk_norm=QkNorm(kind=NormKind.LAYER_NO_BIAS, whole=True, when=ConfigFlag("qk_layernorm")),
        norm=NormKind.LAYER,
        residual=NormPlacement(ConfigFlag("use_parallel_residual"), Residual.PARALLEL),
        ignored="norm_eps rotary_scaling_factor use_bias",
    ),
    "olmo": DecoderFamily(norm=NormKind.PLAIN, ignored="clip_qkv"),  # arXiv:2402.00838
    "olmo2": DecoderFamily(qk_norm=QkNorm(whole=True), residual=Residual.INNER),  # arXiv:2501.00656
    "olmo3": DecoderFamily(
        window=SlidingWindow(4096, all_but_last_of(4)), qk_norm=QkNorm(whole=True), residual=Residual.INNER
    ),
    "gemma": DecoderFamily(  # arXiv:2403.08295
        config=_gemma_activation,
        head_dim=256,
        act="gelu_pytorch_tanh",
        act_key="hidden_activation",
        mlp_bias=False,
        tied=True,
        ignored=_GEMMA2,
    ),
    "gemma2": DecoderFamily(  # arXiv:2408.00118
        head_dim=256,
        window=SlidingWindow(4096, all_but_last_of(2)),
        act="gelu_pytorch_tanh",
        act_key="hidden_activation",
        residual=Residual.SANDWICH,
        tied=True,
        ignored=_GEMMA2,
    ),
    "vaultgemma": DecoderFamily(  # arXiv:2510.15001
        head_dim=256,
        window=SlidingWindow(4096, all_but_last_of(2)),
        act="gelu_pytorch_tanh",
        act_key="hidden_activation",
        tied=True,
        ignored=_GEMMA2,
    ),
    "gemma3_text": DecoderFamily(  # arXiv:2503.19786
        head_dim=256,
        window=SlidingWindow(4096, all_but_last_of(6)),
        qk_norm=QkNorm(),
        act="gelu_pytorch_tanh",
        act_key="hidden_activation",
        residual=Residual.SANDWICH,
        tied=True,
        ignored=_GEMMA2,
    ),
    "glm": DecoderFamily(  # arXiv:2406.12793
        kv_heads=2,
        head_dim=128,
        rotary=RotaryShare(0.5),
        qkv_bias=ConfigFlag("attention_bias", default=True),
        o_bias=False,
        fused_mlp=True,
    ),
    "glm4": DecoderFamily(
        kv_heads=2,
        head_dim=128,
        rotary=RotaryShare(0.5),
        qkv_bias=ConfigFlag("attention_bias", default=True),
        o_bias=False,
        fused_mlp=True,
        residual=Residual.SANDWICH,
        prediction=_MTP,
    ),
    "cohere": DecoderFamily(
        qk_norm=_COHERE_QK,
        norm=NormKind.LAYER_NO_BIAS,
        residual=Residual.PARALLEL,
        tied=True,
        ignored="logit_scale",
    ),
    "cohere2": DecoderFamily(
        window=SlidingWindow(4096, all_but_last_of(4), full_rotary=False),
        qk_norm=_COHERE_QK,
        norm=NormKind.LAYER_NO_BIAS,
        residual=Residual.PARALLEL,
        tied=True,
        ignored=_COHERE2,
    ),
    "phi": DecoderFamily(  # Phi-1.5 and 2: arXiv:2309.05463
        rotary=RotaryShare(0.5),
        qkv_bias=True,
        o_bias=True,
        qk_norm=QkNorm(kind=NormKind.LAYER, when=ConfigFlag("qk_layernorm")),
        act="gelu_new",
        gated=False,
        mlp_bias=True,
        norm=NormKind.LAYER,
        residual=Residual.PARALLEL,
        head_bias=True,
    ),
    "phi3": DecoderFamily(  # Phi-3 and 4: arXiv:2404.14219; files have flags of biases, the class has none
        rotary=RotaryShare(1),
        window=SlidingWindow(),
        fused_qkv=True,
        qkv_bias=False,
        o_bias=False,
        fused_mlp=True,
        ignored="original_max_position_embeddings full_attn_mod interpolate_factor _attn_implementation",
        refused=dict.fromkeys(
            ("attention_bias", "mlp_bias", "lm_head_bias"), "no model of this architecture has a bias"
        ),
    ),
    "persimmon": DecoderFamily(
        kv_heads=None,
        rotary=RotaryShare(0.5),
        fused_qkv=True,
        qkv_bias=True,
        o_bias=True,
        qk_norm=QkNorm(kind=NormKind.LAYER, when=ConfigFlag("qk_layernorm", default=True)),
        act="relu2",
        gated=False,
        mlp_bias=True,
        norm=NormKind.LAYER,
    ),
    "gpt_neox": DecoderFamily(  # GPT-NeoX, Pythia, Dolly, RedPajama: arXiv:2204.06745
        kv_heads=None,
        rotary=RotaryShare(0.25, ("rotary_pct",)),
        fused_qkv=True,
        qkv_bias=ConfigFlag("attention_bias", default=True),
        o_bias=ConfigFlag("attention_bias", default=True),
        act="gelu",
        gated=False,
        mlp_bias=True,
        norm=NormKind.LAYER,
        residual=NormPlacement(ConfigFlag("use_parallel_residual", default=True), Residual.PARALLEL_TWO),
        ignored="rotary_emb_base classifier_dropout",
    ),
    "starcoder2": DecoderFamily(  # arXiv:2402.19173
        kv_heads=2,
        window=SlidingWindow(),
        qkv_bias=ConfigFlag("use_bias", default=True),
        o_bias=ConfigFlag("use_bias", default=True),
        act="gelu_pytorch_tanh",
        gated=False,
        mlp_bias=ConfigFlag("use_bias", default=True),
        norm=NormKind.LAYER,
        tied=True,
        ignored="""
            activation_function mlp_type norm_type residual_dropout embedding_dropout scale_attention_softmax_in_fp32
        """,
    ),
    # Mixtures of experts
    "mixtral": DecoderFamily(  # arXiv:2401.04088
        rotary=RotaryShare(1),
        window=SlidingWindow(),
        qkv_bias=False,
        o_bias=False,
        experts=ExpertFields(count="num_local_experts", width=_MLP_WIDTH),
    ),
    "phimoe": DecoderFamily(  # arXiv:2404.14219
        rotary=RotaryShare(1),
        window=SlidingWindow(),
        experts=ExpertFields(count="num_local_experts", width=_MLP_WIDTH),
        norm=NormKind.LAYER,
        head_bias=ConfigFlag("lm_head_bias"),
    ),
    "olmoe": DecoderFamily(  # arXiv:2409.02060
        rotary=RotaryShare(1),
        qk_norm=QkNorm(whole=True),
        experts=ExpertFields(width=_MLP_WIDTH),
        ignored="clip_qkv",
    ),
    "flex_olmo": DecoderFamily(  # arXiv:2507.07024
        qk_norm=QkNorm(whole=True), experts=ExpertFields(width=_MLP_WIDTH), residual=Residual.INNER
    ),
    "granitemoe": DecoderFamily(
        also=("granitemoeshared",),
        rotary=RotaryShare(1),
        experts=ExpertFields(count="num_local_experts", width=_MLP_WIDTH, shared_width="shared_intermediate_size"),
        ignored=_GRANITE,
    ),
    "grok-1": DecoderFamily(  # the tanh that caps scores at max_attn_value is not counted; jax.nn.gelu has the tanh
        rotary=RotaryShare(1),
        qkv_bias=False,
        o_bias=False,
        act="gelu_new",
        experts=ExpertFields(width=_MLP_WIDTH),
        residual=Residual.SANDWICH,
        tied=True,
        ignored="attn_output_multiplier embedding_multiplier_scale output_multiplier_scale max_attn_value",
    ),
    "qwen3_moe": DecoderFamily(  # arXiv:2505.09388
        also=("qwen3_vl_moe_text",),
        config=_check_qwen3_moe,
        rotary=RotaryShare(1),
        window=SlidingWindow(4096, _qwen3_moe_windows),
        qk_norm=QkNorm(),
        mlp_bias=False,
        experts=ExpertFields(layers=sparse_steps),
        ignored=_MLP_WIDTH,
    ),
    "glm4_moe": DecoderFamily(  # GLM-4.5 to 4.7: arXiv:2508.06471
        rotary=RotaryShare(0.5),
        o_bias=False,
        qk_norm=QkNorm(when=ConfigFlag("use_qk_norm")),
        mlp_bias=False,
        experts=_GLM_EXPERTS,
        prediction=_MTP,
    ),
    "sarvam_moe": DecoderFamily(  # Sarvam 30B
        config=_sarvam_moe_defaults,
        rotary=RotaryShare(1),
        o_bias=False,
        qk_norm=QkNorm(when=ConfigFlag("use_qk_norm", default=True)),
        mlp_bias=False,
        experts=_GLM_EXPERTS,
        prediction=_MTP,
        ignored="rope_interleave moe_router_enable_expert_bias",
        refused={"use_bias": "biases outside of attention are not modelled"},
    ),
    "dots1": DecoderFamily(  # dots.llm1
        config=_check_dots1,
        rotary=RotaryShare(1),
        qk_norm=QkNorm(),
        mlp_bias=False,
        experts=ExpertFields(
            count="n_routed_experts", shared_count="n_shared_experts", layers=partial(first_dense, default=0)
        ),
        prediction=_MTP,
    ),
    "solar_open": DecoderFamily(  # experts in all layers, whatever the config has of dense ones
        rotary=RotaryShare(1),
        o_bias=False,
        experts=ExpertFields(count="n_routed_experts", shared_count="n_shared_experts"),
        prediction=_MTP,
        ignored="first_k_dense_replace intermediate_size use_qk_norm",
    ),
    "hy_v3": DecoderFamily(
        rotary=RotaryShare(1),
        qk_norm=QkNorm(),
        mlp_bias=False,
        experts=ExpertFields(
            count="n_routed_experts", shared_count="n_shared_experts", layers=partial(sparse_layers, default=1)
        ),
        prediction=_MTP,
        ignored="router_scaling_factor enable_moe_fp32_combine enable_attention_fp32_softmax",
        refused={"mlp_bias": "biases of these MLPs are not modelled"},
    ),
}


def _register(model_type: str, family: DecoderFamily) -> None:
    @architecture(model_type, *family.also)
    def build(config: Section, fmt: Format) -> Graph:
        return family.graph(config, fmt)


for _model_type, _family in FAMILIES.items():
    _register(_model_type, _family)
