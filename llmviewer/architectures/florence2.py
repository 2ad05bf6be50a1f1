"""Florence-2: DaViT, which alternates window attention and channel attention, before an encoder-decoder of BART
(arXiv:2311.06242, arXiv:2204.03645).

Tokens of the image stand before the words of the prompt, which the encoder reads.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from ..documents import Section
from ..forms import TOKENS, images
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.convolution import Conv2d
from ..operators.elementwise import Permute
from ..operators.images import BatchedProduct
from ..operators.masks import Tiled
from ..precision import Format
from ..records import frozen
from . import architecture, builder
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.moe import counts, integers, language_model
from .blocks.parts import HIDDEN, NormKind, Parts, activation, result, with_rows
from .blocks.tiles import picture_size
from .blocks.tower import image_rows, joined, part

_SIDE: Final = 768  # pixels to a side, by the processors of all published models
_SIZES: Final = {  # as transformers.Florence2VisionConfig has it
    "depths": (1, 1, 9, 1), "patch_size": (7, 3, 3, 3), "patch_stride": (4, 2, 2, 2), "patch_padding": (3, 1, 1, 1),
    "embed_dim": (128, 256, 512, 1024), "num_heads": (4, 8, 16, 32), "num_groups": (4, 8, 16, 32),
}  # fmt: skip
_BART: Final = {  # as transformers.BartConfig has it
    "vocab_size": 50265, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
}  # fmt: skip
_SOFTMAX_OPS: Final = 5  # of a score: maximum, subtract, exp, sum, divide
_OLDER: Final = {"dim_embed": "embed_dim"}  # names of fields in the repositories of Microsoft
_IGNORED: Final = """
    model_type drop_path_rate patch_prenorm enable_checkpoint image_pos_embed visual_temporal_embedding
    image_feature_source max_temporal_embeddings
"""


@frozen(kw_only=True)
class Depthwise:
    """A convolution of 3 x 3 positions of each channel."""

    def operators(self, parts: Parts, x: Tensor, name: str = "depthwise") -> tuple[Operator, ...]:
        out = parts.tensor(name, x.width)
        weights = (parts.weight(f"{name}.weight", x.width, 1, 9), parts.weight(f"{name}.bias", x.width))
        return (Conv2d(name=name, inputs=(x,), outputs=(out,), weights=weights),)


@frozen(kw_only=True)
class Windows:
    """Attention within windows of `padded` positions in all, `window` in each."""

    heads: Heads
    window: int
    padded: int
    bias: bool

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = replace(self.heads, mask=Tiled(self.padded * self.window))
        attention = SelfAttention(heads=heads, fused_qkv=True, qkv_bias=self.bias, o_bias=True)
        rows = image_rows(self.padded)

        def filled_up(t: Tensor) -> Tensor:
            return with_rows(t, rows) if t.rows == TOKENS else t

        *launches, out = (op.with_tensors(filled_up) for op in attention.operators(parts, x))
        return (*launches, replace(out, outputs=(with_rows(out.result, TOKENS),)))


@frozen(kw_only=True)
class Channels:
    """Attention between the channels of a group over `positions` positions (arXiv:2204.03645, section 3.2)."""

    groups: int
    positions: int
    bias: bool

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        q, k, v = (parts.tensor(f"{name}_proj", x.width) for name in "qkv")
        qkv = parts.linear("qkv_proj", x, q, k, v, bias=self.bias)
        each, image = x.width // self.groups, image_rows(1)
        scores = with_rows(parts.tensor("channel_scores", x.width * each), image)
        qk = BatchedProduct(name="channel_qk", inputs=(q, k), outputs=(scores,), inner=self.positions)
        softmax = parts.elementwise("channel_softmax", scores, ops=_SOFTMAX_OPS)
        probs = with_rows(softmax.result, image)
        softmax = replace(softmax, outputs=(probs,))
        out = parts.tensor("channel_sv", x.width)
        sv = BatchedProduct(name=out.name, inputs=(probs, v), outputs=(out,), inner=each)
        return (qkv, qk, softmax, sv, parts.project("o_proj", out, x.width, bias=True))


@frozen(kw_only=True)
class DualLayer(Layer):
    """A depthwise convolution before each branch, added to its input; windows first, then channels."""

    channels: Channels
    convolution: Depthwise = Depthwise()

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches: tuple[Operator, ...] = ()
        for kind, mixer in (("window", self.mixer), ("channel", self.channels)):
            for name, run in (("attn", mixer), ("mlp", self.feed_forward)):
                if run is None:
                    raise RuntimeError(f"a layer of a DaViT without {name}")
                source = result(launches) if launches else x
                (conv,) = self.convolution.operators(parts, source)
                add = parts.add("depthwise_add", source, conv.result)
                branch = (conv, add, *self._branch(parts, add.result, run, name))
                launches = (*launches, *(_prefixed(op, f"{kind}_{name}_", source_name=source.name) for op in branch))
        return launches


@architecture("florence2")
def build(config: Section, fmt: Format) -> Graph:
    """Florence-2: a DaViT tower before BART's encoder and decoder."""
    filled_config = filled(config, {"text_config": {}})
    section = filled(language_model(filled_config), _BART, instead={"model_type": "bart"})
    text = builder(section)(section, fmt)
    config.ignore("projection_dim", "is_encoder_decoder", "vocab_size")
    tower_blocks, tokens, project = _davit(config, fmt)
    return joined(tower_blocks, project, text, tokens=tokens)


