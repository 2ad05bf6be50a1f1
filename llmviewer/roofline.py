"""The roofline: a launch takes at least as long as its busiest resource (doi:10.1145/1498765.1498785)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property, reduce
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .devices.hardware import Hardware
from .forms import Feature, Form, Num, Stream, total
from .graph import Block, Graph
from .operators.base import Operator, Work
from .operators.transfer import EXPOSED, Transfer
from .records import frozen
from .resource import MEMORY, Resource, Unit, link, of_host, vector
from .workload import Workload


@frozen(kw_only=True)
class PlannedOperator:
    """An operator on a device, for any workload."""

    operator: Operator
    block: Block
    work: Work
    busy_s: Mapping[Resource, Form]  # busy time of each resource per launch [s]
    compute: Resource  # unit and data type of the device that does most of the arithmetic
    fetch_s: Mapping[Resource, Form] = field(default_factory=dict)  # of links, for its offloaded data [s]


Lane: TypeAlias = tuple[int, bool]


def lane(row: PlannedOperator | OperatorEstimate) -> Lane:
    """The lane of an operator: lanes run concurrently on different micro-batches.

    Lanes are pipeline stages; with two overlapping batches, computation and communication.
    """
    return row.block.stage, row.operator.overlapped


@frozen(kw_only=True)
class OperatorEstimate:
    """Lower bound of one launch of an operator, which a pass repeats `repeat` times. Fields are numbers or arrays."""

    operator: Operator
    block: Block
    ops: Num  # [OP]
    conversion_ops: Num  # [OP]
    weight_bytes: Num  # [B]
    activation_bytes: Num  # [B]
    kv_bytes: Num  # [B]
    link_bytes: Num  # [B]
    busy_s: Mapping[Resource, Num]  # busy time of each resource [s]
    operand_unit: Resource  # unit and data type of the operands
    compute: Resource  # unit and data type that do it on the device
    fetch_s: Mapping[Resource, Num] = field(default_factory=dict)  # of links, for its offloaded data [s]

    @property
    def repeat(self) -> int:
        return self.block.repeat

    @property
    def bytes(self) -> Num:
        """Memory traffic. [B]"""
        return self.weight_bytes + self.activation_bytes + self.kv_bytes

    @cached_property
    def time_s(self) -> Num:
        """The bound: no kernel that does this work on this device is faster. [s]"""
        return reduce(np.maximum, self.busy_s.values())

    @property
    def unprefetched_s(self) -> Num:
        """The bound of a launch that fetches its offloaded data itself, as in engines without prefetching. [s]"""
        return reduce(np.maximum, self.fetch_s.values(), self.time_s)

    def repeated_s(self, hardware: Hardware) -> Num:
        """The bound of a repeated launch, whose tensors stay in the last-level cache as far as they fit. [s]"""
        level, capacity = hardware.last_cache
        near = self.bytes / hardware.numbers.get(f"{level.lower()}.bandwidth", inf)
        far = np.maximum(self.bytes - capacity, 0) / hardware.bandwidth()
        others = (time for resource, time in self.busy_s.items() if resource != MEMORY)
        return reduce(np.maximum, others, np.maximum(near, far))

    @property
    def intensity(self) -> Num:
        """Arithmetic intensity. [OP/B]"""
        return _ratio(self.ops, self.bytes)

    @property
    def attainable(self) -> Num:
        """OPs over the bound; min(peak, intensity x bandwidth) if one unit does all OPs. [OP/s]"""
        return _ratio(self.ops, self.time_s)

    @cached_property
    def limiting(self) -> Any:
        """The Resource that sets the bound; an array if the workload is one."""
        resources: npt.NDArray[Any] = np.empty(len(self.busy_s), dtype=object)
        resources[:] = list(self.busy_s)
        return resources[np.argmax(np.stack(np.broadcast_arrays(*self.busy_s.values())), axis=0)]


@frozen(kw_only=True)
class Estimate:
    """Lower bounds of one pass, operator by operator.

    exposed  of each pipeline stage, the wait for transfers of offloaded data that outlast its launches
    """

    operators: tuple[OperatorEstimate, ...]
    exposed: tuple[OperatorEstimate, ...] = ()

    @property
    def rows(self) -> tuple[OperatorEstimate, ...]:
        """Launches and waits, whose times add up to that of the pass."""
        return (*self.operators, *self.exposed)

    def sum(self, field: str) -> Num:
        """The sum of a field, such as an amount or `time_s`, over all launches and waits."""
        return sum((row.repeat * getattr(row, field) for row in self.rows), start=0.0)

    @property
    def time_s(self) -> Num:
        """Time of all launches in sequence; within a launch, all resources overlap.

        Offloaded data comes and goes during all launches of a stage, so only what outlasts them adds time. [s]
        """
        return self.sum("time_s")

    @property
    def seconds_by_bound(self) -> dict[str, float]:
        """Time by bound ("memory", "link" or "compute"), of a single workload. [s]"""
        seconds: dict[str, float] = {}
        for row in self.rows:
            bound = max(row.busy_s, key=row.busy_s.__getitem__).bound
            seconds[bound] = seconds.get(bound, 0.0) + float(row.repeat * row.time_s)
        return seconds


@frozen
class Plan:
    """A graph on a device, for any workload."""

    operators: tuple[PlannedOperator, ...] = field(repr=False)

    @cached_property
    def features(self) -> frozenset[Feature]:
        """Features of the workload that its times depend on."""
        works = {id(row.work): row.work for row in self.operators}  # blocks share some
        return frozenset(f for work in works.values() for form in work.forms for f in form.features())

    def values(self, workload: Workload) -> dict[Feature, Num]:
        return {feature: feature.of(workload) for feature in self.features}

    def estimate(self, workload: Workload) -> Estimate:
        values = self.values(workload)
        amounts: dict[int, dict[str, Any]] = {}  # by identities of works, which blocks have in common
        for row in self.operators:
            if id(row.work) not in amounts:
                amounts[id(row.work)] = _amounts(row, values)
        return Estimate(
            operators=tuple(
                OperatorEstimate(operator=row.operator, block=row.block, **amounts[id(row.work)])
                for row in self.operators
            ),
            exposed=tuple(_exposed(stage, values) for stage in self._fetching),
        )

    @cached_property
    def stages(self) -> tuple[Plan, ...]:
        """The plans of the pipeline stages."""
        last = max(row.block.stage for row in self.operators)
        return tuple(Plan(tuple(r for r in self.operators if r.block.stage == n)) for n in range(last + 1))

    @cached_property
    def lanes(self) -> tuple[Plan, ...]:
        """The concurrent parts of the plan, each with another micro-batch."""
        return tuple(Plan(tuple(r for r in self.operators if lane(r) == one)) for one in self._lanes)

    @cached_property
    def _lanes(self) -> tuple[Lane, ...]:
        return tuple(dict.fromkeys(map(lane, self.operators)))

    @cached_property
    def ops(self) -> Form:
        """OPs of the model in one pass. [OP]"""
        return total(row.block.repeat * row.work.ops for row in self.operators)

    @cached_property
    def bytes(self) -> Form:
        """Memory traffic of one pass. [B]"""
        return total(row.block.repeat * row.work.nbytes for row in self.operators)

    def seconds(self, values: Mapping[Feature, Num]) -> Num:
        """Estimate.time_s, computed once for equal operators. [s]"""
        return self.launches_s(values) + self.exposed_s(values)

    def launches_s(self, values: Mapping[Feature, Num]) -> Num:
        """Time of all launches, without waits for offloaded data. [s]"""
        result: Num = 0.0
        for forms, launches in self.equal_launches:
            result = result + launches * reduce(np.maximum, (form(values) for form in forms))
        return result

    def exposed_s(self, values: Mapping[Feature, Num]) -> Num:
        """Time that stages wait for offloaded data after all of their launches. [s]"""
        return sum((_exposed(stage, values).time_s for stage in self._fetching), start=0.0)

    @property
    def fetches(self) -> bool:
        """Whether any data is offloaded."""
        return bool(self._fetching)

    @cached_property
    def fetch_s(self) -> Mapping[Resource, Form]:
        """Busy time of links for offloaded data. [s]"""
        busy: dict[Resource, Form] = {}
        for row in self.operators:
            for resource, form in row.fetch_s.items():
                busy[resource] = busy.get(resource, Form()) + row.block.repeat * form
        return busy

    @cached_property
    def _fetching(self) -> tuple[Plan, ...]:
        """The stages with offloaded data."""
        any_fetched = any(row.fetch_s for row in self.operators)
        return tuple(stage for stage in self.stages if stage.fetch_s) if any_fetched else ()

    def time_s(self, workload: Workload) -> Num:
        """The bound of one pass. [s]"""
        return self.seconds(self.values(workload))

    def pipelined_s(self, values: Mapping[Feature, Num], parts: Num, *, autoregressive: bool) -> Num:
        """Time of a pass of a batch cut into `parts` micro-batches. [s]

        In a pipeline: all stages for the first micro-batch, and the slowest stage for each further one. Two overlapping
        batches alternate in every layer, so computation or communication is busy with both.

        autoregressive  whether the next pass waits for this one, as decode steps do: the time between passes is then
                        the longer of all stages for one micro-batch and the slowest stage for all micro-batches
        """
        latency = self.seconds(values)
        if len(self._lanes) < 2:
            return parts * latency
        slowest = reduce(np.maximum, (one.seconds(values) for one in self.lanes))
        return pipelined_s(latency, slowest, parts, autoregressive=autoregressive or overlapping(self._lanes))

    @cached_property
    def equal_launches(self) -> tuple[tuple[tuple[Form, ...], int], ...]:
        """Distinct sets of busy times, each with its number of launches."""
        launches: dict[tuple[Form, ...], int] = {}
        for row in self.operators:
            forms = tuple(row.busy_s.values())
            launches[forms] = launches.get(forms, 0) + row.block.repeat
        return tuple(launches.items())


def overlapping(lanes: Iterable[Lane]) -> bool:
    """Whether the lanes belong to two overlapping batches."""
    return any(communicates for _, communicates in lanes)


def pipelined_s(latency: Num, slowest: Num, parts: Num, *, autoregressive: bool) -> Num:
    """Plan.pipelined_s() for a micro-batch that takes `latency` in all lanes and `slowest` in the slowest lane. [s]"""
    return np.maximum(latency, parts * slowest) if autoregressive else latency + (parts - 1) * slowest


def plan(graph: Graph, hardware: Hardware, host: Hardware | None = None) -> Plan:
    """The plan of `graph` on `hardware`, and of launches that run there on its `host`.

    Raises InputError if the hardware has no unit for the data type of an operator.
    """
    planned_by_operator: dict[tuple[Operator, Stream], PlannedOperator] = {}  # many operators are equal
    planned = []
    for block, op in graph:
        one = planned_by_operator.get((op, block.stream)) or (
            _planned(op, block, host, of_host)
            if host and op.on_host and not isinstance(op, Transfer)
            else _planned(op, block, hardware)
        )
        planned_by_operator[op, block.stream] = one
        planned.append(replace(one, operator=op, block=block))
    return Plan(tuple(planned))


def _planned(
    op: Operator, block: Block, hardware: Hardware, named: Callable[[Resource], Resource] = lambda resource: resource
) -> PlannedOperator:
    """The operator on a device or on the host, whose resources are `named` apart."""
    work = op.work().on(block.stream)
    busy: dict[Resource, Form] = {}
    for resource, form in work.amounts:
        if form:
            supplied = hardware.supply(resource)
            occupied = occupied_resource(named(supplied), busy)
            busy[occupied] = busy.get(occupied, Form()) + form / hardware.limit(supplied)
    fetch = {resource: form / hardware.limit(resource) for resource, form in work.fetch_bytes}
    compute = hardware.supply(work.operand_unit)
    return PlannedOperator(operator=op, block=block, work=work, busy_s=busy, compute=compute, fetch_s=fetch)


def _exposed(stage: Plan, values: Mapping[Feature, Num]) -> OperatorEstimate:
    """The wait of a pipeline stage for transfers that take longer than its launches."""
    launches_s = stage.launches_s(values)
    exposed_s = {link: np.maximum(form(values) - launches_s, 0.0) for link, form in stage.fetch_s.items()}
    first = stage.operators[0].block
    block = replace(first, name=f"stage_{first.stage}", operators=(EXPOSED,), layers=())
    unit = vector("fp32")
    return OperatorEstimate(
        operator=EXPOSED, block=block, ops=0.0, conversion_ops=0.0, weight_bytes=0.0, activation_bytes=0.0,
        kv_bytes=0.0, link_bytes=0.0, busy_s=exposed_s, operand_unit=unit, compute=unit,
    )  # fmt: skip


def occupied_resource(supplied: Resource, busy: Iterable[Resource]) -> Resource:
    """The resource that a launch occupies by using `supplied`: one of `busy` if that is the same hardware.

    Work of a unit in several data types adds up, under the first data type; latencies of messages occupy their link.
    """
    if supplied.unit is Unit.HOP:
        return link(supplied.dtype)
    if supplied.unit in (Unit.MATRIX, Unit.VECTOR):
        return next((resource for resource in busy if resource.unit is supplied.unit), supplied)
    return supplied


def estimate(graph: Graph, workload: Workload, hardware: Hardware) -> Estimate:
    """Lower bounds, and what sets them, of every operator of `graph` in a pass of `workload` on `hardware`."""
    return plan(graph, hardware).estimate(workload)


def _ratio(amount: Num, per: Num) -> Num:
    """`amount` / `per`; 0 if both are 0, as in a prediction head when no logits are needed."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.greater(per, 0), np.divide(amount, per), 0.0)[()]


def _amounts(row: PlannedOperator, values: Mapping[Feature, Num]) -> dict[str, Any]:
    """Fields of OperatorEstimate that depend only on the work, the device and the workload."""
    work = row.work
    return {
        "ops": work.ops(values),
        "conversion_ops": work.conversion_ops(values),
        "weight_bytes": work.weight_bytes(values),
        "activation_bytes": work.activation_bytes(values),
        "kv_bytes": work.kv_bytes(values),
        "link_bytes": work.link_bytes(values),
        "busy_s": {resource: form(values) for resource, form in row.busy_s.items()},
        "fetch_s": {resource: form(values) for resource, form in row.fetch_s.items()},
        "operand_unit": work.operand_unit,
        "compute": row.compute,
    }
