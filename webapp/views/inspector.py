"""One operator: its formula in words and numbers, what it moves, what holds it up, and what would help."""

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
from llmviewer.variants.variant import WORTH, Change
from llmviewer.workload import Workload

from ..answers import Answer
from .formulas import formula


@frozen(kw_only=True)
class Inspected:
    """All that the inspector shows of an operator on one device.

    formulas  (what, formula over the workload, its value)
    tensors   (direction, tensor with its shape, bytes of one launch)
    busy      (resource, how long one launch keeps it busy [s], share of the longest)
    helps     (change, time then, how many times faster)
    """

    title: str
    does: str
    bound: str
    position: str
    formulas: tuple[tuple[str, str, str], ...]
    tensors: tuple[tuple[str, str, str], ...]
    busy: tuple[tuple[str, float, float], ...]
    times: tuple[tuple[str, str], ...]
    helps: tuple[tuple[str, str, str], ...]


def inspect(answer: Answer, phase: str, op: str) -> Inspected:
    """The operator called `op`, or where there is none such the one that takes longest."""
    name = answer.phase_name(phase)
    shown = answer.phase(phase)
    rows = merged(shown)
    chosen = next((row for row in rows if any(operator_id(part) == op for part in row.parts)), None)
    result = (chosen or max(rows, key=lambda row: row.whole.share)).whole
    workload = asked(answer, phase)
    if result.kind == EXPOSED.kind:
        return _waited_for(answer, name, result, workload)
    row = _planned(answer.setting, name, result)
    assert row is not None
    work = row.work
    busy = {resource: float(evaluate(form, workload)) for resource, form in row.busy_s.items()}
    longest = max(busy.values())
    amounts = (
        ("OPs", work.ops, "OP"), ("conversions", work.conversion_ops, "OP"), ("weights", work.weight_bytes, "B"),
        ("activations", work.activation_bytes, "B"), ("KV cache", work.kv_bytes, "B"), ("links", work.link_bytes, "B"),
    )  # fmt: skip
    return Inspected(
        title=f"{result.name} \N{MULTIPLICATION SIGN} {result.repeat}",
        does=kind_of(result.kind).does,
        bound=result.bound,
        position=_position(answer, result),
        formulas=tuple(
            (what, formula(form, workload), f"{si(float(evaluate(form, workload)))}{unit}")
            for what, form, unit in amounts
            if form
        ),
        tensors=tuple(_tensors(row, workload)),
        busy=tuple((_called(r), s, s / longest) for r, s in sorted(busy.items(), key=lambda one: -one[1]) if s),
        times=_times(result, shown),
        helps=tuple(_helps(answer, name, result, workload)),
    )


def _waited_for(answer: Answer, phase: str, result: OperatorResult, workload: Workload) -> Inspected:
    """The wait for offloaded data, which is no launch: how long each link is busy beyond all launches."""
    rows = answer.setting.plan_of(phase).estimate(workload).exposed
    busy = {link: float(time) for row in rows for link, time in row.busy_s.items() if float(time)}
    return Inspected(
        title=f"{result.name} \N{MULTIPLICATION SIGN} {result.repeat}",
        does=kind_of(EXPOSED.kind).does,
        bound=result.bound,
        position=_position(answer, result),
        formulas=(),
        tensors=(),
        busy=tuple((_called(r), s, s / max(busy.values())) for r, s in sorted(busy.items(), key=lambda one: -one[1])),
        times=_times(result, answer.phase(phase)),
        helps=(),
    )


def asked(answer: Answer, phase: str) -> Workload:
    """The pass that a phase is, as techniques make it."""
    setting, request = answer.setting, answer.analysis.request
    batch = int(setting.layout.micro_batch_size(request.batch))
    read = {"prompt": request.prompt, "images": request.images}
    if answer.phase_name(phase) == "decode":
        assert request.kv_len is not None
        return setting.step(Workload.decode(batch=batch, kv_len=request.kv_len, **read))
    return setting.prefill(Workload.prefill(batch=batch, **read))


def _planned(setting: Setting, phase: str, op: OperatorResult) -> PlannedOperator | None:
    rows = setting.plan_of(phase).operators
    return next((row for row in rows if (row.block.name, row.operator.name) == (op.block, op.name)), None)


