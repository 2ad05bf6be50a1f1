"""Inkling 2: Inkling with attention gates and a sink logit of each token; in every sixth layer separate inputs for
queries, keys and values, with convolution filters computed from each token. Mixtures of earlier outputs replace the
residual stream, and all layers have experts.

A tower reads images in patches of their own size, after a class token; squares of patches become tokens.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Activation, Elementwise, Norm
from ..operators.images import RelativePositions
from ..operators.masks import Causal
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import gated, scored
from .blocks.attention_residuals import SourcedDecoder, SourcedLayer, mixed, sourced
from .blocks.decoder import Decoder, Layer, Mixer
from .blocks.feed_forward import Experts
from .blocks.fields import check_width, decoder, filled
from .blocks.moe import checked_top_k, ignore_router_fields
from .blocks.parts import HIDDEN, NormKind, Parts, activation, result, with_rows
from .blocks.state_space import kept
from .blocks.tiles import picture_size
from .blocks.tower import (
    PatchGrid,
    Tower,
    image_rows,
    joined,
    language,
    projector,
    scaled_layer,
    tower_activation,
    vision,
    vit,
)
from .inkling import Filtered, filtered, sliding

_SOFTCAPS: Final = 6  # OPs of an element: a quotient, a hyperbolic tangent and a product, of gate and up
_FIELDS: Final = {
    "vocab_size": 201024, "hidden_size": 4608, "num_hidden_layers": 48, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "swa_num_attention_heads": 48, "swa_num_key_value_heads": 8,
    "swa_head_dim": 128, "moe_intermediate_size": 2304, "n_routed_experts": 384, "num_experts_per_tok": 8,
}  # fmt: skip
_TOWER: Final = {
    "hidden_size": 1024, "num_hidden_layers": 23, "num_attention_heads": 16, "num_channels": 3, "patch_size": 20,
    "spatial_merge_size": 2, "posemb_grid_size": 32, "projection_hidden_dim": 4096, "text_hidden_size": 4608,
}  # fmt: skip
_INTERPOLATION: Final = 8  # OPs to weigh and add four positions, and to add the result
_IGNORED: Final = """
    log_scaling_n_floor log_scaling_alpha qk_l2_clip_threshold rel_l2_clip_threshold mlp_gate_softcap mlp_up_softcap
    final_logit_softcapping route_scale number_of_conv_states model_max_length
