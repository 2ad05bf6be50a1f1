"""Vision towers: image encoders over patches (arXiv:2010.11929), alone or with a language model, whose prompt has one
token for every few patches.

With a language model, the tower runs only in the prefill. Its weights do not count as active parameters, as decode does
not use them, and quantization schemes leave them as published, as checkpoints do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from ...documents import Section
from ...forms import SEQUENCES, TARGET, TOKENS, WHOLE_PASS, Form, Stream, images, table_rows
from ...graph import Block, Graph
from ...operators.attention import Heads
from ...operators.base import Operator, Tensor, Weight
from ...operators.elementwise import Add, Elementwise
from ...operators.images import Patches, Place
from ...operators.linear import Linear
from ...precision import Format
from ...records import frozen
from .. import builder
from .attention import SelfAttention
from .class_defaults import TEXTS
from .decoder import FeedForward, Layer, Mixer
from .encoder import Head, bidirectional, holding, leaving, stack
from .feed_forward import Mlp
from .fields import filled
from .moe import language_model
from .parts import HIDDEN, NormKind, Parts, activation, heads_of, result, reused_weight, with_rows

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of weights by their names

_TIED: Final = "tie_word_embeddings"
_IMAGE_PROMPT: Final = "seen"  # name of the prompt with image features
UNUSED: Final = images(0)  # the stream of weights that are held but never used
_IGNORED_FIELDS: Final = "projection_dim vocab_size initializer_factor norm_eps use_bfloat16 _attn_implementation"


@frozen(kw_only=True)
class PatchGrid:
    """An image of `height` x `width` patches with `pixels` values each."""

    height: int
    width: int
    pixels: int

    @property
    def patches(self) -> int:
        return self.height * self.width


@frozen(kw_only=True)
class Tower:
    """A vision tower: patches, learned tokens and positions, layers, norms.

    grid          patches of the image, or of one tile of it
    learned       learned tokens beside the patches, such as a class token
    positions     rows of the table of learned positions; 0: none
    position_ops  OPs per element to compute and add positions; more than one if the table is interpolated
    tiles         tiles of an image, each a sequence of patches
    patch_norm    whether a norm of the patches precedes the positions
    run           number of layers that run, whose result is used without the last norm; the other layers are only held.
                  None: all layers, and the norm
    """

    grid: PatchGrid
    hidden: int
    layers: Sequence[Layer]
    norm: NormKind = NormKind.LAYER
    patch_bias: bool = False
    learned: int = 0
    positions: int = 0
    position_ops: int = 1
    tiles: int = 1
    patch_norm: bool = False
    pre_norm: bool = False
    post_norm: bool = False
    run: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens of one image or tile, including learned ones."""
        return self.grid.patches + self.learned

    @property
    def stream(self) -> Stream:
        """The stream of its tokens in a pass of a language model."""
        return images(self.tokens, self.tiles)

    def parts(self, fmt: Format) -> Parts:
        return Parts(format=fmt, norm_kind=self.norm)

    def blocks(self, fmt: Format, stream: Stream) -> tuple[Block, ...]:
        """The blocks of the tower on `stream`, which has a sequence of `tokens` per image."""
        parts = self.parts(fmt)
        run = len(self.layers) if self.run is None else self.run
        embedding = self._embedding(parts)
        first = Block(name="embedding", operators=embedding, input="pixels", output=result(embedding).name)
        used = [first, *stack(parts, self.layers[:run], self.hidden)]
        left = stack(parts, self.layers[run:], self.hidden)
        if self.post_norm:
            norm = parts.norm("post_norm", parts.tensor(HIDDEN, self.hidden))
            last = Block(name="norm", operators=(norm,), input=HIDDEN, output=norm.result.name)
            (used if self.run is None else left).append(last)
        unused_blocks = (replace(block, name=f"unused_{block.name}", stream=UNUSED) for block in left)
        return (*(replace(block, stream=stream) for block in used), *unused_blocks)

    def _embedding(self, parts: Parts) -> tuple[Operator, ...]:
        operators: tuple[Operator, ...] = (self._patches(parts),)
        if self.patch_norm:
            operators = (*operators, parts.norm("patch_norm", result(operators)))
        weights = [parts.weight("learned_tokens.weight", self.learned, self.hidden)] if self.learned else []
        if self.positions:
            table = parts.weight("positions.weight", self.positions, self.hidden)
            weights.append(replace(table, rows=table_rows(self.positions)))
        if weights:
            ops = self.position_ops if self.positions else 0
            out = parts.tensor("position_add", self.hidden)
            inputs = (result(operators),)
            add = Add(name=out.name, inputs=inputs, outputs=(out,), weights=tuple(weights), ops_per_element=ops)
            operators = (*operators, add)
        if self.pre_norm:
            operators = (*operators, parts.norm("pre_norm", result(operators)))
        return operators

    def _patches(self, parts: Parts) -> Patches:
        rows = TOKENS + self.learned * -1 * SEQUENCES
        x, out = with_rows(parts.tensor("pixels", self.grid.pixels), rows), parts.tensor("patch_embed", self.hidden)
        return parts.patches(out.name, x, with_rows(out, rows), self.tokens, bias=self.patch_bias)


