"""`Checkpoint`: the stored formats of a graph's weights, from file headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..graph import Block, Graph
from ..operators.base import Operator, Weight
from ..operators.linear import Linear
from ..precision import Format, Scheme
from ..transforms.mixtures import Place
from .formats import Stored

_FEW: Final = 3  # names in a note
_SAME: Final = 1e-3  # relative difference of bits due to scales of whole tensors and the like


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Formats of weights by (name, layer), for weights in the checkpoint.

    own      format of activations and of unquantized weights
    schemes  the quantization of the config, for activations and cache
    """

    own: Format
    held: Mapping[Place, Format]
    schemes: Stored = Stored()  # noqa: RUF009  # it is frozen
    notes: tuple[str, ...] = ()

    @property
    def kv_cache(self) -> Format | None:
        return self.schemes.kv_cache

    def of(self, op: Linear, layers: Iterable[int | None]) -> dict[int | None, Scheme | None]:
        said = self.schemes.of(op, layers)
        return said if op.left_as_published else {layer: self._scheme(op, layer, said[layer]) for layer in said}

    def _scheme(self, op: Linear, layer: int | None, said: Scheme | None) -> Scheme | None:
        fmt = self.held.get((op.weight.name, layer))
        if fmt is None or fmt == self.own:
            return said if fmt is None else None
        if said and said.weight:
            same = abs(fmt.stored_bits / said.weight.stored_bits - 1) < _SAME
            return said if same else replace(said, weight=_taking(said.weight, fmt.stored_bits))
        return Scheme(text=f"{fmt} weights", weight=fmt)

    def applied(self, graph: Graph) -> Graph:
        """`graph` with stored formats where --quant changes none: tables, norms, biases, routers, heads."""
        return graph.map_blocks(lambda block: block.map(lambda op: op.with_weights(self._stored(block, op))))

    def _stored(self, block: Block, op: Operator) -> Callable[[Weight], Weight]:
        layer = block.layers[0] if block.layers else None
        matrix = op.weights[0] if isinstance(op, Linear) and not op.left_as_published else None

        def change(w: Weight) -> Weight:
            fmt = self.held.get((w.name, layer))
            return replace(w, format=fmt) if fmt and w != matrix else w

        return change


def _taking(fmt: Format, bits: float) -> Format:
    """`fmt` with `bits` per element in all."""
    return replace(fmt, bits=bits - (fmt.stored_bits - fmt.bits))


def disagreement(
    file: str,
    stored: int,
    graph: Graph,
    *,
    missing: Sequence[str],
    extra: Sequence[str],
    differing: Sequence[str] = (),
) -> tuple[str, ...]:
    """A note if the parameters of a checkpoint differ from those of the graph; else none."""
    if not (missing or differing) and stored == graph.parameters:
        return ()
    said = f"{file} holds {stored} parameters, {stored - graph.parameters:+} to the {graph.parameters} counted"
    parts = (("not counted", extra), ("not in it", missing), ("of another size", differing))
    listed = [f"{what}: {_named(names)}" for what, names in parts if names]
    return ("; ".join((said, *listed)),)


def _named(names: Sequence[str]) -> str:
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} more" if more > 0 else "")
