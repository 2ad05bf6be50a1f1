"""Attention of a layer that was measured as one, projections included, and the parts of sparse attention."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from ..device import Device
from ..formats import TYPES
from .base import (
    MICROSECOND,
    Array,
    Family,
    Features,
    FittedParameter,
    Implementation,
    Parameters,
    Shapes,
    from_memory,
    smooth_max,
    uncached_fraction,
)

_NANOSECOND: Final = 1e-3 * MICROSECOND


class AttentionLayer(Family):
    """Ten to thirty launches one after another: their starts, their bytes and OPs, and time for each token and pair.

    Kernels between the products take time by token and by head, and those that score and choose keys by pair of a query
    and a key.
    """

    name = "attention_layer"
    columns = ("batch", "q_len", "kv_len", "heads", "bytes", "ops")
    optional: ClassVar = {"loop": 0.0}
    groups = ("heads",)
    names_operations = True
    parameters = (
        FittedParameter(name="alpha", prior=0.5, low=0.01, high=1, meaning="part of the peak that is reached"),
        FittedParameter(
            name="beta", prior=0.7, low=0.02, high=1, meaning="part of the memory bandwidth that is reached"
        ),
        FittedParameter(name="start_us", prior=40, low=0.5, high=5000, meaning="starts of all launches [us]"),
        FittedParameter(name="token_ns", prior=20, low=0, high=5000, linear=True, meaning="a token [ns]"),
        FittedParameter(name="head_ns", prior=1, low=0, high=500, linear=True, meaning="a head of a token [ns]"),
        FittedParameter(name="pair_ns", prior=0.01, low=0, high=10, linear=True, meaning="a query and a key [ns]"),
        FittedParameter(name="key_ns", prior=0.1, low=0, high=50, linear=True, meaning="a key of a sequence [ns]"),
        FittedParameter(
            name="lambda", prior=2.5, low=0.8, high=12, meaning="bandwidth of the L2 cache / of the memory"
        ),
        FittedParameter(name="eta", prior=0.8, low=0.1, high=3, meaning="part of the L2 cache that is of use"),
        FittedParameter(name="sharp", prior=2, low=1, high=12, meaning="power of the smooth maximum"),
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:  # noqa: ARG002
        batch, q_len, kv_len, heads, moved, ops = (np.asarray(shapes[name], dtype=float) for name in self.columns)
        tokens = batch * q_len
        is_repeated = np.asarray(shapes["loop"]) > 0
        return {
            "moved": moved / device.bandwidth,
            "reuse": np.where(is_repeated, moved, np.inf),
            "size": device.l2,
            "compute": np.maximum(ops / device.peak(_arithmetic(implementation)), 1e-12),
            "tokens": tokens,
            "heads": tokens * heads,
            "pairs": tokens * (kv_len - (q_len - 1) / 2),
            "keys": batch * kv_len,
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        f = features
        part = uncached_fraction(f["reuse"], f["size"], p["eta"])
        moving = f["moved"] / p["beta"] * (part + (1 - part) / p["lambda"])
        between = p["token_ns"] * f["tokens"] + p["head_ns"] * f["heads"]
        choosing = p["pair_ns"] * f["pairs"] + p["key_ns"] * f["keys"]
        start = p["start_us"] * MICROSECOND
        return np.asarray(
            start + smooth_max(p["sharp"], f["compute"] / p["alpha"], moving) + (between + choosing) * _NANOSECOND
        )

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        moved, ops = (np.asarray(shapes[name], dtype=float) for name in ("bytes", "ops"))
        moved = from_memory(moved, np.asarray(shapes["loop"]), device.l2)
        return np.asarray(np.maximum(ops / device.limit(_arithmetic(implementation)), moved / device.bandwidth))

    def is_common(self, implementation: Implementation) -> bool:  # noqa: ARG002
        return False


def _arithmetic(implementation: Implementation) -> str:
    """The narrowest type that a layer multiplies, of which its rate is an upper limit for all of its products."""
    types = [TYPES[name].arithmetic for name in (implementation.dtype, implementation.kv_dtype) if name in TYPES]
    return next((name for name in ("fp4", "fp8") if name in types), "bf16")
