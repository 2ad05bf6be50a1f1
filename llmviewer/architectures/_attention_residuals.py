"""Layers that attend to what earlier ones left, in the place of a residual stream (arXiv:2603.15031, Block AttnRes).

Layers stand in runs. Within a run what they make is added up; the sums that runs before have left, the embedding first,
are the sources that each mixer and each network mixes with its own run's sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Block
from ..operators.attention_residuals import Sources
from ..operators.base import Operator, Tensor
from ._decoder import Decoder, Layer
from ._encoder import leaving
from ._parts import HIDDEN, Parts, result

_EMBEDDED = "embed_tokens"


@dataclass(frozen=True, kw_only=True)
class SourcedLayer(Layer):
    """A layer of such a run.

    given   names of the sums that runs before have left, but for one that this layer is the first to see
    first   it begins a run: what it reads becomes a source, and what it makes is a new sum
    leaves  what its own result is named, where it ends a run; "" where it does not
    """

    first: bool
    leaves: str = ""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if self.mixer is None or self.feed_forward is None:
            raise RuntimeError("attention residuals of a layer without a mixer or a network")
        sources = _given(parts, self.given, x)
        seen = mixed(parts, "attn_sources", (*sources, x))
        norm = parts.norm("attn_norm", seen.result)
        made = self.mixer.operators(parts, norm.result)
        add = () if self.first else (parts.add("attn_add", x, result(made)),)
        total = result((*made, *add))
        sources = (*sources, x) if self.first else sources
        again = mixed(parts, "mlp_sources", (*sources, total))
        norm_again = parts.norm("mlp_norm", again.result)
        network = self.feed_forward.operators(parts, norm_again.result)
        last = (*network, parts.add("mlp_add", total, result(network)))
        return (seen, norm, *made, *add, again, norm_again, *(leaving(last, self.leaves) if self.leaves else last))


@dataclass(frozen=True, kw_only=True)
class SourcedDecoder(Decoder):
    """A decoder of such layers, whose head reads a mixture of all sources too.

    sources  that the head is given
    """

    sources: tuple[str, ...]

    def _head(self, parts: Parts) -> Block:
        x = self._hidden(parts)
        seen = mixed(parts, "head_sources", (*_given(parts, self.sources, x), x))
        logits = self._logits(parts, seen.result, "final_norm", tied=self.tied)
        return Block(name="head", operators=(seen, *logits), input=HIDDEN, output="logits", given=self.sources)


def sourced(decoder: Decoder, run: int) -> SourcedDecoder:
    """`decoder` with attention residuals over runs of so many layers."""
    count = len(decoder.layers)
    sums = (_EMBEDDED, *(f"run_{n}" for n in range((count - 1) // run)))

    def layer(index: int, plain: Layer) -> SourcedLayer:
        at, place = divmod(index, run)
        first, last = place == 0, place == run - 1 and index < count - 1
        return SourcedLayer(
            mixer=plain.mixer,
            feed_forward=plain.feed_forward,
            name=f"{plain.name}_{at}{'_first' if first else ''}{'_last' if last else ''}",
            given=sums[:at] if first else sums[: at + 1],
            first=first,
            leaves=sums[at + 1] if last else "",
        )

    layers = [layer(index, plain) for index, plain in enumerate(decoder.layers)]
    return SourcedDecoder(**(vars(decoder) | {"layers": layers}), sources=sums)


def mixed(parts: Parts, name: str, sources: Sequence[Tensor]) -> Sources:
    """What a mixer, a network or the head is given."""
    width = sources[-1].width
    return Sources(
        name=name,
        inputs=tuple(sources),
        outputs=(parts.tensor(name, width),),
        weights=(parts.weight(f"{name}.norm.weight", width), parts.weight(f"{name}.query", width)),
    )


def _given(parts: Parts, names: Sequence[str], x: Tensor) -> tuple[Tensor, ...]:
    return tuple(parts.tensor(name, x.width) for name in names)
