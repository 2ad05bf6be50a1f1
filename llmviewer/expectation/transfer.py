"""Fits for a kernel implementation: its own on the device, or scaled ones of the most similar implementations.

`select_fits` returns the first of these that exist: a fit on the target device of the same library, in the same data
types or in types of equal cost; the nearest fits of the same operation, of any library and device; for an element-wise
operation that was not measured, the fits of an addition. `Estimator` scales their parameters to the target
(scaling.py), evaluates the model of the family, and combines the times by their median, or by a weighted mean of the
medians of GPU generations. Intervals come from held-out rows on the device itself, and elsewhere from predicting each
measured device without its own rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from typing import Final, NamedTuple, Self

import numpy as np

from ..errors import InputError
from ..records import frozen
from .device import Device
from .device_similarity import (
    device_distance,
    generation,
    generations_between,
    has_half_rate_matrix_units,
    matrix_instructions,
)
from .families import FAMILIES, Family, Implementation
from .families.base import EAGER, Array, Features, Parameters, Shapes
from .formats import EQUAL_COST_TYPES, STAND_IN_TYPES
from .index import device_traits, index
from .profile import (
    ANOTHER_KERNEL,
    ANOTHER_LIBRARY,
    ANOTHER_TYPE,
    BEYOND_SIZES,
    FEW_SHAPES,
    NO_KERNEL,
    OTHER_MEMORY,
    OTHER_VENDORS,
    SAME_VENDOR,
    SIBLINGS,
    SIMILARITY_CLASSES,
    Error,
    FitGroup,
    KernelFit,
)
from .residual import NEIGHBOURS, FitResidual
from .scaling import host_launch_us, is_host_routed, runs_same_code, scaled_parameters, without_host_launch
from .sources import CALIBRATED, NOT_MEASURED, STAND_IN, STAND_IN_DTYPE, TRANSFERRED, bound_only_label
from .trend import Trend

_DEVICE_KINDS: Final = {"gpu": "GPU", "cpu": "CPU"}
_MAX_EQUALLY_NEAR: Final = 5  # fits that are combined at most
_TERMS_BEFORE_GENERATION: Final = 6  # terms of a distance before the number of generations
_WEIGHT_PER_GENERATION: Final = 0.5  # weight of a generation relative to one that is a step nearer
_FALLBACK_OPERATION: Final = "add"
# Words of kernel names that say which algorithm or code generator they are of, whatever the library and its version:
# vLLM and SGLang both have Marlin's and FlashInfer's kernels, and rename them.
_ALGORITHMS: Final = (
    "marlin", "triton", "cutlass", "flashinfer", "trtllm", "deepgemm", "cutedsl", "fa2", "fa3", "fa4", "flash_attn",
    "flash_attention", "xpu",
)  # fmt: skip
_OTHER_ALGORITHM: Final = 2.0  # distance of a kernel of no common algorithm, in those of another library
_MIN_ROWS_PER_PARAMETER: Final = 6  # rows per parameter that a fit of another library or architecture needs
# Transfers whose error was not measured: 80 % of times within a factor of two, no better than a guess.
_UNMEASURED_ERROR: Final = Error(
    mape=0.5, median=0.4, mape_short=0.5, mape_long=0.5, covered=float("nan"), short=(0.5, 2.0), long=(0.5, 2.0)
)


@frozen(kw_only=True)
class Expectation:
    """Expected times of launches, as arrays. [s]

    fixed   the part of the expected time that does not shrink with the work, such as launch time
    beyond  sizes of each shape outside those that the kernel was measured with
    source  "calibrated", "transferred" or "bound only", with devices and libraries
    sources source of each launch, if they differ; "measured shape" if exactly that shape was measured
    """

    bound: Array
    expected: Array
    low: Array
    high: Array
    fixed: Array
    beyond: Array
    source: str
    sources: Array | None = None

    def at(self, places: Array) -> Expectation:
        """The expectation of launches by their indices, which may repeat."""
        names = ("bound", "expected", "low", "high", "fixed", "beyond")
        sources = None if self.sources is None else self.sources[places]
        return Expectation(**{name: getattr(self, name)[places] for name in names}, source=self.source, sources=sources)


@frozen(kw_only=True)
class FitSelection:
    """Fits whose parameters are used for an implementation on a device, with their error and source label.

    memory_traffic_only  whether no such operation was measured, so that the fits are of additions
    like_start_us        of each fit to one shape family, the start time of like kernels on its device, which is that of
                         other shapes; None if there are none, or it has more families; () if none has such a time
    """

    fits: tuple[KernelFit, ...]
    error: Error
    source: str
    memory_traffic_only: bool = False
    like_start_us: tuple[float | None, ...] = ()


def select_fits(
    name: str, device: Device, implementation: Implementation, fits: Sequence[KernelFit], *, unknown: bool = False
) -> FitSelection:
    """Selects the fits of family `name` that give the times of `implementation` on a device.

    unknown  whether the library is a guess, so that intervals are those of another library

    On the device, a type of equal cost is preferred to other devices, with the error of a transfer (element-wise
    kernels, for which only the width of a type matters: with their own error). On other devices, the library's kernels
    for types of equal cost are used too, unless it has the exact type on a device with the same kind of memory.
    Element-wise fits of any type qualify; operations that were not measured count as an addition. Host launches are
    removed from their times, unless the implementation is launched by a host.

    Raises InputError if no similar kernel was measured.
    """
    group = fits if isinstance(fits, FitGroup) else FitGroup(fits)
    selections = _selections(group)
    key = name, implementation, unknown, _SelectionTraits.of(device, _devices_of(group))
    if key not in selections:
        try:
            selections[key] = _selected(name, device, implementation, group, unknown=unknown)
        except InputError as error:
            selections[key] = str(error)
    selection = selections[key]
    if isinstance(selection, str):
        raise InputError(selection)
    return selection


class _SelectionTraits(NamedTuple):
    """Traits that the selection of fits depends on: devices with the same ones use the same fits.

    name  of a device that was measured itself; "" for others
    """

    name: str
    kind: str
    vendor: str
    generation: str
    instructions: str
    stacked: bool
    half_rate: bool
    hosted: bool

    @classmethod
    def of(cls, device: Device, measured: Collection[str]) -> Self:
        return cls(
            name=device.name if device.name in measured else "", kind=device.kind, vendor=device.vendor,
            generation=generation(device), instructions=matrix_instructions(device), stacked=device.stacked,
            half_rate=has_half_rate_matrix_units(device), hosted=device.hosted,
        )  # fmt: skip


@lru_cache(maxsize=64)
def _devices_of(fits: FitGroup) -> frozenset[str]:
    """Names of the devices that fits are of."""
    return frozenset(fit.device for fit in fits)


@lru_cache(maxsize=64)
def _selections(fits: FitGroup) -> dict[tuple[str, Implementation, bool, _SelectionTraits], FitSelection | str]:  # noqa: ARG001 - the key
    """Fits that were selected from a group, or why there are none."""
    return {}


def _selected(
    name: str, device: Device, implementation: Implementation, fits: FitGroup, *, unknown: bool
) -> FitSelection:
    """select_fits(), not cached."""
    return _with_like_starts(_best_selection(name, device, implementation, fits, unknown=unknown), fits)


def _best_selection(
    name: str, device: Device, implementation: Implementation, fits: FitGroup, *, unknown: bool
) -> FitSelection:
    """The first of the selections that exist, without the start times of like kernels."""
    of_family = _of_kind(fits, name, device.kind)
    if calibrated := _fit_on_target(of_family, device, implementation):
        return calibrated
    if others := _candidates(of_family, implementation, stacked=device.stacked):
        return _nearest_candidates(others, device, implementation, unknown=unknown)
    if name == "elementwise" and implementation.operation != _FALLBACK_OPERATION:
        return _as_traffic(implementation, select_fits(name, device, _addition(implementation), fits))
    if name == "gemm" and implementation.kernel:
        return select_fits(name, device, replace(implementation, kernel=""), fits, unknown=unknown)
    raise InputError(
        f"no profile of {name} in {implementation.dtype} on any {_DEVICE_KINDS.get(device.kind, device.kind)}"
    )


def _with_like_starts(selection: FitSelection, fits: Sequence[KernelFit]) -> FitSelection:
    """Adds the start times of like kernels, if a fit has one shape family, in which what comes with each launch and
    what comes with that model's experts cannot be told apart.

    Kernels for 896 experts, 16 of a token, start 25 to 45 us later than others of the same algorithm, library and
    device, Marlin's and Triton's alike; one family of 128 experts, 4 of a token, within some 8 us of them.
    """
    starts = tuple(_like_start_us(fit, fits) for fit in selection.fits)
    return replace(selection, like_start_us=starts) if any(starts) else selection


def _like_start_us(fit: KernelFit, fits: Sequence[KernelFit]) -> float | None:
    """Median start time of kernels of the same algorithm, library and device with many shape families. [us]"""
    words = _algorithms(fit.implementation.kernel)
    if fit.shape_families != 1 or not FAMILIES[fit.family].launches_as_algorithm or not words:
        return None
    starts = [
        other.parameters["start_us"]
        for other in fits
        if (other.family, other.device) == (fit.family, fit.device)
        and other.implementation.library == fit.implementation.library
        and not other.shape_families
        and _algorithms(other.implementation.kernel) == words
    ]
    return float(_median([np.asarray(start) for start in starts])) if starts else None


def as_stand_in(selection: FitSelection, device: Device, implementation: Implementation) -> FitSelection:
    """Fits of another library with the error and the label of a stand-in for an implementation; others as they are."""
    first = selection.fits[0]
    if stand_in(first, implementation) != ANOTHER_LIBRARY:
        return selection
    error = _transfer_error(first.family, implementation, source_class(first, device, implementation))
    return replace(
        selection, error=selection.error.or_wider(error), source=_source_label(selection.fits, device, implementation)
    )


def _addition(implementation: Implementation) -> Implementation:
    return replace(
        implementation, kernel=f"{EAGER} {_FALLBACK_OPERATION}" if implementation.host_launched else _FALLBACK_OPERATION
    )


def _as_traffic(implementation: Implementation, plain: FitSelection) -> FitSelection:
    """Estimates an operation from an addition of as many bytes, times the measured ratio of such kernels."""
    errors, operation = index().errors, implementation.kernel.removeprefix(f"{EAGER} ")
    keys = (("elementwise", part, NO_KERNEL) for part in (operation, "all"))
    error = next((errors[key] for key in keys if key in errors), _UNMEASURED_ERROR)
    addition_label = plain.source.removeprefix(CALIBRATED).removeprefix(TRANSFERRED)
    times = f"{error.scale:.2g} times an addition on {addition_label}"
    return replace(plain, error=error, source=f"{NOT_MEASURED}, {times}", memory_traffic_only=True)


@lru_cache(maxsize=64)
def _of_kind(fits: FitGroup, family: str, kind: str) -> FitGroup:
    """The fits of a family on devices of a kind."""
    return FitGroup(fit for fit in fits if fit.family == family and device_traits(fit.device).kind == kind)


def _fit_on_target(
    of_family: Sequence[KernelFit], device: Device, implementation: Implementation
) -> FitSelection | None:
    """Selects the fit of the library on the device, in this data type or one of equal cost; None if there is none."""
    of_library = [
        fit for fit in of_family if fit.device == device.name and fit.implementation.library == implementation.library
    ]
    exact = [fit for fit in of_library if _has_types(fit, implementation, implementation.dtype)]
    for candidates in (
        exact,
        [
            fit
            for fit in of_library
            if not _has_types(fit, implementation, implementation.dtype) and has_equal_cost_types(fit, implementation)
        ],
    ):
        same = [fit for fit in candidates if fit.implementation.kernel == implementation.kernel]
        alike = (
            []
            if implementation.kernel
            else sorted((fit for fit in candidates if _same_operation(fit, implementation)), key=lambda fit: -fit.rows)
        )
        if chosen := same or alike:
            first = chosen[0]
            has_own_error = candidates is exact or first.family == "elementwise"
            error = first.held_out if has_own_error else _transfer_error(first.family, implementation, SIBLINGS)
            note = "" if candidates is exact else f" in {first.implementation.dtype}"
            if first.shape_families:
                note += f"; {FEW_SHAPES[first.shape_families]} measured"
            return FitSelection(fits=(first,), error=error, source=f"{CALIBRATED}{_measured_as(first)}{note}")
    return None


@lru_cache(maxsize=1024)
def _candidates(of_family: FitGroup, implementation: Implementation, *, stacked: bool) -> Sequence[KernelFit]:
    """Fits of the same operation on all devices, in the most similar data type that was measured.

    stacked  whether the device has stacked memory
    """
    alike = [fit for fit in of_family if _same_operation(fit, implementation)]
    for dtype in (implementation.dtype, *STAND_IN_TYPES.get(implementation.dtype, ())):
        fits_in_type = [fit for fit in alike if _has_types(fit, implementation, dtype)]
        of_library = (fit for fit in fits_in_type if fit.implementation.library == implementation.library)
        if dtype == implementation.dtype and not any(
            device_traits(fit.device).stacked == stacked for fit in of_library
        ):
            equal_cost = (
                fit
                for fit in alike
                if fit.implementation.library == implementation.library and has_equal_cost_types(fit, implementation)
            )
            fits_in_type += [fit for fit in equal_cost if not _has_types(fit, implementation, dtype)]
        if fits_in_type:
            return [*fits_in_type, *_of_another_cache(alike, fits_in_type, implementation, dtype)]
    return alike if alike and alike[0].family == "elementwise" else []


def _of_another_cache(
    alike: Sequence[KernelFit], in_type: Sequence[KernelFit], implementation: Implementation, dtype: str
) -> list[KernelFit]:
    """The same kernel of the library with a cache of another type, if none was measured with this one."""

    def is_same_kernel(fit: KernelFit) -> bool:
        measured = fit.implementation
        return (measured.library, measured.kernel, measured.dtype) == (
            implementation.library,
            implementation.kernel,
            dtype,
        )

    if not implementation.kv_dtype or any(map(is_same_kernel, in_type)):
        return []
    return list(filter(is_same_kernel, alike))


def _nearest_candidates(
    candidates: Sequence[KernelFit], device: Device, implementation: Implementation, *, unknown: bool
) -> FitSelection:
    nearest_fits = [
        _with_launch_of(fit, candidates, implementation) for fit in _nearest(candidates, device, implementation)
    ]
    query = (
        replace(implementation, library="")
        if unknown and has_equal_cost_types(nearest_fits[0], implementation)
        else implementation
    )
    error = _transfer_error(nearest_fits[0].family, implementation, source_class(nearest_fits[0], device, query))
    launched = nearest_fits[0].family == "elementwise" and nearest_fits[0].implementation.host_launched
    if launched and not implementation.host_launched:  # the device's share of a measured host launch is a guess
        error = replace(error, short=_UNMEASURED_ERROR.short, mape_short=_UNMEASURED_ERROR.mape_short)
    return FitSelection(
        fits=tuple(nearest_fits), error=error, source=_source_label(nearest_fits, device, implementation)
    )


def _with_launch_of(fit: KernelFit, candidates: Sequence[KernelFit], implementation: Implementation) -> KernelFit:
    """Replaces the host launch of a fit by the median over all measured hosts, as it does not belong to the device;
    removes it if the implementation is not launched by a host.
    """
    if FAMILIES[fit.family].generation_dependent:
        return fit
    if not implementation.host_launched:
        return without_host_launch(fit) if fit.implementation.host_launched else fit
    hosts = [
        np.asarray(host_launch_us(other))
        for other in candidates
        if other.implementation.library == fit.implementation.library
    ]
    start = fit.parameters["start_us"] - host_launch_us(fit) + float(_median(hosts))
    return replace(fit, parameters={**fit.parameters, "start_us": start})


def _source_label(near: Sequence[KernelFit], device: Device, implementation: Implementation) -> str:
    """Source label: devices and libraries whose parameters are used, the libraries of one device together."""
    dtype = near[0].implementation.dtype
    others = f"{STAND_IN_DTYPE}{dtype}" if dtype != implementation.dtype else ""
    if near[0].device != device.name:
        libraries: dict[str, dict[str, None]] = {}
        for fit in near:
            libraries.setdefault(fit.device, {})[fit.implementation.library] = None
        names = ", ".join(f"{name} {'/'.join(names_of_device)}" for name, names_of_device in libraries.items())
        return f"{TRANSFERRED}{names}{others if not has_equal_cost_types(near[0], implementation) else ''}"
    names = " and ".join(_measured_as(fit).removeprefix(f"{device.name} ") for fit in near)
    instead = stand_in(near[0], implementation)
    if not instead:
        return f"{CALIBRATED}{device.name} {names}{others}"
    of_library = f" of {implementation.library}" if instead == ANOTHER_KERNEL else ""
    return f"{STAND_IN} on {device.name}: {instead}{of_library} ({names}{others})"


def fits_on_nearest_devices(fits: Sequence[KernelFit], device: Device) -> list[KernelFit]:
    """Fits on the devices nearest to a device, which may be itself."""
    sources = {name: device_traits(name) for name in {fit.device for fit in fits}}
    distances = {
        name: device_distance(source, device) for name, source in sources.items() if source.kind == device.kind
    }
    min_distance = min(distances.values(), default=())
    return [fit for fit in fits if distances.get(fit.device) == min_distance]


def _nearest(fits: Sequence[KernelFit], device: Device, implementation: Implementation) -> list[KernelFit]:
    """Nearest fits, one of each device and library.

    Kernels launched by a host and kernels replayed from a graph rank apart, whichever device they were measured on.
    Fits on few rows are unreliable and rank last, unless they are of the same library and architecture. Of families
    with stable tiling, these are the nearest fits of each architecture, unless one is on the device itself.
    """
    reliable = [
        fit for fit in fits if has_enough_rows(fit) or _reliable_on_few_rows(fit, device, implementation)
    ] or fits
    computes = FAMILIES[fits[0].family].multiplies_matrices
    sources = {fit.device for fit in reliable}
    distances = {name: device_distance(device_traits(name), device, computes=computes) for name in sources}
    measured = [(_distance(fit, device, implementation, distances[fit.device]), fit) for fit in reliable]
    best: dict[tuple[str, str], tuple[tuple[float, ...], KernelFit]] = {}
    for distance, fit in sorted(measured, key=lambda one: (*one[0], -one[1].rows)):
        best.setdefault((fit.device, fit.implementation.library), (distance, fit))
    ranked = list(best.values())
    min_distance, first = ranked[0]
    if not FAMILIES[first.family].stable_tiling or _same_architecture(first, device):
        return [fit for distance, fit in ranked if distance == min_distance][:_MAX_EQUALLY_NEAR]
    generations: dict[str, list[tuple[tuple[float, ...], KernelFit]]] = {}
    for distance, fit in ranked:
        if distance[:_TERMS_BEFORE_GENERATION] == min_distance[:_TERMS_BEFORE_GENERATION]:
            equally_near = generations.setdefault(generation(device_traits(fit.device)), [])
            if not equally_near or distance == equally_near[0][0]:
                equally_near.append((distance, fit))
    return [fit for equally_near in generations.values() for _, fit in equally_near[:_MAX_EQUALLY_NEAR]]


def _reliable_on_few_rows(fit: KernelFit, device: Device, implementation: Implementation) -> bool:
    """Whether a fit on few rows is more reliable than others on many: of the same kernel on the same architecture, or,
    for communication, on the same kind of memory, with which links correlate.
    """
    other, computes = device_traits(fit.device), FAMILIES[fit.family].multiplies_matrices
    measured, target = (generation(d) if computes else d.stacked for d in (other, device))
    return (
        fit.implementation.library == implementation.library
        and measured == target
        and not (computes and stand_in(fit, implementation))
    )


def has_enough_rows(fit: KernelFit) -> bool:
    """Whether a fit is of enough rows to stand in for other libraries and architectures."""
    return fit.rows >= _MIN_ROWS_PER_PARAMETER * _parameter_count(fit.family, fit.variant)


@cache
def _parameter_count(family: str, variant: str) -> int:
    """Number of fitted parameters of a variant."""
    return len(FAMILIES[family].parameters_of(variant))


def _distance(
    fit: KernelFit, device: Device, implementation: Implementation, between_devices: tuple[int, ...]
) -> tuple[float, ...]:
    """Distance of a fit, the most important term first, from the device_distance() of its device. For kernels written
    for matrix instructions, a kernel in the same ones is nearest, whatever memory it was measured with. On a sibling
    device, a fit of another kernel of this library ranks no better than another library's.
    """
    other, family = device_traits(fit.device), FAMILIES[fit.family]
    vendor, *near = between_devices
    if not family.generation_dependent:
        memory = int(other.stacked != device.stacked)
        return (
            vendor,
            int(implementation.host_launched and not fit.implementation.host_launched),
            memory,
            int(fit.implementation.host_launched and not implementation.host_launched),
        )
    weak = (
        family.multiplies_matrices
        and not family.models_half_rate
        and has_half_rate_matrix_units(other) != has_half_rate_matrix_units(device)
    )
    paced = fit.implementation.host_launched != implementation.host_launched
    library, kernel = (
        fit.implementation.library != implementation.library,
        fit.implementation.kernel != implementation.kernel,
    )
    untuned = kernel and fit.variant in family.untuned_variants
    other_memory, generations = near
    if max(between_devices) <= 0 or not family.multiplies_matrices:
        itself = not kernel and (not library or family.library_independent)
        elsewhere = not itself or not is_sibling(fit, device)
        unlike = library + kernel + untuned + _unlike_algorithms(fit, implementation)
        return (vendor, int(weak), int(paced), 0, other_memory, int(elsewhere), generations, unlike)
    same_kernel = (
        family.rewritten_per_generation and _same_kernel_name(fit, implementation) and runs_same_code(fit, device)
    )
    return (vendor, int(weak), int(paced), 1 - same_kernel, other_memory, 1, generations, (library or kernel) + untuned)


def _unlike_algorithms(fit: KernelFit, implementation: Implementation) -> float:
    """Penalty of a kernel by the algorithms that only one of the two names has: 0 if they are the same."""
    if fit.implementation.kernel == implementation.kernel:
        return 0.0
    measured, query = _algorithms(fit.implementation.kernel), _algorithms(implementation.kernel)
    return _OTHER_ALGORITHM * (1 - len(measured & query) / max(len(measured | query), 1))


def _algorithms(kernel: str) -> set[str]:
    """Words of a kernel's name that say which algorithms it has."""
    return {word for word in _ALGORITHMS if word in kernel}


