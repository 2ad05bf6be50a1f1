"""Expected times of the kernels of a library on a device, cached; new ones are evaluated together.

If the library has several kernels for the same work, the fastest one at each shape counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, Final

import numpy as np

from ..devices.hardware import Hardware
from ..errors import InputError
from ..records import copied, frozen
from ..transforms.offload import HOST
from .device import Device
from .distinct import distinct_shapes
from .engines import ExpertsKernel
from .expected import ExpectedLaunch
from .families import Implementation
from .families.base import Array
from .launches import LibraryKernel
from .library import LIBRARY_INDEPENDENT, Library, key_of
from .profile import BEYOND_SIZES, KernelFit, Profile
from .transfer import Estimator, Expectation, FitSelection, as_stand_in, has_extrapolation_error, select_fits

_MAX_CACHED_POINTS: Final = 256  # points of a workload up to which the times of a kernel are cached
_MAX_CACHED_KERNELS: Final = 1 << 13  # kernels whose times are cached
_MAX_DISTINCT_QUERIES: Final = 64  # large queries whose times are cached
_TIMES: Final = ("expected", "low", "high", "latency")
EXPERTS: Final = "moe"  # the family of kernels of experts
_SELECTED: Final = -1  # before the newest version of a library
_OTHER_VERSIONS: Final = "other versions of the library within the interval"
_OTHER_LIBRARIES: Final = "other libraries within the interval"
_POINTS_PER_BATCH: Final = 1 << 11  # points that are evaluated together: few enough for a core's cache
# Contention of devices on one host, as a power of their number: from none, where each has its own path through
# switches, to somewhat more than measured for eight L40S on two sockets (1.84). A ring passes each link once, so
# devices that reach each other directly share only the link between sockets. The middle was fitted to what four
# and eight L40S serve in TensorRT-LLM's tables, and held to their A100 with PCIe (tests/test_server_tables.py).
_CROWDS: Final = (0.0, 0.25, 2.0)


@frozen
class KernelBounds:
    """A kernel and the bounds of its operators by workload; it runs where the bound is above 0."""

    kernel: LibraryKernel
    bound: Array

    @cached_property
    def chosen(self) -> Array:
        """Mask of the workloads in which the kernel runs."""
        where, works = self.kernel.where, self.bound > 0
        return works if where is True else np.asarray(works & np.asarray(where))

    @property
    def key(self) -> Hashable:
        """Cache key of a kernel on one device; None if there are too many points to cache."""
        if self.bound.size > _MAX_CACHED_POINTS:
            return None
        bound = self.bound.tobytes() if self.kernel.memory_traffic_only else b""
        return *self.kernel.identity, self.chosen.tobytes(), bound


class KernelTimes(Library):
    """Expected times of single kernels, cached; library and profiles as in Library."""

    def __init__(self, hardware: Hardware, library: str = "", profiles: Sequence[Profile] = ()) -> None:
        super().__init__(hardware, library, profiles)
        self._estimators: dict[tuple[str, Implementation, bool], Estimator | str] = {}
        self._known: dict[Hashable, ExpectedLaunch | None] = {}  # which layers and settings share
        self._distinct_times: dict[Hashable, Expectation] = {}  # of large queries, which the steps of a grid share

    @cached_property
    def _elsewhere(self) -> Device | str:
        """The device with its host as link to other devices, as PCIe cards have, whose fits are used."""
        device = self.device
        if isinstance(device, str):
            return device
        name = device.name if device.hosted else f"{device.name} over its host"
        link = self.hardware.numbers.get(f"{HOST}.bandwidth", 0.0)
        return replace(device, name=name, link=link, hosted=True, stacked=False)

    def times(self, kernels: Sequence[KernelBounds]) -> Iterator[ExpectedLaunch | None]:
        """Yields the expected times of each kernel: None if it never runs or is unknown, 0 in the workloads in which it
        does not run. All new kernels are evaluated together, those of too many points to cache one by one, as they are
        consumed.
        """
        if len(self._known) > _MAX_CACHED_KERNELS:
            self._known = {}
        cached_times = self._known  # of which another thread may begin a new one
        keys = [one.key for one in kernels]
        new = {key: one for key, one in zip(keys, kernels, strict=True) if key and key not in cached_times}
        cached_times.update(zip(new, self._evaluate(list(new.values())), strict=True))
        for key, one in zip(keys, kernels, strict=True):
            yield cached_times[key] if key else self._evaluate([one])[0]

    def _evaluate(self, kernels: Sequence[KernelBounds]) -> list[ExpectedLaunch | None]:
        launches: list[ExpectedLaunch | None] = [None] * len(kernels)
        alike: dict[tuple[str, tuple[Implementation, ...], Implementation, bool], list[int]] = {}
        for place, one in enumerate(kernels):
            if one.chosen.any():
                kernel = self.run_as(one.kernel)
                alike.setdefault(
                    (kernel.family, self.implementations_for(kernel), kernel.implementation, kernel.hosted), []
                ).append(place)
        for places in alike.values():
            count = max(_POINTS_PER_BATCH // max(kernels[place].bound.size for place in places), 1)
            for start in range(0, len(places), count):
                part = places[start : start + count]
                for place, each in zip(part, self._fastest([kernels[place] for place in part]), strict=True):
                    launches[place] = each
        return launches

    def _fastest(self, kernels: Sequence[KernelBounds]) -> Iterator[ExpectedLaunch | None]:
        """Yields the expected times of kernels of one implementation in the workloads in which they run; None if
        unknown.
        """
        kernel = self.run_as(kernels[0].kernel)
        kernel_columns = [one.kernel.columns(one.chosen) for one in kernels]
        columns = {name: np.concatenate([part[name] for part in kernel_columns]) for name in kernel_columns[0]}
        if kernel.memory_traffic_only and not isinstance(
            self.device, str
        ):  # a bound above the time of the bytes counts as more bytes
            bounds = np.concatenate([one.bound[one.chosen] for one in kernels])
            columns["bytes"] = np.maximum(columns["bytes"], bounds * self.device.bandwidth)
        ends = np.cumsum([np.count_nonzero(one.chosen) for one in kernels]).tolist()
        starts = [0, *ends[:-1]]
        implementations = self.implementations_for(kernel)
        alternatives = [
            each for implementation in implementations if (each := self._alternative(kernel, implementation, columns))
        ]
        if not alternatives:
            yield from [None] * len(kernels)
            return
        implementation = kernel.implementation
        types, sources = (
            f"{implementation.dtype} {implementation.kv_dtype}",
            " or ".join(expectation.source for expectation, _ in alternatives),
        )
        name = f"{kernel.family} {types} {sources}"
        best = _best(alternatives, starts, [self._is_selected(kernel, fit) for _, fit in alternatives])
        all_points = ExpectedLaunch.of(best.found, (name,))
        for one, start, end, source in zip(kernels, starts, ends, best.sources, strict=True):
            times: dict[str, Any] = {key: _placed(getattr(all_points, key)[start:end], one.chosen) for key in _TIMES}
            yield copied(all_points, source=source, **times)

    def _alternative(
        self, kernel: LibraryKernel, implementation: Implementation, columns: Mapping[str, Array]
    ) -> tuple[Expectation, KernelFit] | None:
        """Expected time of one kernel of a library, and its fit; None if unknown."""
        estimator = self._estimator(kernel, implementation)
        if isinstance(estimator, str):
            return None
        fits = estimator.selection.fits
        distinct = distinct_shapes(columns)
        cached = self._distinct_times
        key = (kernel.family, implementation, kernel.hosted, distinct.key) if distinct.is_cacheable else None
        try:
            expectation = cached.get(key) if key else None
            if not expectation:
                if kernel.hosted and not any(key_of(fit) in self.user_fits for fit in fits):
                    expectation = _elsewhere(estimator, distinct.columns)
                else:
                    expectation = estimator.expect(distinct.columns)
        except InputError as error:  # of the device and the implementation, whatever the shapes
            self._estimators[kernel.family, implementation, kernel.hosted] = str(error)
            return None
        if key:
            if len(cached) >= _MAX_DISTINCT_QUERIES:
                self._distinct_times = cached = {}
            cached[key] = expectation
        return expectation if distinct.places is None else expectation.at(distinct.places), fits[0]

    def expected_by_kernel(self, one: KernelBounds) -> Iterator[tuple[KernelFit, Array]]:
        """Yields the fit of each kernel of the library that was measured for some work on the device, and its expected
        time where it runs. [s]
        """
        kernel, columns = self.run_as(one.kernel), one.kernel.columns(one.chosen)
        for implementation in self.implementations_for(kernel):
            if alternative := self._alternative(kernel, implementation, columns):
                expectation, fit = alternative
                if (fit.device, fit.implementation.library) == (self.hardware.name, self.library):
                    yield fit, expectation.expected

    @cached_property
    def selected_experts(self) -> Sequence[ExpertsKernel]:
        """Kernels of experts that a serving engine is known to select."""
        return ()

    def _is_selected(self, kernel: LibraryKernel, fit: KernelFit) -> bool:
        """Whether an engine selects this fit's kernel for the work of `kernel`."""
        dtype, name = kernel.implementation.dtype, fit.implementation.kernel
        return any(fit.family == EXPERTS and dtype in one.types and one.name in name for one in self.selected_experts)

    def stand_in_libraries(self, kernel: LibraryKernel) -> tuple[str, ...]:
        """Libraries whose kernels stand in, if its own library has none for such work and libraries differ."""
        kernel = self.run_as(kernel)
        selections = [] if kernel.family in LIBRARY_INDEPENDENT else self._selections(kernel)
        libraries = {fit.implementation.library: None for selection in selections for fit in selection.fits}
        return () if self.library in libraries else tuple(libraries)

    def measured_dtypes(self, kernel: LibraryKernel) -> tuple[str, ...]:
        """Data types of the measured kernels whose parameters are used."""
        kernel = self.run_as(kernel)
        return tuple(dict.fromkeys(selection.fits[0].implementation.dtype for selection in self._selections(kernel)))

    def reason(self, kernel: LibraryKernel) -> str:
        """Reason why the kernel is unknown."""
        estimator = self._estimator(kernel, self.implementations_for(kernel)[0])
        return estimator if isinstance(estimator, str) else "not run"

    def _selections(self, kernel: LibraryKernel) -> list[FitSelection]:
        """Selected fits of the kernels that can do the work."""
        estimators = (self._estimator(kernel, implementation) for implementation in self.implementations_for(kernel))
        return [estimator.selection for estimator in estimators if isinstance(estimator, Estimator)]

    def _estimator(self, kernel: LibraryKernel, implementation: Implementation) -> Estimator | str:
        """Estimator of a kernel implementation, or the reason why there is none."""
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
                kernel.family,
                device,
                implementation,
                self.fits_by_family.get(kernel.family, ()),
                unknown=self.is_library_unknown,
            )
        except InputError as error:
            return str(error)
        if self.requested_library and not any(key_of(fit) in self.user_fits for fit in selection.fits):
            selection = as_stand_in(selection, device, kernel.implementation)
        return Estimator(selection=selection, device=device, implementation=implementation)


