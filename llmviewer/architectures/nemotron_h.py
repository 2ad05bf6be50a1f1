"""Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, an MLP or experts (arXiv:2504.03624).

Experts of Nemotron 3 Super work in a latent space; router and shared expert see the hidden state itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Prediction
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import decoder, filled
from .blocks.moe import checked_top_k, groups
from .blocks.parts import activation
from .blocks.state_space import SILU, Mamba2
from .blocks.tower import language

_MEDIA: Final = """
    force_image_size downsample_ratio projector_hidden_size vision_hidden_size
    vit_hidden_size video_pruning_rate video_temporal_patch_size image_token_id video_token_id audio_token_id
    img_context_token_id video_context_token_id sound_context_token_id img_context_token img_start_token img_end_token
    patch_size template ps_version image_tag_type norm_mean norm_std max_sequence_length use_thumbnail
"""
_LETTERS: Final = {  # words of transformers, those it writes and those it wrote
    "linear_attention": "M",
    "mamba": "M",
    "full_attention": "*",
    "attention": "*",
    "mlp": "-",
    "moe": "E",
}


@architecture("nemotron_h_omni")
def build_omni(config: Section, fmt: Format) -> Graph:
    """The language model of Nemotron 3 Omni; the vision and audio towers are left out."""
    config.ignore(*_MEDIA.split())
    text, _ = language(config, fmt, "nemotron_h", config.first("text_config", "llm_config"))
    return text


@architecture("nemotron_h")
def build(config: Section, fmt: Format) -> Graph:
    """Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, an MLP or experts."""
    kinds = {"M": _mamba, "*": _attention, "-": _mlp, "E": _experts}
    key, pattern = _pattern(config)
    if set(pattern) - kinds.keys():
        raise config.error(key, f"must be made of {' '.join(kinds)}; got {pattern!r}")
    if len(pattern) != config.count("num_hidden_layers", len(pattern)):
        raise config.error("num_hidden_layers", f"must be the {len(pattern)} of {key}")
    layers = {kind: kinds[kind](config) for kind in dict.fromkeys(pattern)}
    prediction = _prediction(config, kinds)
    _ignore_fields(config)
    untied = filled(config, instead={"tie_word_embeddings": False})  # its class ties nothing, whatever that says
    return decoder(untied, [layers[kind] for kind in pattern], prediction=prediction).graph(fmt)


def _prediction(config: Section, kinds: Mapping[str, Callable[[Section], Layer]]) -> Prediction | None:
    """Layers of multi-token prediction: attention and experts if the config does not name their parts.

    Raises InputError unless they are a mixer, a network, or one after the other.
    """
    count, key = config.count("num_nextn_predict_layers", 0, least=0), "mtp_hybrid_override_pattern"
    if not count:
        return None
    pattern = "*E"
    if config.get(config.first(key, "mtp_layers_block_type")) is not None:
        key, pattern = _letters(config, key, "mtp_layers_block_type")
    layers = [kinds[letter](config) for letter in pattern if letter in kinds]
    mixers, networks = [layer.mixer for layer in layers], [layer.feed_forward for layer in layers]
    if len(layers) != len(pattern) or not 1 <= len(layers) <= 2 or any(mixers[1:]) or (layers[1:] and not mixers[0]):
        raise config.error(key, f"must be one of {' '.join(kinds)}, or M or * before one of - E; got {pattern!r}")
    layer = Layer(mixer=mixers[0], feed_forward=networks[-1])
    return Prediction.each([layer] * count)


def _pattern(config: Section) -> tuple[str, str]:
    keys = ("hybrid_override_pattern", "layers_block_type", "layer_types")
    return _letters(config, *keys) if config.get(config.first(*keys)) is not None else (keys[0], "ME*-")


def _letters(config: Section, *keys: str) -> tuple[str, str]:
    """The field that names the kind of each layer, and a letter for each: the first of `keys` has letters, the others
    the words of newer files.
    """
    key = config.first(*keys)
    if key == keys[0]:
        return key, config.text(key)
    words = config.texts(key)
    unknown = [word for word in words if word not in _LETTERS]
    if unknown:
        raise config.error(key, f"must be made of {', '.join(_LETTERS)}; got {unknown[0]!r}")
    return key, "".join(_LETTERS[word] for word in words)


def _mamba(config: Section) -> Layer:
    heads, head_dim = config.integer("mamba_num_heads"), config.integer("mamba_head_dim")
    mixer = Mamba2(
        inner=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        state=config.integer("ssm_state_size"),
        groups=config.integer("n_groups"),
        taps=config.integer("conv_kernel", 4),
        chunk=config.integer("chunk_size", 128),
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
    )
    config.ignore("mamba_proj_bias")
    return Layer(mixer=mixer, feed_forward=None, name="mamba")


def _attention(config: Section) -> Layer:
    key = config.first("head_dim", "attention_head_dim")
    heads = Heads(
        num_heads=config.integer("num_attention_heads"),
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=config.integer(key, 128),
    )
    if heads.num_heads % heads.num_kv_heads:
        raise config.error("num_attention_heads", f"must be a multiple of the {heads.num_kv_heads} key-value heads")
    config.ignore("attention_bias")  # the class has none, whatever it says
    return Layer(mixer=SelfAttention(heads=heads), feed_forward=None, name="attention")


def _mlp(config: Section) -> Layer:
    return Layer(mixer=None, feed_forward=_feed_forward(config, config.integer("intermediate_size")), name="mlp")


def _experts(config: Section) -> Layer:
    mlp = _feed_forward(config, config.integer("moe_intermediate_size"))
    shared = config.integer("moe_shared_expert_intermediate_size", mlp.inner)  # one, whatever n_shared_experts says
    number = config.integer("n_routed_experts")
    chosen = checked_top_k(config, "num_experts_per_tok", "n_routed_experts", config.integer("num_experts_per_tok"))
    experts = Experts(
        experts=number,
        chosen=chosen,
        groups=groups(config, number, chosen),
        inner=mlp.inner,
        act=mlp.act,
        gated=False,
        latent_bias=mlp.bias,
        latent=config.integer("moe_latent_size", 0, least=0),
        shared=_feed_forward(config, shared),
    )
    return Layer(mixer=None, feed_forward=experts, name="moe")


def _feed_forward(config: Section, inner: int) -> Mlp:
    act = activation(config, "mlp_hidden_act", "relu2")
    return Mlp(inner=inner, act=act, bias=config.flag("mlp_bias", default=False))


def _ignore_fields(config: Section) -> None:
    config.choice("mamba_hidden_act", SILU, "silu")
    config.ignore(
        "expand", "mamba_ssm_cache_dtype", "use_mamba_kernels", "residual_in_fp32", "norm_eps",
        "rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min", "time_step_limit",
        "time_step_rank", "num_logits_to_keep", "partial_rotary_factor", "n_group", "topk_group", "norm_topk_prob",
        "routed_scaling_factor", "moe_shared_expert_overlap", "num_nextn_predict_layers",
        "mtp_hybrid_override_pattern", "mtp_layers_block_type", "num_experts_per_tok",
        "moe_shared_expert_intermediate_size", "moe_latent_size", "n_routed_experts", "n_shared_experts",
        "output_router_logits",
        "intermediate_size", "moe_intermediate_size", "head_dim", "attention_head_dim",
    )  # fmt: skip
