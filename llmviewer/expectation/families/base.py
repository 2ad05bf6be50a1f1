"""Base of all families of kernels: parameters with a physical meaning, work, and the smooth maximum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property, reduce
from math import exp, log
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from ...records import frozen
from ..device import Device

Array = npt.NDArray[Any]
Shapes = Mapping[str, Array]
Parameters = Mapping[str, float]
Features = Mapping[str, Any]

MICROSECOND: Final = 1e-6
_CPU_SUFFIX: Final = "-cpu"  # suffix of libraries that run on a CPU
_UNBOUNDED: Final = 1e12  # factor on a rate, so that it sets no bound
_SHARDED_SIZES: Final[Mapping[str, str]] = {
    "inter": "tp",
    "experts": "ep",
}  # sizes, and the column with the number of devices that share them
_ATTENTIONS: Final = ("mla_absorb", "mla_unabsorbed", "encoder_noncausal")
EAGER: Final = "eager"  # suffix of the first word in the name of a kernel that a host launches each time
_NOT_SIZES: Final = ("tp", "ep", "loop", "private", "prequantized", "joined", "reached", "splits")


@frozen(kw_only=True)
class FittedParameter:
    """A fitted parameter. It stays within `low` and `high`, and near `prior` unless measurements say otherwise.

    meaning         its physical meaning, with the unit
    linear          whether the search uses the value, which may be 0, instead of the logarithm
    variant_word    only variants with this word have the parameter; "" if all do
    default         its value in profiles that lack the parameter; None if all profiles have it
    restart_factor  a second search starts from this multiple of the prior; 0 for no second search
    """

    name: str
    prior: float
    low: float
    high: float
    meaning: str
    linear: bool = False
    variant_word: str = ""
    default: float | None = None
    restart_factor: float = 0.0

    def to_search(self, value: float) -> float:
        """Coordinate of a value in the search."""
        return value if self.linear else log(max(value, self.low))

    def from_search(self, position: float) -> float:
        return min(max(position if self.linear else exp(position), self.low), self.high)


@frozen(kw_only=True)
class Implementation:
    """A kernel implementation: library, data types and kernel name. A fit belongs to one on some device.

    kernel  the library's name of the kernel; for element-wise kernels and collectives with the operation
    """

    library: str
    dtype: str
    kv_dtype: str = ""
    kernel: str = ""

    @cached_property
    def operation(self) -> str:
        """The last word of the kernel's name."""
        return self.kernel.rpartition(" ")[2]

    @cached_property
    def attention_kind(self) -> str:
        """The kind of attention, which is the last word of the kernel's name; "" for plain attention."""
        return self.operation if self.operation in _ATTENTIONS else ""

    @property
    def host_launched(self) -> bool:
        """Whether a host launches the kernel each time, which takes longer than a short kernel in a CUDA graph."""
        first, _, rest = self.kernel.partition(" ")
        return bool(rest) and first.endswith(EAGER)


