"""Linear layers: y[M, N] = x[M, K] W[N, K]^T."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final

import numpy as np

from ...resource import matrix, vector
from ..device import Device
from ..formats import kernel_type
from .base import (
    MICROSECOND,
    Array,
    Family,
    Features,
    FittedParameter,
    Implementation,
    Parameters,
    Shapes,
    best_column,
    from_memory,
    smooth_max,
    take_columns,
    uncached_fraction,
)

# Tiles that libraries of matrix multiplication have in common, and parts that K is cut into.
_TILES: Final = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (128, 192), (128, 256), (256, 128),
                 (256, 256))  # fmt: skip
_SPLITS: Final = (1, 2, 4, 8)
_LAYOUTS: Final = np.array([(*tile, split) for tile in _TILES for split in _SPLITS], dtype=np.float32).T[:, None, :]
# Those, of powers of two, with the 64 rows that a warp group's instruction takes (wgmma, since Hopper) or four warps
# share, and with sums that leave half of a core's registers to the rest. K is cut further, as there are fewer of them.
_COARSE_LAYOUTS: Final = np.array(
    [(m, n, split) for m, n, *_ in _TILES if m >= 64 and m * n <= 128 * 256 and n != 192 for split in (*_SPLITS, 16)],
    dtype=np.float32,
).T[:, None, :]
# Tiles that CUTLASS kernels of fp8 choose by rows and columns alone: up to how many, the tile, and how many of them,
# one below the other, start together as a cluster. As vLLM's and SGLang's are on Hopper (sm90_fp8_config_default and
# others); where tensor cores take fewer rows; on Ada, vLLM's (cutlass_gemm_sm89_fp8_dispatch) and SGLang's
# (sm89_fp8_dispatch_shape); and on Blackwell (cutlass_gemm_sm100_fp8_dispatch), where two cores share a tile.
_ANY_SIZE: Final = np.inf
_TILES_BY_SIZE: Final = {
    "fixed": ((64, _ANY_SIZE, 64, 64, 1), (128, _ANY_SIZE, 64, 128, 1), (_ANY_SIZE, _ANY_SIZE, 128, 128, 2)),
    "narrow": (
        (16, _ANY_SIZE, 16, 64, 1),
        (64, _ANY_SIZE, 64, 64, 1),
        (128, _ANY_SIZE, 64, 128, 1),
        (_ANY_SIZE, _ANY_SIZE, 128, 128, 1),
    ),
    "sm89": (
        (16, 8192, 16, 64, 1),
        (16, 24576, 16, 128, 1),
        (16, _ANY_SIZE, 32, 64, 1),
        (32, 8192, 32, 64, 1),
        (32, 16384, 32, 128, 1),
        (32, _ANY_SIZE, 32, 64, 1),
        (64, 8192, 64, 64, 1),
        (64, 16384, 64, 128, 1),
        (64, _ANY_SIZE, 64, 64, 1),
        (128, 8192, 64, 128, 1),
        (128, 16384, 128, 128, 1),
        (128, _ANY_SIZE, 128, 64, 1),
        (256, 4096, 64, 128, 1),
        (256, _ANY_SIZE, 128, 128, 1),
        (_ANY_SIZE, 4096, 128, 128, 1),
        (_ANY_SIZE, 8192, 256, 128, 1),
        (_ANY_SIZE, _ANY_SIZE, 128, 128, 1),
    ),
    "rowwise": (
        (16, 8192, 16, 64, 1),
        (16, 16384, 32, 64, 1),
        (16, _ANY_SIZE, 16, 64, 1),
        (64, 16384, 32, 64, 1),
        (64, _ANY_SIZE, 16, 64, 1),
        (128, 16384, 64, 64, 1),
        (128, _ANY_SIZE, 32, 64, 1),
        (256, 8192, 128, 64, 1),
        (256, 16384, 64, 128, 1),
        (256, _ANY_SIZE, 128, 64, 1),
        (_ANY_SIZE, _ANY_SIZE, 128, 128, 1),
    ),
    "sm100": (
        (16, _ANY_SIZE, 32, 128, 1),
        (64, _ANY_SIZE, 64, 128, 1),
        (256, _ANY_SIZE, 64, 128, 2),
        (_ANY_SIZE, _ANY_SIZE, 128, 128, 2),
    ),
}
# Tiles among which DeepGEMM chooses on Hopper, in its order (get_layout_candidates of SM90ArchSpec), the rows of a
# matrix instruction, what its caches move in a cycle, and the least tile of those that spill unless they share loads.
_DEEPGEMM_TILES: Final = np.array(
    [(m, n) for m in (64, 128, 16, 32, 256) for n in (*range(16, 129, 16), 144, 160, 192) if m <= 128 or n <= 128],
    dtype=np.float32,
).T[:, None, :]
_INSTRUCTION: Final = 64
_L1_BYTES: Final = 128  # a core
_L2_BYTES: Final = (64, 8e6 / 1.3e3)  # a core, and all
_MIN_SPILLING_TILE: Final = 128 * 192
_INT8_RATIO: Final = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
}  # how many times a type's the rate in int8 is, on whole cores
_HALF_THROTTLED_S: Final = (
    1e-3  # of a kernel, at which the clock has fallen half as far as a power limit makes it fall [s]
)
# Rows up to which TensorRT-LLM multiplies on vector units (SMALL_M_FAST_PATH of its plugins), up to which it does so
# with narrow weights where that is faster (checkTactic of its weight-only ones), and columns of a block of threads.
_FEW_ROWS: Final = 4
# Least time of torch's operators that quantize to fp8, of 8.3 to 10.1 us on Hopper and Blackwell (aiconfigurator's
# computescale and scale_matrix of TensorRT-LLM 1.3, profiles/operators/*.trtllm.yaml).
_TORCH_QUANTIZE_US: Final = 9.0
BATCHED: Final = "bmm"  # kernels of products that are batched, such as by head
_TRIED_ROWS: Final = 15
_GEMV_COLUMNS: Final = 8


class Gemm(Family):
    """A core takes a tile of the output and a part of K. The fastest layout is taken.

    variants  "persistent": cores stay busy, whatever the number of tiles; "waves": tiles run in whole rounds; "gemv":
              few rows have a kernel of their own, which multiplies on vector units; "fixed", "narrow", "sm89",
              "rowwise", "sm100": rows and columns decide the tile, and K is not cut; "fewest": the tile that moves the
              fewest bytes in all waves; "coarse": no tile has fewer than 64 rows
    """

    name = "gemm"
    columns = ("M", "N", "K")
    optional: ClassVar = {"loop": 0.0, "private": 0.0, "batch": 1.0, "prequantized": 0.0}
    groups = ("N", "K", "batch")
    models_half_rate = True
    stable_tiling = True
    power_limited = True
    variants = (
        "persistent", "waves", "persistent gemv", "waves gemv", "waves fixed", "persistent narrow", "waves sm89",
        "waves rowwise", "waves sm100", "waves fewest", "persistent coarse", "waves coarse",
    )  # fmt: skip
    parameters = (
        FittedParameter(name="alpha", prior=0.84, low=0.05, high=1, meaning="part of the peak that is reached"),
        FittedParameter(
            name="beta", prior=0.8, low=0.1, high=1, meaning="part of the memory bandwidth that is reached"
        ),
        FittedParameter(name="start_us", prior=2.7, low=0.3, high=60, meaning="launch and first tile [us]"),
        FittedParameter(name="sharp", prior=3.4, low=1, high=12, meaning="power of the smooth maximum"),
        FittedParameter(
            name="kappa",
            prior=1.1,
            low=0.3,
            high=30,
            restart_factor=0.4,
            meaning="L2 path that a core can use, x cores",
        ),
        FittedParameter(
            name="lambda", prior=3.5, low=0.7, high=15, meaning="bandwidth of the L2 cache / of the memory"
        ),
        FittedParameter(name="split_us", prior=2.5, low=0.3, high=100, meaning="adding up parts of K [us]"),
        FittedParameter(name="omega", prior=1.4, low=1, high=4, meaning="cost of a byte written / of one read"),
        FittedParameter(name="eta", prior=0.5, low=0.15, high=2, meaning="part of the L2 cache that is of use"),
        FittedParameter(
            name="eta_x", prior=0.5, low=0.05, high=4, default=0, meaning="part of it that activations stay in"
        ),
        FittedParameter(
            name="width", prior=1.2, low=0.05, high=2, default=0.6, meaning="how gradually loops outgrow it"
        ),
        FittedParameter(
            name="first_us", prior=1, low=0, high=30, default=0, meaning="memory's first bytes [us]", linear=True
        ),
        FittedParameter(
            name="hot", prior=0.1, low=0, high=1, default=0, meaning="longer at a power limit", linear=True
        ),
        FittedParameter(name="tau_us", prior=0.3, low=0.01, high=8, meaning="start and end of a tile [us]"),
        FittedParameter(name="round", prior=0.4, low=0, high=1, meaning="whole waves rather than parts", linear=True),
        FittedParameter(
            name="quantize_us", prior=3, low=0.05, high=60, meaning="launch of the quantization before [us]"
        ),
        FittedParameter(name="passes", prior=1.5, low=0.1, high=40, meaning="quantization, in times its bytes need"),
        FittedParameter(
            name="row_us", prior=0.1, low=0.001, high=8, default=0, meaning="a row of it, on one core [us]"
        ),
        FittedParameter(
            name="step_ns", prior=100, low=1, high=2000, meaning="128 elements of K [ns]", variant_word="fewest"
        ),
        FittedParameter(
            name="spill", prior=3, low=1, high=12, meaning="time of tiles that spill, x", variant_word="fewest"
        ),
        FittedParameter(
            name="gemv_us", prior=5, low=0.3, high=60, meaning="launch and first bytes [us]", variant_word="gemv"
        ),
        FittedParameter(
            name="gemv_alpha", prior=0.7, low=0.02, high=8, meaning="of the fp32 vector peak", variant_word="gemv"
        ),
        FittedParameter(
            name="gemv_beta", prior=0.85, low=0.1, high=1, meaning="of the memory bandwidth", variant_word="gemv"
        ),
        FittedParameter(
            name="gemv_step_ns", prior=0.4, low=0.001, high=5, meaning="an element of K [ns]", variant_word="gemv"
        ),
        FittedParameter(
            name="gemv_tau_us",
            prior=0.1,
            low=0.001,
            high=5,
            meaning="start and end of blocks [us]",
            variant_word="gemv",
        ),
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:
        return self.features_of(shapes, device, implementation, (variant,))[variant]

    def features_of(
        self, shapes: Shapes, device: Device, implementation: Implementation, variants: Collection[str]
    ) -> dict[str, Features]:
        """Features of several variants; those with the same tiles share theirs."""
        tiled: dict[str, Features] = {}
        features: dict[str, Features] = {}
        for variant in variants:
            way, _, word = (variant or self.variants[0]).partition(" ")
            tiles = word.removesuffix("gemv")
            if tiles not in tiled:
                tiled[tiles] = self._tiled(shapes, device, implementation, tiles)
            kind = kernel_type(implementation.dtype)
            vector_features = _gemv(shapes, device, kind.weight < kind.activation) if word == "gemv" else None
            features[variant] = {**tiled[tiles], "waves": way == "waves", "gemv": vector_features}
        return features

    def _tiled(self, shapes: Shapes, device: Device, implementation: Implementation, word: str) -> Features:
        """Features of all variants whose tiles are those of `word`."""
        kind = kernel_type(implementation.dtype)
        m, n, k = (np.asarray(shapes[c], dtype=np.float32)[:, None] for c in self.columns)
        batch = np.asarray(shapes["batch"], dtype=np.float32)[:, None]
        full_rate, reach = _reach(device, kind.arithmetic)
        tile_m, tile_n, split, cluster = _layouts(m, n, k, device.cores, word)
        tiles = np.ceil(m / (tile_m * cluster)) * cluster * np.ceil(n / tile_n) * split * batch
        part = 64 * np.ceil(k / (64 * split))
        whole_rows = word == "fewest" and device.has_matrix_units(kind.arithmetic)
        rows = np.maximum(tile_m, _INSTRUCTION) if whole_rows else tile_m
        weights, inputs, written = _bytes(shapes, kind.weight, kind.activation)
        lasting, reuse = _reuse(shapes, weights, inputs + written)
        parted = np.where(split > 1, 8 * split * m * n * batch, 0)
        return {
            "ops": (2 * m * n * k * batch)[:, 0].astype(float),
            "tiles": tiles / device.cores,
            "tile_ops": 2 * rows * tile_n * part * device.cores / full_rate,
            "l2": (tiles * part * (tile_m * kind.activation + tile_n * kind.weight) + parted) / device.bandwidth,
            "split": split > 1,
            "weights": weights / device.bandwidth,
            "inputs": inputs / device.bandwidth,
            "written": written / device.bandwidth,
            "lasting": lasting,
            "reuse": reuse,
            "ideal": ((2 * m * n * k * batch) / full_rate).astype(np.float32),
            "reach": reach,
            "quantizes": 1.0 - np.asarray(shapes.get("prequantized", np.zeros(len(m))), dtype=float),
            "quantized": (batch * m * k)[:, 0] * (2 + kind.activation) / device.bandwidth if kind.quantizes else None,
            "rows": (batch * m)[:, 0] / device.cores,
            "cache": device.l2,
            "single": None
            if device.has_matrix_units(kind.arithmetic)
            else 2 * np.where(m <= _FEW_ROWS, np.minimum(tile_m, m), tile_m) * tile_n * part * device.cores / full_rate,
            "steps": np.ceil(tiles / device.cores) * np.ceil(k / 128) if word == "fewest" else None,
            "spills": (tile_m * tile_n >= _MIN_SPILLING_TILE) & (tiles <= device.cores) if word == "fewest" else None,
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        tiled_s, moved, uncached = self._on_tiles(p, features)
        return self._quantized_s(p, features, uncached, self._few_rows_s(p, features, moved, tiled_s))

    def _on_tiles(self, p: Parameters, features: Features) -> tuple[Array, Array, Array]:
        """Time on tiles [s]; time of the bytes at the memory bandwidth [s]; uncached share of activations."""
        f = features
        tiles = f["tiles"]
        uncached = uncached_fraction(f["reuse"], f["cache"], p["eta_x"] or p["eta"], p["width"])
        new = uncached_fraction(f["lasting"], f["cache"], p["eta"], p["width"])
        moved = f["weights"] * new + (f["inputs"] + p["omega"] * f["written"]) * uncached
        memory = (moved / p["beta"] + new * (p["first_us"] * MICROSECOND)).astype(np.float32)[:, None]
        min_s = f["ideal"] / p["alpha"]
        slow = np.maximum((1 + p["hot"] * min_s / (min_s + _HALF_THROTTLED_S)) / p["alpha"], 1 / f["reach"])
        if f["waves"]:
            rounds = p["round"] * np.ceil(tiles) + (1 - p["round"]) * np.maximum(tiles, 1)
            compute = rounds * (f["tile_ops"] * slow + p["tau_us"] * MICROSECOND)
        else:
            compute = f["ideal"] * slow + np.maximum(tiles, 1) * (p["tau_us"] * MICROSECOND)
        if f["steps"] is not None:
            compute = compute * np.where(f["spills"], p["spill"], 1)
            compute = np.maximum(compute, f["steps"] * (1e-3 * p["step_ns"] * MICROSECOND))
        wide = np.minimum(1, p["kappa"] * tiles)
        l2 = (f["l2"] + (p["omega"] * f["written"]).astype(np.float32)[:, None]) / (p["lambda"] * wide)
        extra = f["split"] * np.float32(p["split_us"] * MICROSECOND)
        squares = compute * compute, memory * memory, l2 * l2
        rough = np.sqrt(np.sqrt(sum(s * s for s in squares))) + extra  # smooth_max(4, ...), in single precision
        place = best_column(rough)
        terms = [np.maximum(take_columns(term, place).astype(float), 1e-12) for term in (compute, memory, l2)]
        time = smooth_max(p["sharp"], *terms) + take_columns(extra, place)
        return time + p["start_us"] * MICROSECOND, moved, uncached

    def _few_rows_s(self, p: Parameters, features: Features, moved: Array, tiled_s: Array) -> Array:
        """Time with few rows on vector units, if the variant has a kernel for them. [s]"""
        if features["gemv"] is None:
            return tiled_s
        is_few_rows, tried, vectors, steps, blocks = features["gemv"].T
        steps = steps * p["gemv_step_ns"] * 1e-3 * MICROSECOND
        terms = [vectors / p["gemv_alpha"], moved / p["gemv_beta"], steps]
        own_s = (p["gemv_us"] + p["gemv_tau_us"] * blocks) * MICROSECOND + smooth_max(p["sharp"], *terms)
        return np.where(is_few_rows, own_s, np.where(tried, np.minimum(own_s, tiled_s), tiled_s))

    def _quantized_s(self, p: Parameters, features: Features, uncached: Array, time_s: Array) -> Array:
        """Time with the quantization of activations before, if there is one. [s]"""
        f = features
        if f["quantized"] is not None:
            time_s = time_s + (f["quantizes"] * p["quantize_us"] + p["row_us"] * f["rows"]) * MICROSECOND
            cached = (1 - uncached) * (p["eta_x"] > 0)
            time_s = time_s + p["passes"] * f["quantized"] * (1 - cached + cached / p["lambda"])
        return np.asarray(time_s, dtype=float)

    def seconds_elsewhere(self, p: Parameters, features: Features) -> Array:
        """Takes at most the time with tiles for few rows, since the fraction of their peak that vector units reach
        differs by generation. On devices without matrix units, few rows do not fill a tile.
        """
        if features["single"] is not None:
            features = {**features, "tile_ops": features["single"]}
        tiled_s, moved, uncached = self._on_tiles(p, features)
        few_rows_s = self._few_rows_s(p, features, moved, tiled_s)
        return self._quantized_s(p, features, uncached, np.minimum(few_rows_s, tiled_s))

    def fixed_seconds(self, p: Parameters, features: Features) -> Array | float:
        start: Array | float = p["start_us"] + p["tau_us"]
        if features["gemv"] is not None:
            is_few_rows, tried, *_ = features["gemv"].T
            gemv_us = p["gemv_us"] + p["gemv_tau_us"]
            start = np.where(is_few_rows, gemv_us, np.where(tried, np.minimum(gemv_us, start), start))
        quantizes = features["quantizes"] if features["quantized"] is not None else 0.0
        return (start + quantizes * p["quantize_us"]) * MICROSECOND

    def default_parameters(self, implementation: Implementation, device: Device) -> dict[str, float]:
        """Tables of TensorRT-LLM include launches of torch's operators, which quantize before each product."""
        quantized_by_torch = implementation.library == "trtllm" and implementation.dtype in ("fp8", "fp8_static")
        return super().default_parameters(implementation, device) | (
            {"quantize_us": _TORCH_QUANTIZE_US} if quantized_by_torch else {}
        )

    def covers_variant(self, variant: str, shapes: Shapes) -> bool:
        return "gemv" not in variant.split() or bool(np.any(np.asarray(shapes["M"]) <= _FEW_ROWS))

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        kind = kernel_type(implementation.dtype)
        weights, inputs, written = _bytes(shapes, kind.weight, kind.activation)
        ops = 2.0 * shapes["M"] * shapes["N"] * shapes["K"] * shapes["batch"]
        sets = np.maximum(shapes["loop"], 1)
        around = sets * weights + np.where(shapes["private"] > 0, sets, 1) * (inputs + written)
        around = np.where(shapes["loop"] > 0, around, weights + inputs + written)
        moved = from_memory(around, shapes["loop"], device.l2) / sets
        return np.asarray(np.maximum(ops / device.limit(kind.arithmetic), moved / device.bandwidth))

    def fittable(self, shapes: Shapes) -> Array:
        return np.asarray(((shapes["N"] >= 256) & (shapes["K"] >= 256)) | (np.asarray(shapes["batch"]) > 1))

    def is_common(self, implementation: Implementation) -> bool:
        return implementation.kernel != BATCHED


