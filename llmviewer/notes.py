"""What a reader of the numbers has to know besides: conversions, what-ifs, limits that were passed."""

from __future__ import annotations

from math import inf

from .operators.collectives import UP
from .operators.linear import Linear
from .resource import Unit, link
from .setting import Accounting, Setting
from .transforms.skew import chooses
from .units import si


def notes(setting: Setting, *, prompt: int, written: int, images: int = 0) -> tuple[str, ...]:
    """One sentence each; `prompt`, with `images` in it, and `written` are the longest asked for. [tokens]"""
    model, hardware = setting.model, setting.hardware
    ours = (note for one in setting.techniques for note in one.notes(setting))
    found = [*model.notes, *ours, *_conversions(setting), *_substitutions(setting), *_links(setting), *_copied(setting)]
    if model.picture and prompt != model.picture:
        found.append(
            f"{model.name} reads pictures of {model.picture} tokens: --prompt {model.picture} counts what it does"
        )
    if model.sees and not images:
        takes = f"; each puts {model.image_tokens} tokens into the prompt" if model.image_tokens else ""
        found.append(f"text alone: --images counts pictures and the tower that reads them{takes}")
    if not model.generates:
        found.append(f"{model.name} does not generate: it reads its prompt in one pass, and there is no decode step")
    context = max(prompt, written) if model.encodes else prompt + written  # encoder and decoder each count their own
    if model.max_context and context > model.max_context:
        found.append(f"{context} tokens are more than the {model.max_context} positions of {model.name}")
    found.extend(f"what-if: {change} instead of the device's own number" for change in hardware.changes)
    if setting.expert_skew:
        skew = f"expert skew {setting.expert_skew:g}"
        chosen = f"{skew}: popularity of experts falls with their rank to that power, instead of being the same for all"
        found.append(chosen if chooses(setting.graph) else f"{skew} has no effect: {model.name} has no experts")
    if setting.accounting is Accounting.SURVEY:
        found.append(
            'survey accounting follows the paper "LLM Inference Unveiled" (arXiv:2402.16363): no causal mask, '
            "no embedding, half the OPs of lm_head; use faithful accounting for anything else"
        )
    return tuple(found)


def _links(setting: Setting) -> list[str]:
    """What is not known of the links that a layout uses, and what is taken instead."""
    hardware, linked, layout = setting.hardware, setting.linked, setting.layout
    found = []
    if layout.devices > 1 and link(UP) not in linked.rates:
        speed = si(linked.rates[link("host")])
        found.append(f"{hardware.name} has no scale-up link: devices talk over their host links ({speed}B/s each)")
    elif layout.devices > 1 and f"{UP}.devices" not in hardware.numbers:
        found.append(f"the file of {hardware.name} does not say how many devices its {UP} links join: all here")
    found.extend(
        f"{r.dtype}.latency of {hardware.name} is not known and counts as none; --hardware-set {r.dtype}.latency=VALUE"
        for r, rate in linked.rates.items()
        if r.unit is Unit.HOP and rate == inf
    )
    return found


def _copied(setting: Setting) -> list[str]:
    """Matrix products, routers apart, that every rank of tensor parallelism does in full."""
    if setting.layout.tp == 1:
        return []
    whole = {(op.name, op.weight.shape) for _, op in setting.model.graph if isinstance(op, Linear)}
    products = (op for _, op in setting.graph if isinstance(op, Linear) and op.kind != "router")
    copied = dict.fromkeys(op.name for op in products if (op.name, op.weight.shape) in whole)
    return [f"tp={setting.layout.tp}: {', '.join(copied)} run whole on every rank"] if copied else []


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
