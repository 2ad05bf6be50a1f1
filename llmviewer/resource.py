"""Resources, which operators need in amounts and devices supply at rates."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


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
_HOST: Final = "host"


def of_host(resource: Resource) -> Resource:
    """The resource of the host that is like `resource` of the device, such as "memory host" or "vector host fp32"."""
    return (
        resource
        if resource.unit in (Unit.LINK, Unit.HOP)
        else Resource(resource.unit, f"{_HOST} {resource.dtype}".rstrip())
    )


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
