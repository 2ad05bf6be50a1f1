"""Granite Speech: a conformer encodes audio; three learned queries per 15 frames make the tokens of a Granite's prompt
(arXiv:2505.08699; arXiv:2005.08100).

An audio clip lasts sound_seconds of the config, 30 s without that field, and counts as an image. A token of the
encoder stands for two frames of 10 ms.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from ..documents import Section
from ..forms import TOKENS, images
from ..graph import Block, Graph
from ..operators.attention import QK, Heads
from ..operators.base import Operator, Tensor
from ..operators.convolution import Conv1d
from ..operators.images import RelativePositions
from ..operators.masks import Tiled
from ..precision import Format
from ..records import frozen
from . import architecture
from .blip_2 import QUERIES, Named, qformer_layers
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Mixer
from .blocks.encoder import leaving, stack
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, result, with_rows
from .blocks.resampler import FEATURES, queried
from .blocks.tower import image_rows, joined, language, part

_TOKENS_A_SECOND: Final = 50
_SECONDS: Final = 30
_ENCODER: Final = {  # as transformers.GraniteSpeechEncoderConfig has it
    "input_dim": 160, "num_layers": 10, "hidden_dim": 1024, "feedforward_mult": 4, "num_heads": 8, "output_dim": 42,
    "context_size": 200, "max_pos_emb": 512, "conv_kernel_size": 15, "conv_expansion_factor": 2,
}  # fmt: skip
_IGNORED: Final = (
    "audio_token_index cat_hidden_layers has_lora_adapter model_type dropout vocab_size max_position_embeddings"
)
_SIGMOID_OPS: Final = 4


def sound_tokens(config: Section, per_second: int) -> int:
    """Tokens of an audio clip, by an optional field that users may add."""
    return config.integer("sound_seconds", _SECONDS) * per_second


@architecture("granite_speech", "granite_speech_plus")
def build(config: Section, fmt: Format) -> Graph:
    """Adapters for audio (LoRA) are files beside the checkpoint; its class does not have them."""
    text, width = language(filled(config, {"tie_word_embeddings": True, "text_config": {}}), fmt, "granite")
    config.ignore(*_IGNORED.split())
    section = filled(part(config, "encoder_config"), _ENCODER)
    section.ignore(*_IGNORED.split())
    tokens, parts = sound_tokens(config, _TOKENS_A_SECOND), Parts(format=fmt, norm_kind=NormKind.LAYER)
    window, rate = config.integer("window_size", 15), config.integer("downsample_rate", 5)
    if window % rate:
        raise config.error("downsample_rate", f"must divide the window_size {window}; got {rate}")
    windows, queries = ceil(tokens / window), window // rate
    encoder = _encoder(section, parts, tokens)
    last = replace(encoder[-1], operators=leaving(encoder[-1].operators, FEATURES), output=FEATURES)
    projector = filled(part(config, "projector_config"), QUERIES)
    projector.ignore(*_IGNORED.split(), "use_qformer_text_input")
    layers = qformer_layers(projector, features=window, tiles=windows)
    wide = projector.integer("hidden_size")
    queried_blocks = queried(parts, layers, queries, wide, norm=True, tiles=windows)
    x = with_rows(parts.tensor(HIDDEN, wide), image_rows(queries, windows))
    project = (parts.project("linear", x, width, bias=True),)
    blocks = (*encoder[:-1], last, *queried_blocks)
    return joined(blocks, project, text, tokens=queries * windows, name="audio")


@frozen(kw_only=True)
class ShawAttention:
    """Attention within blocks of `context` tokens, with learned scores of distances (arXiv:1803.02155).

    padded  tokens of an audio clip, filled up to whole blocks
    """

    heads: Heads
    context: int
    distances: int
    padded: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        mask = Tiled(self.padded * self.context)
        attention = SelfAttention(heads=replace(self.heads, mask=mask), alibi=True)
        *launches, _ = attention.operators(parts, x)
        kv = parts.linear("kv_proj", x, launches[1].result, launches[2].result)
        launches = [launches[0], kv, *launches[3:]]
        place = next(index for index, op in enumerate(launches) if isinstance(op, QK))
        biases = RelativePositions(
            name="positions",
            inputs=launches[place].inputs[:1],
            outputs=(parts.tensor("positions", self.heads.num_heads * self.context),),
            weights=(parts.weight("distances.weight", self.distances, self.heads.head_dim),),
            head_dim=self.heads.head_dim,
        )
        rows = image_rows(self.padded)

        def filled_up(t: Tensor) -> Tensor:
            return with_rows(t, rows) if t.rows == TOKENS else t

        inner = tuple(op.with_tensors(filled_up) for op in (*launches[:place], biases, *launches[place:]))
        attended = with_rows(result(inner), TOKENS)
        return (*inner, parts.project("o_proj", attended, x.width, bias=True))


@frozen(kw_only=True)
class ConvolutionModule:
    """The convolution of a conformer: a gated projection, `taps` taps over each channel, a batch norm, SiLU and a
    projection back (arXiv:2005.08100, section 2.2).
    """

    inner: int
    taps: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        up_proj = parts.project("conv_up", x, 2 * self.inner, bias=True)
        gated = parts.elementwise("glu", up_proj.result, ops=_SIGMOID_OPS + 1, width=self.inner)
        out = parts.tensor("conv_depth", self.inner)
        weights = (parts.weight("conv_depth.weight", self.inner, 1, self.taps),)
        depth = Conv1d(name=out.name, inputs=(gated.result,), outputs=(out,), weights=weights)
        scales = {f"batch_norm.{kind}": self.inner for kind in ("weight", "bias")}
        norm = parts.elementwise("batch_norm", depth.result, ops=2, weights=scales)
        act = parts.activate("conv_act", "silu", norm.result)
        return (up_proj, gated, depth, norm, act, parts.project("conv_down", act.result, x.width, bias=True))


@frozen(kw_only=True)
class Conformer(Layer):
    """x + half an MLP, + attention, + a convolution, + half an MLP, and a norm."""

    convolution: ConvolutionModule
    second: FeedForward

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches: tuple[Operator, ...] = ()
        branches: tuple[tuple[str, Mixer | FeedForward | None], ...] = (
            ("mlp", self.feed_forward), ("attn", self.mixer), ("conv", self.convolution), ("mlp_2", self.second),
        )  # fmt: skip
        for name, run in branches:
            if run is None:
                raise RuntimeError(f"a conformer without {name}")
            branch = self._branch(parts, result(launches) if launches else x, run, name)
            if name.startswith("mlp"):
                *before, add = branch
                branch = (*before, replace(parts.add(add.name, *add.inputs), ops_per_element=2))
            launches = (*launches, *branch)
        return (*launches, parts.norm("layer_norm", result(launches)))


def _encoder(config: Section, parts: Parts, tokens: int) -> list[Block]:
    """Projected frames and conformers; after half of them, the softmax over characters is projected back and added.

    All conformers are one block, and the addition follows it: they take the same time in either order.
    """
    hidden, out = config.integer("hidden_dim"), config.integer("output_dim")
    context, count = config.integer("context_size"), config.integer("num_heads")
    head_dim = config.integer("dim_head", hidden // count)
    mlp = Mlp(inner=hidden * config.integer("feedforward_mult"), act="silu", bias=True)
    layer = Conformer(
        mixer=ShawAttention(
            heads=Heads(num_heads=count, num_kv_heads=count, head_dim=head_dim),
            context=context,
            distances=2 * config.integer("max_pos_emb") + 1,
            padded=ceil(tokens / context) * context,
        ),
        feed_forward=mlp,
        convolution=ConvolutionModule(
            inner=hidden * config.integer("conv_expansion_factor"), taps=config.integer("conv_kernel_size")
        ),
        second=Named(mlp=mlp, prefix="second_"),
    )
    stream, x = images(tokens), parts.tensor(HIDDEN, hidden)
    first = parts.project("input_linear", parts.tensor("mel", config.integer("input_dim")), hidden, bias=True)
    characters = parts.project("characters", x, out, bias=True)
    softmax = parts.elementwise("characters_softmax", characters.result, ops=5)
    back = parts.project("characters_back", softmax.result, hidden, bias=True)
    middle = (characters, softmax, back, parts.add("characters_add", x, back.result))
    return [
        Block(name="embedding", operators=(first,), input="mel", output=first.result.name, stream=stream),
        *stack(parts, [layer] * config.count("num_layers"), hidden, stream=stream),
        Block(name="characters", operators=middle, input=HIDDEN, output=result(middle).name, stream=stream),
    ]
