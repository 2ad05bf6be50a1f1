"""Scaling of fitted parameters to another device, with one rule for each dependency."""

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
_UNTHROTTLED_ALPHA: Final = 0.95
# Kernels in Ampere's matrix instructions (github.com/IST-DASLab/marlin has mma.m16n8k16) do no more in matrix units of
# later devices, whose peak needs instructions of their own (arXiv:2402.13499): in a clock of a core 1,100 to 1,300 OPs
# of 16 bits on A100, H100, H200 and B200 alike (profiles/*.sglang.yaml), of the 2,048 that A100 can do.
_MARLIN_KERNEL: Final = "marlin"
_AMPERE_OPS: Final = 2048.0

Parameters = Mapping[str, float]


def scaled_parameters(device: Device, fit: KernelFit) -> Parameters:
    """Returns the parameters of a fit on `device`.

    On its own device they are unchanged; under what-ifs, the rules for parameters that do not scale with the changed
    rates apply; on other devices, all rules in turn.
    """
    on_target = fit.device == device.name
    if on_target and not device.hardware.changes:
        return fit.parameters
    move = _Move(fit=fit, own=device_traits(fit.device), device=device)
    parameters = dict(fit.parameters)
    for rule in _WHAT_IF_RULES if on_target else _TRANSFER_RULES:
        parameters |= rule(parameters, move)
    return parameters


def runs_same_code(fit: KernelFit, device: Device) -> bool:
    """Whether the kernel binary runs on a device: written in the same matrix instructions, or in none."""
    return _portable(fit) or matrix_instructions(device_traits(fit.device)) == matrix_instructions(device)


def _portable(fit: KernelFit) -> bool:
    """Whether the kernel is compiled for every device, such as a Triton kernel."""
    return fit.implementation.kernel.partition(" ")[0] in FAMILIES[fit.family].portable_kernels


def host_launch_us(fit: KernelFit) -> float:
    """Host part of the start time of a kernel that only moves bytes. [us]"""
    return max(fit.parameters["start_us"] - _LAUNCH_US, 0.0)


def without_host_launch(fit: KernelFit) -> KernelFit:
    """Removes the host launch from the fit of a kernel that only moves bytes, as in a CUDA graph."""
    start = fit.parameters["start_us"] - host_launch_us(fit)
    return replace(fit, parameters={**fit.parameters, "start_us": start}, trend=None, residual=None)


def is_host_routed(fit: KernelFit, device: Device) -> bool:
    """Whether messages of a collective pass through the host on their way between devices."""
    return fit.family == "collectives" and device.hosted


@frozen(kw_only=True)
class _Move:
    """Scaling of a fit from its source device to a target device."""

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
        """Clock period, target over source; 1 if unknown."""
        return self._clocks(self.device.clock)

    @property
    def rated_clocks(self) -> float:
        """Clock period without what-ifs, which do not tell the power that another clock takes."""
        return self._clocks(self.device.rated_clock)

    def _clocks(self, clock: float) -> float:
        return self.own.clock / clock if self.alike and self.own.clock and clock else 1.0

    @property
    def multiplies(self) -> float:
        """Matrix OPs of a core per clock, target over source; 0 if unknown."""
        is_known = self.alike and self.own.multiplies and self.device.multiplies
        return self.device.multiplies / self.own.multiplies * self.clocks if is_known else 0.0

    @property
    def bytes(self) -> float:
        """Memory bytes per core and clock, target over source."""
        return self.device.bandwidth / self.own.bandwidth * self.own.cores / self.device.cores * self.clocks

    @property
    def waits(self) -> bool:
        """Whether matrix units wait for a fixed number of clocks, as in kernels not written for their generation."""
        return self.family.latency_limited or _portable(self.fit)

    @property
    def back(self) -> bool:
        """Whether the target is of an earlier generation, which has other kernels."""
        return is_earlier(self.device, self.own)


