"""Inkling: sliding windows in five layers of six, relative biases computed from each token, short convolutions over
keys, values and the outputs of attention and MLP, and experts.

Each patch of an image is folded to a token. The table by which it hears is held and not read, as sounds are not
counted; the layers that predict further tokens are left out. Of several devices each makes the biases of all heads.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Final

from ..documents import Section
from ..forms import images
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise, Route
from ..operators.images import RelativePositions
from ..operators.linear import Router
from ..operators.masks import Causal
from ..precision import FP32, Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.decoder import FeedForward, Mixer
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import check_width, decoder, filled
from .blocks.moe import checked_top_k, ignore_router_fields, integers, listed, listed_sparse, windows_and_experts
from .blocks.parts import HIDDEN, NormKind, Parts, activation, result, with_rows
from .blocks.patch_folding import fold_layers, scales_of
from .blocks.state_space import kept
from .blocks.tiles import picture_size
from .blocks.tower import Scaled, auxiliary_block, image_rows, joined, unused_weights, vision

_FULL, _SLIDING = _KINDS = ("hybrid", "hybrid_sliding")
_EVERY: Final = 6  # layers, of which the last one has no window
_IGNORED: Final = """
    unpadded_vocab_size logits_mup_width_multiplier embedding_multiplier log_scaling_n_floor log_scaling_alpha
    shared_expert_sink route_scale rms_norm_eps_moe_gate chain_hidden_post_norm mtp_hidden_states_first
    mtp_local_layer_ids number_of_conv_states model_max_length use_gate_bias gate_activation norm_after_topk
    final_logit_softcapping
"""
_REQUIRED_VALUES: Final = {
    "q_bias": False,
    "o_bias": False,
    "use_sconv": True,
    "use_embed_norm": True,
    "use_global_scale": True,
}
_PATCHES: Final = {"patch_size": 40, "temporal_patch_size": 2, "num_channels": 3, "num_hidden_layers": 24}
_MEDIA: Final = """
    mtp_config image_token_id audio_token_id image_bos_token_id audio_bos_token_id
    tie_word_embeddings
