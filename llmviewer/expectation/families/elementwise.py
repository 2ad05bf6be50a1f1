"""Kernels that move bytes and compute little: norms, activations, additions, quantization, state updates."""

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
    from_memory,
    smooth_max,
    uncached_fraction,
)

_UNCOMMON: Final = ("conv_", "mhc_", "quantize_")  # beginnings of operations that few models have
_MIN_LONG_ROW: Final = 1 << 15  # elements of a row from which on its core's time for it can be told from a start


class ElementwiseFamily(Family):
    """The time of the bytes, from memory or the cache, plus a start for every row. What is joined to another launch has
    no start of its own.

    variants  "long": nor is it less than a core takes for a whole row
    """

    name = "elementwise"
    columns = ("rows", "bytes")
    optional: ClassVar = {"cols": 1.0, "joined": 0.0}
    groups = ("cols",)
    variants = ("", "long")
    library_independent = True
    names_operations = True
    multiplies_matrices = False
    generation_dependent = False  # their launches are the host's, and bandwidths of a kind of memory are reached alike
    parameters = (
        FittedParameter(
            name="beta", prior=0.75, low=0.03, high=1, meaning="part of the memory bandwidth that is reached"
        ),
        FittedParameter(name="start_us", prior=3, low=0.3, high=120, meaning="launch and ramp [us]"),
        FittedParameter(
            name="lambda", prior=2.5, low=0.8, high=12, meaning="bandwidth of the L2 cache / of the memory"
        ),
        FittedParameter(name="row_ns", prior=0.05, low=0.0005, high=60, meaning="start of a row [ns]"),
        FittedParameter(name="eta", prior=0.8, low=0.15, high=3, meaning="part of the L2 cache that is of use"),
        FittedParameter(name="sharp", prior=2, low=1, high=20, meaning="power of the smooth maximum"),
        FittedParameter(
            name="element_ns", prior=0.1, low=0.001, high=5, meaning="an element of a row [ns]", variant_word="long"
        ),
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:  # noqa: ARG002
        has_long_rows = variant == "long"
        moved = np.asarray(shapes["bytes"], dtype=float)
        is_repeated = shapes.get("loop", np.zeros_like(moved)) > 0
        return {
            "moved": moved / device.bandwidth,
            "rows": np.asarray(shapes["rows"], dtype=float),
            "row": np.asarray(shapes["cols"], dtype=float) if has_long_rows else None,
            "reuse": np.where(is_repeated, moved, np.inf),
            "size": device.l2,
            "started": 1.0 - np.asarray(shapes.get("joined", np.zeros_like(moved)), dtype=float),
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        part = uncached_fraction(features["reuse"], features["size"], p["eta"])
        work = features["moved"] / p["beta"] * (part + (1 - part) / p["lambda"])
        work = work + features["rows"] * (p["row_ns"] * 1e-3 * MICROSECOND)
        start = p["start_us"] * MICROSECOND * features["started"]
        if features["row"] is not None:
            start = start + features["row"] * (p["element_ns"] * 1e-3 * MICROSECOND)
        return smooth_max(p["sharp"], work, start)

    def fixed_seconds(self, p: Parameters, features: Features) -> Array | float:
        return p["start_us"] * MICROSECOND * np.asarray(features["started"])

    def covers_variant(self, variant: str, shapes: Shapes) -> bool:
        return variant != "long" or bool(np.any(np.asarray(shapes["cols"]) >= _MIN_LONG_ROW))

    def is_common(self, implementation: Implementation) -> bool:
        return not implementation.operation.startswith(_UNCOMMON)

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:  # noqa: ARG002
        moved = np.asarray(shapes["bytes"], dtype=float)
        return from_memory(moved, shapes.get("loop", np.zeros_like(moved)), device.l2) / device.bandwidth
