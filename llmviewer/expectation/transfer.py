"""Parameters for a stack: those measured on it, or carried over from its nearest relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from ..errors import InputError
from ..records import frozen
from .carried import launch_us, over_host, parameters_on, replayed, same_code
from .device import Device
from .families import FAMILIES, Family, Stack
from .families._family import EAGER, Array, Parameters, Shapes
from .formats import SIMILAR, TWINS
from .index import index, kin
from .kinship import apart, generation, relation, slowed
from .profile import (
    ANOTHER_KERNEL,
    ANOTHER_LIBRARY,
    ANOTHER_TYPE,
    BEYOND,
    NEARNESS,
    NO_KERNEL,
    OTHERS,
    SAME_MAKER,
    SIBLINGS,
    Entry,
    Error,
)
from .residual import NEIGHBOURS, StackResidual
from .sources import CALIBRATED, FOR_OTHERS, NOT_MEASURED, STAND_IN, TRANSFERRED, unknown
from .trend import Trend

_KINDS: Final = {"gpu": "GPU", "cpu": "CPU"}
_RELATIVES: Final = 5  # stacks that are asked at most
_ALIKE: Final = 5  # of the numbers that say how far away a stack is, those before its architecture's
_FADES: Final = 0.5  # what a stack counts beside one of an architecture that is one nearer
_PLAIN: Final = "add"
_TELLING: Final = 6  # rows for each parameter that a stack of another library or architecture must have to be asked
# What 80 % of measured times lie between where no error of a transfer was measured: no better than a guess.
_UNKNOWN: Final = Error(
    mape=0.5, median=0.4, mape_short=0.5, mape_long=0.5, covered=float("nan"), short=(0.5, 2.0), long=(0.5, 2.0)
)


@frozen(kw_only=True)
class Expectation:
    """Expected times of launches, as arrays. [s]

    fixed   the part of the expected time that does not shrink with the work, such as launch time
    source  "calibrated", "transferred" or "bound only", with devices and libraries
    sources source of each launch, if they differ; "measured shape" if exactly that shape was measured
    """

    bound: Array
    expected: Array
    low: Array
    high: Array
    fixed: Array
    source: str
    sources: Array | None = None


@frozen(kw_only=True)
class EntryChoice:
    """The entries whose parameters are used for a stack on a device, with their error and source.

    traffic  whether no such operation was measured, so that they are of additions
    """

    entries: tuple[Entry, ...]
    error: Error
    source: str
    traffic: bool = False


def choose(name: str, device: Device, stack: Stack, entries: Sequence[Entry], *, unknown: bool = False) -> EntryChoice:
    """The parameters to use for a stack: its own on the device; else those of its library there; else of relatives.

    unknown  whether the stack's library is a guess, so that intervals are those of another library

    On the device, a twin of the data type is preferred to other devices, with the error of a transfer (element-wise
    kernels, for which only the width of a type matters: with its own error). On other devices, the library's kernels
    for twins are used beside those for the type, unless it has the latter on a device with the same kind of memory.
    Element-wise kernels of any type can be used; operations that were not measured count as an addition. Of those that
    were measured with launches by the host, the launch is left out unless it is asked for.

    Raises InputError if no similar stack was measured.
    """
    of_family = [e for e in entries if e.family == name and kin(e.device).kind == device.kind]
    if calibrated := _calibrated(of_family, device, stack):
        return calibrated
    if others := _others(of_family, device, stack):
        return _carried_over(others, device, stack, unknown=unknown)
    if name == "elementwise" and stack.kernel.rpartition(" ")[2] != _PLAIN:
        return _as_traffic(stack, choose(name, device, _plain(stack), entries))
    raise InputError(f"no profile of {name} in {stack.dtype} on any {_KINDS.get(device.kind, device.kind)}")


def _plain(stack: Stack) -> Stack:
    return replace(stack, kernel=f"{EAGER} {_PLAIN}" if stack.eager else _PLAIN)


def _as_traffic(stack: Stack, plain: EntryChoice) -> EntryChoice:
    """Estimates an operation from an addition of as many bytes, times the measured ratio of such kernels."""
    known, operation = index().errors, stack.kernel.removeprefix(f"{EAGER} ")
    keys = (("elementwise", part, NO_KERNEL) for part in (operation, "all"))
    error = next((known[key] for key in keys if key in known), _UNKNOWN)
    whose = plain.source.removeprefix(CALIBRATED).removeprefix(TRANSFERRED)
    times = f"{error.scale:.2g} times an addition on {whose}"
    return replace(plain, error=error, source=f"{NOT_MEASURED}, {times}", traffic=True)


def _calibrated(of_family: Sequence[Entry], device: Device, stack: Stack) -> EntryChoice | None:
    """The stack's own parameters on the device, or else those of a twin of its type; None where there are none."""
    own = [e for e in of_family if e.device == device.name and e.stack.library == stack.library]
    exact = [e for e in own if _of_type(e, stack, stack.dtype)]
    for found in (exact, [e for e in own if e not in exact and twins(e, stack)]):
        same = [e for e in found if e.stack.kernel == stack.kernel]
        alike = [] if stack.kernel else sorted((e for e in found if _alike(e, stack)), key=lambda e: -e.rows)
        if chosen := same or alike:
            first = chosen[0]
            known = found is exact or first.family == "elementwise"
            error = first.held_out if known else _measured_error(first.family, stack, SIBLINGS)
            note = "" if found is exact else f" in {first.stack.dtype}"
            return EntryChoice(entries=(first,), error=error, source=f"{CALIBRATED}{_named(first)}{note}")
    return None


