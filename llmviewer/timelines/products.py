"""Assignment of kernels to the matrix products of a model.

Launches that mix tokens, one in each layer, divide a pass into segments. Kernels of a segment are assigned to its
products by the sizes of their weights where shapes were recorded, and else by their order. Engines may merge products
that read the same tensor, such as q_proj, k_proj and v_proj: of all ways to merge them, the one counts whose segments
have as many products as were recorded, and whose times are nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import combinations, groupby
from math import log
from typing import Final, NamedTuple, TypeAlias

from ..analyzing.phases import OperatorResult
from ..graph import Block, Graph
from ..operators.base import Operator
from ..records import frozen
from ..units import counted
from .kinds import Part, known_sum, mixes, part_of_operator
from .passes import MatrixProduct

Place: TypeAlias = tuple[str, tuple[str, ...]]  # (block, its operators that one kernel computes)
Way: TypeAlias = list[list[Place]]  # products of a pass before, between and after operators that mix tokens

BY_SHAPE: Final = "shape"
BY_ORDER: Final = "order"
_MIN_SHARE_OF_BOUND: Final = 0.97  # of its bound, below which a kernel cannot be that of a product
_BELOW_BOUND_PENALTY: Final = 10.0  # of a kernel below the bound of its product
_PACKING_FACTORS: Final = (1, 2, 4, 8)  # weights in an element of a packed tensor, such as 8 of 4 bits in an int32


class Match(NamedTuple):
    """Kernels assigned to products, how many of them by the sizes of their weights, and those without a product."""

    pairs: list[tuple[Place, MatrixProduct]]
    by_shape: int
    rest: list[MatrixProduct]


@frozen(kw_only=True)
class ProductOfPass:
    """Matrix products that one kernel computes in each layer of a block. Times are totals over its layers. [s]

    kernels     distinct names of kernels
    matched     how the kernels were identified: BY_SHAPE or BY_ORDER
    expected_s  None if only the bound of one product is known
    """

    block: str
    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    launches: int
    matched: str
    measured_s: float
    bound_s: float
    expected_s: float | None


@frozen(kw_only=True)
class IdentifiedProducts:
    """The matrix products of a pass.

    products  products with their kernels, in order
    rest      kernels of products that the model does not have, such as those of rotary angles
    last      those of them behind the last layer, where the head is
    missing   operators without a kernel
    launches  place in `products` of each launch in the recording
    merged_expected_s  expected time of the identified products as the kernel library launches them; None if only the
                       bound of one is known [s]
    why_not   why there are no products; "" if there are
    """

    products: tuple[ProductOfPass, ...] = field(default=(), repr=False)
    rest: tuple[MatrixProduct, ...] = field(default=(), repr=False)
    last: tuple[MatrixProduct, ...] = field(default=(), repr=False)
    missing: tuple[str, ...] = ()
    why_not: str = ""
    launches: Mapping[int, int] = field(default_factory=dict, repr=False)
    merged_expected_s: float | None = None


def identify(
    recorded: Sequence[Sequence[MatrixProduct]],
    graph: Graph,
    operators: Iterable[OperatorResult],
    expected_s: Callable[[Place], float | None],
) -> IdentifiedProducts:
    """The products of a pass.

    recorded    kernels of products before, between and after launches that mix tokens
    graph       the graph of the device, whose weights have their sizes
    operators   operators of the pass
    expected_s  expected time of one kernel that computes the operators of a place together [s]
    """
    order = _Order.of(graph, operators)
    if not recorded:
        return IdentifiedProducts(why_not="the file has sums by kernel, without their order")
    if not any(recorded) or not order.products:
        return IdentifiedProducts(why_not="no kernel of a matrix product was recorded")
    ways = [way for way in order.ways(flat=len(recorded) == 1) if len(way) == len(recorded)]
    matches = [(match, way) for way in ways if (match := _matched(recorded, way, order.sizes))]
    if not matches:
        kernels = counted(sum(map(len, recorded)), "kernel")
        return IdentifiedProducts(
            why_not=f"a pass has {kernels} of matrix products, which are not those of the model: {order.most} one by "
            f"one, {order.fewest} where those that read the same tensor are merged"
        )
    match, way = min(matches, key=lambda each: (-each[0].by_shape, _distance(each[0], order.products)))
    kernels_of: dict[Place, list[MatrixProduct]] = {}
    for place, kernel in match.pairs:
        kernels_of.setdefault(place, []).append(kernel)
    missing = dict.fromkeys(
        name for segment in way for place in segment if place not in kernels_of for name in place[1]
    )
    return IdentifiedProducts(
        products=tuple(_product(place, kernels, order, expected_s(place)) for place, kernels in kernels_of.items()),
        rest=tuple(match.rest),
        last=tuple(kernel for kernel in match.rest if any(kernel is one for one in recorded[-1])),
        missing=tuple(missing),
        launches={
            launch: number
            for number, kernels in enumerate(kernels_of.values())
            for kernel in kernels
            for launch in kernel.launches
        },
        merged_expected_s=known_sum(
            order.products[block, name].expected_time_s
            for block, name in dict.fromkeys((block, name) for block, names in kernels_of for name in names)
        ),
    )


def product_counts(graph: Graph, operators: Iterable[OperatorResult]) -> tuple[int, int]:
    """Number of kernels for the matrix products of a pass: if all that can be merged are, and if none is."""
    order = _Order.of(graph, operators)
    return order.fewest, order.most


@frozen(kw_only=True)
class _Order:
    """The operators of a pass in order.

    products  operators that are matrix products
    blocks    one block per layer, in order, with the groups of its products that read the same tensor; an empty group
              where an operator mixes tokens
    sizes     elements of the weights of a product
    """

    products: Mapping[tuple[str, str], OperatorResult]
    blocks: Sequence[tuple[str, Sequence[tuple[str, ...]]]]
    sizes: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, graph: Graph, operators: Iterable[OperatorResult]) -> _Order:
        results = {(op.block, op.name): op for op in operators}
        groups = {block.name: list(_groups(block, results)) for block in graph.blocks}
        return cls(
            products={key: op for key, op in results.items() if part_of_operator(op) is Part.PRODUCTS},
            blocks=[(block.name, groups[block.name]) for block in _in_order(graph)],
            sizes={(block.name, op.name): op.weights[0].numel for block, op in graph if op.weights},
        )

    @property
    def fewest(self) -> int:
        """Number of kernels if all products that can be merged are."""
        return sum(bool(group) for _, groups in self.blocks for group in groups)

    @property
    def most(self) -> int:
        """Number of kernels if each product is one."""
        return sum(len(group) for _, groups in self.blocks for group in groups)

    def ways(self, *, flat: bool) -> Iterator[Way]:
        """The kernels of a pass for each choice of merged products.

        flat  whether they are one segment, for recordings without a launch that is known to mix tokens
        """
        several = sorted({group for _, groups in self.blocks for group in groups if len(group) > 1})
        for count in range(len(several) + 1):
            for merged in combinations(several, count):
                way = self._segments(frozenset(merged))
                yield [[place for segment in way for place in segment]] if flat else way

    def _segments(self, merged: frozenset[tuple[str, ...]]) -> Way:
        segments: Way = [[]]
        for block, groups in self.blocks:
            for group in groups:
                if not group and (segments[-1] or len(segments) == 1):
                    segments.append([])
                segments[-1] += [(block, group)] if group in merged else [(block, (name,)) for name in group]
        return segments


def _groups(block: Block, results: Mapping[tuple[str, str], OperatorResult]) -> Iterator[tuple[str, ...]]:
    """Names of the products of a block, together if they follow each other and read the same tensor; not routers with
    others. An empty group stands for an operator that mixes tokens.
    """

    def key(op: Operator) -> tuple[str, ...]:
        result = results[block.name, op.name]
        if part_of_operator(result) is Part.PRODUCTS:
            return op.kind, op.inputs[0].name
        return (op.name,) if mixes(result) else ()

    analyzed = [op for op in block.operators if (block.name, op.name) in results]
    for kind, group in groupby((op for op in analyzed if key(op)), key):
        yield tuple(op.name for op in group) if len(kind) > 1 else ()


def _matched(
    recorded: Sequence[Sequence[MatrixProduct]], way: Way, sizes: Mapping[tuple[str, str], int]
) -> Match | None:
    """The kernels of each segment assigned to its products; None if segments within the pass do not have as many."""
    match = Match([], 0, [])
    for number, (kernels, places) in enumerate(zip(recorded, way, strict=True)):
        if kernels and all(kernel.weights is not None for kernel in kernels):
            pairs = _by_sizes(kernels, places, sizes)
            by_shape = len(pairs)
        else:
            first, last = 0 == number < len(way) - 1, 0 < number == len(way) - 1
            pairs, by_shape = _by_order(kernels, places, first=first, last=last), 0
        assigned = {place for place, _ in pairs}
        if 0 < number < len(way) - 1 and len(assigned) < len(places):
            return None
        assigned_kernels = {id(kernel) for _, kernel in pairs}
        match = Match(
            match.pairs + pairs,
            match.by_shape + by_shape,
            match.rest + [kernel for kernel in kernels if id(kernel) not in assigned_kernels],
        )
    return match if match.pairs else None


def _by_sizes(
    kernels: Sequence[MatrixProduct], places: Sequence[Place], sizes: Mapping[tuple[str, str], int]
) -> list[tuple[Place, MatrixProduct]]:
    """Kernels whose recorded weights are those of the next product, in order."""
    pairs: list[tuple[Place, MatrixProduct]] = []
    following = 0
    for kernel in kernels:
        for number in range(following, len(places)):
            block, names = places[number]
            size = sum(sizes[block, name] for name in names)
            if kernel.weights is not None and any(size == kernel.weights * packed for packed in _PACKING_FACTORS):
                pairs.append((places[number], kernel))
                following = number + 1
                break
    return pairs


def _by_order(
    kernels: Sequence[MatrixProduct], places: Sequence[Place], *, first: bool, last: bool
) -> list[tuple[Place, MatrixProduct]]:
    """Kernels and products one by one.

    In the first segment kernels before those of the products, such as of rotary angles, and in the last segment kernels
    behind them have no product; a head may not have run.
    """
    if len(kernels) == len(places):
        return list(zip(places, kernels, strict=True))
    if first and len(kernels) > len(places):
        return list(zip(places, kernels[len(kernels) - len(places) :], strict=True))
    if last:
        return list(zip(places, kernels, strict=False))
    return []


def _distance(match: Match, products: Mapping[tuple[str, str], OperatorResult]) -> float:
    """Distance of recorded times from expected ones, or from bounds: mean absolute logarithm of their ratios, with a
    penalty for times below the bound.
    """
    total = 0.0
    for (block, names), kernel in match.pairs:
        operators = [products[block, name] for name in names]
        bound = sum(op.bound_time_s / op.repeat for op in operators)
        expected = known_sum(op.expected_time_s for op in operators)
        near = bound if expected is None else expected / operators[0].repeat
        if kernel.time_s > 0 and near > 0:
            total += abs(log(kernel.time_s / near)) + (
                _BELOW_BOUND_PENALTY if kernel.time_s < _MIN_SHARE_OF_BOUND * bound else 0
            )
    return total / max(len(match.pairs), 1)


def _product(place: Place, kernels: Sequence[MatrixProduct], order: _Order, expected_s: float | None) -> ProductOfPass:
    block, names = place
    operators = [order.products[block, name] for name in names]
    launches = len(kernels)
    return ProductOfPass(
        block=block,
        operators=names,
        kernels=tuple(dict.fromkeys(kernel.name for kernel in kernels)),
        launches=launches,
        matched=BY_SHAPE if all(kernel.weights is not None for kernel in kernels) else BY_ORDER,
        measured_s=sum(kernel.time_s for kernel in kernels),
        bound_s=sum(op.bound_time_s / op.repeat for op in operators) * launches,
        expected_s=None if expected_s is None else expected_s * launches,
    )


def _in_order(graph: Graph) -> list[Block]:
    """Blocks in execution order, one per layer, with those outside of layers before and after them."""
    layered = sorted(((place, block) for block in graph.blocks for place in block.layers), key=lambda item: item[0])
    outer_blocks = [block for block in graph.blocks if not block.layers]
    first = next((i for i, block in enumerate(graph.blocks) if block.layers), len(graph.blocks))
    return [*graph.blocks[:first], *(block for _, block in layered), *outer_blocks[first:]]