def _same_kernel_name(fit: KernelFit, implementation: Implementation) -> bool:
    """Whether one kernel name of the library begins with the other, as later versions append to names."""
    measured, query = fit.implementation.kernel, implementation.kernel
    return fit.implementation.library == implementation.library and (
        measured.startswith(query) or query.startswith(measured)
    )


def _has_types(fit: KernelFit, implementation: Implementation, dtype: str) -> bool:
    return fit.implementation.dtype == dtype and fit.implementation.kv_dtype == implementation.kv_dtype


def has_equal_cost_types(fit: KernelFit, implementation: Implementation) -> bool:
    """Whether data types take equally long: as wide, as fast, and multiplied by the same kernels."""
    if fit.family == "elementwise":
        return True
    pairs = (
        (fit.implementation.dtype, implementation.dtype),
        (fit.implementation.kv_dtype, implementation.kv_dtype),
    )
    return all(measured == other or {measured, other} in EQUAL_COST_TYPES for measured, other in pairs)


def _same_operation(fit: KernelFit, implementation: Implementation) -> bool:
    """Whether a fit is of the same operation or kind of attention, the last word of a kernel's name."""
    if fit.family == "gemm":
        return fit.implementation.kernel == implementation.kernel
    if FAMILIES[fit.family].names_operations:
        return implementation.operation in ("", fit.implementation.operation)
    return fit.implementation.attention_kind == implementation.attention_kind