def _fixed_times(parameters: Parameters, move: _Move) -> Parameters:
    """Fixed costs scale with the clock period, except host launches and messages routed through a host."""
    if is_host_routed(move.fit, move.device):
        return {}
    times = {name: value * move.clocks for name, value in parameters.items() if name.endswith(("_us", "_ns"))}
    if not move.family.generation_dependent:
        times["start_us"] += host_launch_us(move.fit) * (1 - move.clocks)
    return times


def _cache_bandwidth(parameters: Parameters, move: _Move) -> Parameters:
    """Scales L2 bandwidth by the device files if both are of one vendor and state it; towards a later generation also
    by measured L2 reads (products on RTX 3090 do not confirm that for an earlier one). Otherwise L2 bandwidth is
    proportional to the cores within an architecture, and to the memory bandwidth across architectures with stacked
    memory and of other vendors.
    """
    if "lambda" not in parameters:
        return {}
    source, device = move.own, move.device
    was, now = source.l2_bandwidth, device.l2_bandwidth
    if not (move.alike and was and now) and is_earlier(source, device):
        was, now = _l2_reads(source), _l2_reads(device)
    if move.alike and was and now:
        return {"lambda": parameters["lambda"] * (source.bandwidth / was) / (device.bandwidth / now)}
    with_memory = generation(source) != generation(device) and source.stacked == device.stacked
    if with_memory and (device.stacked or not move.alike):
        return {}
    return {"lambda": parameters["lambda"] * (source.bandwidth / source.cores) / (device.bandwidth / device.cores)}


def _l2_reads(device: DeviceTraits) -> float:
    """Measured read rate of all cores from the L2 cache; 0 if its generation was not measured. [B/s]"""
    return 0.0 if device.stacked else _L2_READS.get(generation(device), 0.0) * device.cores * device.clock


def _core_bandwidth(parameters: Parameters, move: _Move) -> Parameters:
    """Keeps the bytes in flight per core when the memory bandwidth changes under a what-if. Kernels of other devices
    are tuned for those: fits on H100 and H200 do not follow this.
    """
    if "kappa" not in parameters:
        return {}
    was, now = move.own.bandwidth / move.own.cores, move.device.bandwidth / move.device.cores
    return {"kappa": parameters["kappa"] * was / now}


def _cache_halves(parameters: Parameters, move: _Move) -> Parameters:
    if not move.alike or not {generation(move.own), generation(move.device)} <= _HALVES_SINCE:
        return {}
    halves = (1 + move.own.stacked) / (1 + move.device.stacked)
    return {name: parameters[name] * halves for name in ("eta", "eta_x") if name in parameters}


def _latency_limits(parameters: Parameters, move: _Move) -> Parameters:
    """Keeps the clocks that matrix units wait for loads and exponentials: slower units reach more of their peak, and
    faster ones less, unless they have kernels of their own, which hide more.
    """
    if not move.waits or not move.multiplies or (move.multiplies > 1 and not runs_same_code(move.fit, move.device)):
        return {}
    return {"alpha": 1 / (1 + (1 / parameters["alpha"] - 1) * move.multiplies)}


def _hidden(parameters: Parameters, move: _Move) -> Parameters:
    """Scales the exposed time of tile prologues and epilogues by shared memory, which limits the resident tiles;
    kernels that are not written for matrix instructions need little of it.
    """
    written = move.family.rewritten_per_generation and not _portable(move.fit) and runs_same_code(move.fit, move.device)
    was, now = move.own.shared, move.device.shared
    return {"tau_us": parameters["tau_us"] * was / now} if written and move.alike and was and now else {}