def _others(of_family: Sequence[Entry], device: Device, stack: Stack) -> list[Entry]:
    """Stacks on all devices that do the same work, in the data type nearest to its own."""
    alike = [e for e in of_family if _alike(e, stack)]
    for dtype in (stack.dtype, *SIMILAR.get(stack.dtype, ())):
        found = [e for e in alike if _of_type(e, stack, dtype)]
        own = (e for e in found if e.stack.library == stack.library)
        if dtype == stack.dtype and not any(kin(e.device).stacked == device.stacked for e in own):
            mine = (e for e in alike if e.stack.library == stack.library and twins(e, stack))
            found += [e for e in mine if not _of_type(e, stack, dtype)]
        if found:
            return found
    return alike if alike and alike[0].family == "elementwise" else []


def _carried_over(found: Sequence[Entry], device: Device, stack: Stack, *, unknown: bool) -> EntryChoice:
    near = [_launched(e, found, stack) for e in _nearest(found, device, stack)]
    asked = replace(stack, library="") if unknown and twins(near[0], stack) else stack
    error = _measured_error(near[0].family, stack, source_class(near[0], device, asked))
    launched = near[0].family == "elementwise" and near[0].stack.eager
    if launched and not stack.eager:  # what is left of a start is a guess
        error = replace(error, short=_UNKNOWN.short, mape_short=_UNKNOWN.mape_short)
    return EntryChoice(entries=tuple(near), error=error, source=_told(near, device, stack))


def _launched(entry: Entry, found: Sequence[Entry], stack: Stack) -> Entry:
    """An entry with the median launch time of all measured hosts, as it is not the device's; without one, if the stack
    is not launched by a host.
    """
    if FAMILIES[entry.family].aged:
        return entry
    if not stack.eager:
        return replayed(entry) if entry.stack.eager else entry
    hosts = [np.asarray(launch_us(e)) for e in found if e.stack.library == entry.stack.library]
    start = entry.parameters["start_us"] - launch_us(entry) + float(_middle(hosts))
    return replace(entry, parameters={**entry.parameters, "start_us": start})


def _told(near: Sequence[Entry], device: Device, stack: Stack) -> str:
    """Label of the devices and libraries whose parameters are used, those of one device together."""
    dtype = near[0].stack.dtype
    others = f"{FOR_OTHERS}{dtype}" if dtype != stack.dtype else ""
    if near[0].device != device.name:
        libraries: dict[str, dict[str, None]] = {}
        for e in near:
            libraries.setdefault(e.device, {})[e.stack.library] = None
        names = ", ".join(f"{name} {'/'.join(own)}" for name, own in libraries.items())
        return f"{TRANSFERRED}{names}{others if not twins(near[0], stack) else ''}"
    names = " and ".join(_named(e).removeprefix(f"{device.name} ") for e in near)
    instead = stand_in(near[0], stack)
    if not instead:
        return f"{CALIBRATED}{device.name} {names}{others}"
    of = f" of {stack.library}" if instead == ANOTHER_KERNEL else ""
    return f"{STAND_IN} on {device.name}: {instead}{of} ({names}{others})"


