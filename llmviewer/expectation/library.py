"""The choice of measured kernels for an operator: of a library on the device, or of other libraries and devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from ..devices.hardware import Hardware
from ..errors import InputError, suggest
from ..resource import matrix
from .device import Device, device_of
from .device_similarity import generation
from .families import FAMILIES, Implementation
from .formats import STAND_IN_TYPES, TYPES, WEIGHTS_ONLY
from .index import by_family, index
from .launches import LibraryKernel
from .profile import FitGroup, KernelFit, Profile
from .transfer import fits_on_nearest_devices, has_enough_rows, has_equal_cost_types

_MIN_FAMILIES: Final = 3  # least number of measured families of a library that may be the default of a device

LIBRARY_INDEPENDENT: Final = tuple(name for name, family in FAMILIES.items() if family.library_independent)
# Libraries that quantize activations of experts with MXFP4 weights to MXFP8 on GPUs of compute capability 10, unless
# told not to: get_mxfp4_quant_algo() of tensorrt_llm/_torch/model_config.py, and the default of sglang's
# --flashinfer-mxfp4-moe-precision.
_MXFP8_LIBRARIES: Final = ("trtllm", "sglang")


class Library:
    """Measurements of a library on a device, or of similar ones.

    library   "": the library with most measured families on the device (in `profiles`, if they have the device), else
              on the most similar devices; among equals the one measured most on all devices, so that devices are
              compared with the same library
    profiles  take precedence over shipped ones
    """

    def __init__(self, hardware: Hardware, library: str = "", profiles: Sequence[Profile] = ()) -> None:
        self.hardware = hardware
        self.user_fits: dict[tuple[str, str, Implementation], KernelFit] = {}
        for fit in (fit for profile in profiles for fit in profile.fits):
            self.user_fits.setdefault(key_of(fit), fit)
        shipped = index()
        self.fits = shipped.fits
        self.fits_by_family = shipped.fits_by_family
        if self.user_fits:
            others = (fit for fit in self.fits if key_of(fit) not in self.user_fits)
            self.fits = FitGroup((*self.user_fits.values(), *others))
            self.fits_by_family = by_family(self.fits)
        self.requested_library = library
        self.fits_on_device = [fit for fit in self.fits if fit.device == hardware.name]
        self._on_device_by_family = by_family(self.fits_on_device)
        self._implementations: dict[tuple[str, Implementation, bool], tuple[Implementation, ...]] = {}

    @cached_property
    def device(self) -> Device | str:
        """Device of the kernel models, or the reason why there is none."""
        if self.hardware.kind not in ("gpu", "") and not self.has_kernels:
            return f"no kernel was measured on {self.hardware.name}, nor on a similar device"
        try:
            return device_of(self.hardware)
        except InputError as error:
            return str(error)

    @property
    def has_kernels(self) -> bool:
        """Whether a kernel was measured on the device itself."""
        return bool(self.fits_on_device)

    @property
    def library(self) -> str:
        return self.requested_library or next(iter(self.default_libraries), "")

    @cached_property
    def default_libraries(self) -> tuple[str, ...]:
        """Libraries that can be the default of the device, that of most families of kernels first, and of several such
        the one whose kernels with many measured shapes are known best.
        """
        mine = [fit for fit in self.user_fits.values() if fit.device == self.hardware.name]
        device = self.device
        related = [] if self.fits_on_device or isinstance(device, str) else fits_on_nearest_devices(self.fits, device)
        families: dict[str, set[str]] = {}
        for fit in filter(_is_common, mine or self.fits_on_device or related):
            families.setdefault(fit.implementation.library, set()).add(fit.family)
        errors = {name: _median_error(self.fits, name) for name in families}
        able = [name for name, measured_families in families.items() if mine or len(measured_families) >= _MIN_FAMILIES]
        return tuple(sorted(able, key=lambda name: (-len(families[name]), errors[name])))

    def to_mxfp8(self, library: str) -> bool:
        """Whether a library quantizes activations of experts with MXFP4 weights to MXFP8 on this device."""
        device = self.device
        newest = not isinstance(device, str) and generation(device) == "blackwell" and device.stacked
        return newest and library in _MXFP8_LIBRARIES

    @property
    def is_library_unknown(self) -> bool:
        """Whether the library is a guess: none was requested, and none was measured on the device."""
        return not self.requested_library and self.is_unmeasured

    @property
    def is_unmeasured(self) -> bool:
        """Whether no kernel was measured on the device itself."""
        return not self.fits_on_device

    def run_as(self, kernel: LibraryKernel) -> LibraryKernel:
        """The kernel with the operands that a library gives it on the device.

        It is weight-only if the device has neither matrix units for its type nor measurements of it.
        """
        dtype = kernel.implementation.dtype
        if kernel.family == "moe" and dtype == "w4a16_mxfp4" and self.to_mxfp8(kernel.implementation.library):
            return replace(kernel, implementation=replace(kernel.implementation, dtype="w4a8_mxfp4_mxfp8"))
        narrow = WEIGHTS_ONLY.get(dtype)
        if not narrow or matrix(TYPES[dtype].arithmetic) in self.hardware.rates:
            return kernel
        measured = any(fit.implementation.dtype == dtype for fit in self.fits_on_device)
        return kernel if measured else replace(kernel, implementation=replace(kernel.implementation, dtype=narrow))

    def implementations_for(self, kernel: LibraryKernel) -> tuple[Implementation, ...]:
        """Implementations that can do the work of `kernel`.

        In order of preference: kernels of its library on this device; kernels of its library for this data type on the
        most similar devices, of all libraries if none is known to run on the device; kernels of the library with most
        measurements here; kernels for similar data types. In LIBRARY_INDEPENDENT families the library does not matter.
        """
        plain = kernel.is_plain
        key = (kernel.family, kernel.implementation, plain)
        if key not in self._implementations:
            implementation, several = kernel.implementation, kernel.family not in LIBRARY_INDEPENDENT
            on_device = self._on_device_by_family.get(kernel.family, ())
            alike = [fit for fit in on_device if _same_work(fit, kernel.family, implementation, plain=plain)]
            mine = [fit for fit in alike if fit.implementation.library == implementation.library]
            implementations: tuple[Implementation, ...] = ()
            if several and not mine:
                implementations = self._implementations_elsewhere(
                    kernel, implementation.dtype, plain=plain, same_library=not self.is_library_unknown
                )
            mine = mine or [fit for fit in alike if not several or self._stands_in(fit)]
            implementations = implementations or self._implementations_on_device(kernel, mine, several=several)
            for dtype in (implementation.dtype, *STAND_IN_TYPES.get(implementation.dtype, ())) if several else ():
                for same_library in (True, False):
                    implementations = implementations or self._implementations_elsewhere(
                        kernel, dtype, plain=plain, same_library=same_library
                    )
            self._implementations[key] = implementations or (implementation,)
        return self._implementations[key]

    def _stands_in(self, fit: KernelFit) -> bool:
        """Whether a fit is good enough for kernels of another library."""
        return has_enough_rows(fit) or key_of(fit) in self.user_fits

    def _implementations_on_device(
        self, kernel: LibraryKernel, alike: Sequence[KernelFit], *, several: bool
    ) -> tuple[Implementation, ...]:
        """Selects, of equivalent kernels on the device, those of the library with most measurements; `several` if
        kernels of one library differ in what they do.
        """
        ranked = sorted(alike, key=lambda fit: (key_of(fit) not in self.user_fits, -fit.rows))
        mine = [fit for fit in ranked if fit.implementation.library == ranked[0].implementation.library]
        fields = {"dtype": kernel.implementation.dtype, "kv_dtype": kernel.implementation.kv_dtype}
        if kernel.family == "elementwise":
            fields["kernel"] = (
                kernel.implementation.kernel
            )  # without a launch by the host, which others were measured with
        preferences: tuple[Callable[[KernelFit], bool], ...] = (
            lambda fit: (
                (fit.implementation.dtype, fit.implementation.kv_dtype)
                == (kernel.implementation.dtype, kernel.implementation.kv_dtype)
            ),
            lambda fit: key_of(fit) in self.user_fits,
            lambda fit: fit.implementation.kernel == kernel.implementation.kernel,
        )
        for preference in preferences:
            mine = list(filter(preference, mine)) or mine
        return tuple(replace(fit.implementation, **fields) for fit in (mine if several else mine[:1]))

    def _implementations_elsewhere(
        self, kernel: LibraryKernel, dtype: str, *, plain: bool, same_library: bool
    ) -> tuple[Implementation, ...]:
        """Implementations on the most similar devices for a data type, with `same_library` only of the kernel's
        library. Empty without a library, as its kernels are then unknown.
        """
        device, implementation = self.device, kernel.implementation
        if isinstance(device, str) or not implementation.library:
            return ()
        fits = self.fits_by_family.get(kernel.family, FitGroup())
        alike = _of_same_work(fits, kernel.family, replace(implementation, dtype=dtype), plain=plain)
        mine = [fit for fit in alike if fit.implementation.library == implementation.library]
        others = [fit for fit in alike if fit.implementation.library != implementation.library and self._stands_in(fit)]
        near = fits_on_nearest_devices(mine if same_library else [*mine, *others], device)
        libraries = {fit.implementation.library for fit in near}
        if not self.is_library_unknown and near:
            most_measured = max(near, key=lambda fit: fit.rows).implementation.library
            libraries = {implementation.library if implementation.library in libraries else most_measured}
        kernels = dict.fromkeys(
            (fit.implementation.library, fit.implementation.kernel)
            for fit in near
            if fit.implementation.library in libraries
        )
        return tuple(replace(implementation, library=library, kernel=name) for library, name in kernels)


def check_library(name: str, profiles: Sequence[Profile] = ()) -> str:
    """`name`, if it is a measured library.

    Raises InputError, with the nearest names, if it is not.
    """
    if name:
        libraries = {fit.implementation.library for fit in index().fits} | {profile.library for profile in profiles}
        if name not in libraries:
            raise InputError(f"no kernels of a library {name!r} were measured; {suggest(name, sorted(libraries))}")
    return name


@lru_cache(maxsize=256)
def _median_error(fits: FitGroup, library: str) -> float:
    """Median error of the kernels of a library with many measured shapes, on all devices; infinite if it has none."""
    errors = sorted(
        fit.held_out_mape
        for fit in fits
        if fit.implementation.library == library and _is_common(fit) and not fit.shape_families
    )  # numpy.median and statistics are slow to import
    return (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2 if errors else np.inf


def _is_common(fit: KernelFit) -> bool:
    """Whether most models have such kernels."""
    return FAMILIES[fit.family].is_common(fit.implementation)


def key_of(fit: KernelFit) -> tuple[str, str, Implementation]:
    """Key of a fit: device, kernel family, implementation."""
    return fit.device, fit.family, fit.implementation


@lru_cache(maxsize=1024)
def _of_same_work(fits: FitGroup, family: str, query: Implementation, *, plain: bool) -> tuple[KernelFit, ...]:
    """The fits of the same work, on all devices."""
    return tuple(fit for fit in fits if _same_work(fit, family, query, plain=plain))


def _same_work(fit: KernelFit, family: str, query: Implementation, *, plain: bool) -> bool:
    """Whether a fit is of a family, of the data types of a query (or types of equal cost) and its kind of operation."""
    implementation = fit.implementation
    if fit.family != family or not has_equal_cost_types(fit, query):
        return False
    if fit.family == "moe":
        if not plain:
            return not implementation.kernel.endswith("nongated")
        return implementation.kernel.endswith("nongated") or fit.sizes.get("gated", (1.0, 1.0))[0] == 0
    if fit.family.startswith("attention") and not FAMILIES[fit.family].names_operations:
        return implementation.attention_kind == query.attention_kind
    return implementation.operation == query.operation
