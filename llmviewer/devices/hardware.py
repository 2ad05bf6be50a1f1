"""A machine: how fast it supplies each resource, and how much it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from typing import Final

from ..errors import InputError
from ..precision import WIDER
from ..resource import Resource, Unit

_TWICE: Final = 2.0  # times the rate of matrix units at which vector units multiply instead


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a number was published."""

    title: str
    year: int
    version: str = ""
    page: str = ""
    url: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.title, self.version, self.page, str(self.year))))


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One number of a hardware file, as it is written there."""

    key: str  # such as "memory.bandwidth"
    text: str
    value: float | str  # in SI units
    source: str  # a key of Hardware.sources
    note: str = ""


@dataclass(frozen=True)
class Product:
    """A number of a file that is the product of others, over `per`."""

    key: str
    factors: tuple[str, ...]
    per: float = 1.0

    def of(self, numbers: Mapping[str, float]) -> float:
        """What it is by its factors. [SI units]"""
        return prod(numbers[key] for key in self.factors) / self.per


def products(numbers: Mapping[str, float]) -> Iterator[Product]:
    """Those that `numbers` of a file have with all their factors: a peak is units x width x clock, a bandwidth pins x
    rate.
    """
    clock = "clock.boost" if "clock.boost" in numbers else "clock.base"
    peak = "matrix.fp16" if "matrix.fp16" in numbers else "matrix.bf16"
    own = "clock.matrix" if "clock.matrix" in numbers else clock
    for found in (
        Product(peak, ("cores.count", "cores.matrix_fp16_per_clock", own)),
        Product("vector.fp32", ("cores.count", "cores.vector_fp32_per_clock", clock)),
        Product("memory.bandwidth", ("memory.bus_width", "memory.data_rate"), 8),
    ):
        if {found.key, *found.factors} <= numbers.keys():
            yield found


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device.

    rates          what it supplies [OP/s, dense, or B/s]
    capacity       of its main memory, as much of it as programs can use where that is known [B]
    on_chip_bytes  registers, shared memory and caches together; inf where none is known, so that no bound rests on it
    facts          every number of its file, for those who want to see where they come from
    """

    name: str
    title: str
    rates: Mapping[Resource, float]
    capacity: float
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
    changes: tuple[str, ...] = ()  # what a what-if altered, as KEY=VALUE
    follows: tuple[str, ...] = field(default=(), repr=False)  # what follows from that, such as "matrix rates 2x"
    said: Mapping[str, float] = field(default_factory=dict, repr=False)  # what its file says of numbers that it altered

    def __hash__(self) -> int:
        """By its name, as rates have no hash."""
        return hash(self.name)

    def __repr__(self) -> str:
        """Its name and what-ifs, as what is found on it holds it many times."""
        return f"Hardware({', '.join(map(repr, (self.name, *self.changes)))})"

    def supply(self, wanted: Resource) -> Resource:
        """The unit and data type of this machine that does work asked for in `wanted`.

        The very unit where there is one; else the fastest type that holds the operands' values, on matrix units if
        they have one; on vector units if not, or if those are at least twice as fast, as for fp32 on GPUs whose tensor
        cores have only fp64. A smaller gain would be lost on softmax, which waits while vector units multiply.

        Raises InputError, naming what there is, where nothing does.
        """
        if wanted in self.rates:
            return wanted
        dtypes = (wanted.dtype, *WIDER.get(wanted.dtype, ()))
        units = (Unit.MATRIX, Unit.VECTOR) if wanted.unit is Unit.MATRIX else (wanted.unit,)
        found: Resource | None = None
        for unit in units:
            able = [r for dtype in dtypes if (r := Resource(unit, dtype)) in self.rates]
            best = max(able, key=self.rates.__getitem__, default=None)  # the first of equals: the narrowest type
            if best and (found is None or self.rates[best] >= _TWICE * self.rates[found]):
                found = best
        if found:
            return found
        raise InputError(
            f"{self.name} has no unit for {wanted}; it has {', '.join(sorted(map(str, self.rates)))}. "
            "Choose another precision with --quant or another device"
        )

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """Those of its file by key. [SI units]"""
        return {fact.key: fact.value for fact in self.facts if isinstance(fact.value, float)}

    def fact(self, key: str) -> float:
        """A number of the device's file, such as "scale_up.bandwidth". [SI units]

        Raises InputError where the file does not say it: what is unknown is absent, never guessed.
        """
        if key in self.numbers:
            return self.numbers[key]
        raise InputError(
            f"{self.name} has no {key}: its file does not say; add it to a YAML of yours or give "
            f"--hardware-set {key}=VALUE"
        )

    def bandwidth(self) -> float:
        """Of the main memory. [B/s]"""
        return self.rates[Resource(Unit.MEMORY)]