def is_sibling(fit: KernelFit, device: Device) -> bool:
    """Whether the target runs the kernels of a fit and tiles work alike: same architecture and kind of memory, since
    chips of one architecture with and without stacked memory differ. Collectives routed through a host have no
    siblings.
    """
    memory = device_traits(fit.device).stacked == device.stacked
    return memory and not is_host_routed(fit, device) and _same_architecture(fit, device)


def _same_architecture(fit: KernelFit, device: Device) -> bool:
    return (
        max(device_distance(device_traits(fit.device), device, computes=FAMILIES[fit.family].multiplies_matrices)) <= 0
    )


def source_class(fit: KernelFit, device: Device, implementation: Implementation) -> str:
    """Class of a fit as a source for an implementation on a device: similarity class, class of stand-in, or both; ""
    for the implementation itself.
    """
    where = "" if fit.device == device.name else similarity_class(fit, device)
    return ", ".join(filter(None, (where, stand_in(fit, implementation))))


def stand_in(fit: KernelFit, implementation: Implementation) -> str:
    """Class of stand-in of a fit for an implementation: another type, library or kernel; "" if the kernel is equal."""
    if FAMILIES[fit.family].library_independent:
        return ""
    if not has_equal_cost_types(fit, implementation):
        return ANOTHER_TYPE
    if fit.implementation.library != implementation.library:
        return ANOTHER_LIBRARY
    name = implementation.kernel.removesuffix(implementation.attention_kind).strip()
    return "" if not name or _same_kernel_name(fit, implementation) else ANOTHER_KERNEL


