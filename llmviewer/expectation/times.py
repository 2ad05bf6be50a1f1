"""Expected times of the kernels of a library on a device, cached; new ones are evaluated together.

If the library has several kernels for the same work, the fastest one at each shape counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, Final, NamedTuple

import numpy as np

from ..devices.hardware import Hardware
from ..errors import InputError
from ..records import frozen
from ..transforms.offload import HOST
from .device import Device
from .expected import ExpectedLaunch
from .families import Implementation
from .families._family import Array
from .launches import LibraryKernel
from .library import ALIKE, Library, key_of
from .profile import BEYOND_SIZES, KernelFit, Profile
from .transfer import Estimator, Expectation, FitSelection, has_extrapolation_error, select_fits

_REMEMBERED: Final = 256  # points of a workload up to which kernels are looked up before they are worked out
_MOST: Final = 1 << 13  # kernels that are remembered
_TIMES: Final = ("expected", "low", "high", "latency")
_OTHER_VERSIONS: Final = "other versions of the library within the interval"
_OTHER_LIBRARIES: Final = "other libraries within the interval"
_AT_ONCE: Final = 1 << 11  # points that are worked out together: so few that a core's cache holds them
# Powers of their number by which devices on one host get in each other's way: from none, where each has its own way
# through switches, to somewhat more than measured of eight L40S on two sockets (1.84). A ring passes each link once, so
# devices that reach each other directly share no more than the way between sockets. The middle was fitted to what four
# and eight L40S serve in TensorRT-LLM's tables, and held to their A100 with PCIe (tests/test_server_tables.py).
_CROWDS: Final = (0.0, 0.25, 2.0)


class KernelBounds(NamedTuple):
    """A kernel, and the bounds of what it is launched for: it is run where there is anything to do."""

    kernel: LibraryKernel
    bound: Array

    @property
    def chosen(self) -> Array:
        """The workloads in which it is what is run."""
        where, works = self.kernel.where, self.bound > 0
        return works if where is True else np.asarray(works & np.asarray(where))

    @property
    def key(self) -> Hashable:
        """What tells it from others on one device; None of so many points that it is not remembered."""
        if self.bound.size > _REMEMBERED:
            return None
        bound = self.bound.tobytes() if self.kernel.memory_traffic_only else b""
        return *self.kernel.identity, self.chosen.tobytes(), bound


class KernelTimes(Library):
    """What single kernels take; library and profiles as those of Library."""

    def __init__(self, hardware: Hardware, library: str = "", profiles: Sequence[Profile] = ()) -> None:
        super().__init__(hardware, library, profiles)
        self._estimators: dict[tuple[str, Implementation, bool], Estimator | str] = {}
        self._known: dict[Hashable, ExpectedLaunch | None] = {}  # which layers and settings share

    @cached_property
    def _elsewhere(self) -> Device | str:
        """The same where it talks to others over its host, as cards do: whose parameters are carried over then."""
        device = self.device
        if isinstance(device, str):
            return device
        name = device.name if device.hosted else f"{device.name} over its host"
        link = self.hardware.numbers.get(f"{HOST}.bandwidth", 0.0)
        return replace(device, name=name, link=link, hosted=True, stacked=False)

    def times(self, asked: Sequence[KernelBounds]) -> Iterator[ExpectedLaunch | None]:
        """Of each: None where it is never run, or nothing is known of it; 0 in the workloads in which it is not run,
        all of which others are for. Those of many points one after another, as they are taken.
        """
        if len(self._known) > _MOST:
            self._known = {}
        known = self._known  # of which another thread may begin a new one
        keys = [one.key for one in asked]
        new = {key: one for key, one in zip(keys, asked, strict=True) if key and key not in known}
        known.update(zip(new, self._evaluate(list(new.values())), strict=True))
        for key, one in zip(keys, asked, strict=True):
            yield known[key] if key else self._evaluate([one])[0]

    def _evaluate(self, asked: Sequence[KernelBounds]) -> list[ExpectedLaunch | None]:
        found: list[ExpectedLaunch | None] = [None] * len(asked)
        alike: dict[tuple[str, tuple[Implementation, ...], Implementation, bool], list[int]] = {}
        for place, one in enumerate(asked):
            if one.chosen.any():
                kernel = self.run_as(one.kernel)
                alike.setdefault(
                    (kernel.family, self.implementations_for(kernel), kernel.implementation, kernel.hosted), []
                ).append(place)
        for places in alike.values():
            count = max(_AT_ONCE // max(asked[place].bound.size for place in places), 1)
            for start in range(0, len(places), count):
                part = places[start : start + count]
                for place, each in zip(part, self._fastest([asked[place] for place in part]), strict=True):
                    found[place] = each
        return found

    def _fastest(self, asked: Sequence[KernelBounds]) -> Iterator[ExpectedLaunch | None]:
        """Of kernels of one stack, in the workloads that are chosen; None where that cannot be known."""
        kernel = self.run_as(asked[0].kernel)
        parts = [one.kernel.columns(one.chosen) for one in asked]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if kernel.memory_traffic_only and not isinstance(
            self.device, str
        ):  # what takes longer than its bytes is as so many more
            bounds = np.concatenate([one.bound[one.chosen] for one in asked])
            columns["bytes"] = np.maximum(columns["bytes"], bounds * self.device.bandwidth)
        ends = np.cumsum([np.count_nonzero(one.chosen) for one in asked]).tolist()
        starts = [0, *ends[:-1]]
        implementations = self.implementations_for(kernel)
        able = [
            each for implementation in implementations if (each := self._alternative(kernel, implementation, columns))
        ]
        if not able:
            yield from [None] * len(asked)
            return
        implementation = kernel.implementation
        types, sources = (
            f"{implementation.dtype} {implementation.kv_dtype}",
            " or ".join(found.source for found, _ in able),
        )
        name = f"{kernel.family} {types} {sources}"
        best = _best(able, columns, starts)
        whole = ExpectedLaunch.of(best.found, (name,))
        for one, start, end, source in zip(asked, starts, ends, best.sources, strict=True):
            own: dict[str, Any] = {key: _placed(getattr(whole, key)[start:end], one.chosen) for key in _TIMES}
            yield replace(whole, source=source, **own)

    def _alternative(
        self, kernel: LibraryKernel, implementation: Implementation, columns: Mapping[str, Array]
    ) -> tuple[Expectation, KernelFit] | None:
        """Expected time of one kernel of a library, and the entry with its parameters; None if unknown."""
        estimator = self._estimator(kernel, implementation)
        if isinstance(estimator, str):
            return None
        fits = estimator.selection.fits
        try:
            if kernel.hosted and not any(key_of(fit) in self.user_fits for fit in fits):
                found = _elsewhere(estimator, columns)
            else:
                found = estimator.expect(columns)
        except InputError as error:  # of the device and the stack, whatever the shapes
            self._estimators[kernel.family, implementation, kernel.hosted] = str(error)
            return None
        return found, fits[0]

    def stand_in_libraries(self, kernel: LibraryKernel) -> tuple[str, ...]:
        """Libraries whose kernels stand in, where its own has none for such work and they differ."""
        kernel = self.run_as(kernel)
        selections = [] if kernel.family in ALIKE else self._selections(kernel)
        libraries = {fit.implementation.library: None for selection in selections for fit in selection.fits}
        return () if self.library in libraries else tuple(libraries)

    def measured_dtypes(self, kernel: LibraryKernel) -> tuple[str, ...]:
        """Data types of the measured kernels whose parameters are used."""
        kernel = self.run_as(kernel)
        return tuple(dict.fromkeys(selection.fits[0].implementation.dtype for selection in self._selections(kernel)))

    def reason(self, kernel: LibraryKernel) -> str:
        """The reason for which nothing is known of it."""
        estimator = self._estimator(kernel, self.implementations_for(kernel)[0])
        return estimator if isinstance(estimator, str) else "not run"

    def _selections(self, kernel: LibraryKernel) -> list[FitSelection]:
        """The known parameters of the kernels that can do the work of one."""
        estimators = (self._estimator(kernel, implementation) for implementation in self.implementations_for(kernel))
        return [estimator.selection for estimator in estimators if isinstance(estimator, Estimator)]

    def _estimator(self, kernel: LibraryKernel, implementation: Implementation) -> Estimator | str:
        """Expected times by the parameters to use for a kernel, or why there are none."""
        key = (kernel.family, implementation, kernel.hosted)
        if key not in self._estimators:
            device = self._elsewhere if kernel.hosted else self.device
            self._estimators[key] = (
                device if isinstance(device, str) else self._selected(kernel, implementation, device)
            )
        return self._estimators[key]

    def _selected(self, kernel: LibraryKernel, implementation: Implementation, device: Device) -> Estimator | str:
        try:
            selection = select_fits(
                kernel.family, device, implementation, self.fits_by_family.get(kernel.family, ()), unknown=self.is_library_unknown
            )  # fmt: skip
        except InputError as error:
            return str(error)
        return Estimator(selection=selection, device=device, implementation=implementation)


@frozen(kw_only=True)
class _Alternative:
    """One of the kernels that can do the same work, or the best of several for each shape.

    beyond   sizes of each shape outside those that it was measured with
    release  place of its version among those of its library, the newest first
    sources  source of most of the shapes of each kernel that is asked for
    """

    found: Expectation
    library: str
    beyond: Array
    release: Array
    sources: Sequence[str]

    @classmethod
    def of(
        cls,
        found: Expectation,
        fit: KernelFit,
        columns: Mapping[str, Array],
        *,
        release: int,
        starts: Sequence[int],
    ) -> _Alternative:
        """One kernel, for those that are asked for, each from one of `starts` to the next."""
        shape = found.expected.shape
        beyond = np.broadcast_to(fit.beyond(columns), shape)
        wide = (beyond > 0) & has_extrapolation_error(fit.family)
        far = 2 * np.add.reduceat(wide.astype(int), starts) >= np.diff([*starts, len(beyond)])
        return cls(
            found=found, library=fit.implementation.library, beyond=beyond, release=np.full(shape, release),
            sources=[_with(found.source, BEYOND_SIZES if most else "") for most in far],
        )  # fmt: skip

    def or_better(self, other: _Alternative, starts: Sequence[int]) -> _Alternative:
        """For each shape the kernel that was measured nearer to it; else in a newer version of the library; else the
        faster one. Of several libraries or versions any may run, so intervals are of all that were measured as near.
        """
        first, second, alone = self.found, other.found, self.library == other.library
        newer = (self.release < other.release) & alone
        as_new = (self.release == other.release) | (not alone)
        nearer, as_near = self.beyond < other.beyond, self.beyond == other.beyond
        stays = nearer | (as_near & (newer | (as_new & (first.expected <= second.expected))))
        keys = ("bound", "expected", "low", "high", "fixed")
        best = {key: np.where(stays, getattr(first, key), getattr(second, key)) for key in keys}
        either = as_near & ((self.release != other.release) | (not alone))
        best["low"] = np.where(either, np.minimum(first.low, second.low), best["low"])
        best["high"] = np.where(either, np.maximum(first.high, second.high), best["high"])
        counts = np.diff([*starts, len(stays)])
        mostly, widened = (2 * np.add.reduceat(chosen.astype(int), starts) >= counts for chosen in (stays, either))
        told = _OTHER_VERSIONS if alone else _OTHER_LIBRARIES
        sources = zip(self.sources, other.sources, mostly, widened, strict=True)
        return replace(
            self,
            found=replace(first, **best),
            beyond=np.where(stays, self.beyond, other.beyond),
            release=np.where(stays, self.release, other.release),
            sources=[_with(one if keeps else two, told if wide else "") for one, two, keeps, wide in sources],
        )


def _with(source: str, remark: str) -> str:
    """A source with a remark, once."""
    return source if not remark or remark in source else f"{source}; {remark}"


def _best(
    able: Sequence[tuple[Expectation, KernelFit]], columns: Mapping[str, Array], starts: Sequence[int]
) -> _Alternative:
    """The kernels of each library, then those of all libraries, as one."""
    releases = sorted({fit.release for _, fit in able}, reverse=True)
    libraries: dict[str, _Alternative] = {}
    for found, fit in able:
        release = releases.index(fit.release)
        one = _Alternative.of(found, fit, columns, release=release, starts=starts)
        known = libraries.get(one.library)
        libraries[one.library] = known.or_better(one, starts) if known else one
    return reduce(lambda one, other: one.or_better(other, starts), libraries.values())


def _elsewhere(estimator: Estimator, columns: Mapping[str, Array]) -> Expectation:
    """Collectives over a host, by parameters of devices on another: how much those of one host take from each other is
    not theirs to tell. That holds for the same kind of device, too: eight L40S on the host that was measured all-reduce
    at a third of the pace, or less, at which TensorRT-LLM's tables have them serve.
    """
    found, selection = [], estimator.selection
    for crowd in _CROWDS:
        fits = tuple(replace(fit, parameters={**fit.parameters, "crowd": crowd}) for fit in selection.fits)
        found.append(replace(estimator, selection=replace(selection, fits=fits)).expect(columns))
    few, some, many = found
    return replace(some, low=few.low, high=many.high, source=f"{some.source}, on another host")


def _placed(values: Array, chosen: Array) -> Array:
    """0 where nothing is chosen."""
    if len(values) == chosen.size:
        return values
    whole = np.zeros(chosen.shape, dtype=values.dtype)
    whole[chosen] = values
    return whole
