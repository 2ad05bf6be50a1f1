"""Chameleon and Emu3: decoders whose vocabulary includes the codes of a VQ image encoder (arXiv:2405.09818,
arXiv:2409.18869).

The encoder runs in the prefill; its codes become token ids of the prompt. Generated images are tokens of the answer,
and the VQ decoder that draws them is held and not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import images
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Norm
from ..operators.images import Place
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Layer, Residual
from .blocks.fields import attention, decoder, filled, gated_mlp
from .blocks.image_codes import ImageEncoder
from .blocks.moe import integers
from .blocks.parts import NormKind, Parts, with_rows
from .blocks.tiles import picture_size
from .blocks.tower import auxiliary_block, image_rows, linears, part, unused_weights

_CHAMELEON: Final = {  # as transformers.ChameleonConfig has it
    "vocab_size": 65536,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
_EMU3: Final = {  # as transformers.Emu3TextConfig has it
    "vocab_size": 184622,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
_IGNORED: Final = "vocabulary_map model_parallel_size image_token_id boi_token_id eoi_token_id"
_VQ_IGNORED: Final = "dropout attention_dropout initializer_range model_type out_channels"
_EMU3_IGNORED: Final = """
    boi_token_id eoi_token_id eof_token_id eol_token_id img_token_id image_area visual_token_pattern