@frozen(kw_only=True)
class _Alternative:
    """Expected times of a kernel that can do the work, or of the best of several for each shape.

    beyond   sizes of each shape outside those that it was measured with
    release  place of its version among those of its library, the newest first; _SELECTED: what the engine selects
    sources  source label of most shapes of each queried kernel
    """

    found: Expectation
    library: str
    beyond: Array
    release: Array
    sources: Sequence[str]

    @classmethod
    def of(
        cls,
        expectation: Expectation,
        fit: KernelFit,
        *,
        release: int,
        starts: Sequence[int],
    ) -> _Alternative:
        """Alternative with the times of one fitted kernel; the shapes of each kernel in the query begin at one of
        `starts`.
        """
        shape, beyond = expectation.expected.shape, expectation.beyond
        wide = (beyond > 0) & has_extrapolation_error(fit.family)
        far = 2 * np.add.reduceat(wide.astype(int), starts) >= np.diff([*starts, len(beyond)])
        return cls(
            found=expectation,
            library=fit.implementation.library,
            beyond=beyond,
            release=np.full(shape, release),
            sources=[
                _with_remark(expectation.source, BEYOND_SIZES if is_mostly_beyond else "") for is_mostly_beyond in far
            ],
        )

    def or_better(self, other: _Alternative, starts: Sequence[int]) -> _Alternative:
        """Chooses for each shape the kernel that was measured nearer to it; else what the engine selects; else in a
        newer version of the library; else the faster one. With several libraries or versions any may run, so intervals
        cover all that were measured equally near, but for kernels that the engine does not select.
        """
        first, second, one_library = self.found, other.found, self.library == other.library
        newer = (self.release < other.release) & one_library
        as_new = (self.release == other.release) | (not one_library)
        nearer, as_near = self.beyond < other.beyond, self.beyond == other.beyond
        stays = nearer | (as_near & (newer | (as_new & (first.expected <= second.expected))))
        keys = ("bound", "expected", "low", "high", "fixed")
        best = {key: np.where(stays, getattr(first, key), getattr(second, key)) for key in keys}
        is_known = one_library & (np.minimum(self.release, other.release) == _SELECTED)
        either = as_near & ((self.release != other.release) | (not one_library)) & ~is_known
        best["low"] = np.where(either, np.minimum(first.low, second.low), best["low"])
        best["high"] = np.where(either, np.maximum(first.high, second.high), best["high"])
        counts = np.diff([*starts, len(stays)])
        mostly, widened = (2 * np.add.reduceat(chosen.astype(int), starts) >= counts for chosen in (stays, either))
        remark = _OTHER_VERSIONS if one_library else _OTHER_LIBRARIES
        sources = zip(self.sources, other.sources, mostly, widened, strict=True)
        return replace(
            self,
            found=replace(first, **best),
            beyond=np.where(stays, self.beyond, other.beyond),
            release=np.where(stays, self.release, other.release),
            sources=[
                _with_remark(one if first_is_better else two, remark if wide else "")
                for one, two, first_is_better, wide in sources
            ],
        )


