"""Tokens sent to the devices of their experts, and results sent back."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

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

_GIGABYTE: Final = 1e9
_TYPICAL_HIDDEN: Final = 7168.0


class ExpertAllToAll(Family):
    """The larger of the times of links, of the cores that copy, and of a warp group that serves one expert.

    Kernels for few tokens (low latency) send a copy to each expert; others one to each device that needs it.
    """

    name = "all_to_all"
    columns = ("num_gpus", "tokens", "hidden", "topk", "experts")
    optional: ClassVar = {"nodes": 1.0, "sms": 20.0}
    groups = ("hidden", "topk", "experts", "num_gpus")
    names_operations = True
    multiplies_matrices = False
    parameters = (
        FittedParameter(name="start_us", prior=15, low=1, high=200, meaning="launch and handshake [us]"),
        FittedParameter(name="choice_us", prior=0.5, low=0, high=10, linear=True, meaning="a choice of a token [us]"),
        FittedParameter(name="node_us", prior=5, low=0.05, high=80, meaning="a doubling of nodes [us]"),
        FittedParameter(name="beta", prior=0.6, low=0.02, high=1, meaning="part of the link that is reached"),
        FittedParameter(name="network", prior=40, low=2, high=200, meaning="bytes between nodes [GB/s]"),
        FittedParameter(name="core", prior=20, low=0.5, high=500, meaning="bytes that a core copies [GB/s]"),
        FittedParameter(name="expert_us", prior=0.3, low=0.001, high=10, meaning="a token for one expert [us]"),
        FittedParameter(name="sharp", prior=2, low=1, high=12, meaning="power of the smooth maximum"),
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:  # noqa: ARG002
        tokens, topk, experts = (np.asarray(shapes[name], dtype=float) for name in ("tokens", "topk", "experts"))
        row = _row_bytes(shapes, implementation)
        copies, remote = _copies(shapes, implementation)
        across = np.where(np.asarray(shapes["nodes"]) > 1, _remote_nodes(shapes), 0.0)
        cores = np.full_like(tokens, device.cores) if _is_direct(implementation) else np.asarray(shapes["sms"])
        return {
            "linked": tokens * remote * row / _link(device),
            "across": tokens * across * row / _GIGABYTE,
            "copied": tokens * copies * row / cores / _GIGABYTE,
            "served": tokens * topk / experts * row / _TYPICAL_HIDDEN,
            "choices": topk,
            "doublings": np.log2(np.maximum(np.asarray(shapes["nodes"], dtype=float), 1)),
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        f = features
        return np.asarray(
            smooth_max(
                p["sharp"],
                self.fixed_seconds(p, f),
                f["linked"] / p["beta"],
                f["copied"] / p["core"],
                f["across"] / p["network"],
                f["served"] * (p["expert_us"] * MICROSECOND),
            )
        )

    def fixed_seconds(self, p: Parameters, features: Features) -> Array:
        start_us = p["start_us"] + p["choice_us"] * features["choices"] + p["node_us"] * features["doublings"]
        return np.asarray(start_us * MICROSECOND)

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        _, remote = _copies(shapes, implementation)
        return np.asarray(shapes["tokens"] * remote * _row_bytes(shapes, implementation) / _link(device))

    def is_common(self, implementation: Implementation) -> bool:  # noqa: ARG002
        return False


def _is_direct(implementation: Implementation) -> bool:
    return implementation.kernel.startswith("deepep_low_latency")


def _row_bytes(shapes: Shapes, implementation: Implementation) -> Array:
    """Bytes of a token on its way: fp8 with a scale for each 128 elements and its number, or 16 bits. [B]"""
    hidden = np.asarray(shapes["hidden"], dtype=float)
    return np.asarray(hidden * (1 + 1 / 32) + 16 if implementation.dtype == "fp8" else 2 * hidden)


def _copies(shapes: Shapes, implementation: Implementation) -> tuple[Array, Array]:
    """Mean copies of a token that a device sends, and those that leave it."""
    devices, topk, experts = (np.asarray(shapes[name], dtype=float) for name in ("num_gpus", "topk", "experts"))
    copies = topk if _is_direct(implementation) else devices * (1 - _missed(experts, experts / devices, topk))
    return copies, copies * (1 - 1 / devices)


def _remote_nodes(shapes: Shapes) -> Array:
    """Mean number of other nodes that a token is sent to."""
    nodes, topk, experts = (np.asarray(shapes[name], dtype=float) for name in ("nodes", "topk", "experts"))
    return np.asarray((nodes - 1) * (1 - _missed(experts, experts / nodes, topk)))


def _missed(experts: Array, part: Array, topk: Array) -> Array:
    """Probability that none of `topk` different experts is among `part` of all."""
    return np.asarray(np.clip(1 - part / np.maximum(experts - (topk - 1) / 2, 1), 0, 1) ** topk)


def _link(device: Device) -> float:
    return device.link or np.nan