"""


@frozen(kw_only=True)
class ClippedAttention:
    """Attention whose scores have biases by distance and a logit for nothing, both made by each token; gated.

    rank    of what biases are made of
    extent  distances that have one
    taps    of the filters over keys and values
    made    whether keys and values have mixtures of sources, norms and filters of their own
    """

    heads: Heads
    rank: int
    extent: int
    taps: int
    made: bool

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return self.attending(parts, x, x, x)

    def attending(self, parts: Parts, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Operator, ...]:
        heads, mask = self.heads, self.heads.mask
        q = parts.project("q_proj", x, heads.q_width)
        q_norm = _clipped(parts, "q_norm", q.result, heads.num_heads)
        cache_writes = (*self._kept(parts, "k", keys), *self._kept(parts, "v", values))
        r = parts.project("r_proj", x, heads.num_heads * self.rank)
        r_norm = _clipped(parts, "r_norm", r.result, heads.num_heads)
        biases = RelativePositions(
            name="positions",
            inputs=r_norm.outputs,
            outputs=(parts.tensor("positions", heads.num_heads * self.extent),),
            weights=(parts.weight("positions.weight", self.rank, self.extent),),
            head_dim=self.rank,
        )
        sink = parts.project("sink_proj", x, heads.num_heads)
        k, v = (parts.cache(f"{name}_cache", heads.kv_width, mask) for name in "kv")
        qk, softmax, sv = scored(parts, heads, q_norm.result, (k,), v, bias=True)
        softmax = replace(softmax, inputs=(*softmax.inputs, sink.result))
        gate = gated(parts, x, sv.result, heads.q_width)
        o_proj = parts.project("o_proj", result(gate), x.width)
        return (q, q_norm, *cache_writes, r, r_norm, biases, sink, qk, softmax, sv, *gate, o_proj)

    def _kept(self, parts: Parts, name: str, x: Tensor) -> tuple[Operator, ...]:
        """Keys or values, filtered and brought to a length, in the cache."""
        heads = self.heads
        plain = parts.project(f"{name}_proj", x, heads.kv_width)
        taps = (parts.project(f"{name}_taps_proj", x, heads.num_kv_heads * self.taps),) if self.made else ()
        conv = (
            self._made_filter(parts, f"{name}_conv", plain.result, taps[0].result)
            if taps
            else filtered(parts, f"{name}_conv", plain.result, self.taps, scaled=True)
        )
        norm = parts.norm(f"{name}_norm", conv.result, shared=heads.num_kv_heads, kind=NormKind.UNIT)
        return (plain, *taps, conv, replace(norm, outputs=(parts.kept(f"{name}_cache", heads.kv_width, heads.mask),)))

    def _made_filter(self, parts: Parts, name: str, x: Tensor, taps: Tensor) -> Elementwise:
        """A filter whose taps are learned for each channel, plus those that the token makes for each head."""
        state = kept(f"{name}_state", x.width * (self.taps - 1))
        return Elementwise(
            name=name,
            kind="conv",
            inputs=(x, taps, state),
            outputs=(parts.tensor(name, x.width), state),
            weights=(parts.weight(f"{name}.weight", self.taps, x.width),),
            ops_per_element=3 * self.taps + 2,
        )


def _clipped(parts: Parts, name: str, x: Tensor, heads: int) -> Norm:
    """X scaled by channel, each head of which is then no longer than a constant."""
    norm = parts.norm(name, x, shared=heads, kind=NormKind.UNIT)
    return replace(norm, weights=(parts.weight(f"{name}.scale", x.width),), ops_per_element=norm.ops_per_element + 1)


class CappedExperts(Experts):
    """Experts whose gate and up projections are capped."""

    def _experts(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return tuple(
            replace(op, ops_per_element=op.ops_per_element + _SOFTCAPS) if isinstance(op, Activation) else op
            for op in super()._experts(parts, x)
        )


class ClippedLayer(SourcedLayer):
    """A layer with attention residuals, whose mixtures of sources are several where its attention takes several."""

    def _attending(self, parts: Parts, mixer: Mixer, sources: tuple[Tensor, ...]) -> tuple[Operator, ...]:
        names = ("q", "k", "v") if attention_of(mixer)[1].made else ("attn",)
        operators: tuple[Operator, ...] = ()
        inputs = sources * len(names)
        if len(sources) > 1:
            operators = (mixed(parts, "attn_sources", sources, [f"{name}_sources" for name in names], learned=False),)
            inputs = operators[0].outputs
        norms = tuple(parts.norm(f"{name}_norm_in", x) for name, x in zip(names, inputs, strict=True))
        return (*operators, *norms, *attended(parts, mixer, [norm.result for norm in norms]))

    def _seen(self, parts: Parts, sources: tuple[Tensor, ...]) -> tuple[Operator, ...]:
        return (mixed(parts, "mlp_sources", sources, learned=False),)


def attention_of(mixer: Mixer) -> tuple[Filtered, ClippedAttention]:
    """The mixer of a layer, and the attention in it."""
    if not isinstance(mixer, Filtered) or not isinstance(mixer.part, ClippedAttention):
        raise TypeError(f"layers of this architecture have filtered attention; got {mixer!r}")
    return mixer, mixer.part


def attended(parts: Parts, mixer: Mixer, inputs: list[Tensor]) -> tuple[Operator, ...]:
    """The mixer over one input, or over those of queries, keys and values."""
    if len(inputs) == 1:
        return mixer.operators(parts, inputs[0])
    mixer_class, attention = attention_of(mixer)
    return mixer_class.after(parts, attention.attending(parts, *inputs))


@architecture("inkling2", "inkling2_loop")
def build(config: Section, fmt: Format) -> Graph:
    """Inkling 2: a ViT over native-size images, 2 x 2 patches a token, before its language model."""
    config.ignore("image_token_id", "tie_word_embeddings")
    text, width = language(config, fmt, f"{config.text('model_type')}_text")
    if config.get("vision_config") is None:
        return text
    section = filled(vision(config), _TOWER)
    check_width(section, "text_hidden_size", width, "the language model")
    merged, patch = section.integer("spatial_merge_size"), section.integer("patch_size")
    rows, columns = (ceil(side / (patch * merged)) for side in picture_size(config))
    pixels = section.integer("num_channels") * patch**2
    tower = _tower(section, PatchGrid(height=rows * merged, width=columns * merged, pixels=pixels))
    parts = tower.parts(fmt)
    x = with_rows(parts.tensor(HIDDEN, merged**2 * tower.hidden), image_rows(rows * columns))
    project = projector(
        parts,
        x,
        (section.integer("projection_hidden_dim"), width),
        tower_activation(section, "gelu"),
        bias=section.flag("projector_bias", default=False),
    )
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=rows * columns)


def _tower(section: Section, grid: PatchGrid) -> Tower:
    inner = section.integer("intermediate_size", int(section.integer("hidden_size") * section.number("mlp_ratio", 4)))
    table = section.integer("posemb_grid_size") ** 2
    tower = vit(
        section, grid, "gelu", inner=inner, rotated=True, learned=1, positions=table + 1, pre_norm=True,
        position_ops=_INTERPOLATION,
    )  # fmt: skip
    return replace(tower, layers=[scaled_layer(layer) for layer in tower.layers])


@architecture("inkling2_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """Inkling 2's language model: gated attention, block attention residuals, experts in every layer."""
    plain = plain_decoder(filled(config, _FIELDS))
    runs = sourced(plain, config.integer("n_layers_per_attn_res_block", 6))
    clipped = [ClippedLayer(**vars(layer)) for layer in runs.layers]
    return SourcedDecoder(**(vars(runs) | {"layers": clipped, "learned": False})).graph(fmt)