def nearest(entries: Sequence[Entry], device: Device) -> list[Entry]:
    """The entries of the nearest relatives of a device, which may be itself."""
    sources = {name: kin(name) for name in {e.device for e in entries}}
    distances = {name: relation(own, device) for name, own in sources.items() if own.kind == device.kind}
    least = min(distances.values(), default=())
    return [e for e in entries if distances.get(e.device) == least]


def _nearest(entries: Sequence[Entry], device: Device, stack: Stack) -> list[Entry]:
    """The entries at the least distance, one of each device and library.

    Kernels that a host launches each time say little of those replayed from a graph, whichever device they were
    measured on. Fits on few rows are unreliable and rank last, unless they are of the same library and architecture.
    Of families that cut work alike from one architecture to the next, the nearest entries of each are used, unless one
    is on the device itself.
    """
    reliable = [e for e in entries if e.rows >= _TELLING * _count(e) or _of_line(e, device, stack)] or entries
    measured = [(_distance(e, device, stack), e) for e in reliable]
    best: dict[tuple[str, str], tuple[tuple[float, ...], Entry]] = {}
    for distance, entry in sorted(measured, key=lambda one: (*one[0], -one[1].rows)):
        best.setdefault((entry.device, entry.stack.library), (distance, entry))
    ranked = list(best.values())
    least, first = ranked[0]
    if not FAMILIES[first.family].steady or _same(first, device):
        return [entry for distance, entry in ranked if distance == least][:_RELATIVES]
    generations: dict[str, list[tuple[tuple[float, ...], Entry]]] = {}
    for distance, entry in ranked:
        if distance[:_ALIKE] == least[:_ALIKE]:
            equally_near = generations.setdefault(generation(kin(entry.device)), [])
            if not equally_near or distance == equally_near[0][0]:
                equally_near.append((distance, entry))
    return [entry for equally_near in generations.values() for _, entry in equally_near[:_RELATIVES]]


def _of_line(entry: Entry, device: Device, stack: Stack) -> bool:
    """Whether few rows of an entry are more reliable than many of others: of the same kernel on the same architecture,
    or of communication on the same kind of memory, with which links go.
    """
    other, computes = kin(entry.device), FAMILIES[entry.family].computes
    own, asked = (generation(d) if computes else d.stacked for d in (other, device))
    return entry.stack.library == stack.library and own == asked and not (computes and stand_in(entry, stack))


def _count(entry: Entry) -> int:
    return len(FAMILIES[entry.family].of(entry.variant))


def _distance(entry: Entry, device: Device, stack: Stack) -> tuple[float, ...]:
    """Distance of an entry, the most important term first. For kernels written for matrix instructions, a kernel in the
    same ones is nearest, whatever memory it was measured with. On a sibling device, a fit of another kernel of this
    library ranks no better than another library's.
    """
    other, family = kin(entry.device), FAMILIES[entry.family]
    maker, *near = relation(other, device, computes=family.computes)
    if not family.aged:
        memory = int(other.stacked != device.stacked)
        return (maker, int(stack.eager and not entry.stack.eager), memory, int(entry.stack.eager and not stack.eager))
    weak = family.computes and not family.halves and slowed(other) != slowed(device)
    paced = entry.stack.eager != stack.eager
    library, kernel = entry.stack.library != stack.library, entry.stack.kernel != stack.kernel
    untuned = kernel and entry.variant in family.alone
    if _same(entry, device) or not family.computes:
        return (maker, int(weak), int(paced), 0, *near, library + kernel + untuned)
    known = family.rewritten and _of_name(entry, stack) and same_code(entry, device)
    return (maker, int(weak), int(paced), 1 - known, *near, (library or kernel) + untuned)


def _of_name(entry: Entry, stack: Stack) -> bool:
    """Whether one kernel name of the library begins with the other, as later versions add to names."""
    own, asked = entry.stack.kernel, stack.kernel
    return entry.stack.library == stack.library and (own.startswith(asked) or asked.startswith(own))


def _of_type(entry: Entry, stack: Stack, dtype: str) -> bool:
    return entry.stack.dtype == dtype and entry.stack.kv_dtype == stack.kv_dtype


