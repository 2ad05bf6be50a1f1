"""Assignment of kernels to matrix products by their order in a pass, if there are as many as the model has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import TypeAlias

from ..analyzing.phases import OperatorResult
from ..graph import Block, Graph
from .kinds import Part, known_sum, part_of_operator
from .passes import Product

Place: TypeAlias = tuple[str, tuple[str, ...]]  # (block, its operators that one kernel computes)


@dataclass(frozen=True, kw_only=True)
class ProductOfPass:
    """Matrix products that one kernel computes in each layer of a block. Times are totals over its layers. [s]

    kernels     distinct names of kernels
    expected_s  None if only the bound of one product is known
    """

    block: str
    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    launches: int
    measured_s: float
    bound_s: float
    expected_s: float | None


def products_of(
    sequence: Sequence[Product], graph: Graph, operators: Iterable[OperatorResult]
) -> tuple[ProductOfPass, ...]:
    """The matrix products of a pass; `sequence` has its kernels in order.

    Engines may merge products that read the same tensor, such as q_proj, k_proj and v_proj. The result is empty unless
    exactly one choice of merged products yields as many kernels, with the same sizes of weights if those are recorded.
    """
    known = {(op.block, op.name): op for op in operators if part_of_operator(op) is Part.PRODUCTS}
    sizes = {(block.name, op.name): sum(weight.numel for weight in op.weights[:1]) for block, op in graph}
    ways = [way for way in _ways(graph, known) if len(way) == len(sequence) and _fits(way, sequence, sizes)]
    if len(ways) != 1 or not sequence:
        return ()
    found: dict[Place, list[Product]] = {}
    for place, launch in zip(ways[0], sequence, strict=True):
        found.setdefault(place, []).append(launch)
    return tuple(_product(place, launches, known) for place, launches in found.items())


def fewest(graph: Graph, operators: Iterable[OperatorResult]) -> int:
    """Number of kernels for the matrix products of a pass if all that can be merged are."""
    known = {(op.block, op.name): op for op in operators if part_of_operator(op) is Part.PRODUCTS}
    return sum(max(len(block.layers), 1) * len(_alike(block, known)) for block in graph.blocks)


def _fits(way: Sequence[Place], sequence: Sequence[Product], sizes: Mapping[tuple[str, str], int]) -> bool:
    return all(
        launch.weights in (None, sum(sizes[block, name] for name in names))
        for (block, names), launch in zip(way, sequence, strict=True)
    )


def _product(
    place: Place, launches: Sequence[Product], known: Mapping[tuple[str, str], OperatorResult]
) -> ProductOfPass:
    block, names = place
    own = [known[block, name] for name in names]
    return ProductOfPass(
        block=block,
        operators=names,
        kernels=tuple(dict.fromkeys(launch.name for launch in launches)),
        launches=len(launches),
        measured_s=sum(launch.time_s for launch in launches),
        bound_s=sum(op.bound_time_s for op in own),
        expected_s=known_sum(op.expected_time_s for op in own),
    )


def _ways(graph: Graph, known: Mapping[tuple[str, str], OperatorResult]) -> Iterator[list[Place]]:
    """The kernels of a pass in order, for each way to merge products."""
    alike = {block.name: _alike(block, known) for block in graph.blocks}
    several = sorted({group for groups in alike.values() for group in groups if len(group) > 1})
    for count in range(len(several) + 1):
        for at_once in combinations(several, count):
            yield [
                (block.name, names)
                for block in _in_order(graph)
                for group in alike[block.name]
                for names in ([group] if group in at_once else [(name,) for name in group])
            ]


def _alike(block: Block, known: Mapping[tuple[str, str], OperatorResult]) -> list[tuple[str, ...]]:
    """Names of the products of a block, grouped if they follow each other and read the same tensor; not routers."""
    ops = [op for op in block.operators if (block.name, op.name) in known]
    return [tuple(op.name for op in own) for _, own in groupby(ops, lambda op: (op.kind, op.inputs[0].name))]


def _in_order(graph: Graph) -> list[Block]:
    """One block per layer, in order, with blocks outside of layers before and after them."""
    layered = sorted(((place, block) for block in graph.blocks for place in block.layers), key=lambda found: found[0])
    alone = [block for block in graph.blocks if not block.layers]
    first = next((i for i, block in enumerate(graph.blocks) if block.layers), len(graph.blocks))
    return [*graph.blocks[:first], *(block for _, block in layered), *alone[first:]]
