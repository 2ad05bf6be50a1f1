"""Linear layers: y[M, N] = x[M, K] W[N, K]^T."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from ...resource import vector
from ..device import Device
from ..formats import kernel_type
from ._family import (
    MICROSECOND,
    Array,
    Family,
    Features,
    Parameter,
    Parameters,
    Shapes,
    Stack,
    best,
    cold,
    from_memory,
    smooth_max,
    take,
)

# Tiles that libraries of matrix multiplication have in common, and parts that K is cut into.
_TILES: Final = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (128, 192), (128, 256), (256, 128),
                 (256, 256))  # fmt: skip
_SPLITS: Final = (1, 2, 4, 8)
_LAYOUTS: Final = np.array([(*tile, split) for tile in _TILES for split in _SPLITS], dtype=np.float32).T[:, None, :]
# Tiles of kernels that are chosen by the rows alone: up to how many, and which. As vLLM's and SGLang's CUTLASS kernels
# of fp8 are on Hopper (scaled_mm_sm90_fp8_dispatch), and where tensor cores take fewer rows (sm89).
_BY_ROWS: Final = {
    "fixed": ((64, 64, 64), (128, 64, 128), (np.inf, 128, 128)),
    "narrow": ((16, 16, 64), (64, 64, 64), (128, 64, 128), (np.inf, 128, 128)),
}
_CHOICE: Final = 4  # power of the smooth maximum by which a tile is chosen
# Rows up to which TensorRT-LLM multiplies on vector units (SMALL_M_FAST_PATH of its weight-only plugin), and columns of
# a block of threads there.
_FEW_ROWS: Final = 4
_GEMV_COLUMNS: Final = 8


class Gemm(Family):
    """A tile of the output and a part of K go to a core; the layout taken is the fastest.

    variants  persistent: cores are kept busy whatever the number of tiles; waves: they go in rounds; gemv: up to four
              rows have a kernel of their own, in which vector units multiply what streams by; fixed: the number of
              rows decides the tile, and K is not cut; narrow: so too, with tiles of 16 rows for as few
    """

    name = "gemm"
    columns = ("M", "N", "K")
    optional: ClassVar = {"loop": 0.0, "private": 0.0, "batch": 1.0}
    groups = ("N", "K")
    variants = ("persistent", "waves", "persistent gemv", "waves gemv", "waves fixed", "persistent narrow")
    parameters = (
        Parameter(name="alpha", usual=0.75, low=0.05, high=1, meaning="part of the peak that is reached"),
        Parameter(name="beta", usual=0.8, low=0.1, high=1, meaning="part of the memory bandwidth that is reached"),
        Parameter(name="start_us", usual=2.7, low=0.3, high=60, meaning="launch and first tile [us]"),
        Parameter(name="sharp", usual=3.4, low=1, high=12, meaning="power of the smooth maximum"),
        Parameter(name="kappa", usual=1.1, low=0.3, high=30, meaning="of the L2 path that one core can use, x cores"),
        Parameter(name="lambda", usual=3.5, low=0.7, high=15, meaning="bandwidth of the L2 cache / of the memory"),
        Parameter(name="split_us", usual=2.5, low=0.3, high=100, meaning="adding up parts of K [us]"),
        Parameter(name="omega", usual=1.4, low=1, high=4, meaning="cost of a byte written / of one read"),
        Parameter(name="eta", usual=0.5, low=0.15, high=2, meaning="part of the L2 cache that is of use"),
        Parameter(name="tau_us", usual=0.3, low=0.01, high=8, meaning="start and end of a tile [us]"),
        Parameter(name="round", usual=0.4, low=0, high=1, meaning="whole waves rather than parts", linear=True),
        Parameter(name="quantize_us", usual=3, low=0.05, high=60, meaning="launch of the quantization before [us]"),
        Parameter(name="passes", usual=1.5, low=0.1, high=12, meaning="quantization, in times its bytes need"),
        Parameter(name="gemv_us", usual=5, low=0.3, high=60, meaning="launch and first bytes [us]", way="gemv"),
        Parameter(name="gemv_alpha", usual=0.7, low=0.02, high=8, meaning="of the fp32 vector peak", way="gemv"),
        Parameter(name="gemv_beta", usual=0.85, low=0.1, high=1, meaning="of the memory bandwidth", way="gemv"),
        Parameter(name="gemv_step_ns", usual=0.4, low=0.001, high=5, meaning="an element of K [ns]", way="gemv"),
        Parameter(name="gemv_tau_us", usual=0.1, low=0.001, high=5, meaning="start and end of blocks [us]", way="gemv"),
    )

    def features(self, shapes: Shapes, device: Device, stack: Stack, variant: str) -> Features:
        kind = kernel_type(stack.dtype)
        m, n, k = (np.asarray(shapes[c], dtype=np.float32)[:, None] for c in self.columns)
        batch = np.asarray(shapes["batch"], dtype=np.float32)[:, None]
        tile_m, tile_n, split = _LAYOUTS
        tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n) * split * batch
        part = 64 * np.ceil(k / (64 * split))
        weights, inputs, written = _bytes(shapes, kind.weight, kind.activation)
        lasting, reuse = _reuse(shapes, weights, inputs + written)
        parted = np.where(split > 1, 8 * split * m * n * batch, 0)
        way, _, word = (variant or self.variants[0]).partition(" ")
        return {
            "ops": (2 * m * n * k * batch)[:, 0].astype(float),
            "tiles": tiles / device.cores,
            "tile_ops": 2 * tile_m * tile_n * part * device.cores / device.peak(kind.arithmetic),
            "l2": (tiles * part * (tile_m * kind.activation + tile_n * kind.weight) + parted) / device.bandwidth,
            "split": split > 1,
            "weights": weights / device.bandwidth,
            "inputs": inputs / device.bandwidth,
            "written": written / device.bandwidth,
            "lasting": lasting,
            "reuse": reuse,
            "ideal": ((2 * m * n * k * batch) / device.peak(kind.arithmetic)).astype(np.float32),
            "quantized": (batch * m * k)[:, 0] * (2 + kind.activation) / device.bandwidth if kind.quantizes else None,
            "cache": device.l2,
            "waves": way == "waves",
            "gemv": _gemv(shapes, device) if word == "gemv" else None,
            "barred": _barred(m[:, 0], word) if word in _BY_ROWS else np.float32(0),
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        f = features
        tiles = f["tiles"]
        moved = f["weights"] * cold(f["lasting"], f["cache"], p["eta"]) + (
            f["inputs"] + p["omega"] * f["written"]
        ) * cold(f["reuse"], f["cache"], p["eta"])
        memory = (moved / p["beta"]).astype(np.float32)[:, None]
        if f["waves"]:
            rounds = p["round"] * np.ceil(tiles) + (1 - p["round"]) * np.maximum(tiles, 1)
            compute = rounds * (f["tile_ops"] / p["alpha"] + p["tau_us"] * MICROSECOND)
        else:
            compute = f["ideal"] / p["alpha"] + np.maximum(tiles, 1) * (p["tau_us"] * MICROSECOND)
        wide = np.minimum(1, p["kappa"] * tiles)
        l2 = (f["l2"] + (p["omega"] * f["written"]).astype(np.float32)[:, None]) / (p["lambda"] * wide)
        extra = f["split"] * np.float32(p["split_us"] * MICROSECOND)
        squares = compute * compute, memory * memory, l2 * l2
        rough = np.sqrt(np.sqrt(sum(s * s for s in squares))) + extra
        place = best(rough + f["barred"])
        terms = [np.maximum(take(term, place).astype(float), 1e-12) for term in (compute, memory, l2)]
        time = smooth_max(p["sharp"], *terms) + take(extra, place)
        time = time + p["start_us"] * MICROSECOND
        if f["gemv"] is not None:
            few, vectors, steps, blocks = f["gemv"].T
            steps = steps * p["gemv_step_ns"] * 1e-3 * MICROSECOND
            terms = [vectors / p["gemv_alpha"], moved / p["gemv_beta"], steps]
            own = (p["gemv_us"] + p["gemv_tau_us"] * blocks) * MICROSECOND + smooth_max(p["sharp"], *terms)
            time = np.where(few, own, time)
        if f["quantized"] is not None:
            time = time + p["quantize_us"] * MICROSECOND + p["passes"] * f["quantized"]
        return np.asarray(time, dtype=float)

    def elsewhere(self, p: Parameters, features: Features) -> Array:
        """Of few rows no more than as tiles: what vector units reach of their peak differs by generation."""
        found = self.seconds(p, features)
        tiled = found if features["gemv"] is None else self.seconds(p, {**features, "gemv": None})
        return np.asarray(np.minimum(found, tiled))

    def fixed(self, p: Parameters, features: Features) -> Array | float:
        start: Array | float = p["start_us"] + p["tau_us"]
        if features["gemv"] is not None:
            start = np.where(features["gemv"][:, 0], p["gemv_us"] + p["gemv_tau_us"], start)
        quantizes = features["quantized"] is not None
        return (start + quantizes * p["quantize_us"]) * MICROSECOND

    def bound(self, shapes: Shapes, device: Device, stack: Stack) -> Array:
        kind = kernel_type(stack.dtype)
        weights, inputs, written = _bytes(shapes, kind.weight, kind.activation)
        ops = 2.0 * shapes["M"] * shapes["N"] * shapes["K"] * shapes["batch"]
        sets = np.maximum(shapes["loop"], 1)
        around = sets * weights + np.where(shapes["private"] > 0, sets, 1) * (inputs + written)
        around = np.where(shapes["loop"] > 0, around, weights + inputs + written)
        moved = from_memory(around, shapes["loop"], device.l2) / sets
        return np.asarray(np.maximum(ops / device.peak(kind.arithmetic), moved / device.bandwidth))

    def kept(self, shapes: Shapes) -> Array:
        return np.asarray((shapes["N"] >= 256) & (shapes["K"] >= 256))


def _bytes(shapes: Shapes, weight: float, activation: float) -> tuple[Array, Array, Array]:
    m, n, k, batch = (np.asarray(shapes[c], dtype=float) for c in ("M", "N", "K", "batch"))
    return batch * n * k * weight, batch * m * k * activation, 2.0 * batch * m * n


def _barred(rows: Array, word: str) -> Array:
    """Infinite for layouts that the rows do not have."""
    most, *tile = np.array(_BY_ROWS[word]).T
    wanted_m, wanted_n = (sizes[np.searchsorted(most, rows)][:, None] for sizes in tile)
    tile_m, tile_n, split = _LAYOUTS
    return np.where((tile_m == wanted_m) & (tile_n == wanted_n) & (split == 1), 0, np.inf).astype(np.float32)


def _gemv(shapes: Shapes, device: Device) -> Array:
    """Whether rows are few; what vector units take at their peak [s]; elements of K; blocks of each core."""
    m, n, k, batch = (np.asarray(shapes[c], dtype=float) for c in ("M", "N", "K", "batch"))
    vectors = 2 * m * n * k * batch / device.hardware.rates[vector("fp32")]
    return np.stack([m <= _FEW_ROWS, vectors, k, np.ceil(n / _GEMV_COLUMNS) * batch / device.cores], axis=1)


def _reuse(shapes: Shapes, weights: Array, activations: Array) -> tuple[Array, Array]:
    """Bytes touched until a weight, and until an activation, is used again by the same loop; inf without one."""
    sets = np.maximum(shapes["loop"], 1)
    private = shapes["private"] > 0
    around = sets * weights + np.where(private, sets, 1) * activations
    own = np.where(private, around, weights + activations)
    return np.where(shapes["loop"] > 0, around, np.inf), np.where(shapes["loop"] > 0, own, np.inf)
