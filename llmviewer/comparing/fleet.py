"""A graph on many devices at once: rates are columns, so times have the shape [device, point]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property, reduce
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..devices.hardware import Hardware
from ..errors import InputError
from ..forms import Feature, Form, Num, Stream
from ..graph import Graph
from ..operators.base import Operator, Work
from ..records import copied, frozen
from ..resource import Resource, Unit
from ..roofline import Lane, OperatorEstimate, Plan, PlannedOperator, lane, occupied_resource
from ..workload import Workload

_AMOUNTS: Final = tuple(f.name for f in fields(OperatorEstimate) if f.type == "Num")
Column = npt.NDArray[Any]


@frozen
class Fleet(Plan):
    """A plan with coefficients [device, 1], for devices that do all work on the same kinds of unit.

    Data types may differ between devices; names are those of the first device.

    devices  indices of its devices in the original list
    keys     of operators; those with equal keys take the same time
    graphs   the graph of each device; () of a lane
    """

    devices: tuple[int, ...]
    keys: tuple[object, ...]
    graphs: tuple[Graph, ...] = field(default=(), repr=False, compare=False)

    @property
    def rows(self) -> list[int]:
        """`devices` as a list, to index rows of arrays."""
        return list(self.devices)

    @cached_property
    def lanes(self) -> tuple[Fleet, ...]:
        """The concurrent parts of the plan, each with another micro-batch."""
        places: dict[Lane, list[int]] = {}
        for place, row in enumerate(self.operators):
            places.setdefault(lane(row), []).append(place)
        return tuple(
            Fleet(
                tuple(self.operators[p] for p in lane_places),
                devices=self.devices,
                keys=tuple(self.keys[p] for p in lane_places),
            )
            for lane_places in places.values()
        )

    @cached_property
    def distinct(self) -> tuple[tuple[PlannedOperator, int], ...]:
        """One operator of each key, and its number of launches."""
        rows: dict[object, PlannedOperator] = {}
        launches: dict[object, int] = {}
        for key, row in zip(self.keys, self.operators, strict=True):
            rows.setdefault(key, row)
            launches[key] = launches.get(key, 0) + row.block.repeat
        return tuple((row, launches[key]) for key, row in rows.items())

    @cached_property
    def equal_launches(self) -> tuple[tuple[tuple[Form, ...], int], ...]:
        return tuple((tuple(row.busy_s.values()), launches) for row, launches in self.distinct)

    def waits(self, workload: Workload) -> dict[tuple[str, Unit], Num]:
        """Time of one pass by (kind of operator, unit that bounds it); the sum is the bound. [s], [device, point]"""
        values = self.values(workload)
        times: dict[tuple[str, Unit], Num] = {}
        for row, launches in self.distinct:
            busy = [form(values) for form in row.busy_s.values()]
            time_s = launches * reduce(np.maximum, busy)
            unassigned: Any = np.ones(np.shape(time_s), dtype=bool)
            for resource, busy_s in zip(row.busy_s, busy, strict=True):  # the first of equals, as in an estimate
                first = unassigned & np.equal(launches * busy_s, time_s)
                key = row.operator.kind, resource.unit
                times[key] = times.get(key, 0.0) + np.where(first, time_s, 0.0)
                unassigned = unassigned & ~first
        return times


def fleets(
    graphs: Sequence[Graph], devices: Sequence[Hardware], work_cache: WorkCache | None = None
) -> tuple[list[Fleet], dict[int, str]]:
    """`devices` in as few fleets as possible, and reasons, by index, for devices without a unit for a data type.

    graphs      the graph of each device: the same operators, of sizes that may differ; many devices share one graph
    work_cache  cache of operators' work, shared between graphs
    """
    work_cache = work_cache or WorkCache()
    works = {key: work_cache.lowered(graph) for key, graph in {id(graph): graph for graph in graphs}.items()}
    groups: dict[object, list[tuple[int, _LoweredGraph]]] = {}
    refused: dict[int, str] = {}
    for place, (graph, device) in enumerate(zip(graphs, devices, strict=True)):
        lowered = works[id(graph)]
        try:
            supplied = list(map(device.supply, lowered.operand_units))
        except InputError as error:
            refused[place] = str(error)
            continue
        units = tuple((resource.unit, supplied.index(resource)) for resource in supplied)
        groups.setdefault((lowered.operand_units, units, lowered.pattern), []).append((place, lowered))
    return [_fleet(members, devices) for members in groups.values()], refused


@frozen
class _LoweredGraph:
    """A graph with the work of each operator, and a number per operator that equal works share.

    operand_units  resources that the works need
    pattern  graphs with equal patterns can be merged into one fleet
    """

    graph: Graph
    works: tuple[Work, ...]
    numbers: tuple[int, ...]
    operand_units: tuple[Resource, ...]
    pattern: tuple[int, ...]


class WorkCache:
    """Cache of the work of operators."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], _Row] = {}  # by id(), which `_kept` keeps from being reused
        self._kept: list[tuple[Operator, Stream]] = []
        self._equal: dict[tuple[Operator, Stream], _Row] = {}
        self._numbers: dict[object, int] = {}

    def lowered(self, graph: Graph) -> _LoweredGraph:
        rows = [self._row(op, block.stream) for block, op in graph]
        works, numbers = tuple(row.work for row in rows), tuple(row.number for row in rows)
        distinct = dict(zip(numbers, works, strict=True)).values()
        resources = dict.fromkeys(resource for work in distinct for resource in _needed_resources(work))
        return _LoweredGraph(graph, works, numbers, tuple(resources), tuple(row.pattern for row in rows))

    def shared(self, graph: Graph) -> Graph:
        """The graph with one operator for all that are equal, also those of others."""
        return Graph(
            tuple(
                copied(block, operators=tuple([self._row(op, block.stream).op for op in block.operators]))
                for block in graph.blocks
            )
        )

    def _row(self, op: Operator, stream: Stream) -> _Row:
        key = id(op), id(stream)
        if key not in self._rows:
            equal = self._equal.get((op, stream)) or self._worked_out(op, stream)
            self._equal[op, stream] = equal
            self._rows[key] = equal
            self._kept.append((op, stream))
        return self._rows[key]

    def _worked_out(self, op: Operator, stream: Stream) -> _Row:
        work = op.work().on(stream)
        names = tuple((resource, *(f.name for f, _ in form.terms)) for resource, form in work.amounts)
        traffic = work.weight_bytes, work.activation_bytes, work.kv_bytes  # which whole passes weight apart
        return _Row(op, work, self._number((op.kind, work.amounts, traffic)), self._number(names))

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


