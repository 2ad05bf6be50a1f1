"""Plans and memory of many candidates as one, whose forms have a coefficient per candidate.

Every tensor has at most two dimensions of the shape, so the amounts of a launch are quadratic polynomials in the sizes
(width, heads, key-value heads, feed-forward width, vocabulary), and the number of launches is linear in the depth. A
group of candidates that differ in these alone is therefore a linear combination of a few of them, the nodes, which are
lowered one by one; candidates that are no nodes test it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..forms import Feature, Form, Num, total
from ..generation import decoding_s, prefill_s
from ..graph import Graph
from ..memory import Footprint, StageMemory, live_bytes
from ..model import kv_cache
from ..records import frozen
from ..request import Request
from ..roofline import Plan
from ..setting import Setting
from .shapes import SIZES, ShapeSpace

TOLERANCE: Final = 1e-9  # relative difference of a test from the stack
_TESTS: Final = 3  # candidates of a group that are no nodes and are lowered to test it
_RANK_TOLERANCE: Final = 1e-9  # share of the largest residual that counts as zero

_DIVIDED: Final = ("heads", "depth", "width", "kv_heads", "ffn", "expert_ffn", "vocab")  # axes, the first suspect first

Array: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = npt.NDArray[np.int64]


@frozen(kw_only=True)
class StackedPlan(Plan):
    """A plan whose forms have a coefficient per candidate, with the launches of each."""

    launches: tuple[tuple[tuple[Form, ...], Num], ...]

    @cached_property
    def features(self) -> frozenset[Feature]:
        return frozenset(f for forms, _ in self.launches for form in forms for f in form.features())

    @property
    def equal_launches(self) -> Any:
        return self.launches


@frozen(kw_only=True)
class Columns:
    """Numbers of candidates, an entry each.

    ttft_s, tpot_s, latency_s  lower bounds; tpot_s is NaN if there is no decode step [s]
    total_bytes                peak memory per device [B]
    parameters                 all parameters
    layer_parameters           those of layers, without embedding tables and head
    active_parameters          those of layers that a token uses
    launches                   launches of a decode step, or of the one pass of a model that does not generate
    """

    ttft_s: Array
    tpot_s: Array
    latency_s: Array
    total_bytes: Array
    parameters: Array
    layer_parameters: Array
    active_parameters: Array
    launches: Array

    @classmethod
    def joined(cls, each: Sequence[Columns]) -> Columns:
        """The candidates of all."""
        return cls(**{f.name: np.concatenate([getattr(one, f.name) for one in each]) for f in fields(cls)})

    def taken(self, indices: Indices) -> Columns:
        """The candidates at `indices`."""
        return Columns(**{f.name: getattr(self, f.name)[indices] for f in fields(self)})

    def agrees(self, other: Columns) -> bool:
        """Whether the numbers are those of `other`, up to rounding."""
        return all(
            np.allclose(getattr(self, f.name), getattr(other, f.name), rtol=TOLERANCE, atol=0, equal_nan=True)
            for f in fields(self)
        )


class _Numbers:
    """The numbers of one lowered setting in a fixed order, and what stacks them again."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.structure: list[object] = []

    def number(self, value: float) -> Callable[[Array], Any]:
        """Adds a number; returns the function that reads its column."""
        index = len(self.values)
        self.values.append(float(value))
        return lambda columns: columns[:, index]

    def form(self, form: Form) -> Callable[[Array], Form]:
        """Adds the coefficients of a form; returns the function that reads their columns."""
        features = tuple(feature for feature, _ in form.terms)
        self.structure.append(features)
        start = len(self.values)
        self.values.extend(float(coefficient) for _, coefficient in form.terms)

        def stacked_form(columns: Array) -> Form:
            coefficients: list[Any] = [columns[:, start + i] for i in range(len(features))]
            return Form(tuple(zip(features, coefficients, strict=True)))

        return stacked_form