def similarity_class(fit: KernelFit, device: Device) -> str:
    """Similarity class of the source device: one of SIMILARITY_CLASSES. Kernels that all devices with a kind of memory
    run alike have no siblings, but another kind of memory is a class of its own.
    """
    other = device_traits(fit.device)
    if other.vendor != device.vendor:
        return OTHER_VENDORS
    if not FAMILIES[fit.family].generation_dependent:
        return SAME_VENDOR if other.stacked == device.stacked else OTHER_MEMORY
    return SIBLINGS if is_sibling(fit, device) else SAME_VENDOR


def _transfer_error(name: str, implementation: Implementation, source_class: str) -> Error:
    """Error of a class of sources, else of the next less similar class, by kind of attention or data type. The interval
    of a stand-in on another device is at least as wide as that of the kernel itself there, unless its own is known.
    """
    near, _, instead = source_class.rpartition(", ")
    if source_class in SIMILARITY_CLASSES:
        near, instead = source_class, ""
    classes_from_nearest = SIMILARITY_CLASSES[SIMILARITY_CLASSES.index(near) :] if near else ("", *SIMILARITY_CLASSES)
    named = FAMILIES[name].names_operations or name == "gemm"
    operation = implementation.operation if named else ""
    parts, errors = (operation, implementation.attention_kind or implementation.dtype, "all"), index().errors
    classes = [", ".join(filter(None, (each, instead))) for each in classes_from_nearest if each != OTHER_VENDORS]
    keys = [(name, type_or_all, each) for each in (*classes, OTHER_VENDORS) for type_or_all in parts]
    error = next((errors[key] for key in keys if key in errors), _UNMEASURED_ERROR)
    is_known = any((name, part, source_class) in errors for part in parts)
    return error.or_wider(_transfer_error(name, implementation, near)) if near and instead and not is_known else error


