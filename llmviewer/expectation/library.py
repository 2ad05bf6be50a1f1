"""The choice of measured kernels for an operator: of a library on the device, or of other libraries and devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from ..devices.hardware import Hardware
from ..errors import InputError, suggest
from ..resource import matrix
from .device import Device, of
from .families import FAMILIES, Stack
from .formats import SIMILAR, TYPES, WEIGHTS_ONLY
from .index import index
from .kinship import generation
from .launches import LibraryKernel
from .profile import Entry, Profile
from .transfer import nearest, twins

_FAMILIES: Final = 3  # least number of measured families of a library that may be the default of a device

ALIKE: Final = tuple(name for name, family in FAMILIES.items() if family.alike)
# Libraries that quantize activations of experts with MXFP4 weights to MXFP8 on GPUs of compute capability 10, unless
# told not to: get_mxfp4_quant_algo() of tensorrt_llm/_torch/model_config.py, and the default of sglang's
# --flashinfer-mxfp4-moe-precision.
_TO_MXFP8: Final = ("trtllm", "sglang")


class Library:
    """Measurements of a library on a device, or of similar ones.

    library   "": the library with most measured families on the device (in `profiles`, if they have the device), else
              on its nearest relatives; among equals the one measured most on all devices, so that devices are compared
              with the same library
    profiles  take precedence over shipped ones
    """

    def __init__(self, hardware: Hardware, library: str = "", profiles: Sequence[Profile] = ()) -> None:
        self.hardware = hardware
        self.given: dict[tuple[str, str, Stack], Entry] = {}
        for e in (e for profile in profiles for e in profile.entries):
            self.given.setdefault(key_of(e), e)
        self.entries = (*self.given.values(), *(e for e in index().entries if key_of(e) not in self.given))
        self.asked = library
        self.own = [e for e in self.entries if e.device == hardware.name]
        self.by_family: dict[str, list[Entry]] = {}
        for e in self.entries:
            self.by_family.setdefault(e.family, []).append(e)
        self._stacks: dict[tuple[str, Stack, bool], tuple[Stack, ...]] = {}

    @cached_property
    def device(self) -> Device | str:
        """The device of the models of kernels, or the reason why there is none."""
        if self.hardware.kind not in ("gpu", "") and not self.own:
            return f"no kernel was measured on {self.hardware.name}, nor on a similar device"
        try:
            return of(self.hardware)
        except InputError as error:
            return str(error)

    @property
    def library(self) -> str:
        return self.asked or next(iter(self.usual), "")

    @cached_property
    def usual(self) -> tuple[str, ...]:
        """Libraries that can be the default of the device; the first one is."""
        mine = [e for e in self.given.values() if e.device == self.hardware.name]
        device = self.device
        related = [] if self.own or isinstance(device, str) else nearest(self.entries, device)
        families: dict[str, set[str]] = {}
        for e in mine or self.own or related:
            families.setdefault(e.stack.library, set()).add(e.family)
        errors = {
            name: np.mean([e.held_out.mape for e in self.entries if e.stack.library == name]) for name in families
        }
        able = [name for name, found in families.items() if mine or len(found) >= _FAMILIES]
        return tuple(sorted(able, key=lambda name: (-len(families[name]), errors[name])))

    def to_mxfp8(self, library: str) -> bool:
        """Whether a library quantizes the activations of experts with MXFP4 weights on this device."""
        device = self.device
        newest = not isinstance(device, str) and generation(device) == "blackwell" and device.stacked
        return newest and library in _TO_MXFP8

    @property
    def unknown(self) -> bool:
        """Whether any library may run on the device: none was asked for, and none was measured on it."""
        return not self.asked and self.carried

    @property
    def carried(self) -> bool:
        """Whether no kernels were measured on the device itself."""
        return not self.own

    def run_as(self, kernel: LibraryKernel) -> LibraryKernel:
        """The kernel with the operands that a library gives it on the device.

        It is weight-only if the device has neither matrix units for its type nor measurements of it.
        """
        dtype = kernel.stack.dtype
        if kernel.family == "moe" and dtype == "w4a16_mxfp4" and self.to_mxfp8(kernel.stack.library):
            return replace(kernel, stack=replace(kernel.stack, dtype="w4a8_mxfp4_mxfp8"))
        narrow = WEIGHTS_ONLY.get(dtype)
        if not narrow or matrix(TYPES[dtype].arithmetic) in self.hardware.rates:
            return kernel
        measured = any(e.stack.dtype == dtype for e in self.own)
        return kernel if measured else replace(kernel, stack=replace(kernel.stack, dtype=narrow))

    def able(self, kernel: LibraryKernel) -> tuple[Stack, ...]:
        """The stacks of kernels that can do the work of `kernel`.

        In order of preference: kernels of its library on this device; kernels of its library for this data type on the
        nearest relatives, of all libraries if none is known to run on the device; kernels of the library with most
        measurements here; kernels for similar data types. In the families ALIKE the library does not matter.
        """
        plain = float(np.min(kernel.shapes.get("gated", 1.0))) == 0
        key = (kernel.family, kernel.stack, plain)
        if key not in self._stacks:
            stack, several = kernel.stack, kernel.family not in ALIKE
            alike = [e for e in self.own if _alike(e, kernel, plain=plain)]
            mine = [e for e in alike if e.stack.library == stack.library]
            stacks: tuple[Stack, ...] = ()
            if several and not mine:
                stacks = self._carried(kernel, stack.dtype, plain=plain, alone=not self.unknown)
            stacks = stacks or self._measured(kernel, mine or alike, several=several)
            for dtype in (stack.dtype, *SIMILAR.get(stack.dtype, ())) if several else ():
                for alone in (True, False):
                    stacks = stacks or self._carried(kernel, dtype, plain=plain, alone=alone)
            self._stacks[key] = stacks or (stack,)
        return self._stacks[key]

    def _measured(self, kernel: LibraryKernel, alike: Sequence[Entry], *, several: bool) -> tuple[Stack, ...]:
        """Of equivalent kernels on the device, those of the library with most measurements; `several` if kernels of one
        library differ in what they do.
        """
        ranked = sorted(alike, key=lambda e: (key_of(e) not in self.given, -e.rows))
        mine = [e for e in ranked if e.stack.library == ranked[0].stack.library]
        asked = {"dtype": kernel.stack.dtype, "kv_dtype": kernel.stack.kv_dtype}
        if kernel.family == "elementwise":
            asked["kernel"] = kernel.stack.kernel  # without a launch by the host, which others were measured with
        wanted: tuple[Callable[[Entry], bool], ...] = (
            lambda e: (e.stack.dtype, e.stack.kv_dtype) == (kernel.stack.dtype, kernel.stack.kv_dtype),
            lambda e: key_of(e) in self.given,
            lambda e: e.stack.kernel == kernel.stack.kernel,
        )
        for told in wanted:
            mine = list(filter(told, mine)) or mine
        return tuple(replace(e.stack, **asked) for e in (mine if several else mine[:1]))

    def _carried(self, kernel: LibraryKernel, dtype: str, *, plain: bool, alone: bool) -> tuple[Stack, ...]:
        """Stacks of the nearest relatives for a data type; `alone`: only of the kernel's own library. Empty without a
        library, as its choice of kernels is then unknown.
        """
        device, stack = self.device, kernel.stack
        if isinstance(device, str) or not stack.library:
            return ()
        like = replace(kernel, stack=replace(stack, dtype=dtype))
        alike = [e for e in self.by_family.get(kernel.family, ()) if _alike(e, like, plain=plain)]
        near = nearest([e for e in alike if not alone or e.stack.library == stack.library], device)
        libraries = {e.stack.library for e in near}
        if not self.unknown and near:
            most = max(near, key=lambda e: e.rows).stack.library
            libraries = {stack.library if stack.library in libraries else most}
        found = dict.fromkeys((e.stack.library, e.stack.kernel) for e in near if e.stack.library in libraries)
        return tuple(replace(stack, library=library, kernel=name) for library, name in found)


def check_library(name: str, profiles: Sequence[Profile] = ()) -> str:
    """`name`, if it is a measured library.

    Raises InputError, with the nearest names, if it is not.
    """
    known = sorted({e.stack.library for e in index().entries} | {profile.library for profile in profiles})
    if name and name not in known:
        raise InputError(f"no kernels of a library {name!r} were measured; {suggest(name, known)}")
    return name


def key_of(entry: Entry) -> tuple[str, str, Stack]:
    return entry.device, entry.family, entry.stack


def _alike(entry: Entry, kernel: LibraryKernel, *, plain: bool) -> bool:
    """Whether an entry has the family, types (or their twins) and kind of a kernel; the kind is its last word."""
    stack = entry.stack
    if entry.family != kernel.family or not twins(entry, kernel.stack):
        return False
    if entry.family == "moe":
        if not plain:
            return not stack.kernel.endswith("nongated")
        return stack.kernel.endswith("nongated") or entry.sizes.get("gated", (1.0, 1.0))[0] == 0
    if entry.family.startswith("attention"):
        return stack.kind == kernel.stack.kind
    own, other = (name.rpartition(" ")[2] for name in (stack.kernel, kernel.stack.kernel))
    return own == other