@frozen(kw_only=True)
class _LoweredNumbers:
    """A setting as numbers, and the function that makes the columns of many such."""

    structure: tuple[object, ...]
    values: Array
    columns: Callable[[Array], Columns]


def _lowered(setting: Setting, request: Request) -> _LoweredNumbers:
    numbers = _Numbers()
    prefill = _plan(numbers, setting.plan)
    decode = prefill if setting.decode_plan is setting.plan else _plan(numbers, setting.decode_plan)
    memory = _stage(numbers, setting.graph, setting.decode_graph)
    parameters = _parameters(numbers, setting.model.graph)
    layout, gen = setting.layout, request.gen or 1
    lengths: dict[str, Any] = {"batch": request.batch, "prompt": request.prompt, "images": request.images}

    def columns(values: Array) -> Columns:
        first: Any = prefill_s(prefill(values), layout, **lengths)
        steps: Any = decoding_s(decode(values), layout, gen=gen, **lengths) if gen > 1 else np.zeros(len(values))
        footprint = Footprint(stages=(memory(values),), layout=layout)
        nbytes: Any = footprint.total_bytes(gen=request.longest - request.prompt, **lengths)
        every, layers, active = parameters(values)
        counts: Any = sum(count for _, count in decode(values).launches)
        with np.errstate(invalid="ignore"):
            tpot = np.divide(steps, gen - 1)
        return Columns(
            ttft_s=first, tpot_s=tpot, latency_s=first + steps, total_bytes=nbytes, parameters=every,
            layer_parameters=layers, active_parameters=active, launches=counts,
        )  # fmt: skip

    return _LoweredNumbers(structure=tuple(numbers.structure), values=np.array(numbers.values), columns=columns)


def _plan(numbers: _Numbers, plan: Plan) -> Callable[[Array], StackedPlan]:
    """Adds the busy times of all launches."""
    launches = []
    for row in plan.operators:
        numbers.structure.append((row.block.name, row.operator.name, tuple(row.busy_s)))
        launches.append((tuple(map(numbers.form, row.busy_s.values())), numbers.number(row.block.repeat)))
    return lambda columns: StackedPlan(
        operators=(),
        launches=tuple((tuple(form(columns) for form in forms), repeat(columns)) for forms, repeat in launches),
    )


def _stage(numbers: _Numbers, graph: Graph, decode_graph: Graph) -> Callable[[Array], StageMemory]:
    """Adds weights, cache and live activations, block by block."""
    blocks = [
        (
            numbers.number(block.repeat),
            numbers.number(sum(weight.device_bytes for op in block.operators for weight in op.weights)),
            numbers.form(kv_cache(Graph((block,))) / block.repeat),
        )
        for block in graph.blocks
    ]
    live = [numbers.form(form) for block in graph.blocks for form in live_bytes(block)]
    same = decode_graph is graph
    decode_live = live if same else [numbers.form(f) for block in decode_graph.blocks for f in live_bytes(block)]

    def stage(columns: Array) -> StageMemory:
        cache = total(_scaled(form(columns), repeat(columns)) for repeat, _, form in blocks)
        return StageMemory(
            weight_bytes=sum(repeat(columns) * nbytes(columns) for repeat, nbytes, _ in blocks),
            kv_cache=cache,
            live=tuple(form(columns) for form in live),
            decode_live=tuple(form(columns) for form in decode_live),
            offloaded_weights=0.0,
            offloaded_cache=Form(),
        )

    return stage


def _scaled(form: Form, factor: Any) -> Form:
    """A form with the coefficients of each candidate times a number of it."""
    return Form(tuple((feature, coefficient * factor) for feature, coefficient in form.terms))