def few_shapes_error(family: str, count: int, own_error: Error) -> Error:
    """Error on further shapes of a fit to one or two shape families: that of like kernels fitted to as many, as few
    families do not say how far others are; `own_error` of a family of kernels without such.
    """
    borrowed = index().errors.get((family, "all", FEW_SHAPES[count]))
    return borrowed or own_error


def has_extrapolation_error(family: str) -> bool:
    """Whether the error of a family beyond its measured sizes is known."""
    return (family, "all", BEYOND_SIZES) in index().errors


def stand_in_error(family: str, instead: str) -> Error:
    """Error of kernels that stand in for other work."""
    return index().errors.get((family, "all", instead), _UNMEASURED_ERROR)


def _measured_as(fit: KernelFit) -> str:
    return " ".join(
        filter(
            None,
            (
                fit.device,
                fit.implementation.library,
                fit.version,
                fit.implementation.kernel,
            ),
        )
    )


def bound_only(bound: Array, why: str) -> Expectation:
    """Expectation that only has the bound; `why` is the reason."""
    open_end = np.full_like(bound, np.inf)
    zeros = np.zeros_like(bound)
    return Expectation(
        bound=bound, expected=bound, low=bound, high=open_end, fixed=zeros, beyond=zeros, source=bound_only_label(why)
    )


