"""One sentence a phase: what bounds it, and what would change that, worked out rather than recited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Final

from .expectation.network import Pass
from .memory import Memory
from .precision import NAMED, Scheme, parse_scheme
from .resource import Resource, Unit, matrix
from .roofline import Estimate, Plan
from .setting import Accounting, Attention, Setting
from .transforms.offload import HOST, ON_DEVICE
from .units import seconds, si
from .workload import Workload

_WORTH: Final = 1.05  # a change that helps by less is not offered
_MUCH: Final = 0.3  # of the time expected, when latency is worth a word
_BATCHES: Final = (16, 8, 4, 2)  # times the batch asked for: the largest that fits is offered


def advise(
    setting: Setting,
    workload: Workload,
    phase: str,
    estimate: Estimate,
    expected: Pass | None = None,
    *,
    max_batch: int | None,
    offloaded: Setting | None = None,
) -> str:
    """Such as "decode is memory-bound: ...; what would help: batch 16 (7.5x the tokens per second, expect 8.2x), ...".

    estimate   of `workload` in this phase
    expected   what it is expected to take, where that is known
    max_batch  the largest that fits, None where nothing limits it
    offloaded  what would fit, where `setting` does not: that of fitting()
    """
    time_s = float(estimate.time_s)
    waits = dict.fromkeys(("compute", "memory", "link"), 0.0)
    for row in estimate.operators:
        waits[row.limiting.bound] += float(row.repeat * row.time_s)
    bound = max(waits, key=waits.__getitem__)
    changes: Iterator[tuple[str, Setting]] = iter(())
    if bound == "memory":
        why, changes = _traffic(setting, estimate, waits[bound] / time_s), _fewer_bytes(setting)
    elif bound == "link":
        why = _sent(setting, estimate, waits[bound] / time_s)
        changes = _fewer_bytes(setting) if setting.offload != ON_DEVICE else changes
    else:
        why, changes = _units(setting, estimate), _lower_bits(setting)
    kernels, plan = setting.kernels, setting.plan_of(phase)
    offers: list[str] = []
    hollow: list[str] = []  # what the bound promises, and kernels do not keep

    def offer(text: str, plan: Plan, workload: Workload, times: float = 1.0) -> None:
        """A change that leads to `plan` and gives `times` as many tokens, with what is expected of it."""
        if not (kernels and expected and expected.modelled):
            offers.append(f"{text})")
            return
        then = kernels.expect(plan.estimate(workload).operators, workload)
        gain = times * expected.total.numbers()[0] / then.total.numbers()[0]
        (offers if gain >= _WORTH else hollow).append(f"{text}, expect {gain:.2g}x)")

    for name, changed in changes:
        other = changed.plan_of(phase)
        then_s = float(other.time_s(workload))
        if time_s / then_s >= _WORTH:
            offer(f"{name} {seconds(then_s)} ({time_s / then_s:.2g}x faster", other, workload)
    most = None if max_batch is None else max_batch // _together(setting, workload)
    batch, many = _largest(workload, most)
    if many and (bound == "memory" or (bound == "link" and setting.offload != ON_DEVICE)):
        times = batch / float(workload.groups[0].batch)
        gain = times * time_s / float(plan.time_s(many))
        if gain >= _WORTH:
            most = 1  # of latency nothing is left to say
            offer(f"batch {batch} ({gain:.2g}x the tokens per second", plan, many, times)
    nothing = "no technique known here makes it faster; a device with more bandwidth does"
    if bound == "compute":
        nothing = "no lower-bit type of this device is faster; what is left is a faster device or fewer tokens"
    if bound == "link":
        nothing = "fewer ranks that share a tensor send less; links with more bandwidth or less latency do it faster"
        nothing = nothing if setting.offload == ON_DEVICE else "less of it offloaded, or a faster link"
    name = phase if setting.model.generates else "the one pass"
    told = [f"what would help: {', '.join(offers)}"] if offers else []
    told += [f"what would help at the bound alone: {', '.join(hollow)}"] if hollow else []
    advice = f"{name} is {bound}-bound: {why}; {'; '.join(told) or nothing}"
    if expected and expected.modelled:
        advice += _latency(setting, workload, phase, expected, most)
    return advice + (_if_offloaded(offloaded, workload, phase, time_s) if offloaded else "")


def fitting(setting: Setting, memory: Memory, *, batch: int, prompt: int, gen: int, images: int) -> Setting | None:
    """The same with as many whole hundredths of the weights in host memory as make it fit; None where it does without,
    where nothing can, and where no host link is known.
    """
    asked, share = setting, setting.offload.weights
    needed, capacity = memory.total_bytes, memory.capacity_bytes
    while needed > capacity:  # once; of a pipeline, until no stage is too full
        weights = asked.footprint.parts(batch=batch, prompt=prompt, gen=gen, images=images)[0]
        whole = float(weights) / (1 - share) if share < 1 else 0.0
        share = ceil(100 * (share + (needed - capacity) / whole) - 1e-9) / 100 if whole else 2.0
        if share > 1 or f"{HOST}.bandwidth" not in setting.hardware.numbers:
            return None
        asked = replace(setting, offload=replace(setting.offload, weights=share))
        needed = float(asked.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen, images=images))
    return asked if asked is not setting else None


def _latency(setting: Setting, workload: Workload, phase: str, expected: Pass, most: int | None) -> str:
    """Of launches so short that fixed costs decide, which no unit and no bandwidth makes faster; with what a batch of
    up to `most` would give.
    """
    whole = expected.total.numbers()[0]
    rows = zip(expected.operators, expected.launches, strict=True)
    share = 1 - sum(row.repeat * each.expected[0] for row, each in rows if not each.latency[0]) / whole
    if share < _MUCH:
        return ""
    advice = f"; as expected, {share:.0%} of it is latency, fixed costs of short kernels: fewer of them"
    advice += " (fused, in a CUDA graph) help"
    kernels, plan = setting.kernels, setting.plan_of(phase)
    batch, many = _largest(workload, most)
    if kernels and many:
        then = kernels.expect(plan.estimate(many).operators, many).total.numbers()[0]
        gain = batch / workload.groups[0].batch * whole / then
        advice += f", and batch {batch} is expected to give {gain:.2g}x the tokens per second" if gain >= _WORTH else ""
    return advice


def _if_offloaded(offloaded: Setting, workload: Workload, phase: str, time_s: float) -> str:
    then = float(offloaded.plan_of(phase).time_s(workload))
    return (
        f"; it does not fit, but does with --offload {offloaded.offload}, when this takes {seconds(then)} "
        f"({then / time_s:.3g}x as long)"
    )


def _traffic(setting: Setting, estimate: Estimate, share: float) -> str:
    parts = {name: float(estimate.sum(f"{name}_bytes")) for name in ("weight", "activation", "kv")}
    named = {"weight": "weights", "activation": "activations", "kv": "KV cache"}
    moved = sum(parts.values())
    first, *rest = sorted(parts, key=parts.__getitem__, reverse=True)
    others = ", ".join(f"{parts[name] / moved:.0%} {named[name]}" for name in rest if parts[name] / moved >= 0.005)
    what = f"{parts[first] / moved:.0%} {named[first]}" + (f", {others}" if others else "")
    return (
        f"{share:.0%} of its time waits for memory at {si(setting.hardware.bandwidth())}B/s, "
        f"which moves {si(moved)}B ({what})"
    )


def _sent(setting: Setting, estimate: Estimate, share: float) -> str:
    """What waits for other devices or for what lies elsewhere, and the link that holds it up."""
    links: dict[Resource, float] = {}
    for row in estimate.operators:
        if row.limiting.unit is Unit.LINK:
            links[row.limiting] = links.get(row.limiting, 0.0) + float(row.repeat * row.time_s)
    slowest = max(links, key=links.__getitem__)
    sent = float(estimate.sum("link_bytes"))
    others = setting.offload == ON_DEVICE or slowest.dtype.startswith("scale")
    for_what = "other devices" if others else "what lies outside of device memory"
    return (
        f"{share:.0%} of its time waits for {for_what}, mostly on the {slowest.dtype} link at "
        f"{si(setting.linked.rates[slowest])}B/s; {si(sent)}B go over links"
    )


def _together(setting: Setting, workload: Workload) -> int:
    """How many times the sequences of one pass are in flight on all devices together."""
    (sequences,) = workload.groups
    batch = int(sequences.batch)
    return setting.layout.dp * int(setting.layout.parts(batch * setting.layout.dp * setting.layout.pp))


def _units(setting: Setting, estimate: Estimate) -> str:
    busy: dict[str, float] = {}
    for row in estimate.operators:
        if row.limiting.bound == "compute":
            unit = row.limiting
            text = f"{unit.dtype} {unit.unit} units ({si(setting.hardware.rates[unit])}OP/s)"
            busy[text] = busy.get(text, 0.0) + float(row.repeat * row.time_s)
    unit_text = max(busy, key=busy.__getitem__)
    return f"{busy[unit_text] / float(estimate.time_s):.0%} of its time waits for the {unit_text}"


def _fewer_bytes(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Changes that move fewer bytes: fusion, fewer bits per weight and per cached number."""
    if setting.attention is Attention.EAGER:
        yield "flash attention", replace(setting, attention=Attention.FLASH)
    scheme = setting.quantization.scheme
    if scheme.weight is None or scheme.weight.bits > 4:
        yield "4-bit weights (W4 g128)", _with(setting, replace(scheme, weight=parse_scheme("W4g128").weight))
    if scheme.kv_cache is None or scheme.kv_cache.bits > 8:
        yield "an 8-bit KV cache (KV8)", _with(setting, replace(scheme, kv_cache=NAMED["int8"]))


def _lower_bits(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Weights and activations in each type that this device multiplies natively."""
    for fmt in (NAMED[name] for name in ("int8", "fp8_e4m3", "nvfp4", "int4")):
        if matrix(fmt.compute) in setting.hardware.rates:
            scheme = replace(setting.quantization.scheme, weight=fmt, activation=fmt)
            if setting.accounting is Accounting.SURVEY:  # where the cache counts among the operands
                scheme = replace(scheme, kv_cache=fmt)
            yield f"{fmt} weights and activations", _with(setting, scheme)


def _with(setting: Setting, scheme: Scheme) -> Setting:
    return replace(setting, quantization=replace(setting.quantization, scheme=scheme))


def _largest(workload: Workload, max_batch: int | None) -> tuple[int, Workload | None]:
    """The largest of some larger batches that fits, and a pass of it; None where none does."""
    (sequences,) = workload.groups
    for batch in (factor * int(sequences.batch) for factor in _BATCHES):
        if max_batch is None or batch <= max_batch:
            return batch, Workload((replace(sequences, batch=batch),))
    return 0, None
