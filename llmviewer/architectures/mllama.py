"""Llama 3.2 Vision: a language model some of whose layers cross-attend to images instead of self-attention
(arXiv:2407.21783, section 7).

A tower reads all tiles of an image as one sequence, through layers that are called local and then global ones. Keys
and values of what it leaves are made once, in the prefill; no token of an image goes through other layers. The class
of transformers brings every image to as many tiles as there may be and the tokens of a tile to a multiple of eight,
and its mask lets what was added be seen, so that each image takes the same. Where there is none, a pass leaves out
the layers that would attend to it. Images stand at the beginning of a prompt: all of it sees them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import ONE, images, table_rows, with_images
from ..graph import Block, Graph
from ..operators.base import Operator, Weight
from ..operators.elementwise import Add, Permute
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TEXT_CLASSES, TOWERS
from .blocks.decoder import Layer
from .blocks.encoder import CrossAttention, bidirectional, stack
from .blocks.feed_forward import Mlp
from .blocks.fields import attention, decoder, filled, gated_mlp
from .blocks.moe import integers, language_model
from .blocks.parts import HIDDEN, NormKind, Parts, heads_of, result, with_rows
from .blocks.tower import (
    PatchGrid,
    Scaled,
    auxiliary_block,
    feature_block,
    image_rows,
    patch_grid,
    tower_activation,
    vision,
)

_TEXT: Final = TEXT_CLASSES["MllamaTextConfig"] | {"cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}
_IMAGES: Final = TOWERS["MllamaVisionConfig"] | {
    "num_global_layers": 8,
    "attention_heads": 16,
    "max_num_tiles": 4,
    "intermediate_layers_indices": [3, 7, 15, 23, 30],
}
_SHAPES: Final = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]  # of four tiles
_TOKENS: Final = 8  # that the embedding has beside the vocabulary, one of which stands for an image
_MULTIPLE: Final = 8  # tokens of a tile are brought to a multiple of
_FEATURES: Final = "projector_features"


@architecture("mllama")
def build(config: Section, fmt: Format) -> Graph:
    """Llama 3.2 Vision: a tiled ViT whose features the language model reads in cross-attention layers."""
    section = filled(vision(config), _IMAGES)
    section.ignore("tie_word_embeddings")
    text = filled(language_model(config), _TEXT, instead={"tie_word_embeddings": False})  # which the class never does
    text.ignore("model_type")
    tiles, grid = section.count("max_num_tiles"), patch_grid(section)
    tokens = tiles * (grid.patches + 1)
    parts = Parts(format=fmt, norm_kind=NormKind.LAYER)
    feature_width = section.integer("hidden_size") * (1 + _intermediate(section))
    if section.integer("vision_output_dim", feature_width) != feature_width:
        raise section.error("vision_output_dim", f"must be the width of all layers that are taken, {feature_width}")
    features = parts.tensor("features", feature_width)
    gather = Permute(name=features.name, inputs=(parts.tensor(HIDDEN, feature_width),), outputs=(features,))
    project = parts.project("linear_1", features, text.integer("hidden_size"), bias=True)
    projector = feature_block("projector", (gather, project), tokens)
    tower = _tower(section, parts, grid, tiles)
    return Graph((*map(auxiliary_block, (*tower, projector)), *_language(text, fmt, tokens).blocks))


def _language(config: Section, fmt: Format, tokens: int) -> Graph:
    """The language model, of which some layers see `tokens` of each image and no other token."""
    self_attention, mlp = attention(config, share=1, bias=None), gated_mlp(config)
    across = CrossAttention(heads=self_attention.heads, qk_norm=NormKind.RMS, encoded=_FEATURES, read=images(tokens))
    layer = Layer(mixer=self_attention, feed_forward=mlp)
    other = Layer(mixer=Scaled(across, alike=True), feed_forward=Scaled(mlp, alike=True), name="cross")
    crossing = integers(config, "cross_attention_layers")
    layers = [other if index in crossing else layer for index in range(config.count("num_hidden_layers"))]

    def placed(block: Block) -> Block:
        if block.name == other.name:
            return replace(block, stream=with_images(tokens), side_inputs=(_FEATURES,))
        return block if block.input else block.map(_with_more_tokens)

    return decoder(config, layers).graph(fmt).map_blocks(placed)


def _with_more_tokens(op: Operator) -> Operator:
    """The embedding, which has rows for tokens that are none of the vocabulary."""
    rows = op.weights[0].shape[0] + _TOKENS
    return op.with_weights(lambda w: replace(w, shape=(rows, *w.shape[1:]), rows=table_rows(rows)))


def _intermediate(config: Section) -> int:
    """Local layers whose results are taken besides that of the last global one."""
    layer_indices, layers = integers(config, "intermediate_layers_indices"), config.count("num_hidden_layers")
    for index in layer_indices:
        if not 0 <= index < layers:
            raise config.error("intermediate_layers_indices", f"must be of the {layers} layers; got {index}")
    return len(layer_indices)


def _tower(config: Section, parts: Parts, grid: PatchGrid, tiles: int) -> tuple[Block, ...]:
    hidden = config.integer("hidden_size")
    tokens = tiles * -(-(grid.patches + 1) // _MULTIPLE) * _MULTIPLE
    heads = bidirectional(heads_of(config, hidden, config.first("attention_heads", "num_attention_heads")))
    mixer = SelfAttention(heads=heads)
    mlp = Mlp(inner=config.integer("intermediate_size"), act=tower_activation(config, "gelu"), bias=True)
    local = Layer(mixer=mixer, feed_forward=mlp, name="local")
    joint = Layer(mixer=Scaled(mixer, alike=True), feed_forward=Scaled(mlp, alike=True), name="global")
    depths = {local: config.count("num_hidden_layers"), joint: config.count("num_global_layers")}
    layers = stack(parts, [layer for layer, depth in depths.items() for _ in range(depth)], hidden)
    embedding, between = _embedding(config, parts, grid, tiles, tokens), _between(config, parts, tiles)
    blocks = (
        Block(name="embedding", operators=embedding, input="pixels", output=result(embedding).name),
        layers[0],
        Block(name="between", operators=between, input=HIDDEN, output=result(between).name),
        *layers[1:],
    )
    return tuple(replace(block, stream=images(tokens)) for block in blocks)


def _embedding(config: Section, parts: Parts, grid: PatchGrid, tiles: int, tokens: int) -> tuple[Operator, ...]:
    """Patches, a token of the class before those of each tile, and three additions: where a patch stands in its tile,
    which tile that is, and where it stands in the image.
    """
    hidden, each = config.integer("hidden_size"), grid.patches + 1
    pixels, patches = (
        with_rows(parts.tensor(name, width), image_rows(tiles * grid.patches))
        for name, width in (("pixels", grid.pixels), ("patch_embed", hidden))
    )
    embed = parts.patches(patches.name, pixels, patches, tokens, bias=False)
    out = parts.tensor("position_add", hidden)
    weights = (
        parts.weight("learned_tokens.weight", 1, hidden),
        replace(parts.weight("positions.weight", each, hidden), rows=table_rows(each)),
        *_of_shapes(config, parts, "tile_positions", tiles * each * hidden),
        *_of_shapes(config, parts, "tiles_before", tiles * hidden),
    )
    add = Add(name=out.name, inputs=(patches,), outputs=(out,), weights=weights, ops_per_element=3)
    return embed, add, parts.norm("pre_norm", out)


def _between(config: Section, parts: Parts, tiles: int) -> tuple[Operator, ...]:
    """Operators between local and global layers: a norm, and the embedding of the tile."""
    hidden = config.integer("hidden_size")
    norm = parts.norm("post_norm", parts.tensor(HIDDEN, hidden))
    weights = _of_shapes(config, parts, "tiles_after", tiles * hidden)
    out = parts.tensor("tile_add", hidden)
    return norm, Add(name=out.name, inputs=norm.outputs, outputs=(out,), weights=weights, ops_per_element=1)


def _of_shapes(config: Section, parts: Parts, name: str, width: int) -> tuple[Weight, ...]:
    """A table with a row for each shape that images are brought to and one for none, of which images that are alike
    take one; and the number by which it is scaled.
    """
    shapes = config.get("supported_aspect_ratios") or _SHAPES
    if not isinstance(shapes, list):
        raise config.error("supported_aspect_ratios", f"must be a list of columns and rows of tiles; got {shapes!r}")
    table = replace(parts.weight(f"{name}.weight", len(shapes) + 1, width), rows=ONE)
    return table, parts.weight(f"{name}_gate.weight", 1)
