"""Collectives within a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np

from ...errors import InputError
from ...operators.collectives import SCALE_UP
from ..device import Device
from .base import (
    MICROSECOND,
    Array,
    Family,
    Features,
    FittedParameter,
    Implementation,
    Parameters,
    Shapes,
    smooth_max,
)

# What switches add (ncclNvlsSupported of NCCL's src/include/device.h, of the types that rows have).
_SWITCH_TYPES: Final = ("fp16", "bf16", "fp32")
_BUFFER_SHARES: Final[Mapping[str, float]] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1}
_POINT_TO_POINT: Final = "send_recv"  # from one device to another, which keeps nothing


class Collectives(Family):
    """Latency plus bytes over links, for the fastest of two or more protocols.

    variants  rings of NCCL with a protocol for short messages (LL), or kernels that read every peer's message at once.
              "between": there is a third protocol between the two, such as NCCL's for lines of 128 bytes (LL128), or a
              library's own kernel in two steps, before it leaves long messages to NCCL. "switched": switches add up
              all-reduces where they can (NVLS of NCCL): a device sends its whole message, and its part of the sum
    """

    name = "collectives"
    columns = ("num_gpus", "bytes")
    groups = ("num_gpus",)
    library_independent = True
    names_operations = True
    multiplies_matrices = False
    stable_tiling = True
    optional: ClassVar = {}
    variants = ("ring", "peers", "ring between", "ring switched", "ring between switched")
    parameters = (
        FittedParameter(name="start_us", prior=5, low=0.5, high=120, meaning="launch [us]"),
        FittedParameter(name="hop_us", prior=1.6, low=0.01, high=60, meaning="each further device [us]"),
        FittedParameter(
            name="beta",
            prior=0.7,
            low=0.02,
            high=2,
            meaning="part of the link that is reached; above 1 where switches add",
        ),
        FittedParameter(
            name="short", prior=0.35, low=0.02, high=1, meaning="of that, by the protocol of short messages"
        ),
        FittedParameter(name="long_us", prior=15, low=0.1, high=200, meaning="further start of the other [us]"),
        FittedParameter(
            name="between", prior=0.7, low=0.05, high=1, variant_word="between", meaning="of that, by the one between"
        ),
        FittedParameter(
            name="between_us", prior=4, low=0.1, high=100, variant_word="between", meaning="its further start [us]"
        ),
        FittedParameter(
            name="switched",
            prior=0.65,
            low=0.05,
            high=1,
            variant_word="switched",
            meaning="part of the link that is reached where switches add",
        ),
        FittedParameter(
            name="switched_us", prior=60, low=1, high=400, variant_word="switched", meaning="launch where they do [us]"
        ),
        FittedParameter(
            name="own",
            prior=0.3,
            low=0,
            high=1.5,
            default=0,
            meaning="time of a device's own share, which it reads, adds up and writes / of one sent",
            linear=True,
        ),
        FittedParameter(
            name="crowd",
            prior=1,
            low=0,
            high=3,
            meaning="power of the number of devices by which a host's link slows down beyond two",
            linear=True,
        ),
        FittedParameter(name="sharp", prior=1.3, low=1, high=6, meaning="power of the smooth maximum"),
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:
        devices, share = np.asarray(shapes["num_gpus"], dtype=float), _share(shapes, implementation)
        sent = share * shapes["bytes"] / _link(device)
        has_own_share = not device.hosted and not implementation.kernel.endswith(_POINT_TO_POINT)
        own_share = shapes["bytes"] / devices / _link(device) if has_own_share else np.zeros_like(sent)
        crowd = np.maximum(devices / 2, 1) if device.hosted else np.ones_like(devices)
        direct = (devices - 1) * shapes["bytes"] / _link(device) if variant == "peers" else None
        ways = variant.split()
        added = (1 + 1 / devices) * shapes["bytes"] / _link(device)
        return {
            "hops": devices - 1,
            "sent": sent,
            "own": own_share,
            "direct": direct,
            "crowd": crowd,
            "between": "between" in ways,
            "added": added if "switched" in ways and _switches_reduce(device, implementation) else None,
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        contention = features["crowd"] ** p["crowd"] / p["beta"]
        start = (p["start_us"] + p["hop_us"] * features["hops"]) * MICROSECOND
        sent = features["sent"] + p["own"] * features["own"]
        direct = sent if features["direct"] is None else features["direct"]
        short_s = smooth_max(p["sharp"], start, direct * contention / p["short"])
        long_s = smooth_max(p["sharp"], start + p["long_us"] * MICROSECOND, sent * contention)
        time_s = np.minimum(short_s, long_s)
        if features["between"]:
            start = start + p["between_us"] * MICROSECOND
            time_s = np.minimum(time_s, smooth_max(p["sharp"], start, sent * contention / p["between"]))
        if features["added"] is not None:
            start = np.full_like(time_s, p["switched_us"] * MICROSECOND)
            time_s = np.minimum(time_s, smooth_max(p["sharp"], start, features["added"] / p["switched"]))
        return np.asarray(time_s, dtype=float)

    def fixed_seconds(self, p: Parameters, features: Features) -> Array | float:
        return np.asarray((p["start_us"] + p["hop_us"] * features["hops"]) * MICROSECOND, dtype=float)

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        share = _share(shapes, implementation)
        reduced = np.where(share > 1, share / 2, share)  # switches that add halve what is sent
        return np.asarray(reduced * shapes["bytes"] / _link(device))


def _share(shapes: Shapes, implementation: Implementation) -> Array:
    """The part of the full buffer that a device sends."""
    operation = implementation.operation
    devices = np.asarray(shapes["num_gpus"], dtype=float)
    if operation == _POINT_TO_POINT:
        return np.ones_like(devices)
    if operation not in _BUFFER_SHARES:
        raise InputError(f"op must be one of {_POINT_TO_POINT}, {', '.join(_BUFFER_SHARES)}; got {operation!r}")
    return np.asarray(_BUFFER_SHARES[operation] * (devices - 1) / devices)


def _switches_reduce(device: Device, implementation: Implementation) -> bool:
    """Whether switches can reduce messages (NVLS)."""
    able = not device.hosted and any(fact.key == f"{SCALE_UP}.in_network" for fact in device.hardware.facts)
    return able and implementation.kernel.endswith("all_reduce") and implementation.dtype in _SWITCH_TYPES


def _link(device: Device) -> float:
    if not device.link:
        raise InputError(f"{device.name} has no scale_up.bandwidth: its file does not say how devices are linked")
    return device.link
