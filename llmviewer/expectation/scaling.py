"""Parameters scaled to another device than the one they were fitted on: one rule for each dependency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ..records import frozen
from .device import Device, DeviceTraits
from .device_similarity import GENERATIONS, generation, has_half_rate_matrix_units, is_earlier, matrix_instructions
from .families import FAMILIES, Family
from .index import device_traits
from .profile import KernelFit

# Since Ampere NVIDIA's devices for data centres have an L2 cache in two halves, each of which keeps what its own cores
# read, so that what all read is in both (A100 whitepaper, L2 cache: "each L2 partition localizes and caches data for
# memory accesses from SMs in the GPCs directly connected to the partition"); their other devices have it in one.
_HALVES_SINCE: Final = {*GENERATIONS[GENERATIONS.index("ampere") :]}
# Bytes that a core reads in a clock where the L2 cache keeps all of them, of devices without stacked memory: A40 2.49
# TB/s, L40 5.2 TB/s (github.com/te42kyfo/gpu-benches, gpu-cache/a40.txt, gpu-l2-cache/l40.txt), RTX PRO 6000 8.7 TB/s
# (Chips and Cheese, "Blackwell: Nvidia's Massive GPU", 2025), of 84, 142 and 188 cores at 1740, 2490 and 2617 MHz.
_L2_READS: Final[Mapping[str, float]] = {"ampere": 17.0, "ada": 14.7, "blackwell": 17.7}
_LAUNCH_US: Final = 5.0  # of what only moves bytes: what more it takes to start is a host's [us]
# Part of their peak that products reach where power hardly limits them, as bf16 ones of engines do on A100: their fits
# have an alpha of 0.96 to 1, and a `hot` of 0.06 at most (profiles/a100-sxm-80gb.*.yaml).
_UNLIMITED: Final = 0.95
# Kernels in Ampere's matrix instructions (github.com/IST-DASLab/marlin has mma.m16n8k16) do no more in matrix units of
# later devices, whose peak needs instructions of their own (arXiv:2402.13499): in a clock of a core 1,100 to 1,300 OPs
# of 16 bits on A100, H100, H200 and B200 alike (profiles/*.sglang.yaml), of the 2,048 that A100 can do.
_MARLIN: Final = "marlin"
_AMPERE: Final = 2048.0

Parameters = Mapping[str, float]


def scaled_parameters(device: Device, fit: KernelFit) -> Parameters:
    """The parameters of an entry on `device`.

    On its own device they are unchanged; under what-ifs, the rules for parameters that do not scale with the changed
    rates apply; on other devices, all rules in turn.
    """
    there = fit.device == device.name
    if there and not device.hardware.changes:
        return fit.parameters
    move = _Move(fit=fit, own=device_traits(fit.device), device=device)
    found = dict(fit.parameters)
    for rule in _OWN if there else _RULES:
        found |= rule(found, move)
    return found


def runs_same_code(fit: KernelFit, device: Device) -> bool:
    """Whether its kernel is the same on a device: in the same matrix instructions, or written for none."""
    return _portable(fit) or matrix_instructions(device_traits(fit.device)) == matrix_instructions(device)


def _portable(fit: KernelFit) -> bool:
    """Whether it is the same on all devices, whatever kind of attention it is for."""
    return fit.implementation.kernel.partition(" ")[0] in FAMILIES[fit.family].portable_kernels


def host_launch_us(fit: KernelFit) -> float:
    """What of the start of a kernel that only moves bytes is a host's. [us]"""
    return max(fit.parameters["start_us"] - _LAUNCH_US, 0.0)


def without_host_launch(fit: KernelFit) -> KernelFit:
    """A kernel that only moves bytes as it is in a graph, without the launch by a host that it was measured with."""
    start = fit.parameters["start_us"] - host_launch_us(fit)
    return replace(fit, parameters={**fit.parameters, "start_us": start}, trend=None, residual=None)


def is_host_routed(fit: KernelFit, device: Device) -> bool:
    """Whether it is of messages that pass a host on their way between devices."""
    return fit.family == "collectives" and device.hosted