def _core_rate(parameters: Parameters, move: _Move) -> Parameters:
    """Keeps the share of a kernel's time per byte that is due to its cores: they have no more bytes in flight on
    another device, and dequantize no more per clock.
    """
    if not (move.family.memory_bound and move.alike and runs_same_code(move.fit, move.device)):
        return {}
    full_beta = next(q.prior for q in move.family.parameters if q.name == "beta")
    core_share = max(1 / parameters["beta"] - 1 / full_beta, 0.0)  # for each byte, beside what memory takes
    return {"beta": 1 / (1 / full_beta + core_share * move.bytes)} if core_share else {}


def _old_instructions(parameters: Parameters, move: _Move) -> Parameters:
    """Keeps the OPs per clock of kernels in Ampere's instructions on later devices."""
    if _MARLIN_KERNEL not in move.fit.implementation.kernel or not move.multiplies:
        return {}
    was = move.own.multiplies / move.own.clock if move.own.clock else 0.0
    slower = max(was, _AMPERE_OPS) / max(was * move.multiplies, _AMPERE_OPS)
    return {"alpha": min(parameters["alpha"] * slower, 1.0)}


def _exponentials(parameters: Parameters, move: _Move) -> Parameters:
    """Keeps the time of exponentials, which special function units compute: `softmax` is in units of the time of
    multiplications (FlashAttention-3, arXiv:2407.08608). Kernels of earlier generations hide less of them.
    """
    if "softmax" not in parameters or not move.multiplies or (move.back and not move.waits):
        return {}
    reached = parameters["alpha"] / move.fit.parameters["alpha"]
    return {
        "softmax": parameters["softmax"] * move.multiplies * reached * move.own.exponentials / move.device.exponentials
    }


def _power(parameters: Parameters, move: _Move) -> Parameters:
    """A limit is on the clock, so that what multiplies less for each watt is slowed down less, and a sibling that
    multiplies more is slowed down more: power goes with the clock and the square of the voltage, which goes with the
    clock. So do matrix units, the L2 cache that feeds them, and starts of tiles. A part of the peak is reached
    at most; beyond that, less is added to long work. An earlier generation needs more power for as much, and kernels
    for stacked memory are others.
    """
    was, now = _density(move.own), _density(move.device)
    if not (move.family.power_limited and move.alike and was and now) or move.back:
        return {}
    relative_power = now / was / move.rated_clocks**2
    if relative_power >= 1:
        starved = generation(move.own) == generation(move.device) and not (
            has_half_rate_matrix_units(move.own) or has_half_rate_matrix_units(move.device)
        )
        return _at_clock(parameters, relative_power ** (-1 / 3)) if starved else {}
    max_alpha = _UNTHROTTLED_ALPHA if move.own.stacked == move.device.stacked else parameters["alpha"]
    faster = min(1 / relative_power, max(1.0, max_alpha / parameters["alpha"]))
    changes = _at_clock(parameters, faster)
    if "hot" in parameters:
        changes["hot"] = min(max((1 + parameters["hot"]) * relative_power * faster - 1, 0.0), parameters["hot"])
    return changes


def _at_clock(parameters: Parameters, faster: float) -> dict[str, float]:
    """Parameters at a clock that is `faster` times as high."""
    return {
        "alpha": parameters["alpha"] * faster,
        "lambda": parameters["lambda"] * faster,
        "tau_us": parameters["tau_us"] / faster,
    }


def _density(device: DeviceTraits) -> float:
    """Matrix OPs per joule at the power limit. Power is proportional to clock times squared voltage, which rises with
    the clock.
    """
    return device.multiplies * device.cores / device.power if device.power else 0.0


_Rule = Callable[[Parameters, _Move], Parameters]
_WHAT_IF_RULES: Final[tuple[_Rule, ...]] = (
    _cache_bandwidth,
    _core_bandwidth,
    _core_rate,
    _latency_limits,
    _exponentials,
)
_TRANSFER_RULES: Final[tuple[_Rule, ...]] = (
    _fixed_times,
    _hidden,
    _cache_bandwidth,
    _core_rate,
    _cache_halves,
    _old_instructions,
    _latency_limits,
    _exponentials,
    _power,
)