def expect(
    name: str, shapes: Shapes, device: Device, implementation: Implementation, fits: Sequence[KernelFit]
) -> Expectation:
    """Expected times of kernels of `implementation`, clamped to at least the bound.

    If no similar kernel was measured, it is the bound, with an infinite upper end of the interval.
    """
    family: Family = FAMILIES[name]
    bound = family.bound(shapes, device, implementation)
    try:
        selection = select_fits(name, device, implementation, fits)
    except InputError as error:
        return bound_only(bound, str(error))
    modelled = Estimator(selection=selection, device=device, implementation=implementation).expect(shapes)
    expected = np.maximum(modelled.expected, bound)
    raised = expected / modelled.expected
    return replace(modelled, bound=bound, expected=expected, low=np.maximum(modelled.low * raised, bound),
                   high=modelled.high * raised)  # fmt: skip


@frozen(kw_only=True)
class Estimator:
    """Expected times of an implementation on a device by selected fits, not clamped to the bound."""

    selection: FitSelection
    device: Device
    implementation: Implementation

    @property
    def family(self) -> Family:
        return FAMILIES[self.selection.fits[0].family]

    @cached_property
    def _parameters(self) -> list[Parameters]:
        """Parameters of each fit, scaled to the device."""
        return [scaled_parameters(self.device, fit) for fit in self.selection.fits]

    @cached_property
    def _like_parameters(self) -> list[Parameters | None]:
        """Parameters of each fit with the start time of like kernels; None where that is not known."""
        fits = self.selection.fits
        starts = self.selection.like_start_us or (None,) * len(fits)
        return [
            {**p, "start_us": start * p["start_us"] / fit.parameters["start_us"]} if start else None
            for start, p, fit in zip(starts, self._parameters, fits, strict=True)
        ]

    def _times(self, shapes: Shapes, features: Sequence[Features]) -> Iterator[tuple[Array, Array | float]]:
        """Yields the times by each fit and the fixed parts of them. [s]"""
        family, fits = self.family, self.selection.fits
        seconds = family.seconds if fits[0].device == self.device.name else family.seconds_elsewhere
        for fit, own_parameters, like_parameters, f in zip(
            fits, self._parameters, self._like_parameters, features, strict=True
        ):
            times_s, fixed_s = seconds(own_parameters, f), family.fixed_seconds(own_parameters, f)
            if like_parameters and np.any(is_other := fit.is_of_other_family(shapes)):
                times_s = np.where(is_other, seconds(like_parameters, f), times_s)
                fixed_s = np.where(is_other, family.fixed_seconds(like_parameters, f), fixed_s)
            yield times_s, fixed_s

    @cached_property
    def _trends(self) -> list[Trend | None]:
        return [fit.trend if is_sibling(fit, self.device) else None for fit in self.selection.fits]

    @cached_property
    def _generations(self) -> tuple[tuple[list[int], float], ...]:
        """Indices of the fits of each architecture, and its weight, which falls with the distance in generations."""
        fits = self.selection.fits
        if not self.family.stable_tiling:
            return ((list(range(len(fits))), 1.0),)
        places: dict[str, list[int]] = {}
        for place, fit in enumerate(fits):
            places.setdefault(generation(device_traits(fit.device)), []).append(place)
        return tuple(
            (
                places_of_generation,
                _WEIGHT_PER_GENERATION
                ** generations_between(device_traits(fits[places_of_generation[0]].device), self.device),
            )
            for places_of_generation in places.values()
        )

    def expect(self, shapes: Shapes) -> Expectation:
        selection, device, family, first = self.selection, self.device, self.family, self.selection.fits[0]
        fitted = first.device == device.name
        by_variant = family.features_of(shapes, device, self.implementation, {fit.variant for fit in selection.fits})
        features = [by_variant[fit.variant] for fit in selection.fits]
        times_s, fixed = zip(*self._times(shapes, features), strict=True)
        logs = [
            np.log(each) + (trend.change(family, shapes) if trend else 0.0)
            for each, trend in zip(times_s, self._trends, strict=True)
        ]
        expected = np.exp(self._combined(logs)) * selection.error.scale
        low, high = selection.error.interval(expected)
        beyond_error = index().errors.get((family.name, "all", BEYOND_SIZES))
        beyond = np.broadcast_to(first.beyond(shapes), expected.shape)
        if beyond_error and np.any(far := beyond > 0):
            ends = beyond_error.or_wider(selection.error).interval(expected)
            low, high = (np.where(far, wide, near) for wide, near in zip(ends, (low, high), strict=True))
        modelled = Expectation(
            bound=np.zeros_like(expected),
            expected=expected,
            low=low,
            high=high,
            fixed=np.broadcast_to(self._combined(np.broadcast_arrays(*fixed)), expected.shape),
            beyond=beyond,
            source=selection.source + (f"; assumed {', '.join(device.assumed)}" if device.assumed else ""),
        )
        residual = first.residual if fitted else None
        return _with_residual(modelled, first, residual, shapes) if residual else modelled

    def _combined(self, values: Sequence[Array]) -> Array:
        """Weighted mean of the medians of each architecture."""
        if len(self._generations) == 1:
            return _median(values)
        medians = (weight * _median([values[place] for place in places]) for places, weight in self._generations)
        return np.asarray(sum(medians) / sum(weight for _, weight in self._generations))


def _median(values: Sequence[Array]) -> Array:
    """Element-wise median. numpy.median would import numpy.ma, which takes longer than a network's expectations."""
    if len(values) == 1:
        return np.asarray(values[0])
    ordered = np.sort(values, axis=0)
    return np.asarray((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)


def _with_residual(modelled: Expectation, fit: KernelFit, residual: FitResidual, shapes: Shapes) -> Expectation:
    """Corrects an expectation by the residuals of measured shapes nearby."""
    correction = residual.apply(shapes)
    expected = modelled.expected * correction.factor
    low, high = residual.interval
    near = np.where(correction.near, f"calibrated, {NEIGHBOURS} neighbours on {_measured_as(fit)}", modelled.source)
    return replace(
        modelled,
        expected=expected,
        low=np.where(correction.near, expected * low, modelled.low * correction.factor),
        high=np.where(correction.near, expected * high, modelled.high * correction.factor),
        sources=np.where(correction.measured, f"measured shape on {_measured_as(fit)}", near).astype(object),
    )
