"""Similarity of devices: by vendor, kind of memory and architecture."""

from __future__ import annotations

from typing import Final

from .device import DeviceTraits

GENERATIONS: Final = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin")
_VENDOR_GENERATIONS: Final = (GENERATIONS, ("cdna", "cdna2", "cdna3", "cdna4", "cdna5"))
# Compute capability 10.3 runs what is compiled for the family of 10.0 (NVIDIA, CUDA Programming Guide, section 5.1.2).
_SAME_KERNELS: Final = {"blackwell ultra": "blackwell"}
# OPs in a clock of a core below which its matrix units are slowed down, as those of GeForce cards are to 512 where they
# add up in fp32, half of what others of their chips do (NVIDIA Ampere GA102 whitepaper, table 9).
_HALF_RATE_OPS: Final = 768
_PORTABLE_INSTRUCTIONS: Final = "ampere"  # generation whose matrix instructions all later devices have
_MAX_PORTABLE_OPS: Final = 4096.0  # OPs in a clock of a core, at most, of those without the instructions of 8,192


def generation(device: DeviceTraits) -> str:
    """Architecture of a device, or the one whose kernel binaries it runs."""
    return _SAME_KERNELS.get(device.architecture, device.architecture)


def is_earlier(one: DeviceTraits, other: DeviceTraits) -> bool:
    """Whether the first device is of an earlier generation of the same vendor."""
    first, later = map(generation, (one, other))
    return any(line.index(first) < line.index(later) for line in _VENDOR_GENERATIONS if first in line and later in line)


def generations_between(a: DeviceTraits, b: DeviceTraits) -> int:
    """Number of generations between two devices; -1 for a device and itself."""
    if a.name == b.name:
        return -1
    first, other = map(generation, (a, b))
    if first == other:
        return 0
    for line in _VENDOR_GENERATIONS:
        if first in line and other in line:
            return abs(line.index(first) - line.index(other))
    return len(GENERATIONS)


def matrix_instructions(device: DeviceTraits) -> str:
    """Generation whose matrix instructions the kernels of a device use. Those of Hopper, and of Blackwell with
    data-center rates, run nowhere else (NVIDIA, PTX ISA: wgmma needs sm_90a, tcgen05 sm_100a, sm_110a and their like,
    the latter of Jetson Thor); all others of NVIDIA have Ampere's.
    """
    architecture = generation(device)
    has_tcgen05 = architecture == "blackwell" and (
        device.stacked or device.multiplies > _MAX_PORTABLE_OPS * device.clock > 0
    )
    is_specific = architecture == "hopper" or has_tcgen05 or device.vendor != "nvidia"
    return architecture if is_specific else _PORTABLE_INSTRUCTIONS


def device_distance(other: DeviceTraits, device: DeviceTraits, *, computes: bool = True) -> tuple[int, ...]:
    """Distance of a device, the most important term first: another vendor, another kind of chip, generations.

    Chips are of one kind by their memory; for what `computes`, one with the matrix instructions of data centers and
    without their memory, as Jetson Thor, is of the kind of those with the same instructions.
    """
    instructions = matrix_instructions(device)
    by_code = computes and device.vendor == "nvidia" and not device.stacked and instructions != _PORTABLE_INSTRUCTIONS
    is_same_kind = matrix_instructions(other) == instructions if by_code else other.stacked == device.stacked
    return int(other.vendor != device.vendor), int(not is_same_kind), generations_between(other, device)


def has_half_rate_matrix_units(device: DeviceTraits) -> bool:
    """Whether the matrix units accumulate at half rate, as on GeForce cards; kernels then reach more of their peak."""
    return 0 < device.multiplies < _HALF_RATE_OPS * device.clock