def _bytes(shapes: Shapes, weight: float, activation: float) -> tuple[Array, Array, Array]:
    m, n, k, batch = (np.asarray(shapes[c], dtype=float) for c in ("M", "N", "K", "batch"))
    return batch * n * k * weight, batch * m * k * activation, 2.0 * batch * m * n


def _reach(device: Device, dtype: str) -> tuple[float, float]:
    """The rate of a GPU's cores [OP/s], and the part of it that matrix units reach when they accumulate in fp32: half
    on GeForce cards (GA102 whitepaper V2.1, table 9; Ada's V2.02, table 2), as their int8 rate shows. The same holds
    for fp8 without block scales, even on cards that reach the full rate with them (the RTX 50 series).
    """
    rates, peak = device.hardware.rates, device.peak(dtype)
    if (
        device.kind != "gpu"
        or dtype not in _INT8_RATIO
        or any(matrix(one) not in rates for one in (dtype, "fp16", "int8"))
    ):
        return peak, 1.0
    parts = {
        name: min(1.0, rates[matrix(name)] * _INT8_RATIO[name] / rates[matrix("int8")]) for name in (dtype, "fp16")
    }
    return peak / parts[dtype], min(parts.values())


def _layouts(m: Array, n: Array, k: Array, cores: float, word: str) -> tuple[Array, Array, Array, Array]:
    """Rows and columns of tiles, parts of K, and tiles in a cluster: of each row its own, or all that are tried."""
    one = np.ones_like(m)
    if word in _TILES_BY_SIZE:
        tile = np.empty((3, *m.shape), dtype=np.float32)
        for rows, columns, *sizes in reversed(_TILES_BY_SIZE[word]):
            tile[:, (m <= rows) & (n <= columns)] = np.array(sizes, dtype=np.float32)[:, None]
        return tile[0], tile[1], one, tile[2]
    if word == "fewest":
        place = _fewest_cycles(m, n, k, cores)
        return _DEEPGEMM_TILES[0, 0, place], _DEEPGEMM_TILES[1, 0, place], one, one
    return (*(_COARSE_LAYOUTS if word == "coarse" else _LAYOUTS), np.ones(1, dtype=np.float32))