class _Row(NamedTuple):
    op: Operator
    work: Work
    number: int
    pattern: int


def _needed_resources(work: Work) -> tuple[Resource, ...]:
    return (work.operand_unit, *(resource for resource, form in work.amounts if form))


def _fleet(members: Sequence[tuple[int, _LoweredGraph]], devices: Sequence[Hardware]) -> Fleet:
    graph, needed_resources = members[0][1].graph, members[0][1].operand_units
    fleet_devices = [devices[place] for place, _ in members]
    supplied = {resource: fleet_devices[0].supply(resource) for resource in needed_resources}
    rates = {
        resource: np.array([[m.limit(m.supply(resource))] for m in fleet_devices]) for resource in needed_resources
    }
    rows: dict[object, tuple[Work, Mapping[Resource, Form], Resource]] = {}
    keys = list(zip(*(member.numbers for _, member in members), strict=True))
    all_works = zip(*(member.works for _, member in members), strict=True)
    operators = []
    for (block, op), key, works in zip(graph, keys, all_works, strict=True):
        if key not in rows:
            merged = _merged(works)
            rows[key] = merged, _busy(merged, supplied, rates), supplied[merged.operand_unit]
        work, busy, compute = rows[key]
        operators.append(PlannedOperator(operator=op, block=block, work=work, busy_s=busy, compute=compute))
    return Fleet(
        tuple(operators), devices=tuple(place for place, _ in members), keys=tuple(keys),
        graphs=tuple(member.graph for _, member in members),
    )  # fmt: skip


def device_estimates(rows: Sequence[OperatorEstimate], graph: Graph, row: int) -> list[OperatorEstimate]:
    """Estimates of the operators of one device of a fleet, which runs `graph`."""
    amounts: dict[int, dict[str, Any]] = {}  # operators share amounts; by identity of their times
    for each in rows:
        if id(each.busy_s) not in amounts:
            device_amounts: dict[str, Any] = {name: row_of(getattr(each, name), row) for name in _AMOUNTS}
            busy = {resource: row_of(values, row) for resource, values in each.busy_s.items()}
            amounts[id(each.busy_s)] = device_amounts | {"busy_s": busy}
    return [copied(each, operator=op, **amounts[id(each.busy_s)]) for each, (_, op) in zip(rows, graph, strict=True)]


def row_of(values: Num, row: int) -> Num:
    """Values of one device, [point]; all devices may share them."""
    array = np.asarray(values)
    return values if array.ndim < 2 else array[row if len(array) > 1 else 0]


def rows_of(values: Num, rows: list[int]) -> Column:
    """Values of some devices, [device, point]; all devices may share one row."""
    array = np.atleast_2d(np.asarray(values, dtype=float))
    return array[rows] if len(array) > 1 else np.repeat(array, len(rows), axis=0)


def _busy(work: Work, first: Mapping[Resource, Resource], rates: Mapping[Resource, Num]) -> dict[Resource, Form]:
    """Busy time of each resource, by its name on the first device, with coefficients [device, 1]."""
    terms: dict[Resource, dict[Feature, Any]] = {}
    for operand_unit, form in work.amounts:
        if form:
            supplied = first[operand_unit]
            coefficients = terms.setdefault(occupied_resource(supplied, terms), {})
            for feature, c in form.terms:
                coefficients[feature] = coefficients.get(feature, 0.0) + c / rates[operand_unit]
    return {resource: Form(tuple(coefficients.items())) for resource, coefficients in terms.items()}


def _merged(works: Sequence[Work]) -> Work:
    """One work for all devices; forms that are equal on all stay scalar."""
    first = works[0]
    if all(work is first for work in works):
        return first
    forms: dict[str, Any] = {
        f.name: _column([getattr(w, f.name) for w in works]) for f in fields(Work) if f.type == "Form"
    }
    amounts = tuple(
        (resource, _column([work.amounts[i][1] for work in works])) for i, (resource, _) in enumerate(first.amounts)
    )
    return replace(first, **forms, amounts=amounts)


def _column(forms: Sequence[Form]) -> Form:
    if all(form == forms[0] for form in forms):
        return forms[0]
    terms: list[tuple[Feature, Any]] = []
    for same in zip(*(form.terms for form in forms), strict=True):
        features, coefficients = zip(*same, strict=True)
        terms.append((_feature(features), np.array(coefficients)[:, None]))
    return Form(tuple(terms))


def _feature(features: Sequence[Feature]) -> Feature:
    first = features[0]
    if all(feature == first for feature in features):
        return first
    return first._replace(device_arguments=tuple(f.arguments for f in features))
