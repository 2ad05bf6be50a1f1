"""`Checkpoint`: the stored formats of a graph's weights, from file headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from ..graph import Block, Graph
from ..operators.base import Operator, Weight
from ..operators.embedding import Embedding
from ..operators.linear import Linear
from ..precision import Format, Scheme
from ..records import frozen
from .formats import Stored
from .module_names import ModuleLayout, Naming

Spot: TypeAlias = tuple[str, str, int | None]  # (block, weight, layer)

_FEW: Final = 3  # names in a note
_SAME: Final = 1e-9  # relative difference of bits by rounding


@frozen(kw_only=True)
class Checkpoint:
    """Formats of the weights in a checkpoint.

    own      format of activations and of unquantized weights
    schemes  the quantization of the config, for activations and cache
    """

    own: Format
    held: Mapping[Spot, Format]
    schemes: Stored = Stored()  # it is frozen
    notes: tuple[str, ...] = ()

    @property
    def kv_cache(self) -> Format | None:
        return self.schemes.kv_cache

    @property
    def layout(self) -> ModuleLayout:
        return self.schemes.layout

    def of(self, naming: Naming, block: Block, op: Linear) -> dict[int | None, Scheme | None]:
        said = self.schemes.of(naming, block, op)
        if op.weight.tied:  # in the format of the table that it shares
            return dict.fromkeys(said)
        return said if op.left_as_published else {i: self._scheme(block, op, i, said[i]) for i in said}

    def _scheme(self, block: Block, op: Linear, layer: int | None, said: Scheme | None) -> Scheme | None:
        fmt = self.held.get((block.name, op.weight.name, layer))
        if fmt is None or fmt == self.own:
            return said if fmt is None else None
        if said and said.weight:
            same = abs(fmt.stored_bits / said.weight.stored_bits - 1) < _SAME
            return said if same else replace(said, weight=_taking(said.weight, fmt.stored_bits))
        return Scheme(text=f"{fmt} weights", weight=fmt)

    def applied(self, graph: Graph) -> Graph:
        """`graph` with stored formats where --quant changes none: tables, norms, biases, routers, heads."""
        tables = {
            w.shape: fmt
            for block, op in graph
            if isinstance(op, Embedding)
            for w in op.weights
            if (fmt := self._mean(block, w))
        }
        return graph.map_blocks(lambda block: block.map(lambda op: op.with_weights(self._stored(block, op, tables))))

    def _stored(
        self, block: Block, op: Operator, tables: Mapping[tuple[int, ...], Format]
    ) -> Callable[[Weight], Weight]:
        matrix = op.weights[0] if isinstance(op, Linear) and not op.left_as_published else None

        def change(w: Weight) -> Weight:
            fmt = self._mean(block, w) or (tables.get(w.shape) if w.tied else None)
            return replace(w, format=fmt) if fmt and w != matrix else w

        return change

    def _mean(self, block: Block, w: Weight) -> Format | None:
        """The format of a weight over the layers of a block, with their mean bits; None: it is not stored."""
        formats = [self.held[spot] for i in block.layers or (None,) if (spot := (block.name, w.name, i)) in self.held]
        if not formats or all(fmt == formats[0] for fmt in formats):
            return formats[0] if formats else None
        mean = sum(fmt.stored_bits for fmt in formats) / len(formats)
        return Format(formats[0].name, mean, formats[0].compute)


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
