"""Advice on a phase, in one sentence: what bounds it, and which changes make it faster, by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..expectation.expected import ExpectedPass
from ..resource import Resource, Unit
from ..roofline import Estimate
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from ..units import fold, seconds, si
from ..workload import Workload
from .cures import Cures, twice_as_many
from .precisions import Change, fewer_bytes, lower_bits

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
    cures: Cures | None = None,
) -> str:
    """Such as "decode is memory-bound: ...; what would help: batch 16 (7.5x decode throughput, expect 8.2x), ...".

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
    for change in changes:
        plan = change.setting.plan_of(phase)
        then_s = float(plan.time_s(workload))
        if time_s / then_s >= _WORTH and fits(change.setting):
            gain = None
            if setting.kernels and known:
                gain = known.total.numbers()[0] / setting.kernels.run(plan, workload).total.numbers()[0]
            offers.add(f"{change.name} {seconds(then_s)} ({fold(time_s / then_s, 2)} faster", gain)
    shared = bound == "memory" or (bound == "link" and setting.offload != ON_DEVICE)  # a batch shares weight reads
    latency = _latency_share(known) if known else 0.0
    more = None
    if shared or latency >= _MUCH:
        more = _More.of(setting, workload, phase, known, batch=batch, max_batch=max_batch)
    if more and shared and more.gain >= _WORTH:
        offers.add(f"batch {more.batch} ({fold(more.gain, 2)} {_throughput(setting, phase)}", more.expected)
        more = None  # not to be offered again with latency
    name = phase if setting.model.generates else "the one pass"
    advice = f"{name} is {bound}-bound{_mixed(waits, time_s)}: {why}; {offers.said() or _left(setting, bound, waits)}"
    if latency >= _MUCH:
        advice += _latency(latency, more, _throughput(setting, phase))
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


def _cause(setting: Setting, estimate: Estimate, bound: str, share: float) -> tuple[str, Iterator[Change]]:
    """What limits a pass for `share` of its time, and changes that may lower its bound."""
    if bound == "memory":
        return _traffic(setting, estimate, share), fewer_bytes(setting)
    if bound == "link":
        offloads = setting.offload != ON_DEVICE
        return _sent(setting, estimate, share), fewer_bytes(setting) if offloads else iter(())
    return _units(setting, estimate), lower_bits(setting)


def _throughput(setting: Setting, phase: str) -> str:
    """Name of the tokens per second of one phase, which are not those of a generation."""
    return f"{phase} throughput" if setting.model.generates else "throughput"


def _left(setting: Setting, bound: str, waits: Mapping[str, float]) -> str:
    """Describes further remedies, where no change of precision or batch helps."""
    others = "; `llmviewer advise` tries techniques" if setting.model.generates else ""
    if bound in ("compute", "memory"):
        more = twice_as_many(setting)
        remedies = [f"more devices ({more})"] if more else []
        if bound == "compute":
            traffic = waits.get("memory", 0.0) > (1 - 1 / _WORTH) * sum(waits.values())  # the time that fusing can save
            remedies += ["fused operators (--with fusion)"] if traffic else []
            tried, last = "no lower-bit type of this device is faster", ["a faster device", "fewer tokens"]
        else:
            tried, last = "no narrower format helps", ["a device with more bandwidth"]
        *first, end = (*remedies, *last)
        return f"{tried}; {', '.join(first)}{' or ' * bool(first)}{end} would help{others}"
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


def _latency(share: float, more: _More | None, throughput: str) -> str:
    """Describes what reduces latency, and the gain of a larger batch in `throughput`."""
    advice = f"; {share:.0%} of the expected time is latency, fixed costs of short kernels: fusing them or launching"
    advice += " them in a CUDA graph helps"
    if more and more.expected and more.expected >= _WORTH:
        advice += f", and batch {more.batch} is expected to give {fold(more.expected, 2)} {throughput}"
    return advice


def _cured(cures: Cures, workload: Workload, phase: str, time_s: float) -> str:
    told = []
    for cure in cures.found:
        then_s = cure.prefill * time_s
        if phase == "decode":
            then_s = float(cure.setting.plan_of(phase).time_s(workload))
        gain = time_s / then_s
        change = f"{fold(gain)} faster" if gain > 1 else f"{fold(1 / gain)} as long"
        change = "as fast" if fold(gain) == fold(1) else change
        told.append(f"with {cure.option}, at {seconds(then_s)} ({change})")
    if told:
        return f"; it does not fit the memory, but does {', or '.join(told)}"
    tried = f", nor with any of these: {', '.join(cures.tried)}" if cures.tried else ""
    lacks = f"; its file has {' and '.join(cures.lacks)}" if cures.lacks else ""
    return f"; it does not fit the memory{tried}{lacks}"


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
    for row in estimate.rows:
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
            text = f"{unit.dtype} {unit.unit} units ({setting.hardware.described(unit)})"
            busy[text] = busy.get(text, 0.0) + float(row.repeat * row.time_s)
    unit_text = max(busy, key=busy.__getitem__)
    return f"{busy[unit_text] / float(estimate.time_s):.0%} of its time waits for the {unit_text}"
