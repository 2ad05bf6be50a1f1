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
    scaling = _Scaling(fit=fit, source=device_traits(fit.device), target=device)
    parameters = dict(fit.parameters)
    for rule in _WHAT_IF_RULES if on_target else _TRANSFER_RULES:
        parameters |= rule(parameters, scaling)
    return parameters


def runs_same_code(fit: KernelFit, device: Device) -> bool:
    """Whether the kernel binary runs on a device: written in the same matrix instructions, or in none."""
    return _is_portable(fit) or matrix_instructions(device_traits(fit.device)) == matrix_instructions(device)


def _is_portable(fit: KernelFit) -> bool:
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
class _Scaling:
    """Scaling of a fit from its source device to a target device."""

    fit: KernelFit
    source: DeviceTraits
    target: Device

    @property
    def family(self) -> Family:
        return FAMILIES[self.fit.family]

    @property
    def same_vendor(self) -> bool:
        return self.source.vendor == self.target.vendor

    @property
    def clock_period(self) -> float:
        """Clock period, target over source; 1 if unknown."""
        return self._period(self.target.clock)

    @property
    def rated_clock_period(self) -> float:
        """Clock period without what-ifs, which do not tell the power that another clock takes."""
        return self._period(self.target.rated_clock)

    def _period(self, clock: float) -> float:
        return self.source.clock / clock if self.same_vendor and self.source.clock and clock else 1.0

    @property
    def matrix_ops(self) -> float:
        """Matrix OPs of a core per clock, target over source; 0 if unknown."""
        is_known = self.same_vendor and self.source.multiplies and self.target.multiplies
        return self.target.multiplies / self.source.multiplies * self.clock_period if is_known else 0.0

    @property
    def memory_bytes(self) -> float:
        """Memory bytes per core and clock, target over source."""
        return self.target.bandwidth / self.source.bandwidth * self.source.cores / self.target.cores * self.clock_period

    @property
    def latency_limited(self) -> bool:
        """Whether matrix units wait for a fixed number of clocks, as in kernels not written for their generation."""
        return self.family.latency_limited or _is_portable(self.fit)

    @property
    def to_earlier_generation(self) -> bool:
        """Whether the target is of an earlier generation, which has other kernels."""
        return is_earlier(self.target, self.source)