@frozen
class Scaled:
    """LayerScale: the result of a branch, times a learned number per element (arXiv:2103.17239).

    alike  the number is one for all elements
    """

    part: Mixer | FeedForward | None
    alike: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches = self.part.operators(parts, x) if self.part else ()
        scaled_tensor = result(launches)
        name = f"{scaled_tensor.name}_scale"
        return (
            *launches,
            parts.elementwise(
                name, scaled_tensor, ops=1, weights={f"{name}.weight": 1 if self.alike else scaled_tensor.width}
            ),
        )


def scaled_layer(layer: Layer) -> Layer:
    """`layer` whose attention and network are each scaled by learned numbers."""
    return replace(layer, mixer=Scaled(layer.mixer), feed_forward=Scaled(layer.feed_forward))


def layer(
    heads: Heads,
    mlp: Mlp,
    *,
    qkv_bias: bool = True,
    o_bias: bool = True,
    fused_qkv: bool = False,
    rotated: bool = False,
    name: str = "layer",
) -> Layer:
    """A layer whose norms precede, as all towers have it."""
    attention = SelfAttention(
        heads=heads,
        rotary_dim=heads.head_dim if rotated else 0,
        fused_qkv=fused_qkv,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
    )
    return Layer(mixer=attention, feed_forward=mlp, name=name)


def vit(
    section: Section,
    grid: PatchGrid,
    act: str,
    *,
    layers: int | None = None,
    inner: int | None = None,
    kv_heads: int | None = None,
    gated: bool = False,
    mlp_bias: bool = True,
    qkv_bias: bool = True,
    o_bias: bool = True,
    fused_qkv: bool = False,
    rotated: bool = False,
    **options: Any,
) -> Tower:
    """A tower of equal layers, which the config describes by the usual names, for such images.

    act            what the class has where the config does not say
    layers, inner  in the place of num_hidden_layers and intermediate_size
    kv_heads       if fewer than heads
    more           other fields of the Tower
    """
    mlp = Mlp(
        inner=section.integer("intermediate_size") if inner is None else inner,
        act=tower_activation(section, act),
        gated=gated,
        bias=mlp_bias,
    )
    heads = bidirectional(heads_of(section, num_kv_heads=kv_heads))
    one = layer(heads, mlp, qkv_bias=qkv_bias, o_bias=o_bias, fused_qkv=fused_qkv, rotated=rotated)
    count = section.count("num_hidden_layers") if layers is None else layers
    return Tower(grid=grid, hidden=section.integer("hidden_size"), layers=[one] * count, **options)


