"""The device as kernel models see it: numbers of its file or, if missing, of a similar device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from .._layout import PATH_VARIABLE
from ..devices.files import known_file, load_hardware
from ..devices.hardware import Hardware
from ..devices.names import name_candidates
from ..documents import path_exists
from ..errors import InputError
from ..records import frozen
from ..resource import MEMORY, Resource, Unit, matrix, vector

# Base-2 exponentials of fp32 in a clock, of a streaming multiprocessor of every compute capability since 7.0 but those
# whose files say otherwise (NVIDIA, CUDA Programming Guide, throughput of native arithmetic instructions).
_EXPONENTIALS: Final = 16.0
# Device whose counts are used if a file lacks those of the cores or the last-level cache. Apple publishes
# no size of the system level cache; M3 Max is the last of which one is known.
_SIMILAR_DEVICES: Final[Mapping[str, str]] = {
    "blackwell": "b200", "blackwell ultra": "b200", "hopper": "h100-sxm", "apple 9": "m3-max", "apple 10": "m3-max",
    "xe2-hpg": "arc-b580",
}  # fmt: skip


@frozen(kw_only=True)
class DeviceTraits:
    """The properties by which the similarity of devices is judged.

    kind          gpu, cpu or accelerator; their kernels are unrelated
    stacked       whether its memory is HBM, on the same package
    bandwidth     memory bandwidth [B/s]
    l2_bandwidth  read bandwidth of the L2 cache; 0 if unknown [B/s]
    cores         streaming multiprocessors or compute units
    clock         boost clock of the cores; 0 if unknown [Hz]
    exponentials  exponentials per core and cycle
    multiplies    16-bit rate of the matrix units of a core [OP/s]
    shared        shared memory of a core; 0 if unknown [B]
    power         power limit of the device; 0 if unknown [W]
    """

    name: str
    kind: str
    architecture: str
    vendor: str
    stacked: bool
    bandwidth: float
    l2_bandwidth: float
    cores: float
    clock: float
    exponentials: float
    multiplies: float
    shared: float
    power: float


@frozen(kw_only=True)
class Device(DeviceTraits):
    """Datasheet rates, and the counts that determine how kernels divide work.

    rated_clock  clock without what-ifs [Hz]
    l2         last cache before the main memory [B]
    link       bandwidth to the other devices of a node, one way, over the host if there is no other link; 0 if unknown
               [B/s]
    hosted     whether that link is the host's, which all devices of a node share
    assumed    counts taken from a similar device
    """

    hardware: Hardware
    rated_clock: float
    l2: float
    link: float
    hosted: bool
    assumed: tuple[str, ...] = ()

    def peak(self, dtype: str) -> float:
        """Dense rate on matrix units; for fp32, that of vector units if matrix units only have tf32. [OP/s]"""
        return self.hardware.rates[self._unit(dtype)]

    def _unit(self, dtype: str) -> Resource:
        """Unit that multiplies `dtype`."""
        resource = matrix(dtype)
        if dtype == "fp32" and resource not in self.hardware.rates:
            resource = vector(dtype)
        return self.hardware.supply(resource)

    def limit(self, dtype: str) -> float:
        """Rate that no kernel exceeds; peak() is the datasheet's. [OP/s]"""
        return self.hardware.limit(self._unit(dtype))

    def has_matrix_units(self, dtype: str) -> bool:
        """Whether matrix units multiply `dtype`; they take whole tiles of rows, vector units take single rows."""
        return self.hardware.supply(matrix(dtype)).unit is Unit.MATRIX


def device_of(hardware: Hardware) -> Device:
    """The Device of `hardware`.

    Raises InputError if neither its file nor that of a similar device has the number of cores.
    """
    numbers = dict(hardware.numbers)
    last_cache = "l3.capacity" if "l3.capacity" in numbers else "l2.capacity"
    missing, assumed = [key for key in ("cores.count", last_cache) if key not in numbers], []
    relative = _SIMILAR_DEVICES.get(hardware.architecture, "")
    if missing and not relative:
        lacks = " and no ".join(missing)
        raise InputError(f"{hardware.name} has no {lacks}: its file does not say, so kernel times cannot be modelled")
    for key in missing:
        similar = load_hardware(relative)
        key_of_similar = "l3.capacity" if key == "l2.capacity" and "l3.capacity" in similar.numbers else key
        numbers[key] = similar.fact(key_of_similar)
        assumed.append(f"{key_of_similar} of {relative}")
    facts = {fact.key: fact.value for fact in hardware.facts}
    return Device(
        name=hardware.name,
        kind=hardware.kind or "gpu",
        architecture=hardware.architecture,
        vendor=hardware.vendor,
        hardware=hardware,
        bandwidth=hardware.rates[MEMORY],
        l2_bandwidth=numbers.get("l2.bandwidth", 0.0),
        cores=numbers["cores.count"],
        clock=numbers.get("clock.boost", 0.0),
        exponentials=numbers.get("cores.exponentials_per_clock", _EXPONENTIALS),
        multiplies=max(hardware.rates.get(matrix(dtype), 0.0) for dtype in ("bf16", "fp16")) / numbers["cores.count"],
        shared=numbers.get("shared_memory.capacity", 0.0) / numbers["cores.count"],
        power=0.0 if "power.shared" in facts else numbers.get("power.tdp", 0.0),
        rated_clock=hardware.file_numbers.get("clock.boost", numbers.get("clock.boost", 0.0)),
        l2=numbers[last_cache],
        link=numbers.get("scale_up.bandwidth", numbers.get("host.bandwidth", 0.0)),
        hosted="scale_up.bandwidth" not in numbers,
        stacked=str(facts.get("memory.type", "")).startswith("HBM"),
        assumed=tuple(assumed),
    )


def find_device(name: str) -> Device:
    """Device by its name in tables of measurements, such as "H100-SXM-80GB".

    Raises InputError, with the nearest names, if it is unknown.
    """
    device = _cached_device(name, os.environ.get(PATH_VARIABLE, ""), _user_files(name))
    if isinstance(device, str):
        raise InputError(device)
    return device


def _user_files(name: str) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the user's files that `name` may refer to: a key for the cache."""
    folder = os.environ.get(PATH_VARIABLE, "")
    paths = sorted(Path(folder).glob("*.yaml")) if folder else []
    paths += [Path(name)] if name.endswith((".yaml", ".yml")) and path_exists(name) else []
    return tuple((str(path), status.st_mtime_ns, status.st_size) for path in paths if (status := path.stat()))


@lru_cache(maxsize=1024)
def _cached_device(name: str, folder: str, user_files: object) -> Device | str:  # noqa: ARG001 - they decide what is found
    """Device, or the error; cached, as all kernels of a table have the same one."""
    try:
        return _device_of_name(name)
    except InputError as error:
        return str(error)


def _device_of_name(name: str) -> Device:
    if name.endswith((".yaml", ".yml")):
        return device_of(load_hardware(name))
    return device_of(load_hardware(next(filter(known_file, name_candidates(name)), name)))
