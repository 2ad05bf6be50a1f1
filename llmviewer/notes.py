"""What a reader of the numbers has to know besides: conversions, what-ifs, limits that were passed."""

from __future__ import annotations

from .operators.linear import Linear
from .resource import Unit
from .setting import Accounting, Setting
from .units import si


def notes(setting: Setting, *, context: int) -> tuple[str, ...]:
    """One sentence each; `context` is the longest sequence asked for. [tokens]"""
    model, hardware = setting.model, setting.hardware
    found = [*model.notes, *_conversions(setting), *_substitutions(setting)]
    if model.max_context and context > model.max_context:
        found.append(f"{context} tokens are more than the {model.max_context} positions of {model.name}")
    found.extend(f"what-if: {change} instead of the device's own number" for change in hardware.changes)
    if setting.accounting is Accounting.SURVEY:
        found.append(
            'survey accounting follows the paper "LLM Inference Unveiled" (arXiv:2402.16363): no causal mask, '
            "no embedding, half the OPs of lm_head; use faithful accounting for anything else"
        )
    return tuple(found)


def _conversions(setting: Setting) -> list[str]:
    """Matrix products whose weights are stored in another type than they are multiplied in."""
    found: dict[str, None] = {}
    for _, op in setting.graph:
        if isinstance(op, Linear) and op.weight.format.compute != (dtype := op.work().wanted.dtype):
            found[
                f"weights in {op.weight.format} are multiplied in {dtype}: a low-bit unit works only if all operands "
                f"have its type, and activations are in {op.inputs[0].format}"
            ] = None
    return list(found)


def _substitutions(setting: Setting) -> list[str]:
    """Types that this device has no matrix unit for, and what stands in for them."""
    found: dict[str, None] = {}
    hardware = setting.hardware
    for row in (*setting.plan.operators, *setting.decode_plan.operators):
        wanted, compute = row.work.wanted, row.compute
        if wanted.unit is Unit.MATRIX and wanted != compute:
            found[
                f"{hardware.name} has no {wanted.dtype} matrix units: products in {wanted.dtype} are computed "
                f"in {compute.dtype} on its {compute.unit} units ({si(hardware.rates[compute])}OP/s)"
            ] = None
    return list(found)