def _parameters(numbers: _Numbers, graph: Graph) -> Callable[[Array], tuple[Array, Array, Array]]:
    """Adds parameters, block by block."""
    blocks = []
    for block in graph.blocks:
        weights = [weight for op in block.operators for weight in op.weights if not weight.tied]
        blocks.append((
            numbers.number(block.repeat), numbers.number(sum(weight.numel for weight in weights)),
            numbers.number(sum(weight.active * weight.numel for weight in weights)), bool(block.layers),
        ))  # fmt: skip
        numbers.structure.append(bool(block.layers))

    def parameters(columns: Array) -> tuple[Array, Array, Array]:
        every, layers, active = (np.zeros(len(columns)) for _ in range(3))
        for repeat, numel, used, is_layer in blocks:
            every = every + repeat(columns) * numel(columns)
            layers = layers + is_layer * repeat(columns) * numel(columns)
            active = active + is_layer * repeat(columns) * used(columns)
        return every, layers, active

    return parameters


def stacked(space: ShapeSpace, group: Indices, lower: Callable[[int], Setting], request: Request) -> Columns:
    """The numbers of a group of candidates, whose settings `lower` gives by their indices.

    A group whose tests fail is divided by values of an axis, in the end to candidates that are lowered one by one.

    Raises InputError if a candidate that is lowered cannot run.
    """
    columns = _combined(space, group, lower, request)
    if columns:
        return columns
    axis = next(axis for axis in _DIVIDED if axis in space.columns and np.ptp(space.columns[axis][group]))
    parts = space.divided(group, axis)
    order = np.argsort(np.concatenate(parts), kind="stable")
    return Columns.joined([stacked(space, part, lower, request) for part in parts]).taken(order)


def _combined(space: ShapeSpace, group: Indices, lower: Callable[[int], Setting], request: Request) -> Columns | None:
    """The numbers of a group as linear combinations of its nodes; None if its tests say otherwise."""
    basis = _basis(space, group)
    nodes = _nodes(basis)
    weights = basis @ np.linalg.pinv(basis[nodes])
    lowered = [_lowered(lower(int(node)), request) for node in group[nodes]]
    if len({one.structure for one in lowered}) > 1:
        return None
    at_nodes = np.stack([one.values for one in lowered])
    values = weights @ at_nodes
    values[nodes] = at_nodes
    columns = lowered[0].columns(values)
    others = np.setdiff1d(np.arange(len(group)), nodes)
    tests = others[np.linspace(0, len(others) - 1, min(_TESTS, len(others))).astype(int)]
    if not tests.size:
        return columns
    tested = Columns.joined([numbers_of(lower(int(test)), request) for test in group[tests]])
    return columns if columns.taken(tests).agrees(tested) else None


def numbers_of(setting: Setting, request: Request) -> Columns:
    """The numbers of a single setting."""
    lowered = _lowered(setting, request)
    return lowered.columns(lowered.values[None])


def _basis(space: ShapeSpace, group: Indices) -> Array:
    """Monomials of degree 2 in the sizes, and the depth, of each candidate."""
    sizes = [_centered(space.columns[axis][group]) for axis in SIZES if axis in space.columns]
    variables = [column for column in sizes if column.any()]
    products = [a * b for a, b in combinations_with_replacement(variables, 2)]
    depth = [_centered(space.columns["depth"][group])] if "depth" in space.columns else []
    return np.stack([np.ones(len(group)), *variables, *products, *depth], axis=1)


def _centered(column: Array) -> Array:
    """A column scaled to -1 .. 1, for conditioning."""
    low, high = column.min(), column.max()
    centered: Array = (2.0 * column - low - high) / max(high - low, 1)
    return centered


def _nodes(basis: Array) -> list[int]:
    """Rows that span all others: those of the largest residuals, one after another (a pivoted Gram-Schmidt process)."""
    residual, nodes = basis.copy(), list[int]()
    largest = float((residual**2).sum(axis=1).max())
    while len(nodes) < min(basis.shape):
        norms = (residual**2).sum(axis=1)
        node = int(norms.argmax())
        if norms[node] <= _RANK_TOLERANCE * largest:
            break
        nodes.append(node)
        direction = residual[node] / np.sqrt(norms[node])
        residual = residual - np.outer(residual @ direction, direction)
    return nodes