def tower_activation(config: Section, default: str) -> str:
    """The activation that a tower's config names."""
    if config.text("hidden_act", default) == "quick_gelu":  # x sigmoid(1.702 x): scale, exp, add one, divide
        return "silu"
    return activation(config, "hidden_act", default)


def sides(config: Section, key: str, default: int | None = None) -> tuple[int, int]:
    """Height and width that a field gives as one number, or as two."""
    value = config.get(key)
    if not isinstance(value, list):
        side = config.integer(key, default)
        return side, side
    valid_sides = [n for n in value if isinstance(n, int) and not isinstance(n, bool) and n >= 1]
    if len(value) != 2 or len(valid_sides) != 2:
        raise config.error(key, f"must be a whole number, or two for height and width; got {value!r}")
    return valid_sides[0], valid_sides[1]


def patch_grid(
    config: Section,
    *,
    image: int | None = None,
    patch: int | None = None,
    channels: str = "num_channels",
    frames: int = 1,
    multiple: int = 1,
) -> PatchGrid:
    """The image that image_size and patch_size describe; `image` and `patch` are what the class has.

    frames    images that a patch is cut through, of a video
    multiple  patches that are merged to a side, of which there must be a whole number

    Raises InputError where an image is smaller than a patch, or has no whole number of what is merged.
    """
    (height, width), (tall, wide) = sides(config, "image_size", image), sides(config, "patch_size", patch)
    if height < tall * multiple or width < wide * multiple:
        raise config.error("image_size", f"must be at least a patch, {tall * multiple} x {wide * multiple}; "
                           f"got {height} x {width}")  # fmt: skip
    grid = PatchGrid(
        height=height // tall, width=width // wide, pixels=config.integer(channels, 3) * frames * tall * wide
    )
    if grid.height % multiple or grid.width % multiple:
        raise config.error("image_size", f"must be whole squares of {multiple} x {multiple} patches; "
                           f"got {grid.height} x {grid.width} patches")  # fmt: skip
    return grid


def layers_run(config: Section, key: str, layers: int, default: int) -> tuple[int, ...]:
    """Number of layers that run for each entry of field `key`, a layer whose features are used or a list of them.

    0 is what the first layer reads; numbers below 0 count from the end, -1 is what the last one leaves.
    """
    layer_index = config.get(key)
    every = (
        layer_index
        if isinstance(layer_index, list) and layer_index
        else [default if layer_index is None else layer_index]
    )
    for layer in every:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -layers - 1 <= layer <= layers:
            raise config.error(key, f"must be one of the {layers} layers; got {layer!r}")
    return tuple(layer if layer >= 0 else layers + 1 + layer for layer in every)


def vision(config: Section) -> Section:
    """The vision_config of a vision-language model."""
    section = config.section("vision_config")
    section.ignore(*_IGNORED_FIELDS.split())
    return section


def part(config: Section, key: str) -> Section:
    """A section of the config, or one with the defaults of its class."""
    return config.section(key) if config.get(key) is not None else config.empty(key)


def language(config: Section, fmt: Format, kind: str, key: str = "text_config") -> tuple[Graph, int]:
    """The graph and the width of the language model in section `key`, which may leave out what its class has by
    default; `kind` is its model_type where it says none.

    The head is tied where the section or what it stands in says so: files of some versions say it in one of the two.
    """
    text_config = language_model(config, key)
    text = filled(text_config, {"model_type": kind, **TEXTS.get(text_config.text("model_type", kind), {})})
    tied_flags = [c.flag(_TIED, default=False) for c in (config, text_config) if c.data.get(_TIED) is not None]
    if not tied_flags and config.get(_TIED) is not None:
        tied_flags = [config.flag(_TIED, default=False)]
    text = filled(text, instead={_TIED: any(tied_flags)} if tied_flags else None)
    return builder(text)(text, fmt), text.integer("hidden_size")