def _fewest_cycles(m: Array, n: Array, k: Array, cores: float) -> Array:
    """The index of DeepGEMM's choice (get_layout_info of SM90ArchSpec). With more than one wave, pairs share loads."""
    tile_m, tile_n = _DEEPGEMM_TILES
    waves = np.ceil(np.ceil(m / tile_m) * np.ceil(n / tile_n) / cores)
    shared = np.where(waves > 1, np.maximum(tile_m, tile_n) / 2, 0)
    loaded, stored = tile_m + tile_n, 2 * tile_m * tile_n
    l1 = (k * (loaded + np.maximum(tile_m, _INSTRUCTION) + tile_n) + 2 * stored) / (_L1_BYTES * cores)
    l2 = (k * (loaded - shared) + stored) / min(_L2_BYTES[0] * cores, _L2_BYTES[1])
    cycles = waves * np.maximum(l1, l2) * np.where(waves > 1, 1 + 1e-4, 1).astype(np.float32)  # alone if it is as fast
    return best_column(np.where((tile_m < _INSTRUCTION) & (m > tile_m), np.inf, cycles))


def _gemv(shapes: Shapes, device: Device, narrow: bool) -> Array:
    """Columns of a GEMV: is it used, is it tried; time of vector units at their peak [s]; K; blocks per core."""
    m, n, k, batch = (np.asarray(shapes[c], dtype=float) for c in ("M", "N", "K", "batch"))
    vectors = 2 * m * n * k * batch / device.hardware.rates[vector("fp32")]
    tried = (m <= _TRIED_ROWS) & narrow
    return np.stack([m <= _FEW_ROWS, tried, vectors, k, np.ceil(n / _GEMV_COLUMNS) * batch / device.cores], axis=1)


def _reuse(shapes: Shapes, weights: Array, activations: Array) -> tuple[Array, Array]:
    """Bytes touched until a loop uses a weight, and an activation, again; inf without a loop. [B]"""
    sets = np.maximum(shapes["loop"], 1)
    private = shapes["private"] > 0
    around = sets * weights + np.where(private, sets, 1) * activations
    activation_reuse = np.where(private, around, weights + activations)
    return np.where(shapes["loop"] > 0, around, np.inf), np.where(shapes["loop"] > 0, activation_reuse, np.inf)
