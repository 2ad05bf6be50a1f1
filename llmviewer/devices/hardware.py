"""`Hardware`: a device's rate of each resource and its memory capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from math import inf, prod
from typing import Final

from ..errors import InputError
from ..precision import WIDER
from ..records import frozen
from ..resource import Resource, Unit
from ..units import si

ROUNDING: Final = 0.015  # relative rounding error of datasheets: three digits, clocks in steps of 15 MHz
_VECTOR_SPEEDUP: Final = 2.0  # vector rate over matrix rate from which matmuls run on vector units


@frozen(kw_only=True)
class Source:
    """The publication of a number."""

    title: str
    year: int
    version: str = ""
    page: str = ""
    url: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.title, self.version, self.page, str(self.year))))


@frozen(kw_only=True)
class Fact:
    """A value of a hardware file."""

    key: str  # such as "memory.bandwidth"
    text: str
    value: float | str  # in SI units
    source: str  # a key of Hardware.sources
    note: str = ""


@frozen
class DerivedNumber:
    """A number that equals the product of others, divided by `per`."""

    key: str
    factors: tuple[str, ...]
    per: float = 1.0

    def of(self, numbers: Mapping[str, float]) -> float:
        """The product of its factors in `numbers`. [SI units]"""
        return prod(numbers[key] for key in self.factors) / self.per


def products(numbers: Mapping[str, float]) -> Iterator[DerivedNumber]:
    """The products whose factors are all in `numbers`: peak = units x width x clock, bandwidth = pins x rate."""
    clock = "clock.boost" if "clock.boost" in numbers else "clock.base"
    peak = "matrix.fp16" if "matrix.fp16" in numbers else "matrix.bf16"
    matrix_clock = "clock.matrix" if "clock.matrix" in numbers else clock
    for number in (
        DerivedNumber(peak, ("cores.count", "cores.matrix_fp16_per_clock", matrix_clock)),
        DerivedNumber("vector.fp32", ("cores.count", "cores.vector_fp32_per_clock", clock)),
        DerivedNumber("memory.bandwidth", ("memory.bus_width", "memory.data_rate"), 8),
    ):
        if {number.key, *number.factors} <= numbers.keys():
            yield number


@frozen(kw_only=True)
class Hardware:
    """A device.

    rates          datasheet rate of each resource [OP/s, dense, or B/s]
    headroom       factor by which a unit can exceed its datasheet rate, which may be rounded down or use a clock below
                   the highest; 1 if missing
    capacity       main memory, or the usable part of it if known [B]
    on_chip_bytes  registers, shared memory and caches together; inf if unknown, so that no bound depends on it [B]
    facts          all values of its file, with sources
    """

    name: str
    title: str
    rates: Mapping[Resource, float]
    capacity: float
    headroom: Mapping[Resource, float] = field(default_factory=dict, repr=False)
    on_chip_bytes: float = inf
    vendor: str = ""
    kind: str = ""
    architecture: str = ""
    released: int = 0
    status: str = ""
    aliases: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = field(default=(), repr=False)
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    changes: tuple[str, ...] = ()  # what-ifs, as KEY=VALUE
    derived_changes: tuple[str, ...] = field(default=(), repr=False)  # such as "matrix rates 2x"
    file_numbers: Mapping[str, float] = field(default_factory=dict, repr=False)  # the file's values of changed numbers

    def __hash__(self) -> int:
        """Hash of the name, because rates are not hashable."""
        return hash(self.name)

    def __repr__(self) -> str:
        """Name and what-ifs only, because results contain the device many times."""
        return f"Hardware({', '.join(map(repr, (self.name, *self.changes)))})"

    def supply(self, requirement: Resource) -> Resource:
        """The unit and data type of this device that does work of `requirement`.

        If the device lacks it, that is the fastest type that represents the operands exactly: on matrix units, or
        on vector units if matrix units have none, if vector units have the type itself and are no slower (fp32 on GPUs
        whose tensor cores have only fp64), or if they are at least twice as fast. A smaller gain by another type would
        be lost to softmax, which also needs the vector units.

        Raises InputError, with the units of the device, if there is none.
        """
        if requirement in self.rates:
            return requirement
        dtypes = (requirement.dtype, *WIDER.get(requirement.dtype, ()))
        units = (Unit.MATRIX, Unit.VECTOR) if requirement.unit is Unit.MATRIX else (requirement.unit,)
        unit_choice: Resource | None = None
        for unit in units:
            candidates = [r for dtype in dtypes if (r := Resource(unit, dtype)) in self.rates]
            best = max(candidates, key=self.rates.__getitem__, default=None)  # the narrowest type among equal rates
            speedup = 1.0 if best and best.dtype == requirement.dtype else _VECTOR_SPEEDUP
            if best and (unit_choice is None or self.rates[best] >= speedup * self.rates[unit_choice]):
                unit_choice = best
        if unit_choice:
            return unit_choice
        raise InputError(
            f"{self.name} has no unit for {requirement}; it has {', '.join(sorted(map(str, self.rates)))}. "
            "Choose another precision with --quant or another device"
        )

    def at_datasheet(self) -> Hardware:
        """The device whose units do not exceed their datasheet rates."""
        return replace(self, headroom={})

    @property
    def last_cache(self) -> tuple[str, float]:
        """Name and capacity of the last-level cache; "" and 0 if the device's file has none. [B]"""
        level = next((level for level in ("l3", "l2") if f"{level}.capacity" in self.numbers), "")
        return level.upper(), self.numbers.get(f"{level}.capacity", 0.0)

    @cached_property
    def file_values(self) -> Mapping[str, float | str]:
        """The values of its file by key; numbers in SI units."""
        return {fact.key: fact.value for fact in self.facts}

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The numbers of its file by key. [SI units]"""
        return {fact.key: fact.value for fact in self.facts if isinstance(fact.value, float)}

    def fact(self, key: str) -> float:
        """A number of the device's file, such as "scale_up.bandwidth". [SI units]

        Raises InputError if the file lacks it; missing numbers are never guessed.
        """
        if key in self.numbers:
            return self.numbers[key]
        raise InputError(
            f"{self.name} has no {key} in its file; add it to your own hardware file or give --hardware-set {key}=VALUE"
        )

    def limit(self, resource: Resource) -> float:
        """The rate that no kernel exceeds: the datasheet's at the highest clock of cards as sold. [OP/s, B/s]

        A datasheet's boost clock may be a typical one, which cards exceed as far as power and temperature allow.
        """
        return self.rates[resource] * self.headroom.get(resource, 1.0)

    def described(self, resource: Resource) -> str:
        """The limit of a unit as text, with the datasheet's rate if that is lower."""
        limit, rate = self.limit(resource), self.rates[resource]
        return f"{si(limit)}OP/s" + (f"; datasheet {si(rate)}OP/s" if si(limit) != si(rate) else "")

    def bandwidth(self) -> float:
        """Main memory bandwidth. [B/s]"""
        return self.rates[Resource(Unit.MEMORY)]