def tied_of(config: Section, text: Section) -> bool:
    """Whether the head is tied, as the config says it of the whole, or else as its `text` part does."""
    return config.flag(_TIED, default=text.flag(_TIED, default=False))


def patches_of(tower: Tower, parts: Parts) -> Tensor:
    """Patch features of a tower, as input of a block with fewer tokens per image."""
    return with_rows(parts.tensor(HIDDEN, tower.hidden), image_rows(tower.grid.patches, tower.tiles))


def image_rows(count: int, tiles: int = 1) -> Form:
    """`count` rows for each image, or for each of its tiles."""
    return TOKENS.on(images(count, tiles))


def projector(parts: Parts, x: Tensor, widths: Sequence[int], act: str, *, bias: bool) -> tuple[Operator, ...]:
    """linear(act(linear(x))): as many as `widths`, with an activation between each two."""
    operators: tuple[Operator, ...] = ()
    for index, width in enumerate(widths, start=1):
        if operators:
            operators = (*operators, parts.activate(f"projector_act_{index - 1}", act, result(operators)))
        name = f"linear_{index}"
        operators = (*operators, parts.project(name, result(operators) if operators else x, width, bias=bias))
    return operators


def merger(
    parts: Parts,
    tower: Tower,
    merged: int,
    out: int,
    *,
    norm: NormKind,
    norm_after: bool = False,
    left: str = HIDDEN,
) -> tuple[Operator, ...]:
    """`merged` patches side by side to one token of width `out`: a norm of each patch, or of all, and two linears.

    The processor orders the patches so that they already lie side by side. `left` is what the layers leave.
    """
    wide = parts.tensor(left, merged * tower.hidden)
    patches = replace(patches_of(tower, parts), name=left)
    normed = parts.norm("merge_norm", wide if norm_after else patches, kind=norm)
    x = parts.tensor(normed.name, wide.width)
    return (replace(normed, outputs=(x,)), *projector(parts, x, (x.width, out), "gelu", bias=True))


def pooled(parts: Parts, x: Tensor, patches: int) -> Elementwise:
    """The mean of every `patches` of x: they are added and scaled."""
    return parts.elementwise("pool", x, ops=patches)


def joined(
    blocks: Sequence[Block],
    project: Sequence[Operator],
    language: Graph,
    *,
    tokens: int,
    projected: int = 0,
    deep: Sequence[Block] = (),
    side_inputs: tuple[str, ...] = (),
    name: str = "vision",
) -> Graph:
    """A language model with a tower before it, whose tokens are brought to the prompt by the operators `project`; that
    of a model with an encoder is what the encoder reads.

    blocks     of the tower, which is called `name`
    tokens     that one image puts into the prompt
    projected  those that are projected, where the last of `project` leaves others
    deep       each makes features that are added after one of the first layers (arXiv:2406.04334)
    given      what `project` reads besides the tower's result
    """
    project_block = replace(feature_block("projector", project, projected or tokens), side_inputs=side_inputs)
    features = with_rows(result(project_block.operators), image_rows(tokens))
    after = [
        _placed(b, features, adds=False) if not b.input and b.stream != TARGET else _reading_image_prompt(b, language)
        for b in language.blocks
    ]
    for place, block in enumerate(deep):
        added = with_rows(result(block.operators), image_rows(tokens))
        after = [piece for one in after for piece in _deepened(one, place, added)]
    before = (auxiliary_block(block, name=name) for block in (*blocks, project_block, *deep))
    return Graph((*before, *after), language.prediction)


def repeated_tower(blocks: Sequence[Block], name: str) -> tuple[Block, ...]:
    """`blocks` once more, on images of another size: they read the same weights. The last leaves `name`_features."""
    named = (replace(block, name=f"{name}_{block.name}") for block in blocks)
    *before, last = (block.map(lambda op: op.with_weights(reused_weight)) for block in named)
    left = f"{name}_features"
    return (*before, replace(last, operators=leaving(last.operators, left), output=left))