def _times(result: OperatorResult, phase: Phase) -> tuple[tuple[str, str], ...]:
    expected, low, high = result.expected_time_s, result.expected_low_s, result.expected_high_s
    said = between(expected, low, high) or (seconds(expected) if expected else "")
    one = ("one launch, at least", seconds(result.per_call.bound_time_s))
    every = f"all {result.repeat}, " if result.repeat > 1 else ""
    return (
        *((one,) if every else ()),
        (f"{every}at least", f"{seconds(result.bound_time_s)}, {result.share:.1%} of the phase"),
        *(((f"{every}expected", said), ("rests on", result.expectation_source)) if expected else ()),
        ("the phase, at least", seconds(phase.total.bound_time_s)),
    )


def _position(answer: Answer, op: OperatorResult) -> str:
    """Place of an operator on the roofline, in words."""
    hardware = answer.analysis.hardware
    if op.bound == "link":
        return f"Waits for the {op.limited_by.removeprefix('link ')} link; under no roof."
    unit = Resource(Unit(op.compute_unit), op.compute_dtype)
    peak = hardware.limit(unit)
    ridge = peak / hardware.bandwidth()
    roof = f"{si(peak)}OP/s of {unit.dtype} {unit.unit} units, ridge point {number(ridge)} OP/B"
    if not op.ops:
        return f"No arithmetic: only bytes. Roof: {roof}."
    side = "left of" if op.intensity < ridge else "right of"
    return (
        f"{number(op.intensity)} OP/B, {side} the ridge point: attains {si(op.attainable_ops_per_s)}OP/s at most, "
        f"{op.attainable_ops_per_s / peak:.1%} of {roof}."
    )


def _called(resource: Resource) -> str:
    return "memory" if resource.unit is Unit.MEMORY else f"{resource.dtype} {resource.unit}"


def _tensors(row: PlannedOperator, workload: Workload) -> Iterator[tuple[str, str, str]]:
    """Tensors that one launch moves from and to memory."""
    stream = row.block.stream

    def moved(tensor: Tensor) -> str:
        return f"{si(float(evaluate(tensor.nbytes.on(stream), workload)))}B"

    op = row.operator
    for weight in op.weights:
        form = f"{weight_shape(weight)} {weight.format}"
        yield "weight", form, f"{si(float(evaluate(weight.nbytes.on(stream), workload)))}B"
    for direction, tensors in (("reads", op.reads()), ("writes", op.writes())):
        for tensor in tensors:
            kept = "" if tensor.role is Role.ACTIVATION else " (KV cache)" if tensor.role in RETAINED_ROLES else ""
            yield direction, f"{tensor.name} {shape(tensor)}{kept}", moved(tensor)


def _helps(answer: Answer, phase: str, op: OperatorResult, workload: Workload) -> Iterator[tuple[str, str, str]]:
    """Techniques under which the same operator takes less, and a larger batch, the best first."""
    setting, request = answer.setting, answer.analysis.request
    found: list[tuple[float, str, str, str]] = []
    for change in (*precisions(setting), *flash_attention(setting)):
        if change.group == CACHE and setting.accounting is Accounting.SURVEY:
            continue  # which has one precision for all
        try:
            row = _planned(change.applied(setting), phase, op)
        except InputError:  # this device has no unit for that
            continue
        if row is None:
            continue
        then = op.repeat * max(float(evaluate(form, workload)) for form in row.busy_s.values())
        if then and op.bound_time_s / then >= WORTH:
            gain = op.bound_time_s / then
            found.append((gain, _named(change), seconds(then), f"{fold(gain, 2)} faster"))
    (sequences,) = workload.groups
    row = _planned(setting, phase, op)
    batch = larger_batch(request.batch, answer.analysis.memory.max_batch)
    if row and sequences.q_len == 1 and batch > request.batch:
        more = float(setting.layout.micro_batch_size(batch)) / float(setting.layout.micro_batch_size(request.batch))
        many = Workload((replace(sequences, batch=more * sequences.batch),))
        then = op.repeat * max(float(evaluate(form, many)) for form in row.busy_s.values())
        if (gain := more * op.bound_time_s / then) >= WORTH:
            found.append((gain, f"batch {batch}", seconds(then), f"{fold(gain, 2)} tokens/s"))
    yield from (one[1:] for one in sorted(found, key=lambda one: -one[0]))


def _named(change: Change) -> str:
    return f"{change.about} ({change.name})" if "quant" in change.options else change.name