def plain_decoder(config: Section) -> Decoder:
    """The decoder with a residual stream in the place of mixtures of sources."""
    ignore_router_fields(config, *_IGNORED.split())
    taps = config.integer(config.first("conv_kernel_size", "sconv_kernel_size"), 4)
    network = Filtered(part=_experts(config), name="mlp_conv", taps=taps, scaled=True)
    mixers = {slides: Filtered(part=_attention(config, taps, slides=slides), name="attn_conv", taps=taps, scaled=True)
              for slides in (True, False)}  # fmt: skip
    layers = [
        Layer(mixer=mixers[slides], feed_forward=network, name="local" if slides else "global")
        for slides in sliding(config)
    ]
    plain = decoder(config, layers, words=config.integer("unpadded_vocab_size", 200058))
    return replace(plain, tied=False, embed_norm=True)


def _attention(config: Section, taps: int, *, slides: bool) -> ClippedAttention:
    prefix = "swa_" if slides else ""
    window = config.integer(config.first("sliding_window_size", "sliding_window"), 1024) if slides else inf
    heads = Heads(
        num_heads=config.integer(f"{prefix}num_attention_heads"),
        num_kv_heads=config.integer(f"{prefix}num_key_value_heads"),
        head_dim=config.integer(f"{prefix}head_dim"),
        mask=Causal(window),
    )
    extent = int(window) if slides else config.integer("rel_extent", 1024)
    return ClippedAttention(heads=heads, rank=config.integer("d_rel", 16), extent=extent, taps=taps, made=not slides)


def _experts(config: Section) -> CappedExperts:
    return CappedExperts(
        experts=config.integer("n_routed_experts"),
        chosen=checked_top_k(config, "num_experts_per_tok", "n_routed_experts", config.integer("num_experts_per_tok")),
        inner=config.integer(config.first("moe_intermediate_size", "intermediate_size")),
        act=activation(config, "hidden_act", "silu"),
    )