def feature_block(name: str, operators: Sequence[Operator], tokens: int, side_input: str = "") -> Block:
    """Block that computes `tokens` features of each image; their tensor has the name of the block.

    side_input  tensor that the features are computed from, if that is not the result of the tower
    """
    *first, last = operators
    features = replace(last.result, name=f"{name}_features")
    return Block(
        name=name,
        operators=(*first, replace(last, outputs=(features,))),
        input="" if side_input else HIDDEN,
        output=features.name,
        stream=images(tokens),
        side_inputs=(side_input,) if side_input else (),
    )


def auxiliary_block(block: Block, *, active: float = 0, name: str = "vision") -> Block:
    """`block` of the tower `name` beside what reads text; `active` is the part of its weights that one token uses."""

    def weight(w: Weight) -> Weight:
        return replace(w, name=f"{name}_{w.name}", active=active)

    def operator(op: Operator) -> Operator:
        named = replace(op, name=f"{name}_{op.name}").with_weights(weight)
        return replace(named, left_as_published=True) if isinstance(named, Linear) else named

    return replace(block, name=f"{name}_{block.name}").map(operator)


def _placed(block: Block, features: Tensor, *, adds: bool) -> Block:
    """`block` with features of images brought to the tokens that it leaves."""
    out = replace(block.result, name=_IMAGE_PROMPT)
    place = Place(name="place_images", inputs=(block.result, features), outputs=(out,), adds=adds)
    side_inputs = (*block.side_inputs, features.name)
    return replace(block, operators=(*block.operators, place), output=out.name, side_inputs=side_inputs)


def _reading_image_prompt(block: Block, language: Graph) -> Block:
    """`block`, which is given the prompt with images in it, where it was given the prompt."""
    prompts = {first.output for first in language.blocks if not first.input}.intersection(block.side_inputs)
    if not prompts:
        return block

    def with_image_tokens(t: Tensor) -> Tensor:
        return replace(t, name=_IMAGE_PROMPT) if t.name in prompts else t

    side_inputs = tuple(_IMAGE_PROMPT if name in prompts else name for name in block.side_inputs)
    return replace(block.map(lambda op: op.with_tensors(with_image_tokens)), side_inputs=side_inputs)


def _deepened(block: Block, layer: int, features: Tensor) -> list[Block]:
    """`block` in two where features are added after `layer`, one of several of its own."""
    if layer not in block.layers:
        return [block]
    one = _placed(replace(block, name=f"{block.name}_{layer}", layers=(layer,)), features, adds=True)
    others = tuple(place for place in block.layers if place != layer)
    return [one, replace(block, layers=others)] if others else [one]


def tower_graph(tower: Tower, fmt: Format, head: Head | None = None) -> Graph:
    """A tower by itself, with what follows its last layer."""
    blocks = tower.blocks(fmt, WHOLE_PASS)
    if not head:
        return Graph(blocks)
    parts = tower.parts(fmt)
    operators = head.operators(parts, parts.tensor(HIDDEN, tower.hidden))
    return Graph((*blocks, Block(name="head", operators=operators, input=HIDDEN, output=result(operators).name)))


def linears(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Weights of such shapes, and a bias beside each."""
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    return {**weights, **{f"{name}.bias": shape[:1] for name, shape in shapes.items()}}


def unused_weights(name: str, parts: Parts, shapes: Shapes, layers: int = 0) -> Block:
    """Weights that no pass reads, of each of some layers or once."""
    x = parts.tensor(HIDDEN, 1)
    op = Elementwise(name=name, inputs=(x,), outputs=(replace(x, name=name),), ops_per_element=0)
    holder = holding(op, parts, shapes).with_weights(lambda w: replace(w, active=0))
    places = tuple(range(layers))
    return Block(name=name, operators=(holder,), input=HIDDEN, output=name, layers=places, stream=UNUSED)
