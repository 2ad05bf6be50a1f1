"""Block attention residuals: attention over earlier results in place of a residual stream (arXiv:2603.15031).

Layers are divided into runs. Within a run, results are summed. Sources are the embedding and the sums of earlier runs;
the input of each mixer and feed-forward network is a mixture of the sources and the sum of its own run.
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
    """A layer with attention residuals.

    given   names of sources, without one that this layer is the first to read
    first   whether it begins a run: its input becomes a source, and its result starts a new sum
    leaves  name of the sum of the run, if the layer ends it; else ""
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
    """A decoder with attention residuals, whose head also reads a mixture of sources.

    sources  names of the sources of the head
    """

    sources: tuple[str, ...]

    def _head(self, parts: Parts) -> Block:
        x = self._hidden(parts)
        seen = mixed(parts, "head_sources", (*_given(parts, self.sources, x), x))
        logits = self._logits(parts, seen.result, "final_norm", tied=self.tied)
        return Block(name="head", operators=(seen, *logits), input=HIDDEN, output="logits", given=self.sources)


def sourced(decoder: Decoder, run: int) -> SourcedDecoder:
    """`decoder` with attention residuals over runs of `run` layers."""
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
    """The mixture of sources that is the input of a mixer, a feed-forward network or the head."""
    width = sources[-1].width
    return Sources(
        name=name,
        inputs=tuple(sources),
        outputs=(parts.tensor(name, width),),
        weights=(parts.weight(f"{name}.norm.weight", width), parts.weight(f"{name}.query", width)),
    )


def _given(parts: Parts, names: Sequence[str], x: Tensor) -> tuple[Tensor, ...]:
    return tuple(parts.tensor(name, x.width) for name in names)