def _fixed_times(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Fixed costs scale with the clock period, except host launches and messages routed through a host."""
    if is_host_routed(scaling.fit, scaling.target):
        return {}
    times = {name: value * scaling.clock_period for name, value in parameters.items() if name.endswith(("_us", "_ns"))}
    if not scaling.family.generation_dependent:
        times["start_us"] += host_launch_us(scaling.fit) * (1 - scaling.clock_period)
    return times


def _cache_bandwidth(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Scales L2 bandwidth by the device files if both are of one vendor and state it; towards a later generation also
    by measured L2 reads (products on RTX 3090 do not confirm that for an earlier one). Otherwise L2 bandwidth is
    proportional to the cores within an architecture, and to the memory bandwidth across architectures with stacked
    memory and of other vendors; for kernels that only move bytes, half of which are written, across all architectures.
    """
    if "lambda" not in parameters:
        return {}
    source, device = scaling.source, scaling.target
    was, now = source.l2_bandwidth, device.l2_bandwidth
    if not (scaling.same_vendor and was and now) and is_earlier(source, device):
        was, now = _l2_reads(source), _l2_reads(device)
    if scaling.same_vendor and was and now:
        return {"lambda": parameters["lambda"] * (source.bandwidth / was) / (device.bandwidth / now)}
    if generation(source) != generation(device) and (
        not scaling.family.multiplies_matrices
        or (source.stacked == device.stacked and (device.stacked or not scaling.same_vendor))
    ):
        return {}
    return {"lambda": parameters["lambda"] * (source.bandwidth / source.cores) / (device.bandwidth / device.cores)}


def _l2_reads(device: DeviceTraits) -> float:
    """Measured read rate of all cores from the L2 cache; 0 if its generation was not measured. [B/s]"""
    return 0.0 if device.stacked else _L2_READS.get(generation(device), 0.0) * device.cores * device.clock


def _core_bandwidth(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Keeps the bytes in flight per core when the memory bandwidth changes under a what-if. Kernels of other devices
    are tuned for those: fits on H100 and H200 do not follow this.
    """
    if "kappa" not in parameters:
        return {}
    was, now = scaling.source.bandwidth / scaling.source.cores, scaling.target.bandwidth / scaling.target.cores
    return {"kappa": parameters["kappa"] * was / now}


def _cache_halves(parameters: Parameters, scaling: _Scaling) -> Parameters:
    if not scaling.same_vendor or not {generation(scaling.source), generation(scaling.target)} <= _HALVES_SINCE:
        return {}
    halves = (1 + scaling.source.stacked) / (1 + scaling.target.stacked)
    return {name: parameters[name] * halves for name in ("eta", "eta_x") if name in parameters}


def _latency_limits(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Keeps the clocks that matrix units wait for loads and exponentials: slower units reach more of their peak, and
    faster ones less, unless they have kernels of their own, which hide more.
    """
    if (
        not scaling.latency_limited
        or not scaling.matrix_ops
        or (scaling.matrix_ops > 1 and not runs_same_code(scaling.fit, scaling.target))
    ):
        return {}
    return {"alpha": 1 / (1 + (1 / parameters["alpha"] - 1) * scaling.matrix_ops)}


def _tile_overheads(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Scales the exposed time of tile prologues and epilogues by shared memory, which limits the resident tiles;
    kernels that are not written for matrix instructions need little of it.
    """
    written = (
        scaling.family.rewritten_per_generation
        and not _is_portable(scaling.fit)
        and runs_same_code(scaling.fit, scaling.target)
    )
    was, now = scaling.source.shared, scaling.target.shared
    return {"tau_us": parameters["tau_us"] * was / now} if written and scaling.same_vendor and was and now else {}


def _core_rate(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Keeps the share of a kernel's time per byte that is due to its cores: they have no more bytes in flight on
    another device, and dequantize no more per clock.
    """
    if not (scaling.family.memory_bound and scaling.same_vendor and runs_same_code(scaling.fit, scaling.target)):
        return {}
    full_beta = next(q.prior for q in scaling.family.parameters if q.name == "beta")
    core_share = max(1 / parameters["beta"] - 1 / full_beta, 0.0)  # per byte, beyond the time of memory
    return {"beta": 1 / (1 / full_beta + core_share * scaling.memory_bytes)} if core_share else {}


def _ampere_instructions(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Keeps the OPs per clock of kernels in Ampere's instructions on later devices."""
    if _MARLIN_KERNEL not in scaling.fit.implementation.kernel or not scaling.matrix_ops:
        return {}
    was = scaling.source.multiplies / scaling.source.clock if scaling.source.clock else 0.0
    slower = max(was, _AMPERE_OPS) / max(was * scaling.matrix_ops, _AMPERE_OPS)
    return {"alpha": min(parameters["alpha"] * slower, 1.0)}


def _exponentials(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Keeps the time of exponentials, which special function units compute: `softmax` is in units of the time of
    multiplications (FlashAttention-3, arXiv:2407.08608). Kernels of earlier generations hide less of them.
    """
    if (
        "softmax" not in parameters
        or not scaling.matrix_ops
        or (scaling.to_earlier_generation and not scaling.latency_limited)
    ):
        return {}
    reached = parameters["alpha"] / scaling.fit.parameters["alpha"]
    return {
        "softmax": parameters["softmax"]
        * scaling.matrix_ops
        * reached
        * scaling.source.exponentials
        / scaling.target.exponentials
    }


def _power(parameters: Parameters, scaling: _Scaling) -> Parameters:
    """Scales rates to the clock that the power limit allows. Power is proportional to clock times squared voltage,
    which rises with the clock, so kernels with fewer OPs per joule run at a higher clock, and a sibling with more
    matrix OPs per joule at a lower one. Matrix units, the L2 cache that feeds them and tile starts follow this clock. A
    gain ends at an upper limit of alpha; beyond it, long kernels are throttled less. Earlier generations are excluded,
    as they need more power for the same work, and kernels for stacked memory differ.
    """
    was, now = _ops_per_joule(scaling.source), _ops_per_joule(scaling.target)
    if not (scaling.family.power_limited and scaling.same_vendor and was and now) or scaling.to_earlier_generation:
        return {}
    relative_power = now / was / scaling.rated_clock_period**2
    if relative_power >= 1:
        starved = generation(scaling.source) == generation(scaling.target) and not (
            has_half_rate_matrix_units(scaling.source) or has_half_rate_matrix_units(scaling.target)
        )
        return _at_clock(parameters, relative_power ** (-1 / 3)) if starved else {}
    max_alpha = _UNTHROTTLED_ALPHA if scaling.source.stacked == scaling.target.stacked else parameters["alpha"]
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


def _ops_per_joule(device: DeviceTraits) -> float:
    """Matrix OPs per joule at the power limit. Power is proportional to clock times squared voltage, which rises with
    the clock.
    """
    return device.multiplies * device.cores / device.power if device.power else 0.0


_Rule = Callable[[Parameters, _Scaling], Parameters]
_WHAT_IF_RULES: Final[tuple[_Rule, ...]] = (
    _cache_bandwidth,
    _core_bandwidth,
    _core_rate,
    _latency_limits,
    _exponentials,
)
_TRANSFER_RULES: Final[tuple[_Rule, ...]] = (
    _fixed_times,
    _tile_overheads,
    _cache_bandwidth,
    _core_rate,
    _cache_halves,
    _ampere_instructions,
    _latency_limits,
    _exponentials,
    _power,
)
