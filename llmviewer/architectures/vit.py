"""Towers by themselves: ViT (arXiv:2010.11929) and DINOv2 (arXiv:2304.07193).

A sequence is an image: its patches and the class token. The head is that of the class that `architectures` names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.encoder import Head, bidirectional, holding, task
from .blocks.feed_forward import Mlp
from .blocks.fields import labels_of
from .blocks.parts import heads_of
from .blocks.tower import Tower, patch_grid, scaled_layer, tower_activation, tower_graph

_TASKS: Final = {"ForImageClassification": "classes", "Model": "bare"}
_IGNORED: Final = """
    hidden_dropout_prob attention_probs_dropout_prob encoder_stride drop_path_rate num_labels
    layerscale_value reshape_hidden_states apply_layernorm out_features out_indices stage_names
"""


@architecture("vit")
def build(config: Section, fmt: Format) -> Graph:
    """The bare model has a pooler."""
    config.ignore(*_IGNORED.split())
    tower = _tower(config, image=224, patch=16)
    width = config.integer("pooler_output_size", tower.hidden)
    pooler = Head(first=True, dense=width, act=config.choice("pooler_act", ("tanh",), "tanh"))
    head = Head(first=True, classes=labels_of(config)) if task(config, _TASKS, "Model") == "classes" else pooler
    return tower_graph(tower, fmt, head)


@architecture("dinov2")
def build_dinov2(config: Section, fmt: Format) -> Graph:
    """Results of attention and MLP are scaled (LayerScale); the mask token is held, but only training reads it."""
    if task(config, {"Model": "bare"}, "Model") != "bare" or config.flag("use_swiglu_ffn", default=False):
        raise config.error("use_swiglu_ffn", "must be false: DINOv2 with gated MLPs is not modelled")
    config.ignore(*_IGNORED.split())
    tower = _tower(
        config, image=224, patch=14, inner=config.integer("mlp_ratio", 4) * config.integer("hidden_size", 768)
    )
    layers = [scaled_layer(layer) for layer in tower.layers]
    graph = tower_graph(replace(tower, layers=layers), fmt)
    if not config.flag("use_mask_token", default=True):
        return graph
    first, *rest = graph.blocks
    patch, *others = first.operators
    masked_patch = holding(patch, tower.parts(fmt), {"mask_token.weight": (1, tower.hidden)})
    return Graph((replace(first, operators=(masked_patch, *others)), *rest))


def _tower(config: Section, *, image: int, patch: int, inner: int = 3072) -> Tower:
    """Defaults are those of the classes in transformers."""
    hidden = config.integer("hidden_size", 768)
    mlp = Mlp(inner=config.integer("intermediate_size", inner), act=tower_activation(config, "gelu"), bias=True)
    heads = bidirectional(heads_of(config, hidden, "num_attention_heads"))
    bias = config.flag("qkv_bias", default=True)
    grid = patch_grid(config, image=image, patch=patch)
    return Tower(
        grid=grid,
        hidden=hidden,
        layers=[Layer(mixer=SelfAttention(heads=heads, qkv_bias=bias, o_bias=True), feed_forward=mlp)]
        * config.count("num_hidden_layers", 12),
        patch_bias=True,
        learned=1,
        positions=grid.patches + 1,
        post_norm=True,
    )