@frozen(kw_only=True)
class _Move:
    """From the device of an entry, `own`, to another."""

    fit: KernelFit
    own: DeviceTraits
    device: Device

    @property
    def family(self) -> Family:
        return FAMILIES[self.fit.family]

    @property
    def alike(self) -> bool:
        return self.own.vendor == self.device.vendor

    @property
    def clocks(self) -> float:
        """The time of a clock, as a part of what it was; 1 where nobody says."""
        return self._clocks(self.device.clock)

    @property
    def rated_clocks(self) -> float:
        """The same without what-ifs on the clock, which say nothing of the power that it takes."""
        return self._clocks(self.device.rated_clock)

    def _clocks(self, clock: float) -> float:
        return self.own.clock / clock if self.alike and self.own.clock and clock else 1.0

    @property
    def multiplies(self) -> float:
        """What the matrix units of a core do in a clock, as a part of what they did; 0 where nobody says."""
        known = self.alike and self.own.multiplies and self.device.multiplies
        return self.device.multiplies / self.own.multiplies * self.clocks if known else 0.0

    @property
    def bytes(self) -> float:
        """What memory has for a core in a clock, as a part of what it had."""
        return self.device.bandwidth / self.own.bandwidth * self.own.cores / self.device.cores * self.clocks

    @property
    def waits(self) -> bool:
        """Whether matrix units do, as those do of kernels that are not written for them."""
        return self.family.latency_limited or _portable(self.fit)

    @property
    def back(self) -> bool:
        """Whether it is to an earlier generation, whose kernels are others."""
        return is_earlier(self.device, self.own)


def _fixed_times(found: Parameters, move: _Move) -> Parameters:
    """They are as many clocks, but of messages over a host and of launches by one, which are not its cores'."""
    if is_host_routed(move.fit, move.device):
        return {}
    times = {name: value * move.clocks for name, value in found.items() if name.endswith(("_us", "_ns"))}
    if not move.family.generation_dependent:
        times["start_us"] += host_launch_us(move.fit) * (1 - move.clocks)
    return times


def _cache_bandwidth(found: Parameters, move: _Move) -> Parameters:
    """That of the L2 cache is what the files say where both of one maker do; or, towards a later generation, what was
    measured of both (products on RTX 3090 do not bear that out for an earlier one). Else, of an architecture, it goes
    with its cores, not with the memory behind it; from one to the next it has gone with stacked memory only, and with
    that of other makers.
    """
    if "lambda" not in found:
        return {}
    own, device = move.own, move.device
    was, now = own.l2_bandwidth, device.l2_bandwidth
    if not (move.alike and was and now) and is_earlier(own, device):
        was, now = _l2_reads(own), _l2_reads(device)
    if move.alike and was and now:
        return {"lambda": found["lambda"] * (own.bandwidth / was) / (device.bandwidth / now)}
    with_memory = generation(own) != generation(device) and own.stacked == device.stacked
    if with_memory and (device.stacked or not move.alike):
        return {}
    return {"lambda": found["lambda"] * (own.bandwidth / own.cores) / (device.bandwidth / device.cores)}


def _l2_reads(device: DeviceTraits) -> float:
    """What its cores read from its L2 cache in a second; 0 where that was not measured of its generation. [B/s]"""
    return 0.0 if device.stacked else _L2_READS.get(generation(device), 0.0) * device.cores * device.clock


def _core_bandwidth(found: Parameters, move: _Move) -> Parameters:
    """What a core has under way does not go with what all of them share. Kernels of other devices are cut for those:
    what was fitted on H100 and on H200 does not follow this.
    """
    if "kappa" not in found:
        return {}
    was, now = move.own.bandwidth / move.own.cores, move.device.bandwidth / move.device.cores
    return {"kappa": found["kappa"] * was / now}


def _cache_halves(found: Parameters, move: _Move) -> Parameters:
    if not move.alike or not {generation(move.own), generation(move.device)} <= _HALVES_SINCE:
        return {}
    halves = (1 + move.own.stacked) / (1 + move.device.stacked)
    return {name: found[name] * halves for name in ("eta", "eta_x") if name in found}


def _waits(found: Parameters, move: _Move) -> Parameters:
    """Where matrix units wait for others, they wait as many clocks: slower ones reach more of their peak, and faster
    ones less, unless they have kernels of their own, which hide more.
    """
    if not move.waits or not move.multiplies or (move.multiplies > 1 and not runs_same_code(move.fit, move.device)):
        return {}
    return {"alpha": 1 / (1 + (1 / found["alpha"] - 1) * move.multiplies)}