def twins(entry: Entry, stack: Stack) -> bool:
    """Whether data types take equally long: as wide, as fast, and multiplied by the same kernels."""
    if entry.family == "elementwise":
        return True
    pairs = (entry.stack.dtype, stack.dtype), (entry.stack.kv_dtype, stack.kv_dtype)
    return all(own == other or {own, other} in TWINS for own, other in pairs)


def _alike(entry: Entry, stack: Stack) -> bool:
    """Whether an entry is of the same operation or kind of attention, the last word of a kernel's name."""
    if entry.family in ("elementwise", "collectives"):
        own, other = (name.rpartition(" ")[2] for name in (stack.kernel, entry.stack.kernel))
        return own == other or not own
    return entry.stack.kind == stack.kind


def sibling(entry: Entry, device: Device) -> bool:
    """Whether its device runs the same kernels and cuts work up alike: is of the same architecture and kind of memory,
    since chips of one architecture with and without stacked memory differ. Messages over a host depend on the host.
    """
    memory = kin(entry.device).stacked == device.stacked
    return memory and not over_host(entry, device) and _same(entry, device)


def _same(entry: Entry, device: Device) -> bool:
    return max(relation(kin(entry.device), device, computes=FAMILIES[entry.family].computes)) <= 0


def source_class(entry: Entry, device: Device, stack: Stack) -> str:
    """The class of an entry as a source for a stack on a device: of NEARNESS, of a stand-in, or both; "" for the stack
    itself.
    """
    where = "" if entry.device == device.name else nearness(entry, device)
    return ", ".join(filter(None, (where, stand_in(entry, stack))))


def stand_in(entry: Entry, stack: Stack) -> str:
    """Label of the difference between an entry and a stack: data type, library or kernel; "" if the kernel is equal."""
    if FAMILIES[entry.family].alike:
        return ""
    if not twins(entry, stack):
        return ANOTHER_TYPE
    if entry.stack.library != stack.library:
        return ANOTHER_LIBRARY
    name = stack.kernel.removesuffix(stack.kind).strip()
    return "" if not name or _of_name(entry, stack) else ANOTHER_KERNEL


def nearness(entry: Entry, device: Device) -> str:
    """How near the device of an entry is: one of NEARNESS."""
    if sibling(entry, device):
        return SIBLINGS
    return SAME_MAKER if kin(entry.device).vendor == device.vendor else OTHERS


def _measured_error(name: str, stack: Stack, which: str) -> Error:
    """The error of a class of sources, or else of the next from further away, of a kind of attention or a data type. A
    stand-in on another device is no surer than the kernel itself is there.
    """
    near, _, instead = which.rpartition(", ")
    if which in NEARNESS:
        near, instead = which, ""
    further = NEARNESS[NEARNESS.index(near) :] if near else ("", *NEARNESS)
    parts, known = (stack.kind or stack.dtype, "all"), index().errors
    classes = [", ".join(filter(None, (each, instead))) for each in further if each != OTHERS]
    keys = [(name, of, each) for each in (*classes, OTHERS) for of in parts]
    error = next((known[key] for key in keys if key in known), _UNKNOWN)
    return error.or_wider(_measured_error(name, stack, near)) if near and instead else error


def widens_beyond(family: str) -> bool:
    """Whether the error of a family beyond the sizes that its kernels were measured with is known."""
    return (family, "all", BEYOND) in index().errors


def stand_in_error(family: str, instead: str) -> Error:
    """The error of kernels of a family that stand in for work that they do not do."""
    return index().errors.get((family, "all", instead), _UNKNOWN)


def _named(entry: Entry) -> str:
    return " ".join(filter(None, (entry.device, entry.stack.library, entry.version, entry.stack.kernel)))


def bound_only(bound: Array, why: str) -> Expectation:
    """The bound as expectation, if nothing else is known; `why` is the reason."""
    open_end = np.full_like(bound, np.inf)
    none = np.zeros_like(bound)
    return Expectation(bound=bound, expected=bound, low=bound, high=open_end, fixed=none, source=unknown(why))