def _with_remark(source: str, remark: str) -> str:
    """Adds a remark to a source label, unless it is there already."""
    return source if not remark or remark in source else f"{source}; {remark}"


def _best(
    alternatives: Sequence[tuple[Expectation, KernelFit]], starts: Sequence[int], selected: Sequence[bool]
) -> _Alternative:
    """Combines the kernels of each library, then those of all libraries.

    selected  whether the engine selects each kernel
    """
    releases = sorted({fit.release for _, fit in alternatives}, reverse=True)
    libraries: dict[str, _Alternative] = {}
    for (expectation, fit), is_selected in zip(alternatives, selected, strict=True):
        release = _SELECTED if is_selected else releases.index(fit.release)
        one = _Alternative.of(expectation, fit, release=release, starts=starts)
        best_of_library = libraries.get(one.library)
        libraries[one.library] = best_of_library.or_better(one, starts) if best_of_library else one
    return reduce(lambda one, other: one.or_better(other, starts), libraries.values())


def _elsewhere(estimator: Estimator, columns: Mapping[str, Array]) -> Expectation:
    """Collectives over a host, by fits on another host, with the range of contention between devices of one host, which
    depends on the host: eight L40S on the measured host all-reduce at a third, or less, of the rate at which they serve
    in TensorRT-LLM's tables.
    """
    expectations, selection = [], estimator.selection
    for crowd in _CROWDS:
        fits = tuple(replace(fit, parameters={**fit.parameters, "crowd": crowd}) for fit in selection.fits)
        expectations.append(replace(estimator, selection=replace(selection, fits=fits)).expect(columns))
    little_contention, middle_contention, much_contention = expectations
    return replace(
        middle_contention,
        low=little_contention.low,
        high=much_contention.high,
        source=f"{middle_contention.source}, on another host",
    )


def _placed(values: Array, chosen: Array) -> Array:
    """0 where nothing is chosen."""
    if len(values) == chosen.size:
        return values
    all_points = np.zeros(chosen.shape, dtype=values.dtype)
    all_points[chosen] = values
    return all_points
