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

_MAX_LISTED_NAMES: Final = 3  # names in a note
_SAME: Final = 1e-9  # relative difference of bits by rounding


@frozen(kw_only=True)
class Checkpoint:
    """Formats of the weights in a checkpoint.

    model_format  format of activations and of unquantized weights
    formats       stored format of each weight, by its place
    schemes       quantization of the config, for activations and cache
    """

    model_format: Format
    formats: Mapping[Spot, Format]
    schemes: Stored = Stored()  # it is frozen
    notes: tuple[str, ...] = ()

    @property
    def kv_cache(self) -> Format | None:
        return self.schemes.kv_cache

    @property
    def layout(self) -> ModuleLayout:
        return self.schemes.layout

    def of(self, naming: Naming, block: Block, op: Linear) -> dict[int | None, Scheme | None]:
        schemes = self.schemes.of(naming, block, op)
        if op.weight.tied:  # in the format of the table that it shares
            return dict.fromkeys(schemes)
        return schemes if op.left_as_published else {i: self._scheme(block, op, i, schemes[i]) for i in schemes}

    def _scheme(self, block: Block, op: Linear, layer: int | None, scheme: Scheme | None) -> Scheme | None:
        fmt = self.formats.get((block.name, op.weight.name, layer))
        if fmt is None or fmt == self.model_format:
            return scheme if fmt is None else None
        if scheme and scheme.weight:
            same = abs(fmt.stored_bits / scheme.weight.stored_bits - 1) < _SAME
            return scheme if same else replace(scheme, weight=_taking(scheme.weight, fmt.stored_bits))
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
        formats = [
            self.formats[spot] for i in block.layers or (None,) if (spot := (block.name, w.name, i)) in self.formats
        ]
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
    difference = f"{file} holds {stored} parameters, {stored - graph.parameters:+} to the {graph.parameters} counted"
    parts = (("not counted", extra), ("not in it", missing), ("of another size", differing))
    listed = [f"{label}: {_named(names)}" for label, names in parts if names]
    return ("; ".join((difference, *listed)),)


def _named(names: Sequence[str]) -> str:
    unlisted_count = len(names) - _MAX_LISTED_NAMES
    return ", ".join(names[:_MAX_LISTED_NAMES]) + (f" and {unlisted_count} more" if unlisted_count > 0 else "")
