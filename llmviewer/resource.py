"""Resources, which operators need in amounts and devices supply at rates."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Unit(StrEnum):
    """Kinds of resources of a device."""

    MATRIX = "matrix"  # OPs of matrix multiplication: tensor cores, AMX, systolic arrays
    VECTOR = "vector"  # OPs of everything else
    MEMORY = "memory"  # bytes between the device's main memory and the chip
    LINK = "link"  # bytes to or from a device, by tier: scale_up, scale_out, host, storage
    HOP = "hop"  # consecutive messages on a link; each takes its latency


class Resource(NamedTuple):
    """OPs on a unit in a data type, or bytes over a path."""

    unit: Unit
    dtype: str = ""

    def __str__(self) -> str:
        return f"{self.unit} {self.dtype}".rstrip()

    @property
    def bound(self) -> str:
        """The name of the bound by this resource: "memory", "link" or "compute"."""
        return str(self.unit) if self.unit in (Unit.MEMORY, Unit.LINK) else "compute"


MEMORY = Resource(Unit.MEMORY)


def matrix(dtype: str) -> Resource:
    """Matrix units in a data type."""
    return Resource(Unit.MATRIX, dtype)


def link(tier: str) -> Resource:
    """Link of a tier of the network, one way."""
    return Resource(Unit.LINK, tier)


def hop(tier: str) -> Resource:
    """Latency of a hop over a tier of the network."""
    return Resource(Unit.HOP, tier)


def vector(dtype: str) -> Resource:
    """Vector units in a data type."""
    return Resource(Unit.VECTOR, dtype)
