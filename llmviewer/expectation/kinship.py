"""How near devices are to each other: by maker, kind of memory and architecture."""

from __future__ import annotations

from typing import Final

from .device import Kin

GENERATIONS: Final = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin")
_LINES: Final = (GENERATIONS, ("cdna", "cdna2", "cdna3", "cdna4", "cdna5"))
# Compute capability 10.3 runs what is compiled for the family of 10.0 (NVIDIA, CUDA Programming Guide, section 5.1.2).
_SAME_KERNELS: Final = {"blackwell ultra": "blackwell"}
# OPs in a clock of a core below which its matrix units are slowed down, as those of GeForce cards are to 512 where they
# add up in fp32, half of what others of their chips do (NVIDIA Ampere GA102 whitepaper, table 9).
_HALVED: Final = 768


def generation(device: Kin) -> str:
    """Its architecture, by the name of the one whose kernels it runs."""
    return _SAME_KERNELS.get(device.architecture, device.architecture)


def earlier(one: Kin, other: Kin) -> bool:
    """Whether the first is of an earlier generation of the same maker's."""
    own, later = map(generation, (one, other))
    return any(line.index(own) < line.index(later) for line in _LINES if own in line and later in line)


def apart(a: Kin, b: Kin) -> int:
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


def instructions(device: Kin) -> str:
    """The generation whose matrix instructions its kernels are written in. Hopper's, and Blackwell's with stacked
    memory, run nowhere else (NVIDIA, PTX ISA: wgmma needs sm_90a, tcgen05 sm_100a and its like); all others of NVIDIA
    have Ampere's.
    """
    own = generation(device)
    alone = own == "hopper" or (own == "blackwell" and device.stacked) or device.vendor != "nvidia"
    return own if alone else "ampere"


def relation(other: Kin, device: Kin) -> tuple[int, ...]:
    """How far away a device is, what counts most first: another maker, another kind of memory, generations."""
    return int(other.vendor != device.vendor), int(other.stacked != device.stacked), apart(other, device)


def slowed(device: Kin) -> bool:
    """Whether its matrix units are: what feeds them then suffices, and kernels reach more of their peak."""
    return 0 < device.multiplies < _HALVED * device.clock
