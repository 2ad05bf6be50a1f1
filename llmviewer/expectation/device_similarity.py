"""How near devices are to each other: by maker, kind of memory and architecture."""

from __future__ import annotations

from typing import Final

from .device import DeviceTraits

GENERATIONS: Final = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin")
_LINES: Final = (GENERATIONS, ("cdna", "cdna2", "cdna3", "cdna4", "cdna5"))
# Compute capability 10.3 runs what is compiled for the family of 10.0 (NVIDIA, CUDA Programming Guide, section 5.1.2).
_SAME_KERNELS: Final = {"blackwell ultra": "blackwell"}
# OPs in a clock of a core below which its matrix units are slowed down, as those of GeForce cards are to 512 where they
# add up in fp32, half of what others of their chips do (NVIDIA Ampere GA102 whitepaper, table 9).
_HALVED: Final = 768
_EVERYWHERE: Final = "ampere"  # whose matrix instructions all later devices have
_OTHERS_MOST: Final = 4096.0  # OPs in a clock of a core, at most, of those without the instructions of 8,192


def generation(device: DeviceTraits) -> str:
    """Its architecture, by the name of the one whose kernels it runs."""
    return _SAME_KERNELS.get(device.architecture, device.architecture)


def is_earlier(one: DeviceTraits, other: DeviceTraits) -> bool:
    """Whether the first is of an earlier generation of the same maker's."""
    own, later = map(generation, (one, other))
    return any(line.index(own) < line.index(later) for line in _LINES if own in line and later in line)


def generations_between(a: DeviceTraits, b: DeviceTraits) -> int:
    """Generations between two devices; -1 of a device and itself."""
    if a.name == b.name:
        return -1
    own, other = map(generation, (a, b))
    if own == other:
        return 0
    for line in _LINES:
        if own in line and other in line:
            return abs(line.index(own) - line.index(other))
    return len(GENERATIONS)


def matrix_instructions(device: DeviceTraits) -> str:
    """The generation whose matrix instructions its kernels are written in. Hopper's, and those of Blackwell's with the
    rates of data centers, run nowhere else (NVIDIA, PTX ISA: wgmma needs sm_90a, tcgen05 sm_100a, sm_110a and their
    like, the latter of Jetson Thor); all others of NVIDIA have Ampere's.
    """
    own = generation(device)
    wide = own == "blackwell" and (device.stacked or device.multiplies > _OTHERS_MOST * device.clock > 0)
    alone = own == "hopper" or wide or device.vendor != "nvidia"
    return own if alone else _EVERYWHERE


def device_distance(other: DeviceTraits, device: DeviceTraits, *, computes: bool = True) -> tuple[int, ...]:
    """Distance of a device, the most important term first: another maker, another kind of chip, generations.

    Chips are of one kind by their memory; for what `computes`, one with the matrix instructions of data centers and
    without their memory, as Jetson Thor, is of the kind of those with the same instructions.
    """
    own = matrix_instructions(device)
    by_code = computes and device.vendor == "nvidia" and not device.stacked and own != _EVERYWHERE
    alike = matrix_instructions(other) == own if by_code else other.stacked == device.stacked
    return int(other.vendor != device.vendor), int(not alike), generations_between(other, device)


def has_half_rate_matrix_units(device: DeviceTraits) -> bool:
    """Whether its matrix units are: what feeds them then suffices, and kernels reach more of their peak."""
    return 0 < device.multiplies < _HALVED * device.clock
