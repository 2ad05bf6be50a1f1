"""DiT: a transformer that predicts the noise of an image latent, conditioned on the time step and a class
(arXiv:2212.09748).

A pass is one step of denoising; a sampler takes as many as it likes, and each on twice the sequences where it guides
without a classifier. A sequence is a latent, cut into patches. Fields are the arguments of the class in
github.com/facebookresearch/DiT. Positions are fixed waves, computed on the fly like the waves of the time.
"""

from __future__ import annotations

from typing import Final

from ..documents import Section
from ..forms import SEQUENCES
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Add, Elementwise
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Mixer
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Mlp
from .blocks.parts import HIDDEN, NormKind, Parts, heads_of, result, with_rows

_TIME_WAVES: Final = 256
_CONDITION: Final = "condition"


@architecture("dit")
def build(config: Section, fmt: Format) -> Graph:
    """DiT: transformer blocks with adaptive norms over latent patches; a pass is one denoising step."""
    hidden, depth = config.integer("hidden_size", 1152), config.count("depth", 28)
    channels, patch, side = (
        config.integer("in_channels", 4),
        config.integer("patch_size", 2),
        config.integer("input_size", 32),
    )
    if side % patch:
        raise config.error("input_size", f"must be a multiple of the patch_size {patch}; got {side}")
    config.ignore("class_dropout_prob")
    inner = int(hidden * config.number("mlp_ratio", 4))
    heads = bidirectional(heads_of(config, hidden, "num_heads"))
    out = channels * (2 if config.flag("learn_sigma", default=True) else 1)
    return _Dit(
        parts=Parts(format=fmt, norm_kind=NormKind.PLAIN),
        hidden=hidden,
        classes=config.integer("num_classes", 1000) + 1,  # and one for none
        attention=SelfAttention(heads=heads, fused_qkv=True, qkv_bias=True, o_bias=True),
        mlp=Mlp(inner=inner, act="gelu_tanh", bias=True),
    ).graph(depth, patches=(side // patch) ** 2, numbers=patch**2 * channels, out=patch**2 * out)


@frozen(kw_only=True)
class _Dit:
    """adaLN-Zero (section 3.2): norms without weights, whose results are scaled and shifted, and the branches gated, by
    numbers made of the time and the class of each sequence.
    """

    parts: Parts
    hidden: int
    classes: int
    attention: Mixer
    mlp: FeedForward

    def graph(self, depth: int, *, patches: int, numbers: int, out: int) -> Graph:
        """A network of `depth` layers for latents of `patches`, `numbers` in each, of which it makes `out`."""
        parts = self.parts
        pixels = parts.tensor("pixels", numbers)
        patch = parts.patches("patch_embed", pixels, parts.tensor("patch_embed", self.hidden), patches)
        placed = parts.tensor("position_add", self.hidden)
        positions = Add(name=placed.name, inputs=patch.outputs, outputs=(placed,), ops_per_element=1)
        layer = self._layer()
        last = self._last(out)
        return Graph(
            (
                Block(name="embedding", operators=(patch, positions), input="pixels", output=placed.name),
                self._condition(),
                Block(
                    name="layer",
                    operators=layer,
                    input=HIDDEN,
                    output=result(layer).name,
                    layers=tuple(range(depth)),
                    side_inputs=(_CONDITION,),
                ),
                Block(name="head", operators=last, input=HIDDEN, output=result(last).name, side_inputs=(_CONDITION,)),
            )
        )

    def _condition(self) -> Block:
        parts = self.parts
        each = self._each("time_waves", _TIME_WAVES)
        waves = Elementwise(name=each.name, inputs=(), outputs=(each,), ops_per_element=2)  # scale, sine or cosine
        first = parts.linear("time_linear_1", each, self._each("time_linear_1", self.hidden), bias=True)
        act = parts.activate("time_act", "silu", first.result)
        time = parts.linear("time_linear_2", act.result, self._each("time_linear_2", self.hidden), bias=True)
        label = parts.embed("embed_class", {"embed_class.weight": self.classes}, self.hidden)
        label = label.with_tensors(lambda t: with_rows(t, SEQUENCES))
        embeddings = (time.result, label.result)
        add = Add(
            name="condition_add", inputs=embeddings, outputs=(self._each(_CONDITION, self.hidden),), ops_per_element=1
        )
        return Block(name="conditioning", operators=(waves, first, act, time, label, add), input="", output=_CONDITION)

    def _layer(self) -> tuple[Operator, ...]:
        parts, x = self.parts, self.parts.tensor(HIDDEN, self.hidden)
        modulation_ops, numbers = self._modulation(6)
        for name, run in (("attn", self.attention), ("mlp", self.mlp)):
            branch = self._modulated(f"{name}_norm", x, numbers)
            branch = (*branch, *run.operators(parts, result(branch)))
            out = parts.tensor(f"{name}_add", self.hidden)
            gate = self._each(numbers.name, self.hidden)
            add = Add(name=out.name, inputs=(x, result(branch), gate), outputs=(out,), ops_per_element=2)
            modulation_ops, x = (*modulation_ops, *branch, add), out
        return modulation_ops

    def _last(self, out: int) -> tuple[Operator, ...]:
        modulation_ops, numbers = self._modulation(2)
        modulation_ops = (
            *modulation_ops,
            *self._modulated("final_norm", self.parts.tensor(HIDDEN, self.hidden), numbers),
        )
        return (*modulation_ops, self.parts.project("final_linear", result(modulation_ops), out, bias=True))

    def _modulation(self, count: int) -> tuple[tuple[Operator, ...], Tensor]:
        """Modulation (adaLN): `count` numbers per element, shared by all tokens of a sequence."""
        act = self.parts.activate("modulation_act", "silu", self._each(_CONDITION, self.hidden))
        numbers = self._each("modulation", count * self.hidden)
        return (act, self.parts.linear("modulation", act.result, numbers, bias=True)), numbers

    def _modulated(self, name: str, x: Tensor, numbers: Tensor) -> tuple[Operator, ...]:
        """The norm of x, scaled and shifted."""
        norm = self.parts.norm(name, x)
        scale_and_shift = self._each(numbers.name, 2 * self.hidden)
        return (norm, self.parts.elementwise(f"{name}_modulated", norm.result, scale_and_shift, ops=2))

    def _each(self, name: str, width: int) -> Tensor:
        """A tensor with a row for each sequence."""
        return with_rows(self.parts.tensor(name, width), SEQUENCES)
