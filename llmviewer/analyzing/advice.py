"""Advice on a phase, in one sentence: what bounds it, and which changes make it faster, by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.expected import ExpectedPass
from ..resource import Resource, Unit
from ..roofline import Estimate
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from ..units import fold, seconds, si
from ..variants.changes import fewer_bytes, fullest_batch, lower_bits
from ..variants.evaluation import Evaluation
from ..variants.memory_fixes import MemoryFixes, twice_as_many_devices
from ..variants.variant import MIN_OFFERED_GAIN, Change, Variant, evaluate

_MUCH_LATENCY: Final = 0.3  # share of the expected time from which latency is mentioned
_HALF: Final = 0.5  # share of a pass's time below which the other bounds are listed too


def advice(
    base: Evaluation, phase: str, *, max_batch: int | None, fixes: Callable[[], MemoryFixes | None] = lambda: None
) -> str:
    """Bound of a phase and changes that lower it, as a sentence without a full stop.

    Such as "decode is memory-bound: ...; improvements: batch 16 (7.5x decode throughput at the bound, 8.2x expected)".

    max_batch  largest batch that may be offered, on all devices together; None: unlimited
    fixes      computes memory_fixes(); None if the request fits
    """
    setting, estimate = base.setting, base.estimate(phase)
    time_s, bound_times = float(estimate.time_s), estimate.seconds_by_bound
    bound = max(bound_times, key=bound_times.__getitem__)
    cause, changes = _cause(setting, estimate, bound, bound_times[bound] / time_s)
    offers = _Offers()
    for variant in _variants(changes, base):
        gain = variant.pass_gain(phase)
        if gain >= MIN_OFFERED_GAIN and (variant.fits or not base.fits):
            then_s = float(variant.result.pass_s(phase))
            offer = f"{_named(variant)} >= {seconds(then_s)} ({fold(gain, 2)} at the bound"
            offers.add(offer, variant.expected_pass_gain(phase))
    helped_by_batch = bound == "memory" or (
        bound == "link" and setting.offload != ON_DEVICE
    )  # a batch shares weight reads
    expected_pass = base.expected_pass(phase)
    latency, gaps = _latency_shares(expected_pass) if expected_pass else (0.0, 0.0)
    throughput = f"{phase} throughput" if setting.model.generates else "throughput"  # not that of a generation
    larger = None
    if helped_by_batch or latency >= _MUCH_LATENCY:
        larger = next(_variants(fullest_batch(int(base.batch), max_batch), base), None)
    if larger and helped_by_batch and (gain := larger.pass_gain(phase)) >= MIN_OFFERED_GAIN:
        offers.add(f"{larger.name} ({fold(gain, 2)} {throughput} at the bound", larger.expected_pass_gain(phase))
        larger = None  # not to be offered again with latency
    name = phase if setting.model.generates else "the one pass"
    remedies = offers.text() or _further_remedies(base, bound, bound_times)
    text = f"{name} is {bound}-bound{_mixed(bound_times, time_s)}: {cause}; {remedies}"
    if latency >= _MUCH_LATENCY:
        text += _latency(latency, gaps, larger, phase, throughput)
    memory_fixes = fixes()
    return text + (_fixed(memory_fixes, phase, base) if memory_fixes else "")


def _variants(changes: Iterable[Change], base: Evaluation) -> Iterator[Variant]:
    """The changes that are possible."""
    for change in changes:
        with suppress(InputError):
            yield evaluate(change, base)


def _named(variant: Variant) -> str:
    """The change in words, with its option; flash attention is the default and needs none."""
    (change,) = variant.changes
    return f"{change.about} ({variant.typed})" if "quant" in change.options else change.name


class _Offers:
    """Changes that lower the bound, in two lists: those that lower the expected time too, and the others."""

    def __init__(self) -> None:
        self._helpful: list[str] = []
        self._bound_only: list[str] = []

    def add(self, text: str, gain: float | None) -> None:
        """Adds a change: `text` with an open bracket, and its expected speed-up; None if that is unknown."""
        if gain is None:
            self._helpful.append(f"{text})")
        else:
            (self._helpful if gain >= MIN_OFFERED_GAIN else self._bound_only).append(
                f"{text}, {fold(gain, 2)} expected)"
            )

    def text(self) -> str:
        """Both lists in words; "" if they are empty."""
        parts = {"improvements": self._helpful, "little or no gain expected": self._bound_only}
        return "; ".join(f"{head}: {', '.join(offers)}" for head, offers in parts.items() if offers)


def _cause(setting: Setting, estimate: Estimate, bound: str, share: float) -> tuple[str, Iterable[Change]]:
    """The cause of the bound for `share` of the time of a pass, and changes that may lower it."""
    if setting.host and bound != "link":
        return _sides(setting, setting.host, estimate), fewer_bytes(setting)
    if bound == "memory":
        return _traffic(setting, estimate, share), fewer_bytes(setting)
    if bound == "link":
        offloads = setting.offload != ON_DEVICE
        return _link_traffic(setting, estimate, share), fewer_bytes(setting) if offloads else ()
    return _units(setting, estimate), lower_bits(setting)


def _further_remedies(base: Evaluation, bound: str, bound_times: Mapping[str, float]) -> str:
    """Describes further remedies, where no change of precision or batch helps."""
    setting = base.setting
    others = "; `llmviewer advise` ranks techniques" if setting.model.generates else ""
    if bound in ("compute", "memory"):
        twice_devices = twice_as_many_devices(base)
        remedies = [f"more devices ({twice_devices})"] if twice_devices else []
        if bound == "compute":
            traffic = bound_times.get("memory", 0.0) > (1 - 1 / MIN_OFFERED_GAIN) * sum(
                bound_times.values()
            )  # the time that fusing can save
            fuses = traffic and setting.engine is None  # an engine has the fused launches that it has
            remedies += ["fused operators (--with fusion)"] if fuses else []
            source = f"that {setting.engine.title} runs" if setting.engine else "of this device"
            tried, last = f"no lower-bit type {source} is faster", ["a faster device", "fewer tokens"]
        else:
            tried, last = "no narrower format helps", ["a device with more bandwidth"]
        *first, end = (*remedies, *last)
        return f"{tried}; {', '.join(first)}{' or ' * bool(first)}{end} would help{others}"
    if setting.offload != ON_DEVICE or setting.host:
        return "offloading less or a faster link would help"
    return "fewer ranks send less; links with more bandwidth or less latency send it faster"


def _mixed(bound_times: Mapping[str, float], time_s: float) -> str:
    """The shares of all bounds, if none makes up half of the time; else ""."""
    if max(bound_times.values()) >= _HALF * time_s:
        return ""
    shares = sorted(((wait_s / time_s, bound) for bound, wait_s in bound_times.items() if wait_s), reverse=True)
    return f" ({', '.join(f'{bound} {share:.0%}' for share, bound in shares)} of its time)"


def _latency_shares(expected: ExpectedPass) -> tuple[float, float]:
    """Shares of the expected time: in launches dominated by fixed costs and between launches, and only between."""
    rows = list(zip(expected.operators, expected.launches, strict=True))
    launches_s = sum(row.block.repeat * each.expected[0] for row, each in rows)
    working_s = sum(row.block.repeat * each.expected[0] for row, each in rows if not each.latency[0])
    total_s = expected.total.numbers()[0]
    return float(1 - working_s / total_s), float(1 - launches_s / total_s)


def _latency(share: float, gaps: float, larger: Variant | None, phase: str, throughput: str) -> str:
    """Describes what reduces latency, and the gain of a larger batch in `throughput`."""
    graphs = ", or use CUDA graphs" if gaps >= _MUCH_LATENCY else ""
    text = f"; {share:.0%} of the expected time is fixed cost of short kernels: fuse them{graphs}"
    gain = larger.expected_pass_gain(phase) if larger else None
    if larger and gain and gain >= MIN_OFFERED_GAIN:
        text += f"; {larger.name}: {fold(gain, 2)} {throughput} expected"
    return text


def _fixed(fixes: MemoryFixes, phase: str, base: Evaluation) -> str:
    """Describes the changes that make the request fit, or what was tried."""
    fitting = []
    for variant in fixes.found:
        gain = variant.pass_gain(phase) if phase == "decode" else variant.gain
        change = f"{fold(gain)} faster" if gain > 1 else f"{fold(1 / gain)} as long"
        change = "as fast" if fold(gain) == fold(1) else change
        fitting.append(f"{variant.typed}, >= {seconds(float(base.pass_s(phase)) / gain)} ({change})")
    if fitting:
        return f"; does not fit: use {' or '.join(fitting)}"
    tried = f", nor with {', '.join(fixes.tried)}" if fixes.tried else ""
    lacks = f"; its file has {' and '.join(fixes.lacks)}" if fixes.lacks else ""
    return f"; does not fit{tried}{lacks}"


def _sides(setting: Setting, host: Hardware, estimate: Estimate) -> str:
    """Shares of the time on the host, on the device and on the link between them."""
    names = {"device": setting.hardware.name, "host": host.name, "link": "the link between them"}
    times = time_by_side(estimate).items()
    shares = ", ".join(f"{names[side]} {time_s / float(estimate.time_s):.0%}" for side, time_s in times)
    return f"{shares} of its time; memory bandwidth of {host.name} {si(host.bandwidth())}B/s"


def time_by_side(estimate: Estimate) -> dict[str, float]:
    """Time on the "device", on its "host" and on the "link" between them, of those that take any. [s]"""
    times: dict[str, float] = {}
    for row in estimate.rows:
        side = "link" if row.limiting.unit is Unit.LINK else "host" if row.operator.on_host else "device"
        times[side] = times.get(side, 0.0) + float(row.repeat * row.time_s)
    return times


def _traffic(setting: Setting, estimate: Estimate, share: float) -> str:
    parts = {name: float(estimate.sum(f"{name}_bytes")) for name in ("weight", "activation", "kv")}
    named = {"weight": "weights", "activation": "activations", "kv": "KV cache"}
    moved = sum(parts.values())
    first, *rest = sorted(parts, key=parts.__getitem__, reverse=True)
    others = ", ".join(f"{parts[name] / moved:.0%} {named[name]}" for name in rest if parts[name] / moved >= 0.005)
    composition = f"{parts[first] / moved:.0%} {named[first]}" + (f", {others}" if others else "")
    return (
        f"memory bandwidth ({si(setting.hardware.bandwidth())}B/s) limits {share:.0%} of its time, moving "
        f"{si(moved)}B ({composition})"
    )


def _link_traffic(setting: Setting, estimate: Estimate, share: float) -> str:
    """The share of time spent on links to other devices or to offloaded data, and the slowest link."""
    links: dict[Resource, float] = {}
    for row in estimate.rows:
        if row.limiting.unit is Unit.LINK:
            links[row.limiting] = links.get(row.limiting, 0.0) + float(row.repeat * row.time_s)
    slowest = max(links, key=links.__getitem__)
    sent = float(estimate.sum("link_bytes"))
    others = (setting.offload == ON_DEVICE and not setting.host) or slowest.dtype.startswith("scale")
    ends = "other devices" if others else "offloaded data"
    return (
        f"links to {ends} limit {share:.0%} of its time, mostly {slowest.dtype} "
        f"({si(setting.linked.rates[slowest])}B/s); {si(sent)}B are sent"
    )


def _units(setting: Setting, estimate: Estimate) -> str:
    busy: dict[str, float] = {}
    for row in estimate.operators:
        if row.limiting.bound == "compute":
            unit = row.limiting
            text = f"{unit.dtype} {unit.unit} units ({setting.linked.described(unit)})"
            busy[text] = busy.get(text, 0.0) + float(row.repeat * row.time_s)
    unit_text = max(busy, key=busy.__getitem__)
    return f"{unit_text} limit {busy[unit_text] / float(estimate.time_s):.0%} of its time"
