"""Advice on a phase, in one sentence: what bounds it, and which changes make it faster, by how much."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from ..errors import InputError
from ..expectation.expected import ExpectedPass
from ..lowering import Accounting, Attention
from ..operators.linear import Linear
from ..precision import BF16, FP16, HALF, NAMED, Format, Scheme, notation, parse_scheme
from ..resource import Resource, Unit, matrix
from ..roofline import Estimate
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from ..transforms.quantize import as_typed
from ..units import fold, seconds, si
from ..workload import Workload
from .cures import TRIED, Cure

_WORTH: Final = 1.05  # a change that helps by less is not offered
_MUCH: Final = 0.3  # share of the expected time from which latency is mentioned
_TIMES: Final = 16  # larger batches offered are at most this many times the one analyzed
_HALF: Final = 0.5  # share of a pass's time below which the other bounds are listed too


def advise(
    setting: Setting,
    workload: Workload,
    phase: str,
    estimate: Estimate,
    expected: ExpectedPass | None = None,
    *,
    batch: int,
    max_batch: int | None,
    fits: Callable[[Setting], bool] = lambda _: True,
    cures: Sequence[Cure] | None = None,
) -> str:
    """Such as "decode is memory-bound: ...; what would help: batch 16 (7.5x the tokens per second, expect 8.2x), ...".

    estimate   bounds of `workload` in this phase
    expected   its expected times, if known
    batch      sequences on all devices together; `workload` is the share of one device
    max_batch  largest batch that fits, on all devices together; None: unlimited
    fits       whether a changed setting may be offered, as the request fits its memory
    cures      find_cures() of `setting`; None if the request fits
    """
    time_s = float(estimate.time_s)
    waits = estimate.waits_s
    bound = max(waits, key=waits.__getitem__)
    why, changes = _cause(setting, estimate, bound, waits[bound] / time_s)
    known = expected if expected and expected.modelled else None
    offers = _Offers()
    for name, changed in changes:
        plan = changed.plan_of(phase)
        then_s = float(plan.time_s(workload))
        if time_s / then_s >= _WORTH and fits(changed):
            gain = None
            if setting.kernels and known:
                gain = known.total.numbers()[0] / setting.kernels.run(plan, workload).total.numbers()[0]
            offers.add(f"{name} {seconds(then_s)} ({fold(time_s / then_s, 2)} faster", gain)
    shared = bound == "memory" or (bound == "link" and setting.offload != ON_DEVICE)  # a batch shares weight reads
    latency = _latency_share(known) if known else 0.0
    more = None
    if shared or latency >= _MUCH:
        more = _More.of(setting, workload, phase, known, batch=batch, max_batch=max_batch)
    if more and shared and more.gain >= _WORTH:
        offers.add(f"batch {more.batch} ({fold(more.gain, 2)} the tokens per second", more.expected)
        more = None  # not to be offered again with latency
    name = phase if setting.model.generates else "the one pass"
    advice = f"{name} is {bound}-bound{_mixed(waits, time_s)}: {why}; {offers.said() or _left(setting, bound)}"
    if latency >= _MUCH:
        advice += _latency(latency, more)
    return advice + ("" if cures is None else _cured(cures, workload, phase, time_s))


class _Offers:
    """Changes that lower the bound, in two lists: those that lower the expected time too, and the others."""

    def __init__(self) -> None:
        self._helpful: list[str] = []
        self._bound_only: list[str] = []

    def add(self, text: str, gain: float | None) -> None:
        """Add a change: `text` with an open bracket, and its expected speed-up; None if that is unknown."""
        if gain is None:
            self._helpful.append(f"{text})")
        else:
            (self._helpful if gain >= _WORTH else self._bound_only).append(f"{text}, expect {fold(gain, 2)})")

    def said(self) -> str:
        parts = {"what would help": self._helpful, "lower the bound but not the expected time": self._bound_only}
        return "; ".join(f"{head}: {', '.join(offers)}" for head, offers in parts.items() if offers)


def _cause(setting: Setting, estimate: Estimate, bound: str, share: float) -> tuple[str, Iterator[tuple[str, Setting]]]:
    """What limits a pass for `share` of its time, and changes that may lower its bound."""
    if bound == "memory":
        return _traffic(setting, estimate, share), _fewer_bytes(setting)
    if bound == "link":
        offloads = setting.offload != ON_DEVICE
        return _sent(setting, estimate, share), _fewer_bytes(setting) if offloads else iter(())
    return _units(setting, estimate), _lower_bits(setting)


def _left(setting: Setting, bound: str) -> str:
    """What else would help if none of the changes tried does."""
    if bound == "compute":
        return "no lower-bit type of this device is faster; only a faster device or fewer tokens help"
    if bound == "memory":
        others = "; `llmviewer advise` tries other techniques" if setting.model.generates else ""
        return f"no narrower format helps; a device with more bandwidth does{others}"
    if setting.offload != ON_DEVICE:
        return "offloading less or a faster link would help"
    return "fewer ranks send less; links with more bandwidth or less latency send it faster"


def _mixed(waits: Mapping[str, float], time_s: float) -> str:
    """The shares of all bounds, if none makes up half of the time; else ""."""
    if max(waits.values()) >= _HALF * time_s:
        return ""
    shares = sorted(((wait_s / time_s, bound) for bound, wait_s in waits.items() if wait_s), reverse=True)
    return f" ({', '.join(f'{bound} {share:.0%}' for share, bound in shares)} of its time)"


def larger_batch(batch: int, max_batch: int | None) -> int:
    """The batch to offer in place of `batch`: _TIMES as large, or the largest that fits (which may be smaller)."""
    return _TIMES * batch if max_batch is None else min(_TIMES * batch, max_batch)


@dataclass(frozen=True, kw_only=True)
class _More:
    """A larger batch on all devices together.

    gain      its tokens per second over those of the batch analyzed, at the bound
    expected  the same of expected times; None if unknown
    """

    batch: int
    gain: float
    expected: float | None

    @classmethod
    def of(
        cls,
        setting: Setting,
        workload: Workload,
        phase: str,
        expected: ExpectedPass | None,
        *,
        batch: int,
        max_batch: int | None,
    ) -> _More | None:
        """None if no larger batch fits."""
        most = larger_batch(batch, max_batch)
        if most <= batch:
            return None
        layout, kernels, (sequences,) = setting.layout, setting.kernels, workload.groups
        share = int(sequences.batch) * int(layout.share(most)) // int(layout.share(batch))
        many = Workload((replace(sequences, batch=share),))
        gain = None
        if kernels and expected:
            then = kernels.run(setting.plan_of(phase), many)
            now_s, then_s = (
                setting.expected(phase, found, size).numbers()[0] for found, size in ((expected, batch), (then, most))
            )
            gain = most / batch * now_s / then_s
        now_s, then_s = (float(setting.time_s(phase, one, size)) for one, size in ((workload, batch), (many, most)))
        return cls(batch=most, gain=most / batch * now_s / then_s, expected=gain)


def _latency_share(expected: ExpectedPass) -> float:
    """The share of the expected time in launches dominated by fixed costs, and between launches."""
    rows = zip(expected.operators, expected.launches, strict=True)
    working = sum(row.block.repeat * each.expected[0] for row, each in rows if not each.latency[0])
    return float(1 - working / expected.total.numbers()[0])


def _latency(share: float, more: _More | None) -> str:
    """What reduces latency, and the gain of a larger batch."""
    advice = f"; {share:.0%} of the expected time is latency, fixed costs of short kernels: fusing them or launching"
    advice += " them in a CUDA graph helps"
    if more and more.expected and more.expected >= _WORTH:
        advice += f", and batch {more.batch} is expected to give {fold(more.expected, 2)} the tokens per second"
    return advice


def _cured(cures: Sequence[Cure], workload: Workload, phase: str, time_s: float) -> str:
    told = []
    for cure in cures:
        then_s = cure.prefill * time_s
        if phase == "decode":
            then_s = float(cure.setting.plan_of(phase).time_s(workload))
        gain = time_s / then_s
        change = f"{fold(gain)} faster" if gain > 1 else f"{fold(1 / gain)} as long"
        told.append(f"with {cure.option}, at {seconds(then_s)} ({change})")
    if not told:
        return f"; it does not fit the memory, nor with any of these: {TRIED}"
    return f"; it does not fit the memory, but does {', or '.join(told)}"


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
    """The share of time spent on links to other devices or to offloaded data, and the slowest link."""
    links: dict[Resource, float] = {}
    for row in estimate.operators:
        if row.limiting.unit is Unit.LINK:
            links[row.limiting] = links.get(row.limiting, 0.0) + float(row.repeat * row.time_s)
    slowest = max(links, key=links.__getitem__)
    sent = float(estimate.sum("link_bytes"))
    others = setting.offload == ON_DEVICE or slowest.dtype.startswith("scale")
    for_what = "other devices" if others else "offloaded data"
    return (
        f"{share:.0%} of its time waits for {for_what}, mostly on the {slowest.dtype} link at "
        f"{si(setting.linked.rates[slowest])}B/s; {si(sent)}B are sent over links"
    )


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
    """Changes that move fewer bytes: flash attention, fewer bits per weight and per cached number."""
    if setting.attention is Attention.EAGER:
        yield "flash attention", replace(setting, attention=Attention.FLASH)
    scheme = setting.quantization.scheme
    own = HALF if _narrow(setting) else None  # W4A16, as usually written, if activations have 16 bits anyway
    activation = NAMED.get(scheme.activation.name, scheme.activation) if scheme.activation else own
    if _wide(setting):
        yield from _half(setting)
    if scheme.weight is None or scheme.weight.bits > 4:
        four = replace(scheme, weight=parse_scheme("W4g128").weight, activation=activation)
        yield from _typed(setting, "4-bit weights", notation(four))
    if scheme.kv_cache is None or scheme.kv_cache.bits > 8:
        ours, others = _asked(setting)
        yield from _typed(setting, "an 8-bit KV cache", _kept(setting, replace(ours, kv_cache=NAMED["int8"])), *others)


def _lower_bits(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Weights and activations in each low-bit type that this device has matrix units for."""
    if _wide(setting):
        yield from _half(setting)
    for fmt in (NAMED[name] for name in ("int8", "fp8_e4m3", "nvfp4", "int4")):
        if matrix(fmt.compute) in setting.hardware.rates:
            yield from _operands(setting, fmt)