"""


def filtered(
    parts: Parts, name: str, x: Tensor, taps: int, out: Tensor | None = None, *, scaled: bool = False
) -> Elementwise:
    """X and a filter of each channel over the last `taps` tokens, added, in fp32; and `scaled` by a constant."""
    state = kept(f"{name}_state", x.width * (taps - 1))
    weight = replace(parts.weight(f"{name}.weight", x.width, taps), format=FP32)
    left = out or parts.tensor(name, x.width)
    return Elementwise(
        name=name,
        kind="conv",
        inputs=(x, state),
        outputs=(left, state),
        weights=(weight,),
        ops_per_element=2 * taps + 1 + scaled,
    )


@frozen(kw_only=True)
class Filtered:
    """Causal convolution over the result of a branch."""

    part: Mixer | FeedForward
    name: str
    taps: int
    scaled: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return self.after(parts, self.part.operators(parts, x))

    def after(self, parts: Parts, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        """Operators of the branch, and the convolution over its result."""
        return (*operators, filtered(parts, self.name, result(operators), self.taps, scaled=self.scaled))


@frozen(kw_only=True)
class DistantAttention:
    """Attention whose scores have biases by distance, which each token makes for each head.

    rank    of what they are made of
    extent  distances that have one
    taps    of the filters over keys and values
    """

    heads: Heads
    rank: int
    extent: int
    taps: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads, mask = self.heads, self.heads.mask
        q, k, v, r = (
            parts.project(f"{name}_proj", x, width)
            for name, width in (
                ("q", heads.q_width), ("k", heads.kv_width), ("v", heads.kv_width), ("r", heads.num_heads * self.rank),
            )
        )  # fmt: skip
        k_conv = filtered(parts, "k_conv", k.result, self.taps)
        v_conv = filtered(parts, "v_conv", v.result, self.taps, parts.kept("v_cache", heads.kv_width, mask))
        q_norm = parts.norm("q_norm", q.result, shared=heads.num_heads, kind=NormKind.RMS)
        k_norm = parts.norm("k_norm", k_conv.result, shared=heads.num_kv_heads, kind=NormKind.RMS)
        k_norm = replace(k_norm, outputs=(parts.kept("k_cache", heads.kv_width, mask),))
        biases = RelativePositions(
            name="positions",
            inputs=r.outputs,
            outputs=(parts.tensor("positions", heads.num_heads * self.extent),),
            weights=(parts.weight("positions.weight", self.rank, self.extent),),
            head_dim=self.rank,
        )
        keys, values = (parts.cache(name, heads.kv_width, mask) for name in ("k_cache", "v_cache"))
        attended = scored(parts, heads, q_norm.result, (keys,), values, bias=True)
        o_proj = parts.project("o_proj", result(attended), x.width)
        return (q, k, v, r, k_conv, v_conv, q_norm, k_norm, biases, *attended, o_proj)


@frozen(kw_only=True)
class WeighedExperts(Experts):
    """Experts whose router weighs those that every token takes, too; as many as `always`, in one MLP."""

    always: int

    def routing(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        router = parts.project("router", x, self.experts + self.always, kind=Router)
        out, scale = parts.tensor("route", self.chosen), (parts.weight("route.scale", 1),)
        return (router, Route(name="route", inputs=router.outputs, outputs=(out,), weights=scale, top_k=self.chosen))


@architecture("inkling_mm_model")
def build(config: Section, fmt: Format) -> Graph:
    """Inkling: the language model with image patches folded to tokens; audio weights are counted as memory only."""
    config.ignore(*_MEDIA.split())
    text = config.section("text_config")
    graph, width = build_text(text, fmt), text.integer("hidden_size")
    if config.get("audio_config") is not None:
        table = unused_weights("hearing", Parts(format=fmt), _heard(config.section("audio_config"), width))
        graph = Graph((auxiliary_block(table, name="unused"), *graph.blocks))
    if config.get("vision_config") is None:
        return graph
    section = filled(vision(config), _PATCHES)
    section.ignore("hidden_size", "num_attention_heads")
    check_width(section, "text_hidden_size", width, "the language model", 6144)
    (height, across), side = picture_size(config), section.integer("patch_size")
    patches, parts = ceil(height / side) * (across // side + 1), Parts(format=fmt)
    folds = fold_layers(parts, scales_of(section), patches, width)
    tower = Block(name="patches", operators=folds, input="pixels", output=result(folds).name, stream=images(patches))
    norm = parts.norm("final_norm", with_rows(parts.tensor(HIDDEN, width), image_rows(patches)))
    return joined((tower,), (norm,), graph, tokens=patches)


def _heard(config: Section, width: int) -> dict[str, tuple[int, ...]]:
    """Weights that make a token of the levels of a spectrum."""
    check_width(config, "text_hidden_size", width, "the language model", 6144)
    return {
        "spectrum.weight": (config.integer("n_mel_bins", 80) * config.integer("mel_vocab_size", 256), width),
        "spectrum_norm.weight": (width,),
    }


@architecture("inkling_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """Inkling's language model: sliding windows in five of six layers, learned distance biases, experts."""
    ignore_router_fields(config, *_IGNORED.split())
    for key, default in _REQUIRED_VALUES.items():
        if config.flag(key, default=default) != default:
            raise config.error(key, f"must be {str(default).lower()}: no class of this architecture is otherwise")
    taps = config.integer(config.first("conv_kernel_size", "sconv_kernel_size"), 4)
    wide = config.first("dense_intermediate_size", "intermediate_size")
    narrow = "intermediate_size" if wide == "dense_intermediate_size" else "moe_intermediate_size"
    act = activation(config, "hidden_act", "silu")
    mixers = {slides: Filtered(part=_attention(config, taps, slides=slides), name="attn_conv", taps=taps)
              for slides in (True, False)}  # fmt: skip
    plain = Scaled(Mlp(inner=config.integer(wide), act=act, gated=True), alike=True)
    networks = {
        sparse: Filtered(part=part, name="mlp_conv", taps=taps)
        for sparse, part in ((True, _experts(config, config.integer(narrow, 3072), act)), (False, plain))
    }
    each = zip(sliding(config), _sparse(config), strict=True)
    layers = windows_and_experts(mixers, networks, each)
    return replace(decoder(config, layers), embed_norm=True, tied=False).graph(fmt)


def _attention(config: Section, taps: int, *, slides: bool) -> DistantAttention:
    prefix, default_kv_heads = ("swa_", 16) if slides else ("", 8)
    window = config.integer(config.first("sliding_window_size", "sliding_window"), 512) if slides else inf
    heads = Heads(
        num_heads=config.integer(f"{prefix}num_attention_heads", 64),
        num_kv_heads=config.integer(f"{prefix}num_key_value_heads", default_kv_heads),
        head_dim=config.integer(f"{prefix}head_dim", 128),
        mask=Causal(window),
    )
    extent = int(window) if slides else config.integer("rel_extent", 1024)
    return DistantAttention(heads=heads, rank=config.integer("d_rel", 16), extent=extent, taps=taps)


def _experts(config: Section, inner: int, act: str) -> WeighedExperts:
    always = config.integer("n_shared_experts", 2)
    return WeighedExperts(
        experts=config.integer("n_routed_experts", 256),
        chosen=checked_top_k(
            config, "num_experts_per_tok", "n_routed_experts", config.integer("num_experts_per_tok", 6), 256
        ),
        inner=inner,
        act=act,
        shared=Mlp(inner=always * inner, act=act, gated=True),
        always=always,
    )


def sliding(config: Section) -> list[bool]:
    """Whether each layer has a window: as listed, or all but every sixth."""
    layers = config.count("num_hidden_layers")
    if layer_types := listed(config, "layer_types", _KINDS):
        return [kind == _SLIDING for kind in layer_types]
    if config.get("local_layer_ids") is not None:
        local = integers(config, "local_layer_ids")
        return [index in local for index in range(layers)]
    return [(index + 1) % _EVERY != 0 for index in range(layers)]


def _sparse(config: Section) -> list[bool]:
    """Whether each layer has experts: as listed, or all but the first dense_mlp_idx."""
    if layer_flags := listed_sparse(config):
        return layer_flags
    first = config.integer("dense_mlp_idx", 0, least=0)
    return [index >= first for index in range(config.count("num_hidden_layers"))]
