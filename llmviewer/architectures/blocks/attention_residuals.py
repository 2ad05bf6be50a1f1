"""Block attention residuals: attention over earlier results in place of a residual stream (arXiv:2603.15031).

Layers are divided into runs. Within a run, results are summed. Sources are the embedding and the sums of earlier runs;
the input of each mixer and feed-forward network is a mixture of the sources and the sum of its own run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import Block
from ...operators.attention_residuals import Sources
from ...operators.base import Operator, Tensor
from ...records import frozen
from .decoder import Decoder, Layer, Mixer
from .encoder import leaving
from .parts import HIDDEN, Parts, result


@frozen(kw_only=True)
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
        sources = self._sources(parts, x)
        launches = self._attending(parts, self.mixer, (*sources, x))
        add = () if self.first else (parts.add("attn_add", x, result(launches)),)
        total = result((*launches, *add))
        mixed_sources = self._seen(parts, (*sources, x, total) if self.first else (*sources, total))
        norm = parts.norm("mlp_norm", result(mixed_sources))
        network = self.feed_forward.operators(parts, norm.result)
        last = (*network, parts.add("mlp_add", total, result(network)))
        return (*launches, *add, *mixed_sources, norm, *(leaving(last, self.leaves) if self.leaves else last))

    def _sources(self, parts: Parts, x: Tensor) -> tuple[Tensor, ...]:
        """Results of earlier runs."""
        return side_tensors(parts, self.given, x)

    def _attending(self, parts: Parts, mixer: Mixer, sources: tuple[Tensor, ...]) -> tuple[Operator, ...]:
        """The mixer over a mixture of sources, of which the last is the sum of the run."""
        mixed_sources = mixed(parts, "attn_sources", sources)
        norm = parts.norm("attn_norm", mixed_sources.result)
        return (mixed_sources, norm, *mixer.operators(parts, norm.result))

    def _seen(self, parts: Parts, sources: tuple[Tensor, ...]) -> tuple[Operator, ...]:
        """The mixture of sources that the network reads."""
        return (mixed(parts, "mlp_sources", sources),)


@frozen(kw_only=True)
class SourcedDecoder(Decoder):
    """A decoder with attention residuals, whose head also reads a mixture of sources.

    sources  names of the sources of the head
    learned  whether norms of sources have a weight
    """

    sources: tuple[str, ...]
    learned: bool = True

    def _head(self, parts: Parts) -> Block:
        x = self._hidden(parts)
        mixed_sources = mixed(parts, "head_sources", (*side_tensors(parts, self.sources, x), x), learned=self.learned)
        logits = self._logits(parts, mixed_sources.result, "final_norm", tied=self.tied)
        return Block(
            name="head", operators=(mixed_sources, *logits), input=HIDDEN, output="logits", side_inputs=self.sources
        )


def sourced(decoder: Decoder, run: int) -> SourcedDecoder:
    """`decoder` with attention residuals over runs of `run` layers."""
    count = len(decoder.layers)
    sums = ("embed_norm" if decoder.embed_norm else "embed_tokens", *(f"run_{n}" for n in range((count - 1) // run)))

    def layer(index: int, plain: Layer) -> SourcedLayer:
        run_index, place = divmod(index, run)
        first, last = place == 0, place == run - 1 and index < count - 1
        return SourcedLayer(
            mixer=plain.mixer,
            feed_forward=plain.feed_forward,
            name=f"{plain.name}_{run_index}{'_first' if first else ''}{'_last' if last else ''}",
            given=sums[:run_index] if first else sums[: run_index + 1],
            first=first,
            leaves=sums[run_index + 1] if last else "",
        )

    layers = [layer(index, plain) for index, plain in enumerate(decoder.layers)]
    return SourcedDecoder(**(vars(decoder) | {"layers": layers}), sources=sums)


def mixed(
    parts: Parts, name: str, sources: Sequence[Tensor], output_names: Sequence[str] = (), *, learned: bool = True
) -> Sources:
    """The mixture of sources that is the input of a mixer, a feed-forward network or the head.

    made     names of several mixtures, each with a query of its own; one of its name if empty
    learned  whether the norm of sources has a weight
    """
    width, output_names = sources[-1].width, output_names or (name,)
    norm = (parts.weight(f"{name}.norm.weight", width),) if learned else ()
    return Sources(
        name=name,
        inputs=tuple(sources),
        outputs=tuple(parts.tensor(each, width) for each in output_names),
        weights=(*norm, parts.weight(f"{name}.query", len(output_names) * width)),
    )


def side_tensors(parts: Parts, names: Sequence[str], x: Tensor) -> tuple[Tensor, ...]:
    """Tensors of these names, each of the width of `x`."""
    return tuple(parts.tensor(name, x.width) for name in names)