def _half(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Weights and activations in a 16-bit type that this device has matrix units for."""
    natively = [fmt for fmt in (BF16, FP16) if matrix(fmt.compute) in setting.hardware.rates]
    yield from _operands(setting, (natively or [BF16])[0])


def _operands(setting: Setting, fmt: Format) -> Iterator[tuple[str, Setting]]:
    """Weights and activations in `fmt`; activations alone if weights are as narrow already."""
    scheme, (ours, others) = setting.quantization.scheme, _asked(setting)
    survey = setting.accounting is Accounting.SURVEY  # which has the cache in the format of the operands
    cache = fmt if survey else scheme.kv_cache
    if not any(_as_narrow(own, fmt) for own in _weights(setting)):
        both = Scheme(weight=fmt, activation=fmt, kv_cache=cache)
        yield from _typed(setting, f"{fmt} weights and activations", notation(both))
    elif ours.weight and not others:
        kept = Scheme(weight=ours.weight, activation=fmt, kv_cache=cache)
        yield from _typed(setting, f"{fmt} activations", _kept(setting, kept))
    elif not survey:  # which has one precision for all
        yield from _typed(
            setting, f"{fmt} activations", _kept(setting, ours), *others, f"*={notation(Scheme(activation=fmt))}"
        )


def _as_narrow(own: Format, fmt: Format) -> bool:
    """Whether `own` is as narrow as `fmt`, which then brings no gain."""
    return own.bits < fmt.bits or (own.bits == fmt.bits and own.compute == fmt.compute)


def _weights(setting: Setting) -> tuple[Format, ...]:
    """Formats of the weights that --quant applies to."""
    if setting.accounting is Accounting.SURVEY:
        return (setting.quantization.scheme.weight or FP16,)
    return tuple({op.weight.format for op in _linears(setting)})


def _wide(setting: Setting) -> bool:
    """Whether operands of matrix products are in more than 16 bits."""
    return any(max(op.weight.format.bits, op.inputs[0].format.bits) > BF16.bits for op in _linears(setting))


def _narrow(setting: Setting) -> bool:
    """Whether all inputs and outputs of operators have at most 16 bits."""
    return all(t.format.bits <= HALF.bits for _, op in setting.graph for t in (*op.inputs, *op.outputs))


def _linears(setting: Setting) -> Iterator[Linear]:
    return (op for _, op in setting.graph if isinstance(op, Linear) and not op.left_as_published)


def _asked(setting: Setting) -> tuple[Scheme, tuple[str, ...]]:
    """What --quant changes of the published precision: its scheme for the model, and overrides of parts."""
    asked, published = setting.quantization, setting.model.quantization
    if not asked.text:
        return asked.scheme, tuple(one.text for one in asked.overrides)
    cache = asked.scheme.kv_cache if asked.scheme.kv_cache != published.scheme.kv_cache else None
    return Scheme(kv_cache=cache), tuple(one.text for one in asked.overrides[len(published.overrides) :])


def _kept(setting: Setting, scheme: Scheme) -> str:
    """The text of --quant for `scheme`, with the weights of `setting`."""
    return as_typed(scheme, setting.quantization.mixture)


def _typed(setting: Setting, name: str, *parts: str) -> Iterator[tuple[str, Setting]]:
    """The setting with `parts` as --quant, and its name with that option; none if it is invalid."""
    quant = ",".join(part for part in parts if part)
    named = [one for one in setting.techniques if one.quant]  # which --quant excludes
    others = tuple(one for one in setting.techniques if one not in named)
    instead = "".join(f" in place of {one.name}" for one in named)
    with suppress(InputError):
        changed = replace(setting, techniques=others, unnamed=None).having(quant=quant)
        yield f"{name} (--quant {shlex.quote(quant)}{instead})", changed