class Family(ABC):
    """A family of kernels, which one time model describes.

    parameters                fitted parameters of all variants
    variants                  ways to lay out the work; each kernel has one of them
    untuned_variants          variants of untuned kernels, whose fits predict others badly
    columns                   shape columns that a row must have
    groups                    columns that make a shape family; rows of one are held out together
    library_independent       libraries do not differ in these kernels
    names_operations          the last word of a kernel's name is its operation
    multiplies_matrices       the kernels multiply matrices, so they have a place on the roofline
    models_half_rate          the model accounts for GeForce cards, which accumulate in fp32 at half rate
    generation_dependent      efficiency depends on the generation of the device, not only on its kind of memory
    stable_tiling             work is tiled alike in successive generations, so several predict better than one
    rewritten_per_generation  kernels are rewritten for the matrix instructions of each generation
    portable_kernels          names of kernels that are the same on all devices nevertheless
    memory_bound              kernels spend most of their time on bytes that they read once
    latency_limited           matrix units wait for loads and exponentials, a number of clocks whatever their rate
    power_limited             kernels run on matrix units long enough for the power limit to lower their clock
    launches_as_algorithm     kernels are several launches, as many and as long in all kernels of one algorithm
    cpu_parameters            default parameters on a CPU that differ: fitted to torch 2.13 on an EPYC
    """

    name: ClassVar[str]
    parameters: ClassVar[tuple[FittedParameter, ...]]
    variants: ClassVar[tuple[str, ...]] = ("",)
    untuned_variants: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]]
    optional: ClassVar[Mapping[str, float]] = {}
    groups: ClassVar[tuple[str, ...]]
    library_independent: ClassVar[bool] = False
    names_operations: ClassVar[bool] = False
    multiplies_matrices: ClassVar[bool] = True
    models_half_rate: ClassVar[bool] = False
    generation_dependent: ClassVar[bool] = True
    stable_tiling: ClassVar[bool] = False
    rewritten_per_generation: ClassVar[bool] = False
    portable_kernels: ClassVar[tuple[str, ...]] = ()
    memory_bound: ClassVar[bool] = False
    latency_limited: ClassVar[bool] = False
    power_limited: ClassVar[bool] = False
    launches_as_algorithm: ClassVar[bool] = False
    cpu_parameters: ClassVar[Parameters] = {}

    @abstractmethod
    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:
        """Terms of the model that do not depend on parameters."""

    def features_of(
        self, shapes: Shapes, device: Device, implementation: Implementation, variants: Collection[str]
    ) -> dict[str, Features]:
        """Features of several variants, which may share terms."""
        return {variant: self.features(shapes, device, implementation, variant) for variant in variants}

    @abstractmethod
    def seconds(self, p: Parameters, features: Features) -> Array:
        """The expected time of every row. [s]"""

    def seconds_elsewhere(self, p: Parameters, features: Features) -> Array:
        """The expected time of every row on a device that the parameters were not fitted to. [s]"""
        return self.seconds(p, features)

    @abstractmethod
    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        """The roofline of the same work. Bytes that a benchmark's loop keeps in the cache do not count. [s]"""

    def ideal_times(self, shapes: Shapes, device: Device, implementation: Implementation) -> tuple[Array, Array]:
        """The bound's least times of arithmetic and of memory traffic, with nothing in the cache at the start. [s]"""
        plain = {**shapes, "loop": np.zeros(len(next(iter(shapes.values()))))}
        rates = {resource: rate * _UNBOUNDED for resource, rate in device.hardware.rates.items()}
        moving = replace(device, hardware=replace(device.hardware, rates=rates))
        computing = replace(device, bandwidth=device.bandwidth * _UNBOUNDED)
        return self.bound(plain, computing, implementation), self.bound(plain, moving, implementation)

    def fixed_seconds(self, p: Parameters, features: Features) -> Array | float:  # noqa: ARG002 - some have hops
        """Fixed part of the time: launches, and start and end of a tile. [s]"""
        return (p["start_us"] + p.get("tau_us", 0.0)) * MICROSECOND

    def fittable(self, shapes: Shapes) -> npt.NDArray[np.bool_]:
        """Mask of the rows with sizes that occur in models, which are fitted."""
        return np.ones(len(next(iter(shapes.values()))), dtype=bool)

    def covers_variant(self, variant: str, shapes: Shapes) -> bool:  # noqa: ARG002 - some have kernels of their own for a few
        """Whether rows of `shapes` determine all parameters of a variant."""
        return True

    def is_common(self, implementation: Implementation) -> bool:  # noqa: ARG002 - some are of one architecture
        """Whether most models have such kernels, whose measurements decide the default library of a device."""
        return True

    def sizes(self, shapes: Shapes) -> dict[str, Array]:
        """The sizes of one device that distinguish shapes, without how they were measured."""
        sizes = {name: np.asarray(shapes[name], dtype=float) for name in self.size_names if name in shapes}
        for name, devices in _SHARDED_SIZES.items():
            if name in sizes and devices in shapes:
                sizes[name] = sizes[name] / np.asarray(shapes[devices], dtype=float)
        return sizes

    @cached_property
    def size_names(self) -> tuple[str, ...]:
        return tuple(name for name in (*self.columns, *self.optional) if name not in _NOT_SIZES)

    def parameters_of(self, variant: str) -> tuple[FittedParameter, ...]:
        """Parameters of a variant."""
        return tuple(q for q in self.parameters if not q.variant_word or q.variant_word in variant.split())

    def default_parameters(self, implementation: Implementation, device: Device) -> dict[str, float]:  # noqa: ARG002 - some go with its rates
        """Default values of parameters, which are priors of fits."""
        parameters = {parameter.name: parameter.prior for parameter in self.parameters}
        return {**parameters, **(self.cpu_parameters if implementation.library.endswith(_CPU_SUFFIX) else {})}


def uncached_fraction(reuse: Array, l2: float, part: float, width: float = 0.6) -> Array:
    """Fraction of a tensor that comes from memory if `reuse` bytes were touched since it was last read.

    part   of the cache that can be used
    width  how far apart, as a part of that, are the sizes at which everything stays in the cache and at which nothing
           does
    """
    return np.minimum(np.maximum((reuse / (part * l2) - 1) / width + 0.5, 0.0), 1.0)  # half the time of np.clip


def from_memory(touched: Array, loop: Array, l2: float) -> Array:
    """Minimum memory traffic if the same bytes are touched in a loop: all but the capacity of the cache. [B]"""
    return np.asarray(np.where(loop > 0, np.maximum(touched - l2, 0), touched))


def smooth_max(power: float, *times: Array) -> Array:
    """Smooth maximum: at least the largest of the terms, and more if others are close, since overlapping work
    interferes.
    """
    largest = reduce(np.maximum, times)
    return np.asarray(largest * sum((time / largest) ** power for time in times) ** (1 / power))


def best_column(values: Array) -> Array:
    """Index of the smallest value of each row, for use with take_columns()."""
    return np.asarray(np.argmin(values, axis=1)[:, None])


def take_columns(values: Array, place: Array) -> Array:
    """Values at such indices; an array with one column has the same value for all."""
    return np.asarray(values[:, 0] if values.shape[1] == 1 else np.take_along_axis(values, place, axis=1)[:, 0])