"""
_SIDE: Final = 720  # pixels to a side: the image_area of the published processors
_TEMPORAL_TAPS: Final = 4 * 9  # of a convolution that halves the frames
_FRAME_TAPS: Final = 3 * 9


@frozen(kw_only=True)
class HeadNorms:
    """Attention whose norms of queries and keys have weights of their own for each head."""

    attention: SelfAttention

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        head_dim = self.attention.heads.head_dim
        launches = self.attention.operators(parts, x)
        return tuple(replace(op, group=head_dim) if isinstance(op, Norm) else op for op in launches)


@architecture("chameleon")
def build(config: Section, fmt: Format) -> Graph:
    """Norms follow the branches in the 34B, as in Swin Transformer V2."""
    config = filled(config, _CHAMELEON)
    config.ignore(*_IGNORED.split())
    normed = attention(config, share=1, qk_norm=NormKind.LAYER, qk_norm_whole=True)
    after = config.flag("swin_norm", default=False)
    layer = Layer(
        mixer=HeadNorms(attention=normed),
        feed_forward=gated_mlp(config),
        residual=Residual.INNER if after else Residual.PRE,
    )
    text = decoder(config, layer).graph(fmt)
    section = part(config, "vq_config")
    section.ignore(*_VQ_IGNORED.split(), "attn_type")
    side, latent = section.integer("resolution", 512), section.integer("latent_channels", 256)
    widths = _widths(section, 128, (1, 1, 2, 2, 4))
    sides = [side >> level for level in range(len(widths))]
    attends = [size in integers(section, "attn_resolutions") for size in sides]
    encoder = ImageEncoder(parts=Parts(format=fmt), height=side, width=side)
    x = encoder.convolution("conv_in", _pixels(encoder, section), widths[0])
    x = encoder.levels(x, widths, section.count("num_res_blocks", 2), attends)
    x = encoder.middle(x, attends=section.text("attn_type", "vanilla") == "vanilla")
    out = latent * (2 if section.flag("double_latent", default=False) else 1)
    x = encoder.convolution("conv_out", encoder.activated("act_out", encoder.norm("norm_out", x)), out)
    embed = section.integer("embed_dim", 256)
    x = encoder.convolution("quant_conv", x, embed, taps=1)
    encoder.codes(x, section.integer("num_embeddings", 8192))
    drawing = unused_weights("drawing", encoder.parts, linears({"post_quant": (latent, embed, 1)}))
    return _with_images(encoder, text, drawing, tokens=encoder.height * encoder.width)


@architecture("emu3")
def build_emu3(config: Section, fmt: Format) -> Graph:
    """A row of codes ends with a token of its own; an image is encoded as four equal frames."""
    config.ignore(*_IGNORED.split())
    text = build_emu3_text(part(config, "text_config"), fmt)
    section = part(config, "vq_config")
    section.ignore(*_VQ_IGNORED.split())
    widths = _widths(section, 256, (1, 2, 2, 4))
    frames, blocks = section.integer("temporal_downsample_factor", 4), section.count("num_res_blocks", 2)
    attends = [level in (integers(section, "attn_resolutions") or (3,)) for level in range(len(widths))]
    height, width = picture_size(config) if config.get("picture_size") is not None else (_SIDE, _SIDE)
    encoder = ImageEncoder(parts=Parts(format=fmt), height=height, width=width, frames=frames)
    x = encoder.convolution("conv_in", _pixels(encoder, section), widths[0])
    x = encoder.middle(encoder.levels(x, widths, blocks, attends))
    latent = section.integer("latent_channels", 4)
    out = latent * (2 if section.flag("double_latent", default=False) else 1)
    x = encoder.convolution("conv_out", encoder.activated("act_out", encoder.norm("norm_out", x)), out)
    for step in range(frames.bit_length() - 1):
        encoder.frames //= 2
        x = encoder.convolution(f"frames_down_{step}", x, out, taps=_TEMPORAL_TAPS)
        x = encoder.activated(f"frames_down_{step}_act", x)
    for place in range(blocks):
        x = _temporal(encoder, f"frames_{place}", x)
    embed = section.integer("embed_dim", 4)
    x = encoder.convolution("quant_conv", x, embed, taps=3)
    encoder.codes(x, section.integer("codebook_size", 32768))
    drawing = unused_weights("drawing", encoder.parts, dict(_drawing(section, widths, blocks, frames.bit_length() - 1)))
    return _with_images(encoder, text, drawing, tokens=encoder.height * (encoder.width + 1))


@architecture("emu3_text_model", "Emu3")
def build_emu3_text(config: Section, fmt: Format) -> Graph:
    """The decoder alone, as the repositories of BAAI have it: their VQ model is a checkpoint of its own."""
    config = filled(config, _EMU3)
    config.ignore(*_EMU3_IGNORED.split())
    return decoder(config, Layer(mixer=attention(config, share=1), feed_forward=gated_mlp(config))).graph(fmt)


def _widths(config: Section, base: int, multipliers: tuple[int, ...]) -> list[int]:
    """Channels of each resolution."""
    each = integers(config, "channel_multiplier") or multipliers
    return [config.integer("base_channels", base) * n for n in each]


def _pixels(encoder: ImageEncoder, config: Section) -> Tensor:
    return encoder.tensor("pixels", config.integer("in_channels", 3))


def _temporal(encoder: ImageEncoder, name: str, x: Tensor) -> Tensor:
    """The sum of x and two convolutions over three frames, behind a batch norm and SiLU each."""
    hidden = x
    for place in (1, 2):
        weights = {f"{name}_norm_{place}.{kind}": x.width for kind in ("weight", "bias")}
        norm = encoder.parts.elementwise(f"{name}_norm_{place}", hidden, ops=2, weights=weights)
        hidden = encoder.add(norm.with_tensors(lambda t: with_rows(t, x.rows)))
        hidden = encoder.activated(f"{name}_act_{place}", hidden)
        hidden = encoder.convolution(f"{name}_conv_{place}", hidden, x.width, taps=_FRAME_TAPS)
    return encoder.plus(f"{name}_add", x, hidden)


def _with_images(encoder: ImageEncoder, text: Graph, drawing: Block, *, tokens: int) -> Graph:
    """`text` behind the encoder, which writes `tokens` token ids of each image into the prompt."""
    codes = encoder.operators[-1].result
    features = with_rows(codes, image_rows(tokens))
    ids = replace(features, name="token_ids")
    place = Place(name="place_images", inputs=(codes, features), outputs=(ids,))
    stream = images(tokens)
    block = Block(name="encoder", operators=(*encoder.operators, place), input="pixels", output=ids.name, stream=stream)
    return Graph((auxiliary_block(drawing, name="unused"), auxiliary_block(block), *text.blocks))


def _drawing(config: Section, widths: list[int], blocks: int, halvings: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Shapes of the VQ decoder, whose norms are scaled and shifted by convolutions of the codes."""
    latent, embed = config.integer("latent_channels", 4), config.integer("embed_dim", 4)
    attends = integers(config, "attn_resolutions") or (3,)
    shapes: dict[str, tuple[int, ...]] = {"post_quant": (latent, embed, 3)}
    for place in range(blocks):
        for conv in (1, 2):
            yield from _norm(f"frames_{place}_norm_{conv}", latent)
            shapes[f"frames_{place}_conv_{conv}"] = (latent, latent, _FRAME_TAPS)
    shapes |= {f"frames_up_{step}": (latent, latent, _FRAME_TAPS) for step in range(halvings)}
    before = widths[-1]
    shapes["conv_in"] = (before, latent, 9)
    for place in range(2):
        yield from _residual(f"middle_{place}", before, before, embed)
    yield from _attention("middle_attn", before, embed)
    for level, width in reversed(tuple(enumerate(widths))):
        for place in range(blocks + 1):
            yield from _residual(f"level_{level}_{place}", before, width, embed)
            before = width
            if level in attends:
                yield from _attention(f"level_{level}_{place}_attn", width, embed)
        if level:
            shapes[f"level_{level}_up"] = (width, width, 9)
    yield from _spatial_norm("norm_out", before, embed)
    shapes["conv_out"] = (config.integer("out_channels", 3), before, 9)
    yield from linears(shapes).items()


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{name}.{kind}", (width,)) for kind in ("weight", "bias"))


def _spatial_norm(name: str, width: int, embed: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _norm(name, width)
    yield from linears({f"{name}_scale": (width, embed), f"{name}_shift": (width, embed)}).items()


def _residual(name: str, before: int, width: int, embed: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for place, (read, channels) in enumerate(((before, width), (width, width)), start=1):
        yield from _spatial_norm(f"{name}_norm_{place}", read, embed)
        yield from linears({f"{name}_conv_{place}": (channels, read, 9)}).items()
    if before != width:
        yield from linears({f"{name}_shortcut": (width, before)}).items()


def _attention(name: str, width: int, embed: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _spatial_norm(f"{name}_norm", width, embed)
    yield from linears({f"{name}_{part}": (width, width) for part in ("q", "k", "v", "proj")}).items()
