"""Cohere models that no row of `llama.FAMILIES` describes: North with experts, North Micro with images.

Attention and MLP share one norm and run in parallel. North rotates in the dense layers before the experts too; the
config of North Micro has the kinds of layers with positions (arXiv:2504.00698).
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Residual
from .blocks.fields import alternating, attention, decoder, gated_mlp, require_false, sliding_layers, sliding_window
from .blocks.moe import dense, experts_beside_shared, ignore_router_fields, kinds, listed_sparse
from .blocks.parts import NormKind

_WINDOW = 4096
_LAYER_TYPES = ("sliding_attention", "full_attention")
_EVERY = 4  # layers, of which the last one attends to all


@architecture("cohere_compass_text")
def build_compass(config: Section, fmt: Format) -> Graph:
    """North Micro: the second generation with global attention and positions in all layers, unless the config says
    otherwise: rope_parameters are null for the kind of layer that has none.
    """
    config.ignore("logit_scale", "pooling", "mrope_section")
    layers, rope = config.count("num_hidden_layers"), config.get("rope_parameters")
    slides = [False] * layers if config.get("layer_types") is None else sliding_layers(config, pattern=_EVERY)
    plain, window = _attention(config), Causal(sliding_window(config, _WINDOW))
    local, full = (
        replace(plain, rotary_dim=0) if isinstance(rope, dict) and rope.get(kind, rope) is None else plain
        for kind in _LAYER_TYPES
    )
    local = replace(local, heads=replace(local.heads, mask=window))
    all_layers = alternating(_layer(config, local), _layer(config, full), slides)
    return decoder(config, all_layers, norm=NormKind.LAYER_NO_BIAS, tied=True).graph(fmt)


@architecture("cohere2_moe")
def build_cohere2_moe(config: Section, fmt: Format) -> Graph:
    """North: an RMSNorm where the config has its epsilon, and no LayerNorm."""
    config.choice("expert_selection_fn", ("softmax", "sigmoid"), "softmax")
    config.choice("shared_expert_combination_strategy", ("average", "sum"), "average")
    ignore_router_fields(config, "use_parallel_block", "logit_scale")
    require_false(config, "use_qk_norm", "no class of this architecture has such norms")
    sparse = _sparse(config)
    moe = experts_beside_shared(config, "num_experts", default=0, inner=config.integer("intermediate_size"))
    networks: dict[bool, FeedForward] = {True: moe}
    if not all(sparse):
        networks[False] = dense(config, config.first("prefix_dense_intermediate_size", "intermediate_size"))
    plain, window = _attention(config), Causal(sliding_window(config, _WINDOW))
    forced = config.integer("prefix_dense_sliding_window_pattern", 1) == 1

    def layer(*, slides: bool, has_experts: bool) -> Layer:
        rotated = slides or (forced and not has_experts)
        heads = replace(plain.heads, mask=window) if slides else plain.heads
        return Layer(
            mixer=replace(plain, heads=heads, rotary_dim=plain.rotary_dim if rotated else 0),
            feed_forward=networks[has_experts],
            residual=Residual.PARALLEL,
            name=f"{'local' if slides else 'global'}_{'moe' if has_experts else 'dense'}",
        )

    layer_flags = zip(_sliding(config, sparse.index(True) if True in sparse else len(sparse)), sparse, strict=True)
    layers = [layer(slides=slides, has_experts=has_experts) for slides, has_experts in layer_flags]
    norm = NormKind.LAYER_NO_BIAS if config.get("rms_norm_eps") is None else NormKind.RMS
    return decoder(config, layers, norm=norm, tied=True).graph(fmt)


def _sparse(config: Section) -> list[bool]:
    """Whether each layer of North has experts: all but the first first_k_dense_replace, or as listed."""
    if layer_flags := listed_sparse(config):
        config.ignore("first_k_dense_replace")
        return layer_flags
    first = config.integer("first_k_dense_replace", 0, least=0)
    return [index >= first for index in range(config.count("num_hidden_layers"))]


def _sliding(config: Section, first: int) -> list[bool]:
    """Whether each layer of North has a window: as listed, or by patterns of the `first` dense ones and of the rest."""
    if config.get("layer_types") is not None:
        config.ignore("sliding_window_pattern")
        return [kind == "sliding_attention" for kind in kinds(config, "layer_types", _LAYER_TYPES)]
    prefix = config.integer("prefix_dense_sliding_window_pattern", 1)
    every = config.integer("sliding_window_pattern", _EVERY)
    rest = config.count("num_hidden_layers") - first
    return [(n + 1) % prefix != 0 for n in range(first)] + [(n + 1) % every != 0 for n in range(rest)]


def _attention(config: Section) -> SelfAttention:
    return attention(
        config,
        qk_norm=NormKind.LAYER_NO_BIAS if config.flag("use_qk_norm", default=False) else None,
        qk_norm_whole=True,  # each head has weights of its own, so they are as many as the heads are wide
    )


def _layer(config: Section, mixer: SelfAttention) -> Layer:
    config.ignore("logit_scale")
    return Layer(mixer=mixer, feed_forward=gated_mlp(config), residual=Residual.PARALLEL)
