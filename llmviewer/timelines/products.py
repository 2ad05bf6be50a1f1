"""Assignment of kernels to the matrix products of a model.

Launches that mix tokens, one in each layer, divide a pass into segments. Kernels of a segment are assigned to its
products by the sizes of their weights where shapes were recorded, and else by their order. Engines may merge products
that read the same tensor, such as q_proj, k_proj and v_proj: of all ways to merge them, the one counts whose segments
have as many products as were recorded, with which most modules of torch agree, and whose times are nearest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import combinations, groupby
from math import log
from typing import Final, NamedTuple, TypeAlias

from ..analyzing.phases import OperatorResult
from ..graph import Block, Graph
from ..operators.base import Operator
from ..records import frozen
from ..units import counted
from .kinds import Part, known_sum, mixes, part_of_operator
from .modules import agrees, role_of, role_of_operator
from .passes import MatrixProduct

Place: TypeAlias = tuple[str, tuple[str, ...]]  # (block, its operators that one kernel computes)
Way: TypeAlias = list[list[Place]]  # products of a pass before, between and after operators that mix tokens

BY_SHAPE: Final = "shape"
BY_MODULE: Final = "module"
BY_NAME: Final = "name"
BY_ORDER: Final = "order"
BY_TIME: Final = "time"
_MIN_SHARE_OF_BOUND: Final = 0.97  # of its bound, below which a kernel cannot be that of a product
_BELOW_BOUND_PENALTY: Final = 10.0  # of a kernel below the bound of its product
_PACKING_FACTORS: Final = (1, 2, 4, 8)  # weights in an element of a packed tensor, such as 8 of 4 bits in an int32


class Assigned(NamedTuple):
    """A kernel assigned to products.

    shape     whether its recorded weights have their size
    module    whether modules of torch agree, and may disagree; None if they tell nothing
    in_order  whether its segment has as many kernels as products
    """

    place: Place
    kernel: MatrixProduct
    shape: bool
    module: bool | None
    in_order: bool


class Match(NamedTuple):
    """Kernels assigned to products, and those without a product."""

    pairs: list[Assigned]
    rest: list[MatrixProduct]

    @property
    def by_shape(self) -> int:
        """Kernels whose weights have the size of those of their product."""
        return sum(pair.shape for pair in self.pairs)

    @property
    def by_module(self) -> int:
        """Kernels with whose product modules agree, less those with whose they disagree."""
        return sum(0 if pair.module is None else 1 if pair.module else -1 for pair in self.pairs)


@frozen(kw_only=True)
class ProductOfPass:
    """Matrix products that one kernel computes in each layer of a block. Times are totals over its layers. [s]

    kernels     distinct names of kernels
    evidence    share of the launches with which each kind of evidence agrees: their shapes; the modules that called
                them; their names, which are those of most layers; their order; their time, which is not below the bound
    expected_s  None if only the bound of one product is known
    """

    block: str
    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    launches: int
    evidence: Mapping[str, float]
    measured_s: float
    bound_s: float
    expected_s: float | None

    @property
    def matched(self) -> str:
        """The strongest evidence by which the kernels were identified: BY_SHAPE, BY_MODULE or BY_ORDER."""
        return next((kind for kind in (BY_SHAPE, BY_MODULE) if self.evidence[kind] == 1), BY_ORDER)

    @property
    def score(self) -> float:
        """Mean share of all kinds of evidence; kinds that were not recorded do not agree."""
        return sum(self.evidence.values()) / len(self.evidence)


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
    matches = [(match, way) for way in ways if (match := _matched(recorded, way, order))]
    if not matches:
        kernels = counted(sum(map(len, recorded)), "kernel")
        return IdentifiedProducts(
            why_not=f"a pass has {kernels} of matrix products, which are not those of the model: {order.most} one by "
            f"one, {order.fewest} where those that read the same tensor are merged"
        )
    match, way = min(
        matches, key=lambda each: (-each[0].by_shape, -each[0].by_module, _distance(each[0], order.products))
    )
    kernels_of: dict[Place, list[Assigned]] = {}
    for pair in match.pairs:
        kernels_of.setdefault(pair.place, []).append(pair)
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
            for pair in kernels
            for launch in pair.kernel.launches
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

    @cached_property
    def _mergeable(self) -> frozenset[str]:
        """Products that read the same tensor as others."""
        return frozenset(name for _, groups in self.blocks for group in groups if len(group) > 1 for name in group)

    @cached_property
    def _layered(self) -> frozenset[str]:
        """Blocks of layers."""
        return frozenset(block for block, groups in self.blocks if () in groups)

    @cached_property
    def _roles(self) -> frozenset[str]:
        """Roles of all products."""
        return frozenset(role_of_operator(name, in_layer=block in self._layered) for block, name in self.products)

    def agrees(self, place: Place, kernel: MatrixProduct) -> bool | None:
        """Whether the modules that called a kernel can be those of a place; None if they tell nothing."""
        block, names = place
        mergeable = len(names) == 1 and names[0] in self._mergeable
        return agrees(kernel.module, names, in_layer=block in self._layered, mergeable=mergeable)

    def has_role(self, kernel: MatrixProduct) -> bool:
        """Whether the model may have the product of a kernel, by the modules that called it."""
        role = role_of(kernel.module)
        return not role or role in self._roles

    def has_size(self, place: Place, kernel: MatrixProduct) -> bool:
        """Whether the weights of a kernel are recorded and have the size of those of a place."""
        block, names = place
        size = sum(self.sizes.get((block, name), 0) for name in names)
        return kernel.weights is not None and any(size == kernel.weights * packed for packed in _PACKING_FACTORS)

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


def _matched(recorded: Sequence[Sequence[MatrixProduct]], way: Way, order: _Order) -> Match | None:
    """The kernels of each segment assigned to its products; None if segments within the pass do not have as many."""
    match = Match([], [])
    for number, (launched, places) in enumerate(zip(recorded, way, strict=True)):
        kernels = [kernel for kernel in launched if order.has_role(kernel)]
        if kernels and all(kernel.weights is not None for kernel in kernels):
            pairs = _by_sizes(kernels, places, order)
        else:
            first, last = 0 == number < len(way) - 1, 0 < number == len(way) - 1
            pairs = _by_order(kernels, places, first=first, last=last)
        if 0 < number < len(way) - 1 and len({place for place, _ in pairs}) < len(places):
            return None
        assigned_kernels = {id(kernel) for _, kernel in pairs}
        in_order = len(kernels) == len(places)
        match = Match(
            match.pairs + [
                Assigned(place, kernel, order.has_size(place, kernel), order.agrees(place, kernel), in_order)
                for place, kernel in pairs
            ],
            match.rest + [kernel for kernel in launched if id(kernel) not in assigned_kernels],
        )  # fmt: skip
    return match if match.pairs else None


def _by_sizes(
    kernels: Sequence[MatrixProduct], places: Sequence[Place], order: _Order
) -> list[tuple[Place, MatrixProduct]]:
    """Kernels whose recorded weights are those of the next product, in order."""
    pairs: list[tuple[Place, MatrixProduct]] = []
    following = 0
    for kernel in kernels:
        for number in range(following, len(places)):
            if order.has_size(places[number], kernel) and order.agrees(places[number], kernel) is not False:
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
    for (block, names), kernel, *_ in match.pairs:
        operators = [products[block, name] for name in names]
        bound = sum(op.bound_time_s / op.repeat for op in operators)
        expected = known_sum(op.expected_time_s for op in operators)
        near = bound if expected is None else expected / operators[0].repeat
        if kernel.time_s > 0 and near > 0:
            total += abs(log(kernel.time_s / near)) + (
                _BELOW_BOUND_PENALTY if kernel.time_s < _MIN_SHARE_OF_BOUND * bound else 0
            )
    return total / max(len(match.pairs), 1)


def _product(place: Place, pairs: Sequence[Assigned], order: _Order, expected_s: float | None) -> ProductOfPass:
    block, names = place
    operators = [order.products[block, name] for name in names]
    launches = len(pairs)
    measured_s = sum(pair.kernel.time_s for pair in pairs)
    bound_s = sum(op.bound_time_s / op.repeat for op in operators) * launches
    kernel_names = Counter(pair.kernel.name for pair in pairs)
    return ProductOfPass(
        block=block,
        operators=names,
        kernels=tuple(kernel_names),
        launches=launches,
        evidence={
            BY_SHAPE: sum(pair.shape for pair in pairs) / launches,
            BY_MODULE: sum(pair.module is True for pair in pairs) / launches,
            BY_NAME: max(kernel_names.values()) / launches,
            BY_ORDER: sum(pair.in_order for pair in pairs) / launches,
            BY_TIME: float(measured_s >= _MIN_SHARE_OF_BOUND * bound_s),
        },
        measured_s=measured_s,
        bound_s=bound_s,
        expected_s=None if expected_s is None else expected_s * launches,
    )


def _in_order(graph: Graph) -> list[Block]:
    """Blocks in execution order, one per layer, with those outside of layers before and after them."""
    layered = sorted(((place, block) for block in graph.blocks for place in block.layers), key=lambda item: item[0])
    outer_blocks = [block for block in graph.blocks if not block.layers]
    first = next((i for i, block in enumerate(graph.blocks) if block.layers), len(graph.blocks))
    return [*graph.blocks[:first], *(block for _, block in layered), *outer_blocks[first:]]
