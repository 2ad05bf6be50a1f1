"""U-Nets of latent diffusion: Stable Diffusion 1.x, 2.x and XL (arXiv:2112.10752, arXiv:2307.01952), by the fields of
UNet2DConditionModel of the diffusers library.

A pass is one step of denoising of the latents of `batch` images. Its prompt counts the positions of one latent: 4,096
for 512 x 512 pixels, 16,384 for 1024 x 1024. Each level has a quarter of the positions of the level before. A level on
the way up reads what each of its layers wrote on the way down. Each image has `text_tokens` tokens of text beside it, a
field of this program, by default the 77 of CLIP.

The memory of what waits for the way up is counted where it is read, not in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import SEQUENCES, TOKENS, WHOLE_PASS, Stream, resized
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.convolution import Conv2d
from ..operators.elementwise import Add, Elementwise
from ..operators.masks import Bidirectional, FixedKeys
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.parts import NormKind, Parts, result, with_rows

UNET: Final = "UNet2DConditionModel"
_TIME: Final = "time_embedding"  # tensor of each sequence: its time and, in SDXL, its pooled text and sizes
_TEXT: Final = "text"
_ATTENDING: Final = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D")
_PLAIN: Final = ("DownBlock2D", "UpBlock2D")
_TAPS: Final = 9  # of a convolution over 3 x 3 positions
_SIZES: Final = 6  # numbers of the size and the crop of the image, inputs of SDXL
_UNREAD: Final = (
    "_class_name _diffusers_version _name_or_path act_fn center_input_sample downsample_padding flip_sin_to_cos"
    " freq_shift mid_block_scale_factor norm_eps norm_num_groups upcast_attention use_linear_projection"
    " resnet_out_scale_factor dropout addition_embed_type_num_heads"
)
_FIXED_FIELDS: Final = {  # fields that change the network, with the one value that Stable Diffusion has
    "class_embed_type": None, "class_embeddings_concat": False, "conv_in_kernel": 3, "conv_out_kernel": 3,
    "cross_attention_norm": None, "dual_cross_attention": False, "encoder_hid_dim": None, "encoder_hid_dim_type": None,
    "mid_block_only_cross_attention": None, "mid_block_type": "UNetMidBlock2DCrossAttn", "num_attention_heads": None,
    "num_class_embeds": None, "only_cross_attention": False, "resnet_skip_time_act": False,
    "resnet_time_scale_shift": "default", "reverse_transformer_layers_per_block": None, "time_cond_proj_dim": None,
    "time_embedding_act_fn": None, "time_embedding_dim": None, "time_embedding_type": "positional",
    "timestep_post_act": None,
}  # fmt: skip


@architecture(UNET)
def build(config: Section, fmt: Format) -> Graph:
    """A U-Net: residual convolutions and transformer layers on the way down to a quarter of a quarter, and up again."""
    config.ignore(*_UNREAD.split())
    for key, value in _FIXED_FIELDS.items():
        if config.get(key) not in (None, value):
            raise config.error(key, f"must be {value}, as in Stable Diffusion; got {config.get(key)!r}")
    widths = _numbers(config, "block_out_channels", (320, 640, 1280, 1280))
    downs = config.texts("down_block_types") or (*(_ATTENDING[0],) * 3, _PLAIN[0])
    ups = config.texts("up_block_types") or (_PLAIN[1], *(_ATTENDING[1],) * 3)
    for key, kinds in (("down_block_types", downs), ("up_block_types", ups)):
        if len(kinds) != len(widths) or not set(kinds) <= {*_ATTENDING, *_PLAIN}:
            raise config.error(key, f"must be {len(widths)} of {', '.join((*_ATTENDING, *_PLAIN))}; got {kinds}")
    depths = _numbers(config, "transformer_layers_per_block", (1,) * len(widths))
    # Named for the width of heads, but their number in every published model.
    heads = _numbers(config, "attention_head_dim", (8,) * len(widths))
    for width, number in zip(widths, heads, strict=True):
        if width % number:
            raise config.error("attention_head_dim", f"must divide the width {width} of its level; got {number}")
    added = 0
    if config.get("addition_embed_type") is not None:
        config.choice("addition_embed_type", ("text_time",))
        added = config.integer("projection_class_embeddings_input_dim")
    net = _UNet(
        parts=Parts(format=fmt, norm_kind=NormKind.LAYER),
        widths=widths,
        depths=depths,
        heads=heads,
        text_width=config.integer("cross_attention_dim", 1280),
        text=config.integer("text_tokens", 77),
    )
    return net.graph(
        attends=tuple(kind in _ATTENDING for kind in downs),
        attends_up=tuple(kind in _ATTENDING for kind in ups),
        layers=config.integer("layers_per_block", 2),
        channels=config.integer("in_channels", 4),
        tokens=config.integer("sample_size", 0, least=0) ** 2,
        out=config.integer("out_channels", 4),
        added=added,
        size_waves=config.integer("addition_time_embed_dim", 256) if added else 0,
    )


def _numbers(config: Section, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """A number for each level: a list of them, or one for all."""
    value = config.get(key)
    if value is None:
        return default
    numbers = tuple(value) if isinstance(value, list) else (value,) * len(default)
    if not numbers or not all(type(one) is int and one > 0 for one in numbers):
        raise config.error(key, f"must be whole numbers of at least 1; got {value!r}")
    if key != "block_out_channels" and len(numbers) != len(default):
        raise config.error(key, f"must be a number for each of the {len(default)} levels; got {value!r}")
    return numbers


@frozen(kw_only=True)
class _UNet:
    """Makes the blocks of a U-Net; `widths`, `depths` of transformers and numbers of `heads` are by level."""

    parts: Parts
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    text_width: int
    text: int

    @property
    def embedded(self) -> int:
        """Width of the embedding of the time."""
        return 4 * self.widths[0]

    def graph(
        self, *, attends: Sequence[bool], attends_up: Sequence[bool], layers: int, channels: int, tokens: int, out: int,
        added: int, size_waves: int,
    ) -> Graph:  # fmt: skip
        """The whole network."""
        first = _conv(self.parts, "conv_in", self.parts.tensor("latent", channels), self.widths[0], tokens=tokens)
        blocks = [
            Block(name="conv_in", operators=(first,), input="latent", output="conv_in"),
            self._text_block(),
            self._time_block(added, size_waves),
        ]
        x, skips, last = first.result, [first.result], len(self.widths) - 1
        for level, width in enumerate(self.widths):
            for layer in range(layers):
                name = f"down_{level}_{layer}"
                x = self._layer(blocks, name, x, level, width, attends=attends[level])
                skips.append(x)
            if level < last:
                wide = with_rows(x, 4 * TOKENS)
                shrink = _conv(self.parts, f"down_{level}_out", wide, width)
                x = self._add(blocks, (shrink,), x.name, level + 1)
                skips.append(x)
        x = self._layer(blocks, "mid_0", x, last, self.widths[-1], attends=True)
        x = self._layer(blocks, "mid_1", x, last, self.widths[-1], attends=False)
        for step, (level, width) in enumerate(reversed(list(enumerate(self.widths)))):
            for layer in range(layers + 1):
                name, skip = f"up_{level}_{layer}", skips.pop()
                x = self._layer(blocks, name, x, level, width, attends=attends_up[step], skip=skip)
            if level:
                x = self._upsampled(blocks, x, level, width)
        norm = self.parts.norm("norm_out", x)
        act = self.parts.activate("act_out", "silu", norm.result)
        head = _conv(self.parts, "conv_out", act.result, out)
        blocks.append(Block(name="head", operators=(norm, act, head), input=x.name, output="conv_out"))
        return Graph(tuple(blocks))

    def _add(
        self, blocks: list[Block], operators: tuple[Operator, ...], source: str, level: int, *side_inputs: str,
        repeat: int = 0,
    ) -> Tensor:  # fmt: skip
        """Appends a block at a level, named as its output; returns that."""
        out = result(operators)
        start = sum(len(block.layers) for block in blocks)
        blocks.append(
            Block(
                name=out.name, operators=operators, input=source, output=out.name,
                layers=tuple(range(start, start + repeat)), side_inputs=side_inputs, stream=_stream(level),
            )
        )  # fmt: skip
        return out

    # Inputs

    def _text_block(self) -> Block:
        """The encoded text, which is given."""
        out = self._words(self.text_width)
        encoded = Elementwise(name=out.name, inputs=(replace(out, name="encoded"),), outputs=(out,), ops_per_element=0)
        return Block(name="text", operators=(encoded,), input="encoded", output=_TEXT)

    def _words(self, width: int, name: str = _TEXT) -> Tensor:
        return with_rows(self.parts.tensor(name, width), self.text * SEQUENCES)

    def _each(self, name: str, width: int) -> Tensor:
        """A tensor with a row for each sequence."""
        return with_rows(self.parts.tensor(name, width), SEQUENCES)

    def _time_block(self, added: int, size_waves: int) -> Block:
        """The embedding of the time; with `added`, of pooled text and of waves of the sizes, too."""
        waves = self._each("time_waves", self.widths[0])
        sinusoids: tuple[Operator, ...] = (
            Elementwise(name=waves.name, inputs=(), outputs=(waves,), ops_per_element=2),
        )
        operators = (*sinusoids, *self._two("time", waves))
        source = ""
        if added:
            pooled = self._each("pooled", added - _SIZES * size_waves)
            sizes = with_rows(self.parts.tensor("size_waves", size_waves), _SIZES * SEQUENCES)
            wave = Elementwise(name=sizes.name, inputs=(), outputs=(sizes,), ops_per_element=2)
            joined = self._each("added", added)
            join = Elementwise(name="added", inputs=(pooled, sizes), outputs=(joined,), ops_per_element=0)
            embedded = self._two("added", joined)
            summed = self._each("time_sum", self.embedded)
            add = Add(
                name=summed.name, inputs=(result(operators), result(embedded)), outputs=(summed,), ops_per_element=1
            )
            operators, source = (*operators, wave, join, *embedded, add), pooled.name
        act = self.parts.activate(_TIME, "silu", result(operators))
        return Block(name="conditioning", operators=(*operators, act), input=source, output=_TIME)

    def _two(self, name: str, x: Tensor) -> tuple[Operator, ...]:
        """Two products with an activation between them."""
        first = self.parts.linear(f"{name}_linear_1", x, self._each(f"{name}_linear_1", self.embedded), bias=True)
        act = self.parts.activate(f"{name}_act", "silu", first.result)
        second = self._each(f"{name}_linear_2", self.embedded)
        return (first, act, self.parts.linear(second.name, act.result, second, bias=True))

    # Levels

    def _layer(
        self, blocks: list[Block], name: str, x: Tensor, level: int, width: int, *, attends: bool,
        skip: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """A residual layer, and transformer layers after it; returns the output."""
        source = x.name
        operators: tuple[Operator, ...] = ()
        if skip:
            joined = self.parts.tensor(f"{name}_joined", x.width + skip.width)
            inputs = (with_rows(x, TOKENS), with_rows(skip, TOKENS))
            operators = (Elementwise(name=joined.name, inputs=inputs, outputs=(joined,), ops_per_element=0),)
            x = joined
        operators = (*operators, *self._residual(name, with_rows(x, TOKENS), width))
        sides = (_TIME, *((skip.name,) if skip else ()))
        x = self._add(blocks, operators, source, level, *sides)
        return self._transformer(blocks, name, x, level) if attends else x

    def _residual(self, name: str, x: Tensor, width: int) -> tuple[Operator, ...]:
        """Two convolutions, between which the time is added; the input is added to the result."""
        parts = self.parts
        first_norm = parts.norm("norm_1", x)
        first_act = parts.activate("act_1", "silu", first_norm.result)
        first = _conv(parts, "conv_1", first_act.result, width)
        time = parts.linear("time_proj", self._each(_TIME, self.embedded), self._each("time_proj", width), bias=True)
        timed = parts.add("time_add", first.result, time.result)
        second_norm = parts.norm("norm_2", timed.result)
        second_act = parts.activate("act_2", "silu", second_norm.result)
        second = _conv(parts, "conv_2", second_act.result, width)
        operators: tuple[Operator, ...] = (first_norm, first_act, first, time, timed, second_norm, second_act, second)
        if x.width != width:
            short = _conv(parts, "shortcut", x, width, taps=1)
            operators, x = (*operators, short), short.result
        return (*operators, parts.add(name, x, second.result))

    def _transformer(self, blocks: list[Block], name: str, x: Tensor, level: int) -> Tensor:
        """Transformer layers between two products, whose result is added to their input."""
        parts, width = self.parts, self.widths[level]
        norm = parts.norm("norm", x)
        entry = parts.project("proj_in", norm.result, width, bias=True)
        named = replace(entry, outputs=(replace(entry.result, name=f"{name}_in"),))
        inner = self._add(blocks, (norm, named), x.name, level)
        layer = self._attending(f"{name}_attended", inner, level)
        attended = self._add(blocks, layer, inner.name, level, _TEXT, repeat=self.depths[level])
        leave = parts.project("proj_out", attended, width, bias=True)
        return self._add(blocks, (leave, parts.add(f"{name}_out", x, leave.result)), attended.name, level, x.name)

    def _attending(self, name: str, x: Tensor, level: int) -> tuple[Operator, ...]:
        """Attention to the image, to the text, and a gated network of four times the width."""
        parts, width = self.parts, self.widths[level]
        number = self.heads[level]
        heads = Heads(num_heads=number, num_kv_heads=number, head_dim=width // number, mask=Bidirectional())
        first = self._attention("", heads, parts.norm("norm_1", x), None)
        attended = parts.add("attn_add", x, result(first))
        across = replace(heads, mask=FixedKeys(self.text))
        second = self._attention("cross_", across, parts.norm("norm_2", attended.result), self._words(self.text_width))
        crossed = parts.add("cross_add", attended.result, result(second))
        norm = parts.norm("norm_3", crossed.result)
        gate_up = tuple(parts.tensor(f"{part}_proj", 4 * width) for part in ("gate", "up"))
        wide = parts.linear("gate_up_proj", norm.result, *gate_up, bias=True)
        act = parts.activate("mlp_act", "gelu", *gate_up)
        down = parts.project("down_proj", act.result, width, bias=True)
        return (*first, attended, *second, crossed, norm, wide, act, down, parts.add(name, crossed.result, down.result))

    def _attention(self, prefix: str, heads: Heads, norm: Operator, text: Tensor | None) -> tuple[Operator, ...]:
        """Projections and attention after a norm, to `text` if it is given."""
        parts, x = self.parts, norm.result
        source = x if text is None else text
        q = parts.project(f"{prefix}q_proj", x, heads.q_width)
        k, v = (
            parts.linear(
                f"{prefix}{one}_proj", source,
                with_rows(parts.tensor(f"{prefix}{one}_proj", heads.q_width), source.rows),
            )
            for one in "kv"
        )  # fmt: skip
        launches = tuple(
            replace(op.with_tensors(lambda t: _prefixed(t, prefix)), name=f"{prefix}{op.name}")
            for op in scored(parts, heads, q.result, (k.result,), v.result)
        )
        return (norm, q, k, v, *launches, parts.project(f"{prefix}o_proj", result(launches), heads.q_width, bias=True))

    def _upsampled(self, blocks: list[Block], x: Tensor, level: int, width: int) -> Tensor:
        """Every position four times, and a convolution."""
        parts, name = self.parts, f"up_{level}_out"
        wide = parts.tensor("repeated", width)
        repeat = Elementwise(name=wide.name, inputs=(with_rows(x, TOKENS / 4),), outputs=(wide,), ops_per_element=0)
        return self._add(blocks, (repeat, _conv(parts, name, wide, width)), x.name, level - 1)


def _stream(level: int) -> Stream:
    """The positions of a level."""
    return resized(0.25**level) if level else WHOLE_PASS


def _prefixed(tensor: Tensor, prefix: str) -> Tensor:
    internal_names = ("scores", "probs", "attention")
    return replace(tensor, name=f"{prefix}{tensor.name}") if tensor.name in internal_names else tensor


def _conv(parts: Parts, name: str, x: Tensor, width: int, taps: int = _TAPS, *, tokens: int = 0) -> Conv2d:
    weights = (parts.weight(f"{name}.weight", width, x.width, taps), parts.weight(f"{name}.bias", width))
    return Conv2d(name=name, inputs=(x,), outputs=(parts.tensor(name, width),), weights=weights, tokens=tokens)
