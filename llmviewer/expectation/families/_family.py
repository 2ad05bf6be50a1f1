"""What the families of kernels share: parameters with physical names, work, and the smooth largest of times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from ..device import Device

Array = npt.NDArray[Any]
Shapes = Mapping[str, Array]
Parameters = Mapping[str, float]
Features = Mapping[str, Any]

MICROSECOND: Final = 1e-6
_CPU: Final = "-cpu"  # what names of libraries end in that run on one
_FAR: Final = 1e12  # times a rate that then bounds nothing
_SHARED: Final[Mapping[str, str]] = {"inter": "tp", "experts": "ep"}  # sizes, and how many devices share them
_ATTENTIONS: Final = ("mla_absorb", "mla_unabsorbed", "encoder_noncausal")
_NO_SIZES: Final = ("tp", "ep", "loop", "private", "reached")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One number of a model, within `low` and `high`, and near `usual` unless measurements say otherwise.

    meaning  what it is, with its unit
    linear   it may be 0, so it is sought as it is; the others by their logarithms
    way      a word of the variants that have it; all do if there is none
    absent   what it is in profiles that were made before it; None if all have it
    again    times the usual value, from where the search begins a second time; 0 if it need not
    """

    name: str
    usual: float
    low: float
    high: float
    meaning: str
    linear: bool = False
    way: str = ""
    absent: float | None = None
    again: float = 0.0

    def sought(self, value: float) -> float:
        """As the search sees it."""
        return value if self.linear else log(max(value, self.low))

    def found(self, sought: float) -> float:
        return min(max(sought if self.linear else exp(sought), self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Whose kernel it is: what a set of parameters belongs to, beside the device.

    kernel  the library's name of it; of element-wise kernels and collectives also the operation
    """

    library: str
    dtype: str
    kv_dtype: str = ""
    kernel: str = ""

    @property
    def kind(self) -> str:
        """That of attention, which is the last word of its name; "" of the usual one."""
        word = self.kernel.rpartition(" ")[2]
        return word if word in _ATTENTIONS else ""


class Family(ABC):
    """Kernels that one model describes.

    parameters  what is fitted, of all variants
    variants    ways to lay out the work, one of which a kernel has
    alone       of these, whose kernels say little of others, as nobody tuned them
    columns     shapes that a row must have
    groups      the columns that make a shape family, which are held out together
    computes    its kernels multiply matrices, so that they have a place on the roofline
    halves      it knows by itself that GeForce cards add up at half their rate
    aged        how well kernels use a device depends on its generation, and not on its kind of memory alone
    steady      they are cut up alike from one generation to the next, so that those of several tell more than of one
    rewritten   its kernels are written anew for the matrix instructions of a generation
    portable    names of kernels that are not, and are the same on all devices
    streams     most of what its kernels take is that of bytes which they read once
    waits       matrix units wait for loads and exponentials, in clocks that do not depend on how much they do in one
    heats       matrix units are at work for long enough that the power which the device may draw limits their clock
    on_cpu      usual parameters of a CPU's kernels, where they are others: fitted to torch 2.13 on an EPYC
    """

    name: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]
    variants: ClassVar[tuple[str, ...]] = ("",)
    alone: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]]
    optional: ClassVar[Mapping[str, float]] = {}
    groups: ClassVar[tuple[str, ...]]
    computes: ClassVar[bool] = True
    halves: ClassVar[bool] = False
    aged: ClassVar[bool] = True
    steady: ClassVar[bool] = False
    rewritten: ClassVar[bool] = False
    portable: ClassVar[tuple[str, ...]] = ()
    streams: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    heats: ClassVar[bool] = False
    on_cpu: ClassVar[Parameters] = {}

    @abstractmethod
    def features(self, shapes: Shapes, device: Device, stack: Stack, variant: str) -> Features:
        """All that does not depend on parameters."""

    @abstractmethod
    def seconds(self, p: Parameters, features: Features) -> Array:
        """The expected time of every row. [s]"""

    def elsewhere(self, p: Parameters, features: Features) -> Array:
        """The same on a device that the parameters were not fitted to. [s]"""
        return self.seconds(p, features)

    @abstractmethod
    def bound(self, shapes: Shapes, device: Device, stack: Stack) -> Array:
        """The roofline of the same work; what a loop keeps in the cache does not cross the memory bus. [s]"""

    def ideals(self, shapes: Shapes, device: Device, stack: Stack) -> tuple[Array, Array]:
        """The bound's least times of arithmetic and of bytes from memory, nothing of which is in the cache yet. [s]"""
        plain = {**shapes, "loop": np.zeros(len(next(iter(shapes.values()))))}
        rates = {resource: rate * _FAR for resource, rate in device.hardware.rates.items()}
        moving = replace(device, hardware=replace(device.hardware, rates=rates))
        computing = replace(device, bandwidth=device.bandwidth * _FAR)
        return self.bound(plain, computing, stack), self.bound(plain, moving, stack)

    def fixed(self, p: Parameters, features: Features) -> Array | float:  # noqa: ARG002 - some have hops
        """What of it work as small as can be takes too: launches, and the start and end of one tile. [s]"""
        return (p["start_us"] + p.get("tau_us", 0.0)) * MICROSECOND

    def kept(self, shapes: Shapes) -> npt.NDArray[np.bool_]:
        """Rows that a fit may rest on: sizes that models have."""
        return np.ones(len(next(iter(shapes.values()))), dtype=bool)

    def told(self, variant: str, shapes: Shapes) -> bool:  # noqa: ARG002 - some have kernels of their own for a few
        """Whether rows of `shapes` run all that a variant has."""
        return True

    def sizes(self, shapes: Shapes) -> dict[str, Array]:
        """What one device has of each size that tells shapes apart; not how they were measured."""
        names = [name for name in self.size_names if name in shapes]
        devices = {name: np.asarray(shapes.get(_SHARED.get(name, ""), 1.0), dtype=float) for name in names}
        return {name: np.asarray(shapes[name], dtype=float) / devices[name] for name in names}

    @property
    def size_names(self) -> tuple[str, ...]:
        return tuple(name for name in (*self.columns, *self.optional) if name not in _NO_SIZES)

    def of(self, variant: str) -> tuple[Parameter, ...]:
        """The parameters that a variant has."""
        return tuple(q for q in self.parameters if not q.way or q.way in variant.split())

    def usual(self, stack: Stack, device: Device) -> dict[str, float]:  # noqa: ARG002 - some go with its rates
        """What parameters are where measurements do not tell."""
        usual = {parameter.name: parameter.usual for parameter in self.parameters}
        return {**usual, **(self.on_cpu if stack.library.endswith(_CPU) else {})}


def cold(reuse: Array, l2: float, part: float, width: float = 0.6) -> Array:
    """How much of a tensor comes from memory when `reuse` bytes were touched since it was there last. 0 to 1.

    part   of the cache that is of use
    width  of that, what lies between all that is touched staying there and nothing of it
    """
    return np.asarray(np.clip((reuse / (part * l2) - 1) / width + 0.5, 0.0, 1.0))


def from_memory(touched: Array, loop: Array, l2: float) -> Array:
    """The least that comes from memory of what is touched again and again: no cache keeps more than it holds. [B]"""
    return np.asarray(np.where(loop > 0, np.maximum(touched - l2, 0), touched))


def smooth_max(power: float, *times: Array) -> Array:
    """At least the largest, and more where others are close, as they then get in each other's way."""
    largest = np.maximum.reduce(np.broadcast_arrays(*times))
    return np.asarray(largest * sum((time / largest) ** power for time in times) ** (1 / power))


def best(values: Array) -> Array:
    """The place of the least of each row, to be used with take."""
    return np.asarray(np.argmin(values, axis=1)[:, None])


def take(values: Array, place: Array) -> Array:
    """The values there; of a column, its own."""
    return np.asarray(values[:, 0] if values.shape[1] == 1 else np.take_along_axis(values, place, axis=1)[:, 0])
