"""Details of one operator: formulas, memory traffic, bound, times, and changes that would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmviewer.analyzing.phases import OperatorResult, Phase
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.operators.base import RETAINED_ROLES, Role, Tensor
from llmviewer.operators.kinds import kind_of
from llmviewer.operators.transfer import EXPOSED
from llmviewer.parameters import Accounting
from llmviewer.records import frozen
from llmviewer.reports.graph import shape, weight_shape
from llmviewer.reports.operator_table import merged, number, operator_id
from llmviewer.reports.phrases import between
from llmviewer.resource import Resource, Unit
from llmviewer.roofline import PlannedOperator
from llmviewer.setting import Setting
from llmviewer.units import fold, seconds, si
from llmviewer.variants.changes import CACHE, flash_attention, larger_batch, precisions
from llmviewer.variants.variant import MIN_OFFERED_GAIN, Change
from llmviewer.workload import Workload

from ..results import DeviceResult
from ..words import LOWER_BOUND_SIGN
from .formulas import formula


@frozen(kw_only=True)
class OperatorDetails:
    """Details of an operator on one device, as the inspector shows them.

    formulas  (what, formula over the workload, its value)
    tensors   (direction, tensor with its shape, bytes of one launch)
    busy      (resource, how long one launch keeps it busy [s], share of the longest)
    helps     (change, time then, how many times faster)
    """

    title: str
    description: str
    bound: str
    roofline_position: str
    formulas: tuple[tuple[str, str, str], ...]
    tensors: tuple[tuple[str, str, str], ...]
    busy_times: tuple[tuple[str, float, float], ...]
    times: tuple[tuple[str, str], ...]
    improvements: tuple[tuple[str, str, str], ...]


def operator_details(device_result: DeviceResult, phase: str, op: str, *, of_block: bool = False) -> OperatorDetails:
    """Details of the operator `op`, as BLOCK.NAME; of the slowest operator if there is none.

    of_block  only of that block's launches, where equal operators of other blocks otherwise count too
    """
    name = device_result.phase_name(phase)
    phase_result = device_result.phase(phase)
    rows = merged(phase_result)
    chosen = next((row for row in rows if any(operator_id(part) == op for part in row.parts)), None)
    row_shown = chosen or max(
        rows, key=lambda row: max(part.share for part in row.parts) if of_block else row.total.share
    )
    result, block = row_shown.total, ""
    if of_block and len(row_shown.parts) > 1:
        slowest = max(row_shown.parts, key=lambda part: part.share)
        result = next((part for part in row_shown.parts if operator_id(part) == op), slowest)
        block = f" in {result.block}"
    workload = pass_workload(device_result, phase)
    if result.kind == EXPOSED.kind:
        return _exposed_transfer_details(device_result, name, result, workload)
    row = _planned(device_result.setting, name, result)
    assert row is not None
    work = row.work
    busy = {resource: float(evaluate(form, workload)) for resource, form in row.busy_s.items()}
    longest = max(busy.values())
    amounts = (
        ("OPs", work.ops, "OP"), ("conversions", work.conversion_ops, "OP"), ("weights", work.weight_bytes, "B"),
        ("activations", work.activation_bytes, "B"), ("KV cache", work.kv_bytes, "B"), ("links", work.link_bytes, "B"),
    )  # fmt: skip
    return OperatorDetails(
        title=f"{result.name}{block} \N{MULTIPLICATION SIGN} {result.repeat}",
        description=kind_of(result.kind).does,
        bound=result.bound,
        roofline_position=_roofline_position(device_result, result),
        formulas=tuple(
            (amount_name, formula(form, workload), f"{si(float(evaluate(form, workload)))}{unit}")
            for amount_name, form, unit in amounts
            if form
        ),
        tensors=tuple(_tensor_rows(row, workload)),
        busy_times=tuple(
            (_resource_name(r), s, s / longest) for r, s in sorted(busy.items(), key=lambda one: -one[1]) if s
        ),
        times=_time_rows(result, name, phase_result),
        improvements=tuple(_improvements(device_result, name, result, workload)),
    )


def _exposed_transfer_details(
    device_result: DeviceResult, phase: str, result: OperatorResult, workload: Workload
) -> OperatorDetails:
    """Details of the exposed transfer of offloaded data: the time of each link beyond all launches."""
    rows = device_result.setting.plan_of(phase).estimate(workload).exposed
    busy = {link: float(time) for row in rows for link, time in row.busy_s.items() if float(time)}
    return OperatorDetails(
        title=f"{result.name} \N{MULTIPLICATION SIGN} {result.repeat}",
        description=kind_of(EXPOSED.kind).does,
        bound=result.bound,
        roofline_position=_roofline_position(device_result, result),
        formulas=(),
        tensors=(),
        busy_times=tuple(
            (_resource_name(r), s, s / max(busy.values())) for r, s in sorted(busy.items(), key=lambda one: -one[1])
        ),
        times=_time_rows(result, phase, device_result.phase(phase)),
        improvements=(),
    )


def pass_workload(device_result: DeviceResult, phase: str) -> Workload:
    """Workload of one pass of a phase, with techniques."""
    setting, request = device_result.setting, device_result.analysis.request
    batch = int(setting.layout.micro_batch_size(request.batch))
    read = {"prompt": request.prompt, "images": request.images}
    if device_result.phase_name(phase) == "decode":
        assert request.kv_len is not None
        return setting.step(Workload.decode(batch=batch, kv_len=request.kv_len, **read))
    return setting.prefill(Workload.prefill(batch=batch, **read))


def _planned(setting: Setting, phase: str, op: OperatorResult) -> PlannedOperator | None:
    rows = setting.plan_of(phase).operators
    return next((row for row in rows if (row.block.name, row.operator.name) == (op.block, op.name)), None)


def _time_rows(result: OperatorResult, phase_name: str, phase: Phase) -> tuple[tuple[str, str], ...]:
    expected, low, high = result.expected_time_s, result.expected_low_s, result.expected_high_s
    expected_text = between(expected, low, high) or (seconds(expected) if expected else "")
    one = (f"one launch {LOWER_BOUND_SIGN}", seconds(result.per_call.bound_time_s))
    launches = f"all {result.repeat}" if result.repeat > 1 else "one launch"
    return (
        *((one,) if result.repeat > 1 else ()),
        (f"{launches} {LOWER_BOUND_SIGN}", f"{seconds(result.bound_time_s)}, {result.share:.1%} of {phase_name}"),
        *(((f"{launches} expected", expected_text), ("source", result.expectation_source)) if expected else ()),
        (f"{phase_name} {LOWER_BOUND_SIGN}", seconds(phase.total.bound_time_s)),
    )


def _roofline_position(device_result: DeviceResult, op: OperatorResult) -> str:
    """Position of an operator on the roofline, in words."""
    hardware = device_result.analysis.setting.linked
    if op.bound == "link":
        return f"Limited by the {op.limited_by.removeprefix('link ')} link; not on the roofline."
    unit = Resource(Unit(op.compute_unit), op.compute_dtype)
    peak = hardware.limit(unit)
    ridge = peak / hardware.bandwidth()
    roof = f"{si(peak)}OP/s of {unit.dtype} {unit.unit} units, ridge point {number(ridge)} OP/B"
    if not op.ops:
        return f"No arithmetic, memory traffic only. Roofline: {roof}."
    side = "below" if op.intensity < ridge else "above"
    return (
        f"{number(op.intensity)} OP/B, {side} the ridge point: at most {si(op.attainable_ops_per_s)}OP/s, "
        f"{op.attainable_ops_per_s / peak:.1%} of {roof}."
    )


def _resource_name(resource: Resource) -> str:
    return "memory" if resource.unit is Unit.MEMORY else f"{resource.dtype} {resource.unit}"


def _tensor_rows(row: PlannedOperator, workload: Workload) -> Iterator[tuple[str, str, str]]:
    """Tensors that one launch reads from and writes to memory."""
    stream = row.block.stream

    def moved(tensor: Tensor) -> str:
        return f"{si(float(evaluate(tensor.nbytes.on(stream), workload)))}B"

    op = row.operator
    for weight in op.weights:
        form = f"{weight_shape(weight)} {weight.format}"
        yield "weight", form, f"{si(float(evaluate(weight.nbytes.on(stream), workload)))}B"
    for direction, tensors in (("reads", op.reads()), ("writes", op.writes())):
        for tensor in tensors:
            cache_note = (
                "" if tensor.role is Role.ACTIVATION else " (KV cache)" if tensor.role in RETAINED_ROLES else ""
            )
            yield direction, f"{tensor.name} {shape(tensor)}{cache_note}", moved(tensor)


def _improvements(
    device_result: DeviceResult, phase: str, op: OperatorResult, workload: Workload
) -> Iterator[tuple[str, str, str]]:
    """Changes with which the same operator is faster, and a larger batch, the largest gain first."""
    setting, request = device_result.setting, device_result.analysis.request
    improvements: list[tuple[float, str, str, str]] = []
    for change in (*precisions(setting), *flash_attention(setting)):
        if change.group == CACHE and setting.accounting is Accounting.SURVEY:
            continue  # the survey has one precision for all tensors
        try:
            row = _planned(change.applied(setting), phase, op)
        except InputError:  # the device has no unit for this precision
            continue
        if row is None:
            continue
        new_time_s = op.repeat * max(float(evaluate(form, workload)) for form in row.busy_s.values())
        if new_time_s and op.bound_time_s / new_time_s >= MIN_OFFERED_GAIN:
            gain = op.bound_time_s / new_time_s
            improvements.append((gain, _change_label(change), seconds(new_time_s), f"{fold(gain, 2)} faster"))
    (sequences,) = workload.groups
    row = _planned(setting, phase, op)
    batch = larger_batch(request.batch, device_result.analysis.memory.max_batch)
    if row and sequences.q_len == 1 and batch > request.batch:
        batch_ratio = float(setting.layout.micro_batch_size(batch)) / float(
            setting.layout.micro_batch_size(request.batch)
        )
        larger_workload = Workload((replace(sequences, batch=batch_ratio * sequences.batch),))
        new_time_s = op.repeat * max(float(evaluate(form, larger_workload)) for form in row.busy_s.values())
        if (gain := batch_ratio * op.bound_time_s / new_time_s) >= MIN_OFFERED_GAIN:
            improvements.append((gain, f"batch {batch}", seconds(new_time_s), f"{fold(gain, 2)} tokens/s"))
    yield from (one[1:] for one in sorted(improvements, key=lambda one: -one[0]))


def _change_label(change: Change) -> str:
    return f"{change.about} ({change.name})" if "quant" in change.options else change.name