def expect(name: str, shapes: Shapes, device: Device, stack: Stack, entries: Sequence[Entry]) -> Expectation:
    """Expected times of kernels of `stack`; at least the bound.

    If no similar kernel was measured, it is the bound, with an infinite upper end of the interval.
    """
    family: Family = FAMILIES[name]
    bound = family.bound(shapes, device, stack)
    try:
        choice = choose(name, device, stack, entries)
    except InputError as error:
        return bound_only(bound, str(error))
    found = Estimator(choice=choice, device=device, stack=stack).expect(shapes)
    expected = np.maximum(found.expected, bound)
    later = expected / found.expected
    return replace(found, bound=bound, expected=expected, low=np.maximum(found.low * later, bound),
                   high=found.high * later)  # fmt: skip


@frozen(kw_only=True)
class Estimator:
    """Expected times of a stack on a device by the parameters of a choice, without the limit of the bound."""

    choice: EntryChoice
    device: Device
    stack: Stack

    @property
    def family(self) -> Family:
        return FAMILIES[self.choice.entries[0].family]

    @cached_property
    def _parameters(self) -> list[Parameters]:
        """Parameters of each entry, scaled to the device."""
        return [parameters_on(self.device, e) for e in self.choice.entries]

    @cached_property
    def _trends(self) -> list[Trend | None]:
        return [e.trend if sibling(e, self.device) else None for e in self.choice.entries]

    @cached_property
    def _generations(self) -> tuple[tuple[list[int], float], ...]:
        """Places of the entries of each architecture, and its weight: less for one that is further away."""
        entries = self.choice.entries
        if not self.family.steady:
            return ((list(range(len(entries))), 1.0),)
        places: dict[str, list[int]] = {}
        for place, entry in enumerate(entries):
            places.setdefault(generation(kin(entry.device)), []).append(place)
        return tuple((own, _FADES ** apart(kin(entries[own[0]].device), self.device)) for own in places.values())

    def expect(self, shapes: Shapes) -> Expectation:
        choice, device, family, first = self.choice, self.device, self.family, self.choice.entries[0]
        fitted = first.device == device.name
        seconds = family.seconds if fitted else family.elsewhere
        by_variant = family.features_of(shapes, device, self.stack, {e.variant for e in choice.entries})
        features = [by_variant[e.variant] for e in choice.entries]
        logs = [
            np.log(seconds(p, f)) + (trend.change(family, shapes) if trend else 0.0)
            for p, f, trend in zip(self._parameters, features, self._trends, strict=True)
        ]
        fixed = [family.fixed(p, f) for p, f in zip(self._parameters, features, strict=True)]
        expected = np.exp(self._combined(logs)) * choice.error.scale
        low, high = choice.error.interval(expected)
        further, far = index().errors.get((family.name, "all", BEYOND)), first.beyond(shapes) > 0
        if further and np.any(far):
            ends = further.or_wider(choice.error).interval(expected)
            low, high = (np.where(far, wide, near) for wide, near in zip(ends, (low, high), strict=True))
        found = Expectation(
            bound=np.zeros_like(expected),
            expected=expected,
            low=low,
            high=high,
            fixed=np.broadcast_to(self._combined(np.broadcast_arrays(*fixed)), expected.shape),
            source=choice.source + (f"; assumed {', '.join(device.assumed)}" if device.assumed else ""),
        )
        residual = first.residual if fitted else None
        return _corrected(found, first, residual, shapes) if residual else found

    def _combined(self, values: Sequence[Array]) -> Array:
        """The weighted mean of the medians of each architecture."""
        if len(self._generations) == 1:
            return _middle(values)
        medians = (weight * _middle([values[place] for place in places]) for places, weight in self._generations)
        return np.asarray(sum(medians) / sum(weight for _, weight in self._generations))


def _middle(values: Sequence[Array]) -> Array:
    """The median of each place. numpy's would load numpy.ma, which takes longer than a network's expectations."""
    ordered = np.sort(values, axis=0)
    return np.asarray((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)


def _corrected(found: Expectation, entry: Entry, residual: StackResidual, shapes: Shapes) -> Expectation:
    """An expectation corrected by the residuals of measurements nearby."""
    nearness = residual.apply(shapes)
    expected = found.expected * nearness.factor
    low, high = residual.interval
    near = np.where(nearness.near, f"calibrated, {NEIGHBOURS} neighbours on {_named(entry)}", found.source)
    return replace(
        found,
        expected=expected,
        low=np.where(nearness.near, expected * low, found.low * nearness.factor),
        high=np.where(nearness.near, expected * high, found.high * nearness.factor),
        sources=np.where(nearness.measured, f"measured shape on {_named(entry)}", near).astype(object),
    )