def _davit(config: Section, fmt: Format) -> tuple[list[Block], int, tuple[Operator, ...]]:
    """Blocks of the tower, tokens of an image, and what brings them to the width of words."""
    vision_section = part(config, "vision_config")
    vision_section.ignore(*_IGNORED.split())
    section = vision_section.with_data({_OLDER.get(key, key): value for key, value in vision_section.data.items()})
    parts = Parts(format=fmt, norm_kind=NormKind.LAYER)
    sizes = {key: integers(section, key) or default for key, default in _SIZES.items()}
    counts(section, "depths")
    stages = len(sizes["embed_dim"])
    if odd := next((key for key, values in sizes.items() if len(values) != stages), None):
        raise section.error(odd, f"must have an entry for each of the {stages} stages; got {len(sizes[odd])}")
    (height, width), channels, blocks = _size(config), section.integer("in_channels", 3), list[Block]()
    for stage in range(stages):
        depth, taps, stride, padding, hidden, heads, groups = (values[stage] for values in sizes.values())
        before, (height, width) = height * width, (
            (side + 2 * padding - taps) // stride + 1 for side in (height, width)
        )  # fmt: skip
        embed = _embedding(parts, channels, hidden, taps, before, first=not stage)
        layer = _layer(section, hidden, heads, groups, (height, width))
        stream, operators = images(height * width), layer.operators(parts, parts.tensor(HIDDEN, hidden))
        blocks += [
            Block(name=f"embedding_{stage}", operators=embed, input=HIDDEN, output=result(embed).name, stream=stream),
            Block(
                name=f"stage_{stage}",
                operators=operators,
                input=HIDDEN,
                output=result(operators).name,
                layers=tuple(range(depth)),
                stream=stream,
            ),
        ]
        channels = hidden
    tokens = height * width + 1
    return blocks, tokens, _projected(section, parts, channels, tokens)


def _size(config: Section) -> tuple[int, int]:
    return picture_size(config) if config.get("picture_size") is not None else (_SIDE, _SIDE)


def _embedding(
    parts: Parts, channels: int, hidden: int, taps: int, before: int, *, first: bool
) -> tuple[Operator, ...]:
    """A convolution with a stride; a norm follows it in the first stage and precedes it in others."""
    x = with_rows(parts.tensor(HIDDEN, channels), image_rows(before))
    norm = () if first else (parts.norm("embed_norm", x),)
    x = result(norm) if norm else x
    weights = (parts.weight("embed.weight", hidden, channels, taps**2), parts.weight("embed.bias", hidden))
    conv = Conv2d(name="embed", inputs=(x,), outputs=(parts.tensor("embed", hidden),), weights=weights)
    return (*norm, conv, parts.norm("embed_norm", conv.result)) if first else (*norm, conv)


def _layer(config: Section, hidden: int, heads: int, groups: int, size: tuple[int, int]) -> DualLayer:
    for name, count in (("num_heads", heads), ("num_groups", groups)):
        if hidden % count:
            raise config.error(name, f"must divide the width {hidden} of its stage; got {count}")
    window, bias = config.integer("window_size", 12), config.flag("qkv_bias", default=True)
    act = activation(config, "activation_function", "gelu")
    padded = ceil(size[0] / window) * ceil(size[1] / window) * window**2
    return DualLayer(
        mixer=Windows(
            heads=Heads(num_heads=heads, num_kv_heads=heads, head_dim=hidden // heads),
            window=window**2,
            padded=padded,
            bias=bias,
        ),
        feed_forward=Mlp(inner=int(hidden * config.number("mlp_ratio", 4)), act=act, bias=True),
        channels=Channels(groups=groups, positions=size[0] * size[1], bias=bias),
    )


def _projected(config: Section, parts: Parts, hidden: int, tokens: int) -> tuple[Operator, ...]:
    """Learned positions of rows and columns and the sine of the frame; the mean of all and all positions, projected."""
    count, half = config.integer("max_position_embeddings", 50), hidden // 2
    x = with_rows(parts.tensor(HIDDEN, hidden), image_rows(tokens - 1))
    add = parts.elementwise("position_add", x, ops=2)
    tables = (parts.weight("rows.weight", count, half), parts.weight("columns.weight", count, hidden - half))
    add = replace(add.with_tensors(lambda t: with_rows(t, x.rows)), weights=tables)
    mean = parts.elementwise("mean", add.result, ops=tokens - 1)
    mean = replace(mean, outputs=(with_rows(mean.result, image_rows(1)),))
    joined_tensor = parts.tensor("both", hidden)
    join = Permute(name=joined_tensor.name, inputs=(mean.result, add.result), outputs=(joined_tensor,))
    project = parts.project("linear_1", joined_tensor, config.integer("projection_dim", 1024))
    return (add, mean, join, project, parts.norm("image_norm", project.result))


def _prefixed(op: Operator, prefix: str, source_name: str) -> Operator:
    """`op` with its name and those of its tensors and weights after `prefix`, except the input `source_name`."""
    named = replace(op, name=f"{prefix}{op.name}")
    named = named.with_tensors(lambda t: t if t.name == source_name else replace(t, name=f"{prefix}{t.name}"))
    return named.with_weights(lambda w: replace(w, name=f"{prefix}{w.name}"))