def _hidden(found: Parameters, move: _Move) -> Parameters:
    """Starts and ends of tiles, by others: a core holds as many as its shared memory has room for, of which kernels
    that are not written for matrix instructions need little.
    """
    written = move.family.rewritten_per_generation and not _portable(move.fit) and runs_same_code(move.fit, move.device)
    was, now = move.own.shared, move.device.shared
    return {"tau_us": found["tau_us"] * was / now} if written and move.alike and was and now else {}


def _core_rate(found: Parameters, move: _Move) -> Parameters:
    """Where a kernel reaches less of the memory bandwidth than most do, the rest of its time is its cores', which have
    no more bytes under way on another device, and widen no more of them in a clock.
    """
    if not (move.family.memory_bound and move.alike and runs_same_code(move.fit, move.device)):
        return {}
    most = next(q.prior for q in move.family.parameters if q.name == "beta")
    own = max(1 / found["beta"] - 1 / most, 0.0)  # for each byte, beside what memory takes
    return {"beta": 1 / (1 / most + own * move.bytes)} if own else {}


def _old_instructions(found: Parameters, move: _Move) -> Parameters:
    """Kernels that are written in those of Ampere do as much in a clock on later devices."""
    if _MARLIN not in move.fit.implementation.kernel or not move.multiplies:
        return {}
    was = move.own.multiplies / move.own.clock if move.own.clock else 0.0
    slower = max(was, _AMPERE) / max(was * move.multiplies, _AMPERE)
    return {"alpha": min(found["alpha"] * slower, 1.0)}


def _exponentials(found: Parameters, move: _Move) -> Parameters:
    """Units of their own do them, so that they are not sped up with multiplications, by whose time `softmax` counts
    them (FlashAttention-3, arXiv:2407.08608); kernels of earlier generations hide less of them.
    """
    if "softmax" not in found or not move.multiplies or (move.back and not move.waits):
        return {}
    reached = found["alpha"] / move.fit.parameters["alpha"]
    return {"softmax": found["softmax"] * move.multiplies * reached * move.own.exponentials / move.device.exponentials}


def _power(found: Parameters, move: _Move) -> Parameters:
    """A limit is on the clock, so that what multiplies less for each watt is slowed down less, and a sibling that
    multiplies more is slowed down more: power goes with the clock and the square of the voltage, which goes with the
    clock. So do matrix units, the L2 cache that feeds them, and starts of tiles. A part of the peak is reached
    at most; beyond that, less is added to long work. An earlier generation needs more power for as much, and kernels
    for stacked memory are others.
    """
    was, now = _density(move.own), _density(move.device)
    if not (move.family.power_limited and move.alike and was and now) or move.back:
        return {}
    needed = now / was / move.rated_clocks**2
    if needed >= 1:
        starved = generation(move.own) == generation(move.device) and not (
            has_half_rate_matrix_units(move.own) or has_half_rate_matrix_units(move.device)
        )
        return _at_clock(found, needed ** (-1 / 3)) if starved else {}
    most = _UNLIMITED if move.own.stacked == move.device.stacked else found["alpha"]
    faster = min(1 / needed, max(1.0, most / found["alpha"]))
    changes = _at_clock(found, faster)
    if "hot" in found:
        changes["hot"] = min(max((1 + found["hot"]) * needed * faster - 1, 0.0), found["hot"])
    return changes


def _at_clock(found: Parameters, faster: float) -> dict[str, float]:
    """At a clock that is so many times what it was."""
    return {
        "alpha": found["alpha"] * faster,
        "lambda": found["lambda"] * faster,
        "tau_us": found["tau_us"] / faster,
    }


def _density(device: DeviceTraits) -> float:
    """OPs that matrix units do for each joule that the device may draw. What they draw goes with the square of the
    voltage, too, which goes with the clock.
    """
    return device.multiplies * device.cores / device.power if device.power else 0.0


_Rule = Callable[[Parameters, _Move], Parameters]
_OWN: Final[tuple[_Rule, ...]] = (_cache_bandwidth, _core_bandwidth, _core_rate, _waits, _exponentials)
_RULES: Final[tuple[_Rule, ...]] = (
    _fixed_times, _hidden, _cache_bandwidth, _core_rate, _cache_halves, _old_instructions, _waits, _exponentials,
    _power,
)  # fmt: skip
